// The inner loops of Hopper's forward kernels keep wgmma's descriptors in uniform registers. Where ptxas does
// not see that all lanes of a warp agree on them, it moves each from an ordinary register in front of its
// product (R2UR), up to a hundred times a step; nothing is wrong then but 5 % of the time. A few characters
// of the templates decide (docs/performance/wgmma/even-shares.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/wisdom.hpp"
#include "generator/render.hpp"
#include "runtime/compile.hpp"
#include "runtime/disassemble.hpp"
#include "tests/support/compile_pool.hpp"
#include "tests/support/found_or_skip.hpp"

using namespace flashjit;

namespace {

// What a step of the shipped kernels has, is 0 to 10; what ptxas makes of lanes that may differ is 16 to 104.
constexpr int kMostMoves = 15;

struct Kernel {
  Problem problem;
  std::string schedule;
};

// The shipped ones, and even shares of tiles that the model picks them for.
std::vector<Kernel> kernels() {
  const Problem full64{.head_dim = 64}, causal64{.head_dim = 64, .causal = true};
  const Problem full128{.head_dim = 128}, causal128{.head_dim = 128, .causal = true};
  const Problem full256{.head_dim = 256}, causal256{.head_dim = 256, .causal = true};
  std::vector<Kernel> all{
      {full64, "wgmma:m128n128s4p3"},         {causal64, "wgmma:m256n64s4qr0p3"},
      {causal64, "wgmma:m128n128s4p3"},       {full128, "wgmma:m192n64s4qr0p3"},
      {full128, "wgmma:m64n64s3pp0p3"},       {causal128, "wgmma:m128n128s2p3"},
      {full256, "wgmma:m128n64s2qr0o2re0p3"}, {causal256, "wgmma:m128n64s2qr0o2re0p3"},
      {full64, "wgmma:m192n128s4qr0p3"},
  };
  for (const autotune::WisdomRecord& record : autotune::shipped_wisdom().records()) {
    const std::string schedule = to_string(record.schedule);
    if (record.problem.pass != Pass::forward || !schedule.starts_with("wgmma:")) continue;
    const auto same = [&](const Kernel& one) {
      return one.problem == record.problem && one.schedule == schedule;
    };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back({record.problem, schedule});
  }
  return all;
}

struct Loop {
  std::size_t first, last;  // lines
  int products = 0, moves = 0;
  [[nodiscard]] std::size_t length() const { return last - first; }
};

// Branches back, and what lies between.
std::vector<Loop> loops_of(const std::string& sass) {
  constexpr std::string_view kBranch = "BRA `(";
  std::vector<std::string> lines;
  std::map<std::string, std::size_t> labels;
  std::vector<Loop> loops;
  std::istringstream text(sass);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(".L_")) labels[line.substr(0, line.find(':'))] = lines.size();
    if (const std::size_t branch = line.find(kBranch); branch != std::string::npos) {
      const std::size_t name = branch + kBranch.size();
      const auto label = labels.find(line.substr(name, line.find(')', name) - name));
      if (label != labels.end()) loops.push_back({label->second, lines.size()});
    }
    lines.push_back(std::move(line));
  }
  for (Loop& loop : loops) {
    for (std::size_t i = loop.first; i < loop.last; ++i) {
      loop.products += lines[i].find("HGMMA") != std::string::npos ? 1 : 0;
      loop.moves += lines[i].find("R2UR") != std::string::npos ? 1 : 0;
    }
  }
  return loops;
}

// Loops lie inside or beside one another. What begins in the midst of one and ends behind it is a branch back
// from a wait's second try, which ptxas puts behind all else.
bool begins_inside(const Loop& one, const Loop& other) {
  return one.first > other.first && one.first < other.last && one.last > other.last;
}

// Those that are a step: of as many products, and not much longer than another. (One around all of a tile may
// have as many, since ptxas puts parts of it elsewhere.)
std::vector<Loop> steps_of(std::vector<Loop> loops, int products) {
  std::erase_if(loops, [&](const Loop& loop) { return loop.products != products; });
  const std::vector<Loop> all = loops;
  std::erase_if(loops, [&](const Loop& loop) {
    return std::any_of(all.begin(), all.end(), [&](const Loop& other) { return begins_inside(loop, other); });
  });
  const auto shorter = [](const Loop& a, const Loop& b) { return a.length() < b.length(); };
  const auto shortest = std::min_element(loops.begin(), loops.end(), shorter);
  const std::size_t most = shortest == loops.end() ? 0 : 2 * shortest->length();
  std::erase_if(loops, [&](const Loop& loop) { return loop.length() > most; });
  return loops;
}

// Looks at every so many of the kernels.
void check_steps(std::size_t first, std::size_t every) {
  const auto nvrtc = test::found_or_skip([] { return runtime::load_nvrtc(); });
  const std::filesystem::path nvdisasm = test::found_or_skip([] { return runtime::find_nvdisasm(); });
  const Target target = target_of("sm_90a");
  test::CompilePool pool(2);  // an NVRTC at work holds a few hundred MB
  const std::vector<Kernel> all = kernels();
  CHECK(all.size() > 20);
  struct Compiled {
    Kernel kernel;
    test::CompilePool::Result result;
  };
  std::vector<Compiled> compiled;
  for (std::size_t i = first; i < all.size(); i += every) {
    const auto& [problem, schedule] = all[i];
    compiled.push_back(
        {all[i], pool.submit(schedule + describe(problem), nvrtc,
                             render(problem, parse_schedule(schedule), target).front(), target)});
  }
  for (const Compiled& one : compiled) {
    const Kernel& kernel = one.kernel;
    CAPTURE(describe(kernel.problem));
    CAPTURE(kernel.schedule);
    const auto& cubin = one.result.get()->cubin;
    const std::string sass = runtime::disassemble(
        std::string_view(reinterpret_cast<const char*>(cubin.data()), cubin.size()), nvdisasm);
    const int products =
        (kernel.problem.head_dim + 15) / 16 + get(parse_schedule(kernel.schedule), "tile_n") / 16;
    const std::vector<Loop> steps = steps_of(loops_of(sass), products);
    CHECK(!steps.empty());
    for (const Loop& step : steps) CHECK(step.moves <= kMostMoves);
  }
}

}  // namespace

TEST_CASE(
    "steps of Hopper's forward kernels take descriptors from uniform registers: a third of the kernels") {
  check_steps(std::random_device{}() % 3, 3);
}

// A minute of two cores: uniform_loops_test --no-skip.
TEST_CASE("steps of Hopper's forward kernels take descriptors from uniform registers" * doctest::skip()) {
  check_steps(0, 1);
}

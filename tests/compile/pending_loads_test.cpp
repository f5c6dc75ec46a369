// Fp32 kernels of Hopper whose CTAs share out columns: a warp adds up what its twin in the other CTA sent,
// and gives the place back by an arrival, which does not wait for loads. In PTX all sums come before it. But
// ptxas may move them below, which no emulator of PTX sees.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "generator/render.hpp"
#include "runtime/compile.hpp"
#include "runtime/disassemble.hpp"
#include "tests/support/compile_pool.hpp"
#include "tests/support/found_or_skip.hpp"

using namespace flashjit;

namespace {

struct Kernel {
  Problem problem;
  std::string schedule;
};

const std::vector<Kernel> kKernels{
    {{.dtype = DType::fp32, .head_dim = 128, .causal = true}, "wgmma:m128n32s1qr2op0pp0ov0p0sp2pt1"},
    {{.dtype = DType::fp32, .head_dim = 128}, "wgmma:m64n64s1qr2op0pp0ov0p0sp2pt1"},
    {{.dtype = DType::fp32, .head_dim = 256, .causal = true}, "wgmma:m128n64s1qr2op0pp0ov0p0sp2pt1"},
    {{.dtype = DType::fp32, .head_dim = 96}, "wgmma:m128n80s1qr2op0pp0ov0p0sp2pt1"},
};

std::vector<int> registers_of(const std::string& line) {
  static const std::regex kRegister(R"(\bR(\d+))");
  std::vector<int> found;
  for (std::sregex_iterator at(line.begin(), line.end(), kRegister), end; at != end; ++at)
    found.push_back(std::stoi((*at)[1]));
  return found;
}
// Whether the first operand is a register, and so what the instruction writes.
bool writes_register(const std::string& line) {
  static const std::regex kWrites(R"(\*/\s+(@!?U?P\w+\s+)?[A-Z][\w.]*\s+R\d)");
  return std::regex_search(line, kWrites);
}

// Looks at arrivals at other CTAs' barriers: whatever was loaded before has been used before. Returns how
// many loads came before the last of them.
int check_arrivals(const std::string& sass) {
  std::map<int, int> pending;  // which load a register waits for
  int loads = 0, loads_before = 0;
  std::istringstream text(sass);
  for (std::string line; std::getline(text, line);) {
    const std::vector<int> named = registers_of(line);
    if (line.find("LDS") != std::string::npos) {
      const int count = line.find("LDS.128") != std::string::npos  ? 4
                        : line.find("LDS.64") != std::string::npos ? 2
                                                                   : 1;
      ++loads;
      for (int k = 0; k < count; ++k) pending[named.at(0) + k] = loads;
      continue;
    }
    for (std::size_t k = writes_register(line) ? 1 : 0; k < named.size(); ++k) {
      const auto found = pending.find(named[k]);
      if (found == pending.end()) continue;
      std::erase_if(pending, [load = found->second](const auto& one) { return one.second == load; });
    }
    if (line.find("SYNCS.ARRIVE") != std::string::npos && line.find(".RED") != std::string::npos) {
      loads_before = loads;
      CHECK_MESSAGE(pending.empty(), line);
    }
  }
  return loads_before;
}

}  // namespace

TEST_CASE("no load from shared memory is pending at an arrival that gives its place back") {
  const auto nvrtc = test::found_or_skip([] { return runtime::load_nvrtc(); });
  const std::filesystem::path nvdisasm = test::found_or_skip([] { return runtime::find_nvdisasm(); });
  const Target target = target_of("sm_90a");
  test::CompilePool pool(2);  // an NVRTC at work holds a few hundred MB
  std::vector<test::CompilePool::Result> compiled;
  for (const auto& [problem, schedule] : kKernels) {
    compiled.push_back(pool.submit(schedule + describe(problem), nvrtc,
                                   render(problem, parse_schedule(schedule), target).front(), target));
  }
  for (std::size_t k = 0; k < compiled.size(); ++k) {
    CAPTURE(kKernels[k].schedule);
    const auto& cubin = compiled[k].get()->cubin;
    const int loads = check_arrivals(runtime::disassemble(
        std::string_view(reinterpret_cast<const char*>(cubin.data()), cubin.size()), nvdisasm));
    CHECK(loads >= get(parse_schedule(kKernels[k].schedule), "tile_n") / 8);  // four scores each
  }
}

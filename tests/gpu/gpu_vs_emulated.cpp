// Runs the same kernels on a GPU and on the emulator, with the same inputs, and compares what comes out.
//
//   gpu_vs_emulated [--device cuda] [--cases 200] [--seed S] [--threads T]
//
// First every scalar instruction of the emulator's table on random words, bit for bit. Then random problems,
// schedules and shapes: the two results may differ by what the acceptance rule allows either of them; how
// many elements are equal to the bit is counted beside it. Prints one line of JSON; exits 0 when all agree, 1
// when not, 2 for a wrong call, 77 without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/engine_state.hpp"
#include "autotune/numeric.hpp"
#include "autotune/tune.hpp"
#include "tests/gpu/instructions.hpp"
#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"

namespace {

using namespace flashjit;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Options {
  std::string device = "cuda";
  int cases = 200;
  std::uint64_t seed = 1;
  int threads = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) throw Error(ErrorCode::invalid_argument, flag + " has no value");
    const std::string value = argv[i + 1];
    const auto number = [&] {
      const bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
      if (!digits || value.size() > 9)
        throw Error(ErrorCode::invalid_argument, fmt::format("{} is \"{}\", may be a number", flag, value));
      return std::stoi(value);
    };
    if (flag == "--device")
      options.device = value;
    else if (flag == "--cases")
      options.cases = number();
    else if (flag == "--seed")
      options.seed = static_cast<std::uint64_t>(number());
    else if (flag == "--threads")
      options.threads = number();
    else
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("flag \"{}\", may be --device, --cases, --seed or --threads", flag));
  }
  if (options.threads == 0)
    options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return options;
}

// One problem with a schedule, sizes and inputs, drawn by a seed of its own.
struct Case {
  Problem problem;
  Shape shape;
  Schedule schedule;
  autotune::InputKind inputs = autotune::InputKind::normal;
  std::uint64_t seed = 0;
};

std::string describe(const Case& one) {
  return fmt::format("{} {} {} {} seed {}", flashjit::describe(one.problem), flashjit::describe(one.shape),
                     to_string(one.schedule), autotune::to_string(one.inputs), one.seed);
}

Case draw(const Target& target, std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ull + 1);
  const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)) + 1; };
  constexpr std::array kTypes = {DType::bf16, DType::fp16, DType::fp32};
  for (;;) {
    Case one{.seed = seed};
    one.problem.dtype = kTypes[random() % kTypes.size()];
    one.problem.head_dim = random() % 2 == 0 ? 64 << random() % 3 : 8 * up_to(32);
    if (random() % 4 == 0) one.problem.head_dim_v = 8 * up_to(32);
    one.problem.causal = random() % 2 == 0;
    one.problem.lse = random() % 4 != 0;
    const int heads_kv = up_to(2);
    one.shape = {.batch = up_to(2), .heads = heads_kv * up_to(3), .heads_kv = heads_kv};
    one.shape.seqlen_q = up_to(300);
    one.shape.seqlen_k = up_to(300);
    one.inputs = autotune::kInputKinds[random() % autotune::kInputKinds.size()];
    const auto family = static_cast<Family>(random() % 3);
    std::vector<Schedule> schedules;
    for (const autotune::Candidate& candidate : autotune::search_space(one.problem, target)) {
      if (candidate.pruned.empty() && family_of(candidate.schedule) == family)
        schedules.push_back(candidate.schedule);
    }
    if (schedules.empty()) continue;  // a family that does not serve the problem
    one.schedule = schedules[random() % schedules.size()];
    return one;
  }
}

struct Output {
  autotune::HostTensor o;
  std::vector<float> lse;
};

Output forward(Engine& engine, const Case& one, const autotune::Inputs& inputs) {
  const Problem& problem = one.problem;
  const Shape& shape = one.shape;
  const Plan plan = engine.plan(problem, shape, {.schedule = to_string(one.schedule)});
  Output out{
      .o = autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, problem.value_dim())};
  if (problem.lse) out.lse.resize(static_cast<std::size_t>(shape.batch) * shape.heads * shape.seqlen_q);
  const auto upload = [&](const std::vector<std::byte>& bytes) {
    Buffer buffer = engine.allocate(bytes.size());
    engine.upload(buffer, bytes.data(), bytes.size());
    return buffer;
  };
  const Buffer q = upload(inputs.q.bytes), k = upload(inputs.k.bytes), v = upload(inputs.v.bytes),
               o = upload(out.o.bytes), lse = engine.allocate(out.lse.size() * sizeof(float));
  plan.forward({.q = q.data(),
                .k = k.data(),
                .v = v.data(),
                .o = o.data(),
                .lse = problem.lse ? static_cast<float*>(lse.data()) : nullptr});
  engine.download(out.o.bytes.data(), o, out.o.bytes.size());
  if (problem.lse) engine.download(out.lse.data(), lse, out.lse.size() * sizeof(float));
  return out;
}

// What all threads report to, by family.
class Results {
 public:
  void add(const Case& one, double ratio, double lse_error, std::int64_t elements, std::int64_t equal,
           const std::string& wrong) {
    const std::lock_guard lock(mutex_);
    Tally& tally = tallies_[to_string(family_of(one.schedule))];
    ++tally.cases;
    tally.elements += elements;
    tally.equal += equal;
    tally.worst = std::max(tally.worst, ratio);
    tally.worst_lse = std::max(tally.worst_lse, lse_error);
    if (!wrong.empty()) {
      failures_.push_back(describe(one) + ": " + wrong);
      std::fprintf(stderr, "WRONG %s\n", failures_.back().c_str());
    }
  }
  [[nodiscard]] nlohmann::ordered_json to_json() const {
    nlohmann::ordered_json json;
    for (const auto& [name, tally] : tallies_) {
      json[name] = {{"cases", tally.cases},
                    {"worst_difference_of_allowed", tally.worst},
                    {"worst_lse_difference", tally.worst_lse},
                    {"elements", tally.elements},
                    {"equal_bits", tally.equal}};
    }
    return json;
  }
  [[nodiscard]] const std::vector<std::string>& failures() const { return failures_; }

 private:
  struct Tally {
    int cases = 0;
    std::int64_t elements = 0, equal = 0;
    double worst = 0, worst_lse = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Tally> tallies_;
  std::vector<std::string> failures_;
};

void compare(Engine& gpu, Engine& emulated, const Case& one, Results& results) {
  try {
    const autotune::Inputs inputs = autotune::make_inputs(one.problem, one.shape, one.inputs, one.seed);
    const Output a = forward(gpu, one, inputs);
    const Output b = forward(emulated, one, inputs);
    const autotune::HostAttention attention = autotune::host_attention(one.problem, one.shape, inputs);
    const std::vector<autotune::RowBlock> rows = autotune::all_rows(one.shape);
    const autotune::HostResult exact = autotune::reference(attention, rows, 1);
    const autotune::HostResult plain = autotune::plain(attention, rows, 1);
    std::string wrong;
    double allowed = 0;
    for (const Output* output : {&a, &b}) {
      const autotune::Check check = autotune::acceptable(
          attention, rows, exact, plain,
          {.o = output->o.bytes.data(), .lse = one.problem.lse ? output->lse.data() : nullptr});
      allowed = check.allowed;
      if (!check.ok) wrong += fmt::format("{}: {} ", output == &a ? "GPU" : "emulator", check.message);
    }
    const auto bytes = static_cast<std::size_t>(size_of(one.problem.dtype));
    std::int64_t equal = 0;
    double difference = 0, lse_difference = 0;
    for (std::size_t at = 0; at < a.o.bytes.size(); at += bytes) {
      if (std::memcmp(&a.o.bytes[at], &b.o.bytes[at], bytes) == 0) {
        ++equal;
        continue;
      }
      const double x =
          autotune::load_element(one.problem.dtype, a.o.bytes.data(), static_cast<std::int64_t>(at / bytes));
      const double y =
          autotune::load_element(one.problem.dtype, b.o.bytes.data(), static_cast<std::int64_t>(at / bytes));
      difference = std::max(difference, std::isnan(x - y) ? kInfinity : std::abs(x - y));
    }
    for (std::size_t k = 0; k < a.lse.size(); ++k) {
      if (std::bit_cast<std::uint32_t>(a.lse[k]) == std::bit_cast<std::uint32_t>(b.lse[k])) continue;
      const double scale = std::max(1.0, std::abs(static_cast<double>(a.lse[k])));
      const double off = std::abs(static_cast<double>(a.lse[k]) - static_cast<double>(b.lse[k])) / scale;
      lse_difference = std::max(lse_difference, std::isnan(off) ? kInfinity : off);
    }
    if (difference > allowed)
      wrong += fmt::format("GPU and emulator differ by {:.3e}, {:.3e} allowed ", difference, allowed);
    if (lse_difference > autotune::Check{}.lse_allowed)
      wrong += fmt::format("their LSE by {:.3e} ", lse_difference);
    results.add(one, allowed > 0 ? difference / allowed : 0, lse_difference,
                static_cast<std::int64_t>(a.o.bytes.size() / bytes), equal, wrong);
  } catch (const Error& error) {
    results.add(one, 0, 0, 0, 0, error.what());
  }
}

// Cases run side by side, so each launch runs on one thread.
Engine emulated_engine(const std::string& arch) {
  return test::open_emulated_engine({.arch = arch, .threads = 1}).engine;
}

int run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  Engine gpu(EngineOptions{.device = options.device, .use_cache = false});
  const std::string arch = gpu.target().arch;
  Engine for_instructions = emulated_engine(arch);
  std::vector<Engine> emulators;  // one a thread: a device runs one launch at a time
  for (int i = 0; i < options.threads; ++i) emulators.push_back(emulated_engine(arch));

  Results results;
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) {
    threads.emplace_back([&, i] {
      Engine& emulated = emulators[static_cast<std::size_t>(i)];
      for (int at = next++; at < options.cases; at = next++)
        compare(gpu, emulated, draw(gpu.target(), options.seed + static_cast<std::uint64_t>(at)), results);
    });
  }
  const test::InstructionReport instructions = test::compare_instructions(
      EngineAccess::state(gpu).device(), EngineAccess::state(for_instructions).device(), options.seed);
  for (std::thread& thread : threads) thread.join();

  const bool agree =
      results.failures().empty() && instructions.different.empty() && instructions.instructions > 0;
  const nlohmann::ordered_json json{
      {"agree", agree},
      {"device", gpu.device_description()},
      {"arch", arch},
      {"seed", options.seed},
      {"cases", options.cases},
      {"families", results.to_json()},
      {"failed", results.failures()},
      {"instructions", instructions.instructions},
      {"instruction_values", instructions.values},
      {"instructions_different", instructions.different},
      {"instructions_not_run", instructions.not_run},
      {"approximate", instructions.approximate},
      {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()}};
  std::printf("%s\n", json.dump().c_str());
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const Error& error) {
    const bool missing = error.code() == ErrorCode::not_found;
    std::fprintf(stderr, "%s%s\n", missing ? "SKIPPED: " : "gpu_vs_emulated: ", error.what());
    return missing ? 77 : 2;
  }
}

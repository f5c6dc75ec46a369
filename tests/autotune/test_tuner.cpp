// The whole tuning run on a fake device with a fake clock.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <stdexcept>

#include "autotune/tuner.hpp"
#include "tests/autotune/fake_kernels.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace flashjit::test;

namespace {

const Problem kProblem{.dtype = DType::fp16, .head_dim = 32, .causal = true};
const Shape kShape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 40, .seqlen_k = 72};

struct Bench {
  FakeKernels kernels{kProblem};
  std::unique_ptr<Runner> runner;
  std::vector<std::string> lines;

  TuneResult tune(Tuning effort = Tuning::quick, std::chrono::milliseconds budget = {}) {
    if (!runner) {
      runner = make_local_runner(kernels.device, kProblem, kShape, kernels.build(),
                                 {.threads = 2, .clock = &kernels.clock});
    }
    TuneOptions options;
    options.effort = effort;
    options.budget = budget;
    options.clock = &kernels.clock;
    options.progress = [this](std::string_view line) { lines.emplace_back(line); };
    return autotune::tune(kProblem, kShape, kernels.device.target(), *runner, options);
  }
};

// The n best predictions that a quick run compiles, by name.
std::vector<std::string> tried(const TuneResult& result) {
  std::vector<std::string> names;
  for (const Candidate& candidate : result.candidates) {
    if (candidate.measured_ms > 0) names.push_back(to_string(candidate.schedule));
  }
  return names;
}

const Candidate& find(const TuneResult& result, const std::string& name) {
  const auto found =
      std::find_if(result.candidates.begin(), result.candidates.end(),
                   [&](const Candidate& candidate) { return to_string(candidate.schedule) == name; });
  REQUIRE(found != result.candidates.end());
  return *found;
}

}  // namespace

TEST_CASE("the fastest wins, every timing is kept, and the run keeps to its budget") {
  Bench probe;
  const auto names = tried(probe.tune());
  REQUIRE(names.size() >= 8);

  Bench bench;
  bench.kernels.milliseconds[names[5]] = 1.0;
  bench.kernels.milliseconds[names[3]] = 1.1;
  bench.kernels.milliseconds[names[6]] = 9.0;
  const TuneResult result = bench.tune();
  CHECK(to_string(result.best) == names[5]);
  CHECK(result.best_ms == doctest::Approx(1.0));
  CHECK(find(result, names[3]).measured_ms == doctest::Approx(1.1));
  CHECK(result.timed == static_cast<int>(names.size()));
  CHECK(result.seconds < 5);
  CHECK_FALSE(result.out_of_time);
  CHECK(find(result, names[6]).pruned.find("hopeless") ==
        0);  // slower than all before it: one launch was enough
  CHECK(find(result, names[3]).pruned.empty());
  CHECK(bench.lines.front().find("tuning forward fp16 d32 causal") == 0);
  CHECK(bench.lines.back().find(names[5]) != std::string::npos);
}

TEST_CASE("short kernels are timed though a pair of marks takes longer than they do") {
  Bench bench;
  bench.kernels.usual = 0.1;
  bench.kernels.device.marks_take = 0.12;
  const auto names = tried(bench.tune());
  bench.kernels.milliseconds[names[5]] = 0.08;
  bench.kernels.milliseconds[names[6]] = 0.3;
  const TuneResult result = bench.tune();
  CHECK(to_string(result.best) == names[5]);
  for (const std::string& name : names)
    CHECK(find(result, name).pruned.starts_with("hopeless") == (name == names[6]));
}

TEST_CASE("one launch of a second and more says what it takes") {
  FakeKernels kernels(kProblem);
  kernels.usual = 4700;
  const auto kernel = kernels.device.load({.entry = "long"});
  const Timing timing = measure(
      kernels.device, nullptr, [&](std::int64_t) { kernels.device.launch(*kernel, {}, {}, nullptr); }, {},
      kernels.clock);
  CHECK(timing.median_ms == doctest::Approx(4700));
  CHECK(timing.launches == 1);
  CHECK_FALSE(timing.gave_up);
}

TEST_CASE("what spills, fails to compile, computes wrong or dies is out, with the reason") {
  Bench probe;
  const auto names = tried(probe.tune());
  Bench bench;
  for (int i = 0; i < 6; ++i) bench.kernels.milliseconds[names[i]] = 0.1;  // each would win
  bench.kernels.spills[names[0]] = 64;
  bench.kernels.refuses = [&](const std::string& name) { return name == names[1]; };
  bench.kernels.bugs[names[2]] = Bug::no_mask;
  bench.kernels.bugs[names[3]] = Bug::leaves_poison;
  bench.kernels.bugs[names[4]] = Bug::writes_past_end;
  bench.kernels.bugs[names[5]] = Bug::dies;
  const TuneResult result = bench.tune();
  CHECK(find(result, names[0]).pruned == "spills 64 bytes of registers");
  CHECK(find(result, names[1]).pruned == "ptxas says no");
  CHECK(find(result, names[2]).pruned.find("wrong result: output differs") == 0);
  CHECK(find(result, names[3]).pruned.find("wrong result") == 0);
  CHECK(find(result, names[4]).pruned.find("wrong result: it writes past the end") == 0);
  CHECK(find(result, names[5]).pruned == "illegal address");
  CHECK(find(result, to_string(result.best)).pruned.empty());
  CHECK(result.best_ms == doctest::Approx(2.0));
}

TEST_CASE("within the tie band the order of the space decides, so that noise does not") {
  Bench probe;
  const auto names = tried(probe.tune());
  std::string winner;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    Bench bench;
    std::mt19937_64 random(seed);
    bench.kernels.noise = [&] { return 0.995 + 0.01 * static_cast<double>(random() % 1000) / 1000; };
    for (const int i : {2, 4, 5}) bench.kernels.milliseconds[names[i]] = 1.0;
    const std::string best = to_string(bench.tune(Tuning::full).best);
    if (winner.empty()) winner = best;
    CHECK(best == winner);
  }
}

TEST_CASE("one that the power limit slows when launches follow each other loses to one that needs less") {
  Bench probe;
  const auto names = tried(probe.tune());
  for (const Tuning effort : {Tuning::quick, Tuning::full}) {
    Bench bench;
    double slept = -1, busy = 0;  // since the last pause
    bench.kernels.device.milliseconds = [&](const std::string& entry, const runtime::Launch&) {
      if (bench.kernels.clock.slept != slept) busy = 0;
      slept = bench.kernels.clock.slept;
      const double ms = entry == names[3] ? (busy < 60 ? 1.0 : 1.05) : entry == names[6] ? 1.01 : 2.0;
      busy += ms;
      return ms;
    };
    const TuneResult result = bench.tune(effort);
    CHECK(to_string(result.best) == names[6]);
    CHECK(result.best_ms == doctest::Approx(1.01));
    CHECK(find(result, names[3]).measured_ms == doctest::Approx(1.0));
    CHECK(find(result, names[3]).busy_ms == doctest::Approx(1.05));
  }
}

TEST_CASE("what the power's control takes off the clock now and then does not decide") {
  Bench probe;
  const auto names = tried(probe.tune());
  for (const Tuning effort : {Tuning::quick, Tuning::full}) {
    for (const double phase : {0.0, 90.0, 180.0, 270.0}) {
      Bench bench;
      double slept = -1, busy = 0;  // since the last pause
      bench.kernels.device.milliseconds = [&](const std::string& entry, const runtime::Launch&) {
        if (bench.kernels.clock.slept != slept) busy = 0;
        slept = bench.kernels.clock.slept;
        const bool slowed = busy > 60 && std::fmod(busy + phase, 360.0) < 100;
        const double ms = (entry == names[3] ? 1.0 : entry == names[6] ? 1.03 : 2.0) * (slowed ? 1.12 : 1.0);
        busy += ms;
        return ms;
      };
      CHECK(to_string(bench.tune(effort).best) == names[3]);
    }
  }
}

TEST_CASE("a fast and steady one beats one that is 5 % slower however the noise falls") {
  Bench probe;
  const auto names = tried(probe.tune());
  for (unsigned seed = 1; seed <= 5; ++seed) {
    Bench bench;
    std::mt19937_64 random(seed);
    bench.kernels.noise = [&] { return 0.97 + 0.06 * static_cast<double>(random() % 1000) / 1000; };
    bench.kernels.milliseconds[names[6]] = 1.0;
    bench.kernels.milliseconds[names[1]] = 1.05;
    CHECK(to_string(bench.tune(Tuning::full).best) == names[6]);
  }
}

TEST_CASE("heat that slows whoever runs later does not decide the final") {
  Bench probe;
  const auto names = tried(probe.tune());
  Bench bench;
  // Launches get slower and slower, by a quarter in all: in order of appearance the first would win.
  int launches = 0;
  bench.kernels.noise = [&] { return 1 + 0.25 * std::min(1.0, ++launches / 4000.0); };
  for (const auto& name : names) bench.kernels.milliseconds[name] = 1.1;
  bench.kernels.milliseconds[names.back()] = 1.0;
  CHECK(to_string(bench.tune(Tuning::full).best) == names.back());
}

TEST_CASE("a short budget still gives a verified winner, and says that time ran out") {
  Bench bench;
  bench.kernels.usual = 40;
  const TuneResult result = bench.tune(Tuning::quick, std::chrono::milliseconds(1500));
  CHECK(result.out_of_time);
  CHECK(result.timed >= 1);
  CHECK(result.seconds < 2.5);
  bool skipped = false;
  for (const Candidate& candidate : result.candidates)
    skipped |= candidate.pruned == "there was no time left to try it";
  CHECK(skipped);
}

TEST_CASE("a full run tries more than a quick one and stays within 30 seconds") {
  Bench quick, full;
  const TuneResult one = quick.tune(Tuning::quick);
  const TuneResult two = full.tune(Tuning::full);
  CHECK(two.timed > 2 * one.timed);
  CHECK(two.seconds < 30);
}

TEST_CASE("a single survivor is checked but never timed") {
  Bench probe;
  const auto names = tried(probe.tune());
  Bench bench;
  bench.kernels.refuses = [&](const std::string& name) { return name != names[4]; };
  const TuneResult result = bench.tune();
  CHECK(to_string(result.best) == names[4]);
  CHECK(result.timed == 0);
  CHECK(bench.kernels.device.launches().size() == 3);  // one for each exam
  CHECK(bench.kernels.clock.slept == 0);
}

TEST_CASE("where every candidate spills, the fastest of them is chosen all the same") {
  Bench probe;
  const auto names = tried(probe.tune());
  Bench bench;
  for (const std::string& name : names) bench.kernels.spills[name] = 12;
  bench.kernels.milliseconds[names[3]] = 0.1;
  CHECK(to_string(bench.tune().best) == names[3]);
}

TEST_CASE("when nothing survives, the first reason is in the error") {
  Bench bench;
  bench.kernels.refuses = [](const std::string&) { return true; };
  try {
    bench.tune();
    FAIL("it should have thrown");
  } catch (const Error& error) {
    CHECK(error.message().find("ptxas says no") != std::string::npos);
  }
  const Problem backward{.pass = Pass::backward};
  CHECK_THROWS_AS(tune(backward, kShape, target_of("sm_80"), *bench.runner, {}), Error);
}

TEST_CASE("what a caller's message handler throws ends the run, and nothing else") {
  Bench bench;
  static_cast<void>(bench.tune());  // makes the runner
  TuneOptions options;
  options.clock = &bench.kernels.clock;
  options.progress = [](std::string_view) { throw std::runtime_error("no more of this"); };
  CHECK_THROWS_WITH(autotune::tune(kProblem, kShape, bench.kernels.device.target(), *bench.runner, options),
                    "no more of this");
}

TEST_CASE("a family that does not serve the problem is named, with the reason") {
  const Problem fp32{.dtype = DType::fp32};
  Bench bench;
  static_cast<void>(bench.tune());
  TuneOptions options;
  options.family = "wgmma";
  try {
    static_cast<void>(autotune::tune(fp32, kShape, target_of("sm_90a"), *bench.runner, options));
    FAIL("it was tuned");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unsupported);
    CHECK(error.message().find("wgmma: ") != std::string::npos);
    CHECK(error.message().find("simt: ") == std::string::npos);
  }
}

TEST_CASE("launches of many milliseconds leave the final its rounds with pauses") {
  Bench probe;
  const auto names = tried(probe.tune(Tuning::full));
  Bench bench;
  std::map<std::string, int> paused;  // stretches of each kernel
  double slept = -1;
  bench.kernels.device.milliseconds = [&](const std::string& entry, const runtime::Launch&) {
    if (bench.kernels.clock.slept != slept) ++paused[entry];
    slept = bench.kernels.clock.slept;
    return entry == names[3] ? 40.0 : 42.0;
  };
  const TuneResult result = bench.tune(Tuning::full);
  CHECK(to_string(result.best) == names[3]);
  CHECK(paused[names[3]] >= 4);  // what a third of the budget holds, and one of the screening
}

TEST_CASE("buffers rotate through more than L2 holds, and fewer where memory is short") {
  FakeKernels kernels(kProblem, 40 << 20);
  kernels.computes = false;
  const auto runner =
      make_local_runner(kernels.device, kProblem, kShape, kernels.build(), {.clock = &kernels.clock});
  CHECK(kernels.device.bytes_alive() >= 2u * 40 * 1024 * 1024);
  const Timing timing =
      runner->time(parse_schedule("mma:m64n32w4s2"), {.pause_seconds = 0.5, .seconds = 0.1});
  CHECK(timing.median_ms == doctest::Approx(2.0));
  CHECK(timing.spread == doctest::Approx(0.0));
  CHECK(timing.samples == 50);
  CHECK(kernels.clock.slept == doctest::Approx(0.5));

  FakeKernels small(kProblem, 40 << 20);
  small.device.memory = 1 << 20;
  const auto frugal =
      make_local_runner(small.device, kProblem, kShape, small.build(), {.clock = &small.clock});
  CHECK(small.device.bytes_alive() < 1 << 20);
}

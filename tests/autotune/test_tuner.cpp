// The whole tuning run on a fake device with a fake clock.
#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/autotune/tuner_bench.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace flashjit::test;

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

TEST_CASE("the longer a launch is beside the time asked for, the fewer samples it has") {
  const MeasureOptions options{.pause_seconds = 0, .seconds = 0.01};
  for (const auto& [milliseconds, samples] :
       {std::pair{0.1, 50}, {2.0, 5}, {20.0, 5}, {30.0, 3}, {50.0, 2}, {100.0, 1}, {900.0, 1}}) {
    FakeKernels kernels(kProblem);
    kernels.usual = milliseconds;
    const auto kernel = kernels.device.load({.entry = "long"});
    const double began = kernels.clock.seconds();
    const Timing timing = measure(
        kernels.device, nullptr, [&](std::int64_t) { kernels.device.launch(*kernel, {}, {}, nullptr); },
        options, kernels.clock);
    CHECK(timing.samples == samples);
    CHECK(timing.median_ms == doctest::Approx(milliseconds));
    if (milliseconds >= 2)
      CHECK(expected_seconds(options, milliseconds) == doctest::Approx(kernels.clock.seconds() - began));
  }
}

TEST_CASE("launches of up to a second are tuned within the budget, and something is learnt") {
  for (const Tuning effort : {Tuning::quick, Tuning::full}) {
    const double budget = effort == Tuning::quick ? 5 : 30;
    for (const double milliseconds : {50, 100, 200, 400, 700, 900}) {
      CAPTURE(milliseconds);
      Bench bench;
      bench.kernels.usual = milliseconds;
      const TuneResult result = bench.tune(effort);
      CHECK(result.seconds < 1.2 * budget);
      if (effort == Tuning::full || milliseconds <= 400) CHECK_FALSE(result.learnt_nothing());
    }
  }
}

TEST_CASE("a short kernel is given up for what it takes, not for one row of launches that were held up") {
  for (const int held_up : {11, 1000}) {  // two launches and a row of nine
    FakeKernels kernels(kProblem);
    const auto kernel = kernels.device.load({.entry = "short"});
    const Timing timing = measure(
        kernels.device, nullptr,
        [&](std::int64_t launch) {
          kernels.usual = launch < held_up ? 0.024 : 0.014;
          kernels.device.launch(*kernel, {}, {}, nullptr);
        },
        {.seconds = 0.01, .give_up_above_ms = 0.02}, kernels.clock);
    CHECK(timing.gave_up == (held_up == 1000));
    CHECK(timing.median_ms == doctest::Approx(held_up == 1000 ? 0.024 : 0.014));
  }
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

TEST_CASE("those that hang until a deadline cost the others none of the budget") {
  Bench probe;
  const TuneResult all = probe.tune();
  const auto names = tried(all);
  for (const int hanging : {1, 3}) {
    Bench bench;
    for (int i = 0; i < hanging; ++i) {
      bench.kernels.milliseconds[names[i]] = 20'000;
      bench.kernels.bugs[names[i]] = Bug::dies;
    }
    const TuneResult result = bench.tune();
    CHECK(result.timed == all.timed - hanging);
    CHECK_FALSE(result.out_of_time);
  }
}

TEST_CASE("what opens the runner is no part of the budget") {
  struct SlowToOpen : Runner {
    SlowToOpen(Runner& runner, FakeClock& its) : inner(runner), clock(its) {}
    void prepare() override { clock.sleep(11); }
    void build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
               const BuildDone& done) override {
      inner.build(schedules, time, done);
    }
    Check verify(const Schedule& schedule) override { return inner.verify(schedule); }
    Timing time(const Schedule& schedule, const MeasureOptions& options) override {
      return inner.time(schedule, options);
    }
    Runner& inner;
    FakeClock& clock;
  };
  Bench probe;
  const int timed = probe.tune().timed;
  FakeKernels kernels(kProblem);
  const auto runner = make_local_runner(kernels.device, kProblem, kShape, kernels.build(),
                                        {.threads = 2, .clock = &kernels.clock});
  SlowToOpen slow(*runner, kernels.clock);
  const TuneResult result = tune(kProblem, kShape, kernels.device.target(), slow, {.clock = &kernels.clock});
  CHECK(result.timed == timed);
  CHECK_FALSE(result.out_of_time);
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

TEST_CASE(
    "where no candidate is to blame, the error is the runner's; what a cache has is tuned all the same") {
  Bench probe;
  const auto names = tried(probe.tune());
  const Error nowhere(ErrorCode::not_found, "NVRTC was not found", "get it");
  Bench bench;
  bench.kernels.refuses = [&](const std::string&) -> bool { throw Error(nowhere); };
  try {
    bench.tune();
    FAIL("it should have thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::not_found);
    CHECK(error.what() == std::string(nowhere.what()));
  }
  Bench warm;
  warm.kernels.refuses = [&](const std::string& name) {
    return name != names[4] ? throw Error(nowhere) : false;
  };
  CHECK(to_string(warm.tune().best) == names[4]);
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

TEST_CASE("what it throws while a candidate is built does so, too") {
  Bench bench;
  bench.kernels.refuses = [](const std::string&) -> bool { throw std::runtime_error("the disk is full"); };
  CHECK_THROWS_WITH(bench.tune(), "the disk is full");
}

TEST_CASE("a family that does not serve the problem is named, with the reason") {
  const Problem narrow{.dtype = DType::fp32, .head_dim = 16};
  Bench bench;
  static_cast<void>(bench.tune());
  TuneOptions options;
  options.family = "wgmma";
  try {
    static_cast<void>(autotune::tune(narrow, kShape, target_of("sm_90a"), *bench.runner, options));
    FAIL("it was tuned");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unsupported);
    CHECK(error.message().find("wgmma: ") != std::string::npos);
    CHECK(error.message().find("simt: ") == std::string::npos);
  }
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

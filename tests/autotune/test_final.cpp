// The final of a tuning run: who is in it, and who wins.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "autotune/wisdom.hpp"
#include "tests/autotune/tuner_bench.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace flashjit::test;

namespace {

// Tells a schedule's launches before the final: those of its check, and of its first timing after a rest.
class Screening {
 public:
  bool has(const std::string& schedule, const FakeClock& clock) {
    std::set<double>& rests = rests_[schedule];
    rests.insert(clock.slept);
    return rests.size() <= 2;
  }

 private:
  std::map<std::string, std::set<double>> rests_;  // how long all had slept when it ran
};

}  // namespace

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

TEST_CASE("rounds in which the power's control slowed a finalist do not decide either") {
  Bench probe;
  const auto names = tried(probe.tune());
  Bench bench;
  double slept = -1;
  int rests = 0;  // of names[3]: before its screening and each round with a pause
  bench.kernels.device.milliseconds = [&](const std::string& entry, const runtime::Launch&) {
    if (entry == names[3] && bench.kernels.clock.slept != slept) ++rests;
    slept = bench.kernels.clock.slept;
    if (entry == names[3]) return rests > 2 ? 1.12 : 1.0;
    return entry == names[6] ? 1.03 : 2.0;
  };
  const TuneResult result = bench.tune();
  CHECK(rests > 3);
  CHECK(to_string(result.best) == names[3]);
  CHECK(result.best_ms == doctest::Approx(1.0));
}

TEST_CASE("the incumbent is tried whatever the model says, and stays if it is as fast") {
  Bench bench;
  const std::vector<Candidate> ranked = ranked_space(kProblem, kShape, bench.kernels.device.target());
  const auto last = std::find_if(ranked.rbegin(), ranked.rend(),
                                 [](const Candidate& candidate) { return candidate.pruned.empty(); });
  REQUIRE(last != ranked.rend());
  bench.incumbent = last->schedule;
  bench.kernels.milliseconds[to_string(last->schedule)] = 2.0;
  SUBCASE("all are as fast") {}
  SUBCASE("all others are faster, by less than a final repeats to") {
    bench.kernels.usual = 1.985;
  }
  SUBCASE("it is not known to the space") {
    bench.incumbent = parse_schedule("mma:m16n16w1s4");
    REQUIRE(std::none_of(ranked.begin(), ranked.end(),
                         [&](const Candidate& candidate) { return candidate.schedule == *bench.incumbent; }));
  }
  const TuneResult result = bench.tune();
  CHECK(result.best == *bench.incumbent);
  CHECK(find(result, to_string(*bench.incumbent)).measured_ms == doctest::Approx(2.0));
  CHECK(result.best_ms == doctest::Approx(2.0));
}

TEST_CASE("an incumbent that is slower, spills or dies has no privilege") {
  Bench probe;
  const auto names = tried(probe.tune());
  const std::string& incumbent = names.back();
  Bench bench;
  bench.incumbent = parse_schedule(incumbent);
  bench.kernels.milliseconds[names[2]] = 1.0;
  SUBCASE("slower by two per cent") {
    bench.kernels.milliseconds[incumbent] = 1.02;
  }
  SUBCASE("slower, and not known to the space") {
    bench.incumbent = parse_schedule("mma:m16n16w1s4");
    bench.kernels.milliseconds["mma:m16n16w1s4"] = 1.02;
  }
  SUBCASE("out of the final's reach") {
    bench.kernels.milliseconds[incumbent] = 1.3;
  }
  SUBCASE("spills") {
    bench.kernels.spills[incumbent] = 8;
  }
  SUBCASE("dies") {
    bench.kernels.bugs[incumbent] = Bug::dies;
  }
  CHECK(to_string(bench.tune().best) == names[2]);
}

TEST_CASE("a finalist that dies leaves no timing behind, by which a plan could take it") {
  Bench probe;
  const auto names = tried(probe.tune());
  Bench bench;
  Screening screening;
  bench.kernels.device.milliseconds = [&](const std::string& entry, const runtime::Launch&) {
    const bool screened = screening.has(entry, bench.kernels.clock);
    if (entry == names[3] && !screened) throw Error(ErrorCode::device, "illegal address");
    return entry == names[3] ? 1.0 : 1.1;
  };
  const TuneResult result = bench.tune();
  CHECK(find(result, names[3]).pruned == "illegal address");
  CHECK(find(result, names[3]).in_final_ms == 0);
  CHECK(find(result, names[2]).in_final_ms == doctest::Approx(1.1));
  const WisdomRecord record =
      record_of(kProblem, kShape, bench.kernels.device.target(), "a GPU", result, Tuning::quick, {});
  CHECK(std::none_of(record.timings.begin(), record.timings.end(),
                     [&](const auto& timing) { return timing.first == names[3]; }));
}

TEST_CASE("what was timed once counts for wisdom as it would have been in the final") {
  Bench probe;
  const auto names = tried(probe.tune());
  Bench bench;
  Screening screening;
  bench.kernels.device.milliseconds = [&](const std::string& entry, const runtime::Launch&) {
    const bool screened = screening.has(entry, bench.kernels.clock);
    return (entry == names[3] || entry == names[6] ? 1.0 : 1.2) * (screened ? 1.05 : 1);
  };
  const TuneResult result = bench.tune();
  REQUIRE(find(result, names[3]).busy_ms > 0);
  REQUIRE(find(result, names[2]).busy_ms == 0);
  CHECK(find(result, names[3]).measured_ms == doctest::Approx(1.0));
  CHECK(find(result, names[3]).in_final_ms == doctest::Approx(1.0));
  CHECK(find(result, names[2]).measured_ms == doctest::Approx(1.26));
  CHECK(find(result, names[2]).in_final_ms == doctest::Approx(1.2));
}

#include "autotune/final.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "flashjit/error.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kFinalist = 1.15;  // times the best so far: still in reach, given heat and noise
// Within this factor the fixed order of the space decides, so that the choice is stable. A wider band would
// give away what tuning is for.
constexpr double kTie = 1.005;
// Within this factor the incumbent stays: the results of a final repeat to 1 % in the mean
// (docs/performance/wgmma/tile-ends.md).
constexpr double kStays = 1.01;
constexpr double kShare = 0.3;  // of the budget, at most: a short budget must leave time to try candidates

// At the power limit, the GPU's control now and then takes a tenth off the clock for a quarter of a second,
// whatever runs. The fastest round lies between two such dips, and repeats where the median of rounds does
// not.
double fastest(const std::vector<double>& rounds) {
  return *std::min_element(rounds.begin(), rounds.end());
}

}  // namespace

double Final::seconds(const Effort& effort, double launch_ms) {
  const double paused = expected_seconds({.pause_seconds = effort.pause, .seconds = effort.round}, launch_ms);
  const double busy = expected_seconds({.pause_seconds = 0, .seconds = effort.busy_round}, launch_ms);
  const double each = effort.rounds * paused + (effort.busy_rounds + 1) * busy;
  return std::min(static_cast<double>(effort.finalists) * each, kShare * effort.budget);
}

// Chooses the incumbent and the best few, but not many that are alike.
void Final::choose(std::vector<Candidate*>& candidates, Candidate* incumbent) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate* a, const Candidate* b) { return a->measured_ms < b->measured_ms; });
  Alike alike(effort_.finalists_alike);
  const auto in_reach = [&](const Candidate* candidate) {
    return candidate->measured_ms <= kFinalist * candidates.front()->measured_ms;
  };
  if (std::find(candidates.begin(), candidates.end(), incumbent) != candidates.end() && in_reach(incumbent) &&
      alike.admits(incumbent->schedule)) {
    finalists_.push_back(incumbent);
  }
  for (Candidate* candidate : candidates) {
    if (finalists_.size() == effort_.finalists || !in_reach(candidate)) break;
    if (candidate != incumbent && alike.admits(candidate->schedule)) finalists_.push_back(candidate);
  }
}

// Times each finalist once, if there is time for that and for what comes after, which takes `then` seconds. A
// launch of many milliseconds makes a round longer than was planned, so a round is expected to take what the
// finalists' launches took before, and as long as the last round of its kind.
bool Final::round(double pause, double seconds, double then, Times& times, double& took) {
  const MeasureOptions options{.pause_seconds = pause, .seconds = seconds};
  double expected = 0;
  for (const Candidate* candidate : finalists_) expected += expected_seconds(options, candidate->measured_ms);
  took = std::max(took, expected);
  if (watch_.left() < took + then) {
    out_of_time_ = true;
    return false;
  }
  const double start = watch_.elapsed();
  for (std::size_t i = 0; i < finalists_.size(); ++i) {
    Candidate& candidate = *finalists_[i];
    if (!candidate.pruned.empty()) continue;
    const bool works = attempt(candidate, [&] {
      const Timing timing = runner_.time(candidate.schedule, options);
      times[i].push_back(timing.median_ms);
      if (pause == 0) return;
      candidate.spread = timing.spread;
      candidate.clock_mhz = timing.clock_mhz;
    });
    if (!works) candidate.measured_ms = 0;  // its time before it failed is no reason to choose it
  }
  took = std::max(took, watch_.elapsed() - start);
  return true;
}

// Finalists take turns, so that heat hits all alike: in rounds with a pause before each timing, and in long
// ones without pauses, where the power limit favours those that need less power.
void Final::rounds() {
  Times paused(finalists_.size()), busy(finalists_.size());
  double paused_took = 0, busy_took = 0;
  for (int i = 0; i < effort_.rounds; ++i) {
    say_(fmt::format("final of {}, round {} of {}", finalists_.size(), i + 1, effort_.rounds), false);
    if (!round(effort_.pause, effort_.round, 0, paused, paused_took)) break;
    if (i > 0) continue;
    Times heated(finalists_.size());  // the first stretch follows a rest: its time says nothing
    const double paused_to_come = (effort_.rounds - 1) * paused_took;
    for (int k = 0; k <= effort_.busy_rounds; ++k) {
      if (!round(0, effort_.busy_round, paused_to_come, k == 0 ? heated : busy, busy_took)) break;
    }
  }
  double lifts = 0, again = 0;
  for (std::size_t i = 0; i < finalists_.size(); ++i) {
    Candidate& finalist = *finalists_[i];
    if (!busy[i].empty()) finalist.busy_ms = fastest(busy[i]);
    if (paused[i].empty() || !finalist.pruned.empty()) continue;
    lifts += fastest(paused[i]) / finalist.measured_ms;
    ++again;
    finalist.measured_ms = fastest(paused[i]);
  }
  if (again > 0) lift_ = lifts / again;
  std::erase_if(finalists_, [](const Candidate* candidate) { return !candidate->pruned.empty(); });
}

// The fastest of several rounds after a rest is 2 to 8 % less than the single timing that others had. To
// whoever compares them (wisdom/carry_over.cpp), finalists would seem faster by that much, so the others'
// timings are scaled.
void Final::place_others(const std::vector<Candidate*>& candidates) {
  for (Candidate* candidate : candidates) {
    const bool finalist = std::find(finalists_.begin(), finalists_.end(), candidate) != finalists_.end();
    candidate->in_final_ms = candidate->measured_ms * (finalist ? 1 : lift_);
  }
}

// Decides by the geometric mean of both kinds of rounds: some callers rest between launches, and some never
// do.
const Candidate& Final::winner(std::vector<Candidate*> candidates, const std::map<std::string, int>& places,
                               Candidate* incumbent) {
  choose(candidates, incumbent);
  if (finalists_.size() > 1) rounds();
  place_others(candidates);
  if (finalists_.empty()) {
    const auto next_best = std::find_if(candidates.begin(), candidates.end(),
                                        [](const Candidate* candidate) { return candidate->pruned.empty(); });
    if (next_best != candidates.end()) finalists_.push_back(*next_best);
  }
  if (finalists_.empty()) throw Error(ErrorCode::device, "every finalist failed when it was timed again");
  const bool busy =
      std::all_of(finalists_.begin(), finalists_.end(), [](const Candidate* c) { return c->busy_ms > 0; });
  const auto time_of = [&](const Candidate& c) {
    return busy ? std::sqrt(c.measured_ms * c.busy_ms) : c.measured_ms;
  };
  double best = INFINITY;
  for (const Candidate* candidate : finalists_) best = std::min(best, time_of(*candidate));
  if (finalists_.front() == incumbent && time_of(*incumbent) <= kStays * best) return *incumbent;
  const auto tied = [&](const Candidate& candidate) { return time_of(candidate) <= kTie * best; };
  const Candidate* chosen = finalists_.front();
  for (const Candidate* candidate : finalists_) {
    if (!tied(*candidate)) continue;
    if (!tied(*chosen) ||
        places.at(to_string(candidate->schedule)) < places.at(to_string(chosen->schedule))) {
      chosen = candidate;
    }
  }
  return *chosen;
}

}  // namespace flashjit::autotune

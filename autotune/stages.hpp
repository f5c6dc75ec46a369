// What the stages of a tuning run share: what an effort may spend, the time that is left, and how a candidate
// that fails is pruned.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "autotune/runner.hpp"
#include "autotune/tune.hpp"
#include "flashjit/error.hpp"

namespace flashjit::autotune {

// What an effort may spend, in seconds and candidates.
struct Effort {
  double budget;
  std::size_t compile_most;  // candidates, best predictions first
  int alike_most;            // of these, how many may share tiles and warps
  double compile_share;      // of the budget
  double pause;              // before each timing
  double screen;             // of launches, per candidate
  std::size_t finalists;
  int finalists_alike;  // of these, how many may share tiles and warps
  int rounds;           // of the final
  double round;         // of launches, per finalist and round
  int busy_rounds;      // of the final, without pauses; and one more before them, to heat up
  double busy_round;
};

inline constexpr Effort kQuick{5, 16, 2, 0.45, 0.02, 0.01, 3, 2, 3, 0.02, 3, 0.05};
inline constexpr Effort kFull{30, 96, 8, 0.4, 0.1, 0.02, 5, 3, 7, 0.05, 7, 0.06};

// The budget of a run, which begins when the Stopwatch is made.
class Stopwatch {
 public:
  Stopwatch(Clock& clock, double budget) : clock_(clock), budget_(budget), started_(clock.seconds()) {}
  [[nodiscard]] double elapsed() const { return clock_.seconds() - started_; }
  [[nodiscard]] double left() const { return budget_ + forgiven_ - elapsed(); }
  // Does not count these seconds, which have passed, against the budget.
  void forgive(double seconds) { forgiven_ += seconds; }

 private:
  Clock& clock_;
  const double budget_;
  const double started_;
  double forgiven_ = 0;
};

// Passes lines on to TuneOptions::progress; `always`: this line must not be dropped.
using Say = std::function<void(const std::string& line, bool always)>;

// Admits no more than `most` schedules that differ only in switches.
class Alike {
 public:
  explicit Alike(int most) : most_(most) {}
  [[nodiscard]] bool admits(const Schedule& schedule) { return ++seen_[core_of(schedule)] <= most_; }

 private:
  using Core = std::tuple<Family, int, int, int, int>;
  // What such schedules have in common. In family wgmma, tile_m decides the number of warps; another way to
  // add up dQ, or to share loads or keys, makes another kernel.
  static Core core_of(const Schedule& s) {
    const Family family = family_of(s);
    const bool wgmma = family == Family::wgmma;
    const int kind = get(s, !wgmma ? "warps" : pass_of(s) == Pass::backward ? "dq" : "cluster");
    const bool shares = wgmma && pass_of(s) == Pass::forward;
    const int shared = !shares ? 1 : get(s, "persistent") == 3 ? 0 : get(s, "splits");
    return {family, tile_m_of(s), get(s, "tile_n"), kind, shared};
  }

  const int most_;
  std::map<Core, int> seen_;
};

// Runs one step of a candidate, and returns whether it went well. A candidate's own failure prunes it; a
// failure of the runner is thrown on.
template <class Step>
bool attempt(Candidate& candidate, Step step) {
  try {
    step();
  } catch (const Error& error) {
    if (!is_the_candidates(error.code())) throw;
    candidate.pruned = error.message();
    return false;
  }
  return true;
}

}  // namespace flashjit::autotune

// The stages of a tuning run, each within its share of the budget.
#include "autotune/tuner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "flashjit/error.hpp"

namespace flashjit::autotune {
namespace {

// What an effort spends, in seconds and candidates.
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

constexpr Effort kQuick{5, 16, 2, 0.45, 0.02, 0.01, 3, 2, 3, 0.02, 3, 0.05};
constexpr Effort kFull{30, 96, 8, 0.4, 0.1, 0.02, 5, 3, 7, 0.05, 7, 0.06};

constexpr double kHopeless = 1.6;   // times the best so far, seen on one launch: not worth a timing
constexpr double kFinalist = 1.15;  // times the best so far: still in reach, given heat and noise
// Within this the fixed order of the space decides, so that the choice is stable. Medians of interleaved
// rounds repeat to a few tenths of a per cent; a wider band would give away what tuning is for.
constexpr double kTie = 1.005;
constexpr double kFinalShare = 0.3;  // of the budget, at most: a short one must leave time to try candidates

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What schedules that differ in a switch only have in common. In family wgmma tile_m decides the number of
// warps; how dQ is added up, or loads are shared, makes another kernel.
std::tuple<Family, int, int, int> core_of(const Schedule& s) {
  const Family family = family_of(s);
  const bool wgmma = family == Family::wgmma;
  const int kind = get(s, !wgmma ? "warps" : pass_of(s) == Pass::backward ? "dq" : "cluster");
  return {family, tile_m_of(s), get(s, "tile_n"), kind};
}

class Run {
 public:
  Run(const Problem& problem, const Shape& shape, const Target& target, Runner& runner,
      const TuneOptions& options)
      : problem_(problem),
        shape_(shape),
        runner_(runner),
        options_(options),
        clock_(options.clock != nullptr ? *options.clock : Clock::real()),
        effort_(options.effort == Tuning::full ? kFull : kQuick),
        started_(clock_.seconds()) {
    if (options.budget.count() > 0) effort_.budget = std::chrono::duration<double>(options.budget).count();
    result_.family = options.family;
    result_.candidates = ranked_space(problem, shape, target, options.family);
    if (result_.candidates.empty()) refuse_unserved(problem, target, options.family);
    for (const Candidate& candidate : search_space(problem, target)) {
      order_.emplace(to_string(candidate.schedule), static_cast<int>(order_.size()));
    }
  }

  TuneResult operator()();

 private:
  [[nodiscard]] double elapsed() { return clock_.seconds() - started_; }
  [[nodiscard]] double left() { return effort_.budget - elapsed(); }
  [[nodiscard]] double final_seconds() const {
    const double each =
        effort_.rounds * (effort_.pause + effort_.round) + (effort_.busy_rounds + 1) * effort_.busy_round;
    return std::min(static_cast<double>(effort_.finalists) * each, kFinalShare * effort_.budget);
  }

  void select();
  void compile();
  void screen();
  void decide();
  std::vector<Candidate*> choose_finalists();
  void final_rounds(std::vector<Candidate*>& finalists);
  void say(const std::string& line, bool always);
  // Runs one step of a candidate; a candidate's own failure puts it out, the runner's goes up.
  template <class Step>
  bool attempt(Candidate& candidate, Step step);

  const Problem problem_;
  const Shape shape_;
  Runner& runner_;
  const TuneOptions& options_;
  Clock& clock_;
  Effort effort_;
  const double started_;
  double last_line_ = -1e9;
  TuneResult result_;
  std::map<std::string, int> order_;  // a schedule's place in the space
  std::vector<Candidate*> in_;        // best prediction first
};

void Run::say(const std::string& line, bool always) {
  if (!options_.progress || (!always && elapsed() - last_line_ < 1)) return;
  last_line_ = elapsed();
  options_.progress(
      fmt::format("tuning {} {}: {} ({:.1f} s)", describe(problem_), describe(shape_), line, elapsed()));
}

template <class Step>
bool Run::attempt(Candidate& candidate, Step step) {
  try {
    step();
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::compile_failed:
      case ErrorCode::unsupported:
      case ErrorCode::device:
      case ErrorCode::wrong_result:
        candidate.pruned = error.message();
        return false;
      default:
        throw;
    }
  }
  return true;
}

// Best predictions first, but not many that differ in a switch only: the model says little about those.
void Run::select() {
  std::map<std::tuple<Family, int, int, int>, int> alike;
  for (Candidate& candidate : result_.candidates) {
    if (!candidate.pruned.empty()) continue;
    if (in_.size() == effort_.compile_most) {
      candidate.pruned = fmt::format("predicted behind the {} best", effort_.compile_most);
    } else if (++alike[core_of(candidate.schedule)] > effort_.alike_most) {
      candidate.pruned = fmt::format("{} much like it are tried already", effort_.alike_most);
    } else {
      in_.push_back(&candidate);
    }
  }
}

void Run::compile() {
  std::vector<Schedule> schedules;
  for (const Candidate* candidate : in_) schedules.push_back(candidate->schedule);
  const auto time =
      std::chrono::milliseconds(static_cast<std::int64_t>(1000 * effort_.compile_share * effort_.budget));
  say(fmt::format("compiling {} candidates", schedules.size()), true);
  std::size_t heard = 0;
  std::vector<Candidate*> spilling;
  runner_.build(schedules, time,
                [&](std::size_t index, const runtime::Resources& resources, const std::string& error) {
                  Candidate& candidate = *in_.at(index);
                  candidate.resources = resources;
                  if (!error.empty()) {
                    candidate.pruned = error;
                  } else {
                    ++result_.compiled;
                    const int spills = resources.spill_stores + resources.spill_loads;
                    if (spills > 0) {
                      candidate.pruned = fmt::format("spills {} bytes of registers", spills);
                      spilling.push_back(&candidate);
                    }
                  }
                  ++heard;
                  say(fmt::format("compiled {} of {}", heard, schedules.size()), heard == schedules.size());
                });
  // What spills is slow, not wrong: better than nothing, where nothing else compiles.
  if (static_cast<int>(spilling.size()) == result_.compiled) {
    for (Candidate* candidate : spilling) candidate->pruned.clear();
  }
  std::erase_if(in_, [](const Candidate* candidate) { return !candidate->pruned.empty(); });
  if (elapsed() >= effort_.compile_share * effort_.budget) result_.out_of_time = true;
}

// Checks and times each once; those far behind the best so far are dropped after one launch.
void Run::screen() {
  double best = 0;
  std::size_t seen = 0;
  for (Candidate* candidate : in_) {
    // Until something works the budget may be spent twice: one that hangs takes its worker's whole deadline.
    const bool late = result_.timed > 0 ? left() < final_seconds() + effort_.pause + effort_.screen
                                        : left() < -effort_.budget;
    if (late) {
      candidate->pruned = "there was no time left to try it";
      result_.out_of_time = true;
      continue;
    }
    const bool works = attempt(*candidate, [&] {
      const Check check = runner_.verify(candidate->schedule);
      if (!check.ok) throw Error(ErrorCode::wrong_result, "wrong result: " + check.message);
      if (in_.size() == 1) return;  // nothing to compare it with
      const Timing timing = runner_.time(
          candidate->schedule,
          {.pause_seconds = effort_.pause, .seconds = effort_.screen, .give_up_above_ms = best * kHopeless});
      candidate->measured_ms = timing.median_ms;
      candidate->spread = timing.spread;
      candidate->clock_mhz = timing.clock_mhz;
      ++result_.timed;
      if (timing.gave_up)
        candidate->pruned = fmt::format("hopeless: {:.2f} times the best", timing.median_ms / best);
    });
    if (works && candidate->pruned.empty())
      best = best == 0 ? candidate->measured_ms : std::min(best, candidate->measured_ms);
    ++seen;
    say(fmt::format("tried {} of {}, best {:.4g} ms", seen, in_.size(), best), seen == in_.size());
  }
  std::erase_if(in_, [](const Candidate* candidate) { return !candidate->pruned.empty(); });
}

// The best few, but not many that are alike.
std::vector<Candidate*> Run::choose_finalists() {
  std::stable_sort(in_.begin(), in_.end(),
                   [](const Candidate* a, const Candidate* b) { return a->measured_ms < b->measured_ms; });
  std::map<std::tuple<Family, int, int, int>, int> alike;
  std::vector<Candidate*> chosen;
  for (Candidate* candidate : in_) {
    if (chosen.size() == effort_.finalists || candidate->measured_ms > kFinalist * in_.front()->measured_ms)
      break;
    if (++alike[core_of(candidate->schedule)] <= effort_.finalists_alike) chosen.push_back(candidate);
  }
  return chosen;
}

// They take turns, so that heat hits all alike: with a pause before each timing, and at length without one,
// where the power limit favours those that need less of it.
void Run::final_rounds(std::vector<Candidate*>& finalists) {
  using Times = std::vector<std::vector<double>>;
  // `then`: seconds that what comes after it will take. A launch of many milliseconds makes a round longer
  // than was planned: what one took counts for the next of its kind.
  const auto round = [&](double pause, double seconds, double then, Times& times, double& took) {
    took = std::max(took, static_cast<double>(finalists.size()) * (pause + seconds));
    if (left() < took + then) {
      result_.out_of_time = true;
      return false;
    }
    const double start = elapsed();
    for (std::size_t i = 0; i < finalists.size(); ++i) {
      Candidate& candidate = *finalists[i];
      if (!candidate.pruned.empty()) continue;
      attempt(candidate, [&] {
        const Timing timing = runner_.time(candidate.schedule, {.pause_seconds = pause, .seconds = seconds});
        times[i].push_back(timing.median_ms);
        if (pause == 0) return;
        candidate.spread = timing.spread;
        candidate.clock_mhz = timing.clock_mhz;
      });
    }
    took = std::max(took, elapsed() - start);
    return true;
  };
  Times paused(finalists.size()), busy(finalists.size());
  double paused_took = 0, busy_took = 0;
  for (int i = 0; i < effort_.rounds; ++i) {
    say(fmt::format("final of {}, round {} of {}", finalists.size(), i + 1, effort_.rounds), false);
    if (!round(effort_.pause, effort_.round, 0, paused, paused_took)) break;
    if (i > 0) continue;
    Times heated(finalists.size());  // the first stretch ends a rest: what it takes says nothing
    const double paused_to_come = (effort_.rounds - 1) * paused_took;
    for (int k = 0; k <= effort_.busy_rounds; ++k) {
      if (!round(0, effort_.busy_round, paused_to_come, k == 0 ? heated : busy, busy_took)) break;
    }
  }
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (!paused[i].empty()) finalists[i]->measured_ms = median(paused[i]);
    // At its limit the power's control takes a tenth off the clock now and then, for a quarter of a second,
    // whatever runs: the fastest stretch is one between these, and repeats where the median does not.
    if (!busy[i].empty()) finalists[i]->busy_ms = *std::min_element(busy[i].begin(), busy[i].end());
  }
  std::erase_if(finalists, [](const Candidate* candidate) { return !candidate->pruned.empty(); });
}

// By the geometric mean of both kinds of rounds: some callers rest between launches, and some never do.
void Run::decide() {
  std::vector<Candidate*> finalists = choose_finalists();
  if (finalists.size() > 1) final_rounds(finalists);
  if (finalists.empty()) {
    const auto next_best = std::find_if(in_.begin(), in_.end(),
                                        [](const Candidate* candidate) { return candidate->pruned.empty(); });
    if (next_best != in_.end()) finalists.push_back(*next_best);
  }
  if (finalists.empty()) throw Error(ErrorCode::device, "every finalist failed when it was timed again");
  const bool busy =
      std::all_of(finalists.begin(), finalists.end(), [](const Candidate* c) { return c->busy_ms > 0; });
  const auto time_of = [&](const Candidate& c) {
    return busy ? std::sqrt(c.measured_ms * c.busy_ms) : c.measured_ms;
  };
  double best = INFINITY;
  for (const Candidate* candidate : finalists) best = std::min(best, time_of(*candidate));
  const auto tied = [&](const Candidate& candidate) { return time_of(candidate) <= kTie * best; };
  const Candidate* chosen = finalists.front();
  for (const Candidate* candidate : finalists) {
    if (!tied(*candidate)) continue;
    if (!tied(*chosen) ||
        order_.at(to_string(candidate->schedule)) < order_.at(to_string(chosen->schedule))) {
      chosen = candidate;
    }
  }
  result_.best = chosen->schedule;
  result_.best_ms = chosen->measured_ms;
}

TuneResult Run::operator()() {
  select();
  if (in_.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("no schedule is legal for {}: {}", describe(problem_),
                                                    result_.candidates.front().pruned));
  }
  const auto first_failure = [this] {
    for (const Candidate& candidate : result_.candidates) {
      if (candidate.predicted_ms > 0 && !candidate.pruned.empty()) return candidate.pruned;
    }
    return std::string("nothing was tried");
  };
  compile();
  if (!in_.empty()) screen();
  if (in_.empty()) {
    throw Error(
        ErrorCode::device,
        fmt::format("no candidate for {} survived; the first: {}", describe(problem_), first_failure()),
        "`flashjit tune --dry-run` lists the candidates, `flashjit check` runs one of them.");
  }
  if (in_.size() == 1) {
    result_.best = in_.front()->schedule;
    result_.best_ms = in_.front()->measured_ms;
  } else {
    decide();
  }
  result_.seconds = elapsed();
  say(result_.best_ms > 0 ? fmt::format("{} at {:.4g} ms", to_string(result_.best), result_.best_ms)
                          : fmt::format("{}, the only candidate", to_string(result_.best)),
      true);
  return std::move(result_);
}

}  // namespace

void refuse_unserved(const Problem& problem, const Target& target, std::string_view family) {
  throw Error(ErrorCode::unsupported,
              fmt::format("no candidate for {} on {}: {}", describe(problem), target.arch,
                          fmt::join(unserved_notes(problem, target, family), "; ")));
}

std::vector<Candidate> ranked_space(const Problem& problem, const Shape& shape, const Target& target,
                                    std::string_view family) {
  std::vector<Candidate> candidates = search_space(problem, target);
  if (!family.empty()) {
    std::erase_if(candidates, [&](const Candidate& candidate) {
      return to_string(family_of(candidate.schedule)) != family;
    });
  }
  for (Candidate& candidate : candidates) {
    if (candidate.pruned.empty())
      candidate.predicted_ms = predict(problem, shape, candidate.schedule, target);
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.pruned.empty() != b.pruned.empty()) return a.pruned.empty();
    return a.predicted_ms < b.predicted_ms;
  });
  return candidates;
}

TuneResult tune(const Problem& problem, const Shape& shape, const Target& target, Runner& runner,
                const TuneOptions& options) {
  return Run(problem, shape, target, runner, options)();
}

}  // namespace flashjit::autotune

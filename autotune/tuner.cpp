// The stages of a tuning run, each within its share of the budget.
#include "autotune/tuner.hpp"
#include "autotune/backward/backward.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "autotune/final.hpp"
#include "autotune/stages.hpp"
#include "flashjit/error.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kHopeless = 1.6;  // times the best so far, seen on one launch: not worth a timing
// How many candidates' failures cost the budget nothing: one that hangs takes its worker's whole deadline.
constexpr int kForgiven = 3;

Effort effort_of(const TuneOptions& options) {
  Effort effort = options.effort == Tuning::full ? kFull : kQuick;
  if (options.budget.count() > 0) effort.budget = std::chrono::duration<double>(options.budget).count();
  return effort;
}

class Run {
 public:
  Run(const Problem& problem, const Shape& shape, const Target& target, Runner& runner,
      const TuneOptions& options)
      : problem_(problem),
        shape_(shape),
        runner_(runner),
        options_(options),
        effort_(effort_of(options)),
        watch_(options.clock != nullptr ? *options.clock : Clock::real(), effort_.budget) {
    result_.family = options.family;
    result_.candidates = ranked_space(problem, shape, target, options.family);
    if (result_.candidates.empty()) refuse_unserved(problem, target, options.family);
    for (const Candidate& candidate : search_space(problem, target)) {
      order_.emplace(to_string(candidate.schedule), static_cast<int>(order_.size()));
    }
    if (options.incumbent.has_value()) find_incumbent(target);
  }

  TuneResult operator()();

 private:
  void find_incumbent(const Target& target);
  void select();
  void compile();
  [[nodiscard]] bool late(double best) const;
  void screen();
  void decide();
  void say(const std::string& line, bool always);

  const Problem problem_;
  const Shape shape_;
  Runner& runner_;
  const TuneOptions& options_;
  const Effort effort_;
  Stopwatch watch_;
  double last_line_ = -1e9;
  TuneResult result_;
  std::map<std::string, int> order_;  // a schedule's place in the space
  Candidate* incumbent_ = nullptr;
  std::vector<Candidate*> in_;  // the incumbent, then the best prediction first
};

void Run::say(const std::string& line, bool always) {
  if (!options_.progress || (!always && watch_.elapsed() - last_line_ < 1)) return;
  last_line_ = watch_.elapsed();
  options_.progress(fmt::format("tuning {} {}: {} ({:.1f} s)", describe(problem_), describe(shape_), line,
                                watch_.elapsed()));
}

void Run::find_incumbent(const Target& target) {
  const Schedule& schedule = *options_.incumbent;
  std::vector<Candidate>& all = result_.candidates;
  auto found = std::find_if(all.begin(), all.end(),
                            [&](const Candidate& candidate) { return candidate.schedule == schedule; });
  if (found == all.end()) {
    const double expected = predict(problem_, shape_, schedule, target);
    found = all.insert(all.begin(), {.schedule = schedule, .pruned = "", .predicted_ms = expected});
  }
  incumbent_ = &*found;
}

// Selects the incumbent, then the best predictions, but not many that differ only in switches, about which
// the model says little.
void Run::select() {
  Alike alike(effort_.alike_most);
  if (incumbent_ != nullptr && incumbent_->pruned.empty() && alike.admits(incumbent_->schedule))
    in_.push_back(incumbent_);
  for (Candidate& candidate : result_.candidates) {
    if (!candidate.pruned.empty() || &candidate == incumbent_) continue;
    if (in_.size() == effort_.compile_most) {
      candidate.pruned = fmt::format("predicted behind the {} best", effort_.compile_most);
    } else if (!alike.admits(candidate.schedule)) {
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
  runner_.build(
      schedules, time, [&](std::size_t index, const runtime::Resources& resources, const std::string& error) {
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
        say(fmt::format("compiled {} of {}", result_.compiled, schedules.size()), heard == schedules.size());
      });
  // A kernel that spills is slow, not wrong, and better than nothing where nothing else compiles.
  if (static_cast<int>(spilling.size()) == result_.compiled) {
    for (Candidate* candidate : spilling) candidate->pruned.clear();
  }
  std::erase_if(in_, [](const Candidate* candidate) { return !candidate->pruned.empty(); });
  if (watch_.left() <= (1 - effort_.compile_share) * effort_.budget) result_.out_of_time = true;
}

// Whether there is no time left to try another candidate, which is launched for its check, too, and for the
// final. Until one has been timed, the budget may be spent twice; until two have been, no final is to come.
bool Run::late(double best) const {
  if (result_.timed == 0) return watch_.left() < -effort_.budget;
  const double trial =
      best / 1000 + expected_seconds({.pause_seconds = effort_.pause, .seconds = effort_.screen}, best);
  return watch_.left() < trial + (result_.timed > 1 ? Final::seconds(effort_, best) : 0);
}

// Checks and times each candidate once; those far behind the best so far are dropped after one launch.
void Run::screen() {
  double best = 0;
  std::size_t seen = 0;
  int failed = 0;
  for (Candidate* candidate : in_) {
    if (late(best)) {
      candidate->pruned = "there was no time left to try it";
      result_.out_of_time = true;
      continue;
    }
    const double began = watch_.elapsed();
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
    if (!works && ++failed <= kForgiven) watch_.forgive(watch_.elapsed() - began);
    if (works && candidate->pruned.empty())
      best = best == 0 ? candidate->measured_ms : std::min(best, candidate->measured_ms);
    ++seen;
    say(fmt::format("tried {} of {}, best {:.4g} ms", seen, in_.size(), best), seen == in_.size());
  }
  std::erase_if(in_, [](const Candidate* candidate) { return !candidate->pruned.empty(); });
}

void Run::decide() {
  Final final_stage(effort_, runner_, watch_,
                    [this](const std::string& line, bool always) { say(line, always); });
  const Candidate& best = final_stage.winner(in_, order_, incumbent_);
  result_.out_of_time = result_.out_of_time || final_stage.out_of_time();
  result_.best = best.schedule;
  result_.best_ms = best.measured_ms;
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
  const double opening = watch_.elapsed();
  runner_.prepare();
  watch_.forgive(watch_.elapsed() - opening);
  compile();
  if (!in_.empty()) screen();
  if (in_.empty()) {
    throw Error(
        ErrorCode::device,
        fmt::format("no candidate for {} survived; the first: {}", describe(problem_), first_failure()),
        result_.out_of_time
            ? fmt::format("the budget was {:.4g} s: a larger one may do", effort_.budget)
            : "`flashjit tune --dry-run` lists the candidates, `flashjit check` runs one of them.");
  }
  if (in_.size() == 1) {
    result_.best = in_.front()->schedule;
    result_.best_ms = in_.front()->in_final_ms = in_.front()->measured_ms;
  } else {
    decide();
  }
  result_.seconds = watch_.elapsed();
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
  const auto is_careful = [&](const Candidate& candidate) {
    return candidate.pruned.empty() && !needs_rows(problem, shape, candidate.schedule);
  };
  const bool careful = std::any_of(candidates.begin(), candidates.end(), is_careful);
  for (Candidate& candidate : candidates) {
    if (careful && candidate.pruned.empty() && !is_careful(candidate))
      candidate.pruned = "too few rows for its errors to average out";
    if (candidate.pruned.empty() && splits_in_vain(problem, shape, candidate.schedule))
      candidate.pruned = "these sizes have no more parts than with fewer splits";
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

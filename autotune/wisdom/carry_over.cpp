#include "autotune/wisdom/carry_over.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "autotune/tuner.hpp"
#include "autotune/wisdom.hpp"
#include "flashjit/error.hpp"
#include "generator/legality.hpp"

namespace flashjit::autotune {
namespace {

// The share of time that another schedule has to save to take the winner's place (measured, like all rules
// here: docs/performance/wgmma/random-problems.md).
constexpr double kWorthIt = 0.025;
constexpr std::size_t kPredicted = 16, kRanked = 32;

// Whether both hand out tiles in the same way, to the same number of CTAs. Under a mask, where tiles differ
// in length, nothing is carried over between orders.
bool same_order(const Schedule& one, const Schedule& other) {
  const auto* a = std::get_if<WgmmaSchedule>(&one);
  const auto* b = std::get_if<WgmmaSchedule>(&other);
  return a == nullptr || b == nullptr ||
         (a->persistent == b->persistent && a->cluster == b->cluster && a->splits == b->splits);
}

std::optional<Schedule> known(const std::string& name) {
  try {
    return parse_schedule(name);
  } catch (const Error&) {
    return std::nullopt;  // another version's
  }
}

}  // namespace

CarryOver::CarryOver(const WisdomRecord& record, const Problem& problem, const Shape& shape,
                     const Target& target)
    : problem_(problem), target_(target), timed_(record.shape), winner_{record.schedule} {
  if (problem.pass == Pass::backward) return;
  add_timed(record);
  if (!problem.causal && record.bucket != bucket_of(problem, shape, target)) add_predicted(shape);
}

CarryOver::CarryOver(std::span<const Schedule> ranked, const Problem& problem, const Shape& shape,
                     const Target& target)
    : problem_(problem), target_(target), timed_(shape), winner_{ranked.front()} {
  if (problem.pass == Pass::backward) return;
  for (const Schedule& other : ranked.subspan(1, std::min(kRanked, ranked.size()) - 1))
    others_.push_back({other});
}

void CarryOver::add_timed(const WisdomRecord& record) {
  const auto off_by = [&](const Schedule& schedule, double milliseconds) {
    return milliseconds / predict(problem_, timed_, schedule, target_);
  };
  winner_.off_by = off_by(record.schedule, record.milliseconds);
  for (const auto& [name, milliseconds] : record.timings) {
    const std::optional<Schedule> other = known(name);
    if (!other || *other == record.schedule || family_of(*other) != family_of(record.schedule) ||
        (problem_.causal && !same_order(*other, record.schedule)) || !legal(problem_, *other, target_))
      continue;
    // On the shape that was timed, no schedule counts as faster than the winner: more than this one timing
    // made it win.
    others_.push_back({*other, off_by(*other, std::max(milliseconds, record.milliseconds))});
  }
}

void CarryOver::add_predicted(const Shape& shape) {
  std::vector<double> offs{winner_.off_by};
  for (const Known& other : others_) offs.push_back(other.off_by);
  const auto middle = offs.begin() + static_cast<std::ptrdiff_t>(offs.size() / 2);
  std::nth_element(offs.begin(), middle, offs.end());
  const std::size_t timed = others_.size();
  for (const Candidate& candidate :
       ranked_space(problem_, shape, target_, to_string(family_of(winner_.schedule)))) {
    if (!candidate.pruned.empty() || others_.size() == timed + kPredicted) break;
    const auto is_it = [&](const Known& one) { return one.schedule == candidate.schedule; };
    if (!is_it(winner_) && std::none_of(others_.begin(), others_.end(), is_it))
      others_.push_back({candidate.schedule, *middle});
  }
}

// A schedule that beat its prediction by more than the winner did may owe this to the shape that was timed.
double CarryOver::expected_ms(const Known& known, const Shape& shape) const {
  return std::max(known.off_by, winner_.off_by) * predict(problem_, shape, known.schedule, target_);
}

const Schedule& CarryOver::schedule_for(const Shape& shape) const {
  const Known* best = &winner_;
  if (others_.empty() || shape == timed_) return best->schedule;
  double least = expected_ms(winner_, shape) * (1 - kWorthIt);
  for (const Known& other : others_) {
    const double expected = expected_ms(other, shape);
    if (expected >= least) continue;
    least = expected;
    best = &other;
  }
  return best->schedule;
}

}  // namespace flashjit::autotune

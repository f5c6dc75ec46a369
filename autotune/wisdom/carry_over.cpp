#include "autotune/wisdom/carry_over.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "autotune/wisdom.hpp"
#include "flashjit/error.hpp"
#include "generator/legality.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {
namespace {

// Of the time: of twenty lengths that were timed (docs/performance/wgmma/random-problems.md) the eleven that
// were to gain more gained 2.3 % in the mean, and the others lost 1.5.
constexpr double kWorthIt = 0.025;

// Rows that tiles compute, as a multiple of those that there are.
double computed_rows(const Shape& shape, const Schedule& schedule) {
  const int of_tile = rows_of_tile(schedule);
  const double rows = std::ldexp(std::max(1, shape.seqlen_q), packed_heads(shape, schedule));
  return std::ceil(rows / of_tile) * of_tile / rows;
}

std::optional<Schedule> known(const std::string& name) {
  try {
    return parse_schedule(name);
  } catch (const Error&) {
    return std::nullopt;  // another version's
  }
}

}  // namespace

CarryOver::CarryOver(const WisdomRecord& record, const Problem& problem, const Target& target)
    : shape_(record.shape), winner_{record.schedule, record.milliseconds} {
  if (problem.pass == Pass::backward) return;
  for (const auto& [name, milliseconds] : record.timings) {
    const std::optional<Schedule> other = known(name);
    if (!other || family_of(*other) != family_of(record.schedule) || !legal(problem, *other, target))
      continue;
    // The winner counts as no slower where it was timed: it won for more than this one timing.
    others_.push_back({*other, std::max(milliseconds, record.milliseconds)});
  }
}

const Schedule& CarryOver::schedule_for(const Shape& shape) const {
  const auto growth = [&](const Schedule& schedule) {
    return computed_rows(shape, schedule) / computed_rows(shape_, schedule);
  };
  const double own_growth = growth(winner_.schedule);
  if (own_growth <= 1 + kWorthIt) return winner_.schedule;
  const Timed* best = &winner_;
  double least = winner_.milliseconds * own_growth * (1 - kWorthIt);
  for (const Timed& other : others_) {
    const double expected = other.milliseconds * growth(other.schedule);
    if (expected >= least) continue;
    least = expected;
    best = &other;
  }
  return best->schedule;
}

}  // namespace flashjit::autotune

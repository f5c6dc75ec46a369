// Whether this problem may run with this schedule on this target, and if not, why not, in words that every
// caller quotes.
#pragma once

#include <string>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit {

struct Legality {
  std::string reason;  // empty when legal; else "tile 128x128 with 3 stages needs 246 KB of shared memory,
                       // sm_86 gives 99 KB"
  explicit operator bool() const { return reason.empty(); }
};

Legality legal(const Problem& problem, const Schedule& schedule, const Target& target);

// Whether any schedule of the family can serve the problem on this target ("bf16 needs sm_80 or later; use
// fp16 …").
Legality legal(const Problem& problem, Family family, const Target& target);

}  // namespace flashjit

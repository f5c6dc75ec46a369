// Choosing a schedule: declare, prune, rank, compile, verify, time, decide, remember.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"
#include "runtime/compile.hpp"

namespace flashjit::autotune {

// One schedule on its way through the tuner, with everything that was found out about it.
struct Candidate {
  Schedule schedule;
  std::string pruned;       // why it is out; empty while it is in
  double predicted_ms = 0;  // the analytic model's
  double measured_ms = 0;   // median of launches after a pause; a finalist's fastest round; 0: not timed
  double in_final_ms = 0;   // a finalist's measured_ms, or what another's would be in the final; 0: not timed
  double busy_ms = 0;       // of launches that follow each other, the fastest stretch; finalists only, else 0
  double spread = 0;        // (p90 - p10) / median of the timings
  double clock_mhz = 0;     // SM clock beside the timing; 0: unknown
  runtime::Resources resources{};
};

// Every schedule of the families that may serve the problem, legal or not, in a fixed order. Illegal ones
// carry the reason.
std::vector<Candidate> search_space(const Problem& problem, const Target& target);

// Which family was passed over although it could be expected here, and why. For Origin::note; mostly empty.
std::string family_note(const Problem& problem, const Target& target);

// Why search_space() has no candidate, family by family, or for the family that was asked for.
std::vector<std::string> unserved_notes(const Problem& problem, const Target& target,
                                        std::string_view family);

// Milliseconds that the analytic model expects a legal schedule to take: tensor cores or FMA, exponentials,
// bytes, occupancy, waves, tails.
double predict(const Problem& problem, const Shape& shape, const Schedule& schedule, const Target& target);

// What wisdom is filed under beside the problem: a power-of-two range of the work per multiprocessor ("b17"),
// of the queries where they are few ("b17q1", and "b17q15" for fp32 gradients of 9 to 15), of the tiles where
// each number of them is a case of its own ("b17q1t8"), and of how full their last wave is where waves are
// few ("b17w10").
std::string bucket_of(const Problem& problem, const Shape& shape, const Target& target);

}  // namespace flashjit::autotune

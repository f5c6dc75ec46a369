// The search space: which schedules the families have (space/), and which families serve a problem.
#include <fmt/format.h>

#include "autotune/backward/backward.hpp"
#include "autotune/space/families.hpp"
#include "autotune/tune.hpp"
#include "generator/legality.hpp"

namespace flashjit::autotune {

std::vector<Candidate> search_space(const Problem& problem, const Target& target) {
  std::vector<Candidate> candidates;
  for (const Family family : {Family::wgmma, Family::mma, Family::simt}) {
    if (!legal(problem, family, target)) continue;  // family_note() says why
    const std::vector<Schedule> space = problem.pass == Pass::backward ? backward_space(problem, family)
                                        : family == Family::wgmma      ? wgmma_space(problem)
                                        : family == Family::mma        ? mma_space(problem)
                                                                       : simt_space();
    for (const Schedule& schedule : space) {
      Candidate candidate;
      candidate.schedule = schedule;
      candidate.pruned = legal(problem, schedule, target).reason;
      candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

std::string family_note(const Problem& problem, const Target& target) {
  std::string note;
  for (const Family family : {Family::wgmma, Family::mma, Family::simt}) {
    // That a family computes another dtype is no news; that a newer family passes over this GPU or head_dim
    // is.
    const bool other_dtype = family == Family::simt && problem.dtype != DType::fp32;
    const Legality legality = legal(problem, family, target);
    if (other_dtype || legality || (family == Family::wgmma && target.capability != 90)) continue;
    note += (note.empty() ? "" : "; ") + legality.reason;
  }
  return note;
}

std::vector<std::string> unserved_notes(const Problem& problem, const Target& target,
                                        std::string_view asked) {
  std::vector<std::string> notes;
  for (const Family family : {Family::simt, Family::mma, Family::wgmma}) {
    if (!asked.empty() && asked != to_string(family)) continue;
    const Legality legality = legal(problem, family, target);
    notes.push_back(fmt::format("{}: {}", to_string(family),
                                legality ? "no schedule of its search space fits" : legality.reason));
  }
  return notes;
}

}  // namespace flashjit::autotune

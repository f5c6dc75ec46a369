// The correctness grid: what "right" means for a pass, as a list of groups that share a kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "flashjit/target.hpp"
#include "tests/support/attention_case.hpp"

namespace flashjit::test {

// Cases of one Problem.
using Group = std::vector<AttentionCase>;

struct GridOptions {
  Pass pass = Pass::forward;
  std::uint64_t seed = 1;
  int sample = 0;      // about so many cases, drawn by the seed; 0: all
  bool small = false;  // only what an emulator can run in a second or two
};

// All dtypes that the target can serve; head dims 8 to 256 in steps of 8, and some pairs of different ones;
// causal and full; MHA, GQA, MQA; pairs of seqlens with the nasty ones; packed, strided and shared; inputs
// that hurt.
std::vector<Group> grid(const Target& target, const GridOptions& options);

// Few cases that are large: more than 2^31 elements in a tensor, long sequences. Checked on a sample of rows.
std::vector<AttentionCase> large_cases(const Target& target, const GridOptions& options);

}  // namespace flashjit::test

// From a user's BackwardArgs to the parameters of a backward pass's kernels, and its workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"
#include "generator/render.hpp"
#include "templates/params/backward.h"
#include "templates/params/backward_rows.h"

namespace flashjit::api {

// Fills all of `params` but the workspace's pointers, tile_counter, tiles, by_tiles and by_pairs, and returns
// whether there is anything to compute (false: no batch, or neither query rows nor keys). Throws
// Error{invalid_argument} that names the argument, what it was and what it may be. Allocates nothing unless
// it throws.
bool make_backward_params(const Problem& problem, const Shape& shape, const BackwardArgs& args,
                          Workspace parts, BackwardParams& params);

// Where the arrays of a call's workspace lie, in bytes from its start; what a schedule does without has no
// size. At most two LSE-sized arrays of padded rows (fp32's kernels leave the first as it is), one fp32 copy
// of dQ, likewise padded, and a counter for each kBackwardCounterRows rows.
struct WorkspaceLayout {
  std::size_t delta = 0, dq_sum = 0, counters = 0;  // lse_log2 is at 0
  std::size_t bytes = 0;

  // Throws Error{invalid_argument} if the shape is too large to count.
  WorkspaceLayout(const Problem& problem, const Shape& shape, Workspace parts);

  void place(void* workspace, Workspace parts, BackwardParams& params) const;
};

inline constexpr std::int64_t kWorkspaceAlignment = 128;  // bytes: a line of L2

}  // namespace flashjit::api

// From a caller's BackwardArgs to the parameters of a backward pass's kernels, and its workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"
#include "generator/render.hpp"
#include "templates/params/backward.h"
#include "templates/params/backward_rows.h"

namespace flashjit::api {

// Fills in all of `params` except the workspace's pointers, tile_counter, and what depends on a kernel's
// grid.
// Returns whether there is anything to compute (false: no batch, or neither query rows nor keys). Throws
// Error{invalid_argument} that names the argument, its value and what it may be. Allocates only if it throws.
bool make_backward_params(const Problem& problem, const Shape& shape, const BackwardArgs& args,
                          Workspace parts, BackwardParams& params);

// Where the arrays of a call's workspace lie, in bytes from its start. An array that the schedule does
// without has size 0. There are at most two arrays like the LSE, with padded rows, one fp32 copy of dQ,
// padded likewise, the rows of Q and dO in parts, and those of K and V, a counter for each
// kBackwardCounterRows rows, and an fp32 copy of dV and dK, or of those of some tiles.
struct WorkspaceLayout {
  std::size_t delta = 0, dq_sum = 0, row_parts = 0, key_parts = 0, counters = 0;  // lse_log2 is at 0
  std::size_t key_sums = 0;
  std::size_t bytes = 0;

  // Throws Error{invalid_argument} if the shape is too large to count.
  WorkspaceLayout(const Problem& problem, const Shape& shape, Workspace parts);

  void place(void* workspace, Workspace parts, BackwardParams& params) const;
};

inline constexpr std::int64_t kWorkspaceAlignment = 128;  // bytes: a line of L2

}  // namespace flashjit::api

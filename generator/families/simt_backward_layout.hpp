// How family simt's backward pass works under a schedule: how threads share out tiles of scores and of
// gradients, and what lies where in shared memory.
#pragma once

#include "flashjit/problem.hpp"
#include "generator/schedule.hpp"

namespace flashjit::simt_backward {

// How many threads share a row of a tile of gradients, each thread having `own` rows and `columns` columns.
struct Sharing {
  int sharers = 0;  // 0: no way to share
  int own = 0;
  int columns = 0;
  [[nodiscard]] int registers() const { return own * columns; }
  // Instructions that load a thread's weights for one step of the product, and its columns of the other
  // factor.
  [[nodiscard]] int loads_of_weights() const { return (own + 3) / 4; }
  [[nodiscard]] int loads_of_columns() const { return columns / 4 + columns / 2 % 2 + columns % 2; }
};

struct Layout {
  int threads;
  int lanes;       // of a warp across the keys of a tile of scores; the others go down its rows
  int rows, keys;  // of a thread's scores
  Sharing of_q, of_k, of_v;
  // In shared memory, in floats.
  int stride_qk, stride_v, stride_p;
  int k_at, v_at, q_at, dout_at, p_at, ds_at;
  int floats_keys,
      floats_queries;  // all that the kernel needs which owns keys, and the one that owns queries
};

Layout layout_of(const Problem& problem, const SimtBackwardSchedule& s);

// Tiles of few rows, whose sums lose less.
bool careful(const SimtBackwardSchedule& s);

}  // namespace flashjit::simt_backward

// The cells that attention is compared over, here and in the peers' papers: 16k tokens, 2048 / head_dim
// heads.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "flashjit/problem.hpp"

namespace flashjit::cli {

using Cell = std::pair<Problem, Shape>;

// head_dim 64, 128 and 256, full and causal, sequences of 1k, 4k and 16k: 18 cells of the given dtype.
inline std::vector<Cell> grid_of(DType dtype) {
  std::vector<Cell> cells;
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      for (const int seqlen : {1024, 4096, 16384}) {
        cells.push_back(
            {{.dtype = dtype, .head_dim = head_dim, .causal = causal},
             {.batch = 16384 / seqlen, .heads = 2048 / head_dim, .seqlen_q = seqlen, .seqlen_k = seqlen}});
      }
    }
  }
  return cells;
}

}  // namespace flashjit::cli

// Which keys a query sees.
#pragma once
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/

// The keys that query `row` sees are 0 .. visible_keys - 1.
/*%#causal%*/
template <class Params>
__device__ __forceinline__ int visible_keys(const Params& params, int row) {
  return max(0, min(params.seqlen_k, row + 1 + diagonal(params)));
}
/*%/causal%*/
/*%^causal%*/
template <class Params>
__device__ __forceinline__ int visible_keys(const Params& params, int) {
  return params.seqlen_k;
}
/*%/causal%*/

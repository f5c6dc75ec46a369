// Which keys a query sees.
#pragma once

// The keys that query `row` sees are 0 .. visible_keys - 1.
template <class Params>
__device__ __forceinline__ int visible_keys(const Params& params, int row) {
  int keys = params.seqlen_k;
  /*%#causal%*/
  keys = min(keys, row + 1 + params.seqlen_k - params.seqlen_q);  // bottom-right aligned
  /*%/causal%*/
  return max(keys, 0);
}

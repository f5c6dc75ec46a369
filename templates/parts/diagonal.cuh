// The diagonal of a causal mask: bottom-right aligned.
#pragma once

// Query i sees keys 0 .. i + diagonal(params). Lengths are subtracted before anything is added to them: a row
// and seqlen_k together may be more than an int holds.
template <class Params>
__device__ __forceinline__ int diagonal(const Params& params) {
  return params.seqlen_k - params.seqlen_q;
}

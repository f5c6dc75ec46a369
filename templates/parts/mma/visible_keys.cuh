// Which keys the query rows of a CTA see: where its loop over tiles of keys begins, and which tiles need a
// mask.
#pragma once

/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/mma/mask.cuh"

// Tiles of keys unmasked_end … masked_end - 1 need a mask. Tiles below need none, and no row sees tiles
// above.
struct VisibleKeys {
  /*%#causal%*/
  int by_first;  // keys that the CTA's first row sees, if positive; each row further down sees one more
  /*%/causal%*/
  int unmasked_end, masked_end;

  /*%#causal%*/
  template <class Params>
  __device__ __forceinline__ VisibleKeys(const Params& params, int first_row) {
    by_first = diagonal(params) + first_row + 1;
    const int by_last = min(params.seqlen_k, by_first + kTileM - 1);
    unmasked_end = max(by_first, 0) / kTileN;
    masked_end = (max(by_last, 0) + kTileN - 1) / kTileN;
  }
  /*%/causal%*/
  /*%^causal%*/
  template <class Params>
  __device__ __forceinline__ VisibleKeys(const Params& params, int) {
    unmasked_end = params.seqlen_k / kTileN;
    masked_end = (params.seqlen_k + kTileN - 1) / kTileN;
  }
  /*%/causal%*/

  /*%#causal%*/
  // Masks the scores of one accumulator, whose row 0 is the tile's row `row`. The diagonal hides keys past
  // the end of K, too.
  template <int kScores, class Params>
  __device__ __forceinline__ void mask(float (&scores)[kScores], int row, int first_key,
                                       const Params&) const {
    mask_keys<1>(scores, by_first + row - first_key);
  }
  /*%/causal%*/
  /*%^causal%*/
  // Masks the scores of one accumulator for keys past the end of K, in all rows alike.
  template <int kScores, class Params>
  __device__ __forceinline__ void mask(float (&scores)[kScores], int, int first_key,
                                       const Params& params) const {
    mask_keys<0>(scores, params.seqlen_k - first_key);
  }
  /*%/causal%*/
};

// Products of one warp's 16 rows in fp32, on tensor cores that multiply bf16. Of the nine products of two
// numbers' parts, three are below the last bit of the whole; the other six are computed.
#pragma once

#include "parts/mma/fragment_lanes.cuh"
#include "parts/mma/shared_tile.cuh"
#include "parts/mma/split.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/ldmatrix_transposed.cuh"
#include "ptx/mma.cuh"

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

// A sum of products, kept as two sums. Each time that mma adds 16 products it rounds towards zero, at the
// size of the sum. So small products have a sum of their own, and only products of the first parts are added
// to a large sum.
template <int kSize>
struct SplitSum {
  float high[kSize] = {};  // of the products of both first parts
  float low[kSize] = {};   // of the others

  // Adds A B to the eight numbers from `first` on; a, b: fragments of all parts. The two halves of B take
  // turns, so that no product waits for the one before.
  __device__ __forceinline__ void multiply(int first, const unsigned (&a)[kParts][4],
                                           const unsigned (&b)[kParts][4]) {
    // The smallest products come first.
#pragma unroll
    for (int parts = kParts - 1; parts >= 0; --parts) {
#pragma unroll
      for (int of_a = 0; of_a <= parts; ++of_a) {
        const int of_b = parts - of_a;
        float* const sum = parts == 0 ? &high[first] : &low[first];
        mma(sum, a[of_a], b[of_b][0], b[of_b][1]);
        mma(sum + 4, a[of_a], b[of_b][2], b[of_b][3]);
      }
    }
  }

  __device__ __forceinline__ float at(int i) const {
    return high[i] + low[i];
  }
};

// scores = Q K^T. q_lane, k_lane: where this lane starts in the first part.
template <int kScores>
__device__ __forceinline__ void multiply_qk(float (&scores)[kScores], unsigned q_lane, unsigned k_lane) {
  SplitSum<kScores> sum;
#pragma unroll
  for (int step = 0; step < TileQK::kChunks / 2; ++step) {
    unsigned q[kParts][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ldmatrix(q[part], TileQK::step(q_lane + part * kPartBytesQ, 0, 2 * step));
#pragma unroll
    for (int j = 0; j < kScores / 8; ++j) {
      unsigned k[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ldmatrix(k[part], TileQK::step(k_lane + part * kPartBytesK, 16 * j, 2 * step));
      sum.multiply(8 * j, q, k);
    }
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) scores[i] = sum.at(i);
}

// output += P V. The weights have the layout of an accumulator, which is also that of an A fragment over 16
// keys. A tile's part is summed by itself, since O is larger the more keys came before.
template <int kScores>
__device__ __forceinline__ void add_pv(float (&output)[kHeadDimV / 2], const float (&weights)[kScores],
                                       unsigned v_lane) {
  unsigned p[kScores / 8][kParts][4];
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    unsigned parts[kParts];
    split(weights[2 * i], weights[2 * i + 1], parts);
#pragma unroll
    for (int part = 0; part < kParts; ++part) p[i / 4][part][i % 4] = parts[part];
  }
#pragma unroll
  for (int j = 0; j < TileV::kChunks / 2; ++j) {
    SplitSum<8> sum;
#pragma unroll
    for (int i = 0; i < kScores / 8; ++i) {
      unsigned v[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ldmatrix_transposed(v[part], TileV::step(v_lane + part * kPartBytesV, 16 * i, 2 * j));
      sum.multiply(0, p[i], v);
    }
#pragma unroll
    for (int i = 0; i < 8 && 8 * j + i < kHeadDimV / 2; ++i) output[8 * j + i] += sum.at(i);
  }
}

// The last tiles of a grid are divided in two, so that all CTAs end at about the same time. The part that
// comes first to its end leaves its sums of dV and dK in device memory, and the other one adds them to its
// own. Two sums have the same sum in either order, so that dK and dV have the same bits from run to run.
#pragma once
#include "params/backward.h"
#include "parts/anew.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_backward/dq_order.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/load_shared.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/store_shared.cuh"

// What becomes of a tile's sums.
struct Part {
  int word;

  static __device__ __forceinline__ Part of(int divided, bool first) {
    return {4 * divided + (first ? 1 : 2)};
  }
  __device__ __forceinline__ bool whole() const { return word == 0; }
  __device__ __forceinline__ bool leaves_sums() const { return (word & 1) != 0; }
  __device__ __forceinline__ bool adds_sums() const { return (word & 2) != 0; }
  __device__ __forceinline__ int divided() const { return word >> 2; }
};

// Bits of a divided tile's word: those of dq_order.cuh, here of the sums that the first part leaves.
__device__ __forceinline__ int* sums_left(int divided, const BackwardParams& p) {
  return p.tile_counter + 2 + divided;
}

// For the thread that deals tiles, which has asked for all of a tile's rows. Where the tile is a second part,
// returns only once the first one has left its sums.
__device__ __forceinline__ void tell_part(int divided, int round, const BackwardParams& p, unsigned shared) {
  Part part{0};
  if (divided >= 0) part = Part::of(divided, comes_first(sums_left(divided, p)));
  store_shared(shared + kPart + 4 * (round % 2), static_cast<unsigned>(part.word));
  mbarrier_arrive(shared + kPartKnown + 8 * (round % 2));
}

__device__ __forceinline__ void wait_for_part(unsigned shared, int round) {
  mbarrier_wait(shared + kPartKnown + 8 * (round % 2), round / 2 % 2);
}

// May be read once wait_for_part has returned.
__device__ __forceinline__ Part part_of(unsigned shared, int round) {
  return {static_cast<int>(load_shared(shared + kPart + 4 * (round % 2)))};
}

// For the thread that stores gradients, once all consumers have staged theirs, or left their sums.
__device__ __forceinline__ void note_part(const Part& part, const BackwardParams& p) {
  if (part.leaves_sums()) note_share(sums_left(part.divided(), p), true);
  if (part.adds_sums()) *sums_left(part.divided(), p) = 0;
}

// A consumer warp's sums of a divided tile lie as accumulators do (ptx/wgmma.cuh), 16 bytes a lane next to
// each other: those of dV for its 16 keys, then those of dK.
constexpr int kSumsOfDv = 16 * kHeadDimV, kSumsOfDk = 16 * kHeadDim;

__device__ __forceinline__ float* sums_of_part(const Part& part, int warpgroup, const BackwardParams& p) {
  const int warp = part.divided() * kConsumerWarps + 4 * warpgroup + warp_of_warpgroup();
  return p.key_sums + 1ll * warp * (kSumsOfDv + kSumsOfDk) + 4 * anew(lane());
}

template <int kCount>
__device__ __forceinline__ void leave_sums(float* to, const float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    __stcg(reinterpret_cast<float4*>(to + 32 * i), float4{d[i], d[i + 1], d[i + 2], d[i + 3]});
  }
}

template <int kCount>
__device__ __forceinline__ void add_sums(const float* from, float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 other = __ldcg(reinterpret_cast<const float4*>(from + 32 * i));
    d[i] += other.x;
    d[i + 1] += other.y;
    d[i + 2] += other.z;
    d[i + 3] += other.w;
  }
}

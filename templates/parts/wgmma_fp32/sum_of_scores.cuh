// Scores, added up over the two CTAs of a cluster, each of which has half of the columns of Q and K. A thread
// has the same rows and keys as its twin in the other CTA, and sends its scores to a place that only the twin
// reads.
#pragma once

#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32/layout.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cluster_arrive_read.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"
#include "ptx/shared_four.cuh"
#include "ptx/store_async.cuh"

struct SumOfScores {
  unsigned here, there;  // this CTA's shared memory, and the other's
  int place;             // what this thread's twin sends, from its first four scores on
  int full, read;        // barriers of the warpgroup: all has come, the other CTA has read what it got
  int parity = 0;        // of `full`, and the other one of `read`

  __device__ __forceinline__ SumOfScores(unsigned shared, int warpgroup)
      : here(shared), there(in_cta(cluster_rank() ^ 1, shared)) {
    place = kSums + warpgroup * kSumsBytes + 16 * static_cast<int>(threadIdx.x % 128);
    full = kSumsFull + 8 * warpgroup;
    read = kSumsRead + 8 * warpgroup;
  }

  // scores += the twin's, which comes to the same sums, to the bit: additions commute.
  __device__ __forceinline__ void add(float (&scores)[kTileN / 2]) {
    constexpr int kApart = 16 * 128;  // bytes from a thread's four scores to its next four
    if (lane() == 0) mbarrier_arrive_expecting(here + full, 32 * sizeof(scores));
    mbarrier_wait(here + read, parity ^ 1);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4) {
      store_async(there + place + i / 4 * kApart,
                  float4{scores[i], scores[i + 1], scores[i + 2], scores[i + 3]}, there + full);
    }
    mbarrier_wait(here + full, parity);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4) {
      const float4 others = load_four(here + place + i / 4 * kApart);
      scores[i] += others.x;
      scores[i + 1] += others.y;
      scores[i + 2] += others.z;
      scores[i + 3] += others.w;
    }
    parity ^= 1;
  }

  // Gives the place back. An arrival does not wait for loads, and ptxas moves additions below it. So this
  // comes after something that the warp waits for and that takes all sums.
  __device__ __forceinline__ void tell_read() const {
    __syncwarp();
    if (lane() == 0) cluster_arrive_read(there + read);
    __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
  }
};

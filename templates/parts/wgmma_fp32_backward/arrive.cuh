// One lane's arrival at a barrier for its warp.
#pragma once

#include "parts/warpgroup.cuh"
#include "ptx/mbarrier.cuh"

__device__ __forceinline__ void arrive_for_warp(unsigned barrier) {
  if (lane() == 0) mbarrier_arrive(barrier);
  __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
}

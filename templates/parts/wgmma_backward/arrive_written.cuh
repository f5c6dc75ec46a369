// A warp's arrival after it has written what TMA or a product reads.
#pragma once
#include "parts/wgmma_backward/panels.cuh"
#include "ptx/fence_async_shared.cuh"

__device__ __forceinline__ void arrive_written(unsigned barrier) {
  fence_async_shared();
  __syncwarp();
  arrive_once(barrier);
}

// FlashAttention backward on Hopper, over queries: computes dQ where the owners of keys do not add it up. One
// warpgroup feeds shared memory through TMA, and two own 64 rows of dQ each. CTAs work on one tile after
// another.
#include "params/backward.h"
#include "parts/wgmma_backward/dq.cuh"
#include "parts/wgmma_backward/dq_layout.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/tensor_map.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
                   const __grid_constant__ TensorMap map_dq, const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  __syncthreads();

  if (warpgroup == 0) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) feed_ring(map_k, map_v, p, shared);
    if (threadIdx.x == 32) feed_queries(map_q, map_dout, p, shared);
  } else {
    take_registers<kConsumerRegisters>();
    QueryOwner owner(p, shared, warpgroup - 1);
    owner.run(map_dq);
  }
}

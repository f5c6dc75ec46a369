// FlashAttention backward on Hopper, over keys, for wide heads, in one pass: clusters of two CTAs work on one
// tile of K and V after another. Each CTA has a warpgroup that feeds shared memory through TMA, one that sums
// dV of its keys, one that sums dK, and one that adds up half of the columns of dQ.
#include "params/backward.h"
#include "parts/wgmma_backward/feed.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/pair.cuh"
#include "parts/wgmma_backward/sums.cuh"
#include "parts/wgmma_backward/sums_apart.cuh"
#include "ptx/cluster.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/tensor_map.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
                   const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
                   const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  __syncthreads();
  cluster_sync();

  if (warpgroup == 0) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) feed<FeedKQ>(map_k, map_q, p.lse_log2, p, shared);
    if (threadIdx.x == 32) feed<FeedVDo>(map_v, map_dout, p.delta, p, shared);
    if (threadIdx.x == 64) send_gradients(map_dk, map_dv, p, shared);
    if (threadIdx.x >= 96) convert_sums<2>(p);
  } else if (warpgroup == 3) {
    give_up_registers<kDqRegisters>();
    compute_tiles(QueryOwner(p, shared), p);
  } else {
    take_registers<kConsumerRegisters>();
    if (warpgroup == 1) {
      compute_tiles(ValueOwner(p, shared), p);
    } else {
      compute_tiles(KeyOwner(p, shared), p);
    }
    convert_sums<8>(p);
  }
  // The other CTA may still arrive at barriers of this one, and copy from and to it.
  cluster_sync();
}

// dQ in fp32, on Hopper's tensor cores that multiply bf16: the second kernel of a backward pass that adds
// nothing up in memory. A CTA owns kTileM query rows of one head, and tiles of K and V stream past, in parts
// that the kernels before have made. One thread has them copied; one warpgroup has S = Q K^T and P, and one
// dP = dO V^T, dS and dQ.
#include "params/backward.h"
#include "parts/mma/backward_query_tile.cuh"
#include "parts/wgmma_fp32_backward/gradient.cuh"
#include "parts/wgmma_fp32_backward/queries.cuh"
#include "parts/wgmma_fp32_backward/queries_layout.cuh"
#include "parts/wgmma_fp32_backward/queries_producer.cuh"
#include "parts/wgmma_fp32_backward/queries_weights.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  __syncthreads();

  if (warpgroup == kProducer) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x % 128 == 0) produce(shared, params);
    return;
  }
  take_registers<kConsumerRegisters>();
  if (warpgroup == 0) {
    find_weights(shared, params);
    return;
  }
  float dq[kHeadDim / 2] = {};
  sum_dq(dq, shared, params);
  const QueryTile tile = query_tile_of_block(params);
  float* const to =
      static_cast<float*>(params.dq) + tile.batch * params.dq_batch + tile.head * params.dq_head;
  write_gradient<kHeadDim>(dq, params.scale, to, params.dq_row, tile.m * kTileM, params.seqlen_q);
}

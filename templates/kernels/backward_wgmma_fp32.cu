// FlashAttention-2's backward pass (Dao, arXiv 2307.08691, algorithm 2) on Hopper in fp32, on tensor cores
// that multiply bf16: each number is the sum of three bf16 numbers, and each product the sum of six (Henry,
// Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", 2019). A CTA owns kTileN keys of one K/V head, and the rows of Q and dO of all query heads
// that share the K/V head stream past, in parts that the kernel before has made. As in FlashAttention-3
// (arXiv 2407.08608) one thread has them copied, and two warpgroups compute.
/*%#dq_sum%*/
// One has S^T = K Q^T, P^T and dV; the other dP^T = V dO^T, dS^T, dK and dQ.
/*%/dq_sum%*/
/*%^dq_sum%*/
// One has S^T = K Q^T, P^T and dV; the other dP^T = V dO^T, dS^T and dK.
/*%/dq_sum%*/
#include "params/backward.h"
#include "parts/mma/backward_key_tile.cuh"
#include "parts/wgmma_fp32_backward/gradient.cuh"
#include "parts/wgmma_fp32_backward/keys.cuh"
#include "parts/wgmma_fp32_backward/keys_split.cuh"
#include "parts/wgmma_fp32_backward/layout.cuh"
#include "parts/wgmma_fp32_backward/producer.cuh"
#include "parts/wgmma_fp32_backward/values.cuh"
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
  // Each warpgroup finds the tile by itself, and once more for what it writes: registers are short meanwhile.
  split_keys(shared, params);
  if (warpgroup == 0) {
    float dv[kHeadDimV / 2] = {};
    sum_dv(dv, shared, params);
    const KeyTile tile = key_tile_of_block(params);
    float* const to =
        static_cast<float*>(params.dv) + tile.batch * params.dv_batch + tile.head * params.dv_head;
    write_gradient<kHeadDimV>(dv, 1.0f, to, params.dv_row, tile.n * kTileN, params.seqlen_k);
  } else {
    float dk[kHeadDim / 2] = {};
    sum_dk(dk, shared, params);
    const KeyTile tile = key_tile_of_block(params);
    float* const to =
        static_cast<float*>(params.dk) + tile.batch * params.dk_batch + tile.head * params.dk_head;
    write_gradient<kHeadDim>(dk, params.scale, to, params.dk_row, tile.n * kTileN, params.seqlen_k);
  }
  /*%^dq_sum%*/
  wait_for_copied_keys();
  /*%/dq_sum%*/
}

// FlashAttention backward on Hopper, over keys: CTAs work on one tile of K and V after another, with a
// warpgroup that feeds shared memory through TMA and two that compute 64 keys each.
#include "params/backward.h"
#include "parts/wgmma_backward/feed.cuh"
#include "parts/wgmma_backward/keys.cuh"
#include "parts/wgmma_backward/layout.cuh"
/*%#dq%*/
#include "parts/wgmma_backward/sums.cuh"
#include "ptx/fence_async_shared.cuh"
/*%/dq%*/
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"
/*%#dq%*/
#include "ptx/store_shared_16.cuh"
/*%/dq%*/
#include "ptx/tensor_map.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
                   /*%^splits%*/
                   const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
                   /*%/splits%*/
                   const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  /*%#dq%*/
  // The first dQ product has no earlier step whose dS it could multiply, so it multiplies zeros.
  for (int at = 16 * static_cast<int>(threadIdx.x); at < kDsBytes; at += 16 * kThreads) {
    store_shared(shared + kExchange + kDsBytes + at, uint4{0, 0, 0, 0});
  }
  fence_async_shared();
  /*%/dq%*/
  __syncthreads();

  if (warpgroup == 0) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) feed<FeedKQ>(map_k, map_q, p.lse_log2, p, shared);
    if (threadIdx.x == 32) feed<FeedVDo>(map_v, map_dout, p.delta, p, shared);
    /*%^splits%*/
    if (threadIdx.x == 64) send_gradients(map_dk, map_dv, p, shared);
    /*%/splits%*/
    /*%#splits%*/
    if (threadIdx.x == 64) order_all_shares(p, shared);
    /*%/splits%*/
    /*%#dq%*/
    if (threadIdx.x >= 96) convert_sums<2>(p);
    /*%/dq%*/
  } else {
    take_registers<kConsumerRegisters>();
    KeyOwner owner(p, shared, warpgroup - 1);
    owner.run();
    /*%#splits%*/
    if (p.seqlen_q == 0) write_zeros(p);
    /*%/splits%*/
    /*%#dq%*/
    convert_sums<8>(p);
    /*%/dq%*/
  }
}

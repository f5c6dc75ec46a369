// FlashAttention forward on Hopper (FlashAttention-3, arXiv 2407.08608): a warpgroup that feeds shared memory
// through TMA, and kWarpgroups that compute 64 query rows each with asynchronous products.
/*%#one_each%*/
// Each CTA has one tile: loops over tiles go round once.
/*%/one_each%*/
/*%#one_after_another%*/
// CTAs work on one tile after another.
/*%/one_after_another%*/
/*%#even%*/
/*%^causal%*/
// The keys of a last wave that is not full, and mostly of the wave before it, are cut into even shares, and
// CTAs merge their partial results; then they work on the other tiles, one after another.
/*%/causal%*/
/*%#causal%*/
// The keys of all tiles are cut into even shares, and CTAs merge their partial results. Where a head has one
// tile only, this goes for a last wave that is not full, and mostly for the wave before it; then CTAs work on
// the other tiles, one after another.
/*%/causal%*/
/*%/even%*/
/*%#split%*/
// The kCluster CTAs of a cluster share out a tile's keys and merge their partial results.
/*%/split%*/
/*%#min_ctas%*/
// Several CTAs share a multiprocessor, so that one's tile begins and ends beside the others' products.
/*%/min_ctas%*/
/*%#cluster%*/
// The kCluster CTAs of a cluster work on adjacent rows: what one loads of K or V, all get.
/*%/cluster%*/
#include "params/forward.h"
/*%^shares%*/
#include "parts/wgmma/consume.cuh"
/*%/shares%*/
/*%#even%*/
#include "parts/wgmma/consume_even.cuh"
/*%/even%*/
/*%#split%*/
#include "parts/wgmma/consume_share.cuh"
/*%/split%*/
/*%#half_step%*/
#include "parts/wgmma/last_half_step.cuh"
/*%/half_step%*/
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/producer.cuh"
/*%#cluster%*/
#include "ptx/cluster.cuh"
/*%/cluster%*/
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/tensor_map.cuh"

/*%^min_ctas%*/
extern "C" __global__ void __launch_bounds__(kThreads, 1)
/*%/min_ctas%*/
/*%#min_ctas%*/
extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas)
/*%/min_ctas%*/
    FLASHJIT_ENTRY(const __grid_constant__ TensorMap map_q,
                   /*%#whole_k%*/
                   const __grid_constant__ TensorMap map_k,
                   /*%/whole_k%*/
                   /*%#last_k%*/
                   const __grid_constant__ TensorMap map_last_k,
                   /*%/last_k%*/
                   /*%#whole_v%*/
                   const __grid_constant__ TensorMap map_v,
                   /*%/whole_v%*/
                   /*%#last_v%*/
                   const __grid_constant__ TensorMap map_last_v,
                   /*%/last_v%*/
                   /*%^split%*/
                   const __grid_constant__ TensorMap map_o,
                   /*%/split%*/
                   const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  /*%#half_step%*/
  clear_half_step(shared);
  /*%/half_step%*/
  __syncthreads();
  /*%#cluster%*/
  cluster_sync();
  /*%/cluster%*/

  if (warpgroup == 0) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer producer{map_q,
                        /*%#whole_k%*/
                        map_k,
                        /*%/whole_k%*/
                        /*%#last_k%*/
                        map_last_k,
                        /*%/last_k%*/
                        /*%#whole_v%*/
                        map_v,
                        /*%/whole_v%*/
                        /*%#last_v%*/
                        map_last_v,
                        /*%/last_v%*/
                        shared};
      produce(producer, p);
    }
  } else {
    take_registers<kConsumerRegisters>();
    Consumer consumer(shared, warpgroup - 1, p.scale_log2);
    /*%^split%*/
    consume(consumer, map_o, p);
    /*%/split%*/
    /*%#split%*/
    consume(consumer, p);
    /*%/split%*/
  }
  /*%#cluster%*/
  // The other CTA may still arrive at barriers of this one, and copy to it.
  cluster_sync();
  /*%/cluster%*/
}

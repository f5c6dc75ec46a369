// FlashAttention's forward pass on Hopper in fp32, on tensor cores that multiply bf16: each number is the sum
// of three bf16 numbers, and each product the sum of six (Henry, Tang, Heinecke, "Leveraging the bfloat16
// Artificial Intelligence Datatype For Higher-Precision Computations", 2019). Warpgroups have roles as in
// FlashAttention-3 (arXiv 2407.08608): kProducers load blocks of K and V, split them and put the parts into
// shared memory, and kWarpgroups compute 64 query rows each with asynchronous products.
/*%^alone%*/
// While one of these is busy with its softmax, tensor cores have another one's products.
/*%/alone%*/
#include "params/forward.h"
#include "parts/mma/epilogue_fp32.cuh"
#include "parts/mma/tile_order.cuh"
#include "parts/mma/visible_keys.cuh"
#include "parts/wgmma_fp32/consumer.cuh"
#include "parts/wgmma_fp32/layout.cuh"
#include "parts/wgmma_fp32/producer.cuh"
#include "ptx/block_index.cuh"
/*%#cluster%*/
#include "ptx/cluster.cuh"
/*%/cluster%*/
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"

// What the CTA works on.
/*%#by_keys%*/
// The tiles of a cluster's CTAs count as one.
/*%/by_keys%*/
/*%#by_columns%*/
// A cluster's CTAs share a tile: each has half of the columns of Q, K, V and O.
/*%/by_columns%*/
__device__ __forceinline__ TileIndex own_tile(const ForwardParams& p) {
  /*%^cluster%*/
  return tile_at(p, block_index());
  /*%/cluster%*/
  /*%#cluster%*/
  return tile_at(p, block_index() / kCluster);
  /*%/cluster%*/
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  /*%#padded%*/
  clear_blocks(shared);
  /*%/padded%*/
  /*%^cluster%*/
  __syncthreads();
  /*%/cluster%*/
  /*%#cluster%*/
  cluster_sync();
  /*%/cluster%*/

  // Each role finds the tile's place by itself: it would cost a producer's few registers to be handed it.
  if (warpgroup < kProducers) {
    give_up_registers<kProducerRegisters>();
    const TileIndex index = own_tile(p);
    const VisibleKeys visible(p, index.m * kTileM);
    Producer producer(shared, p, index);
    /*%#two_producers%*/
    producer.produce(visible.masked_end, warpgroup);
    /*%/two_producers%*/
    /*%^two_producers%*/
    producer.produce(visible.masked_end);
    /*%/two_producers%*/
  } else {
    take_registers<kConsumerRegisters>();
    const TileIndex index = own_tile(p);
    const VisibleKeys visible(p, index.m * kTileM);
    Consumer consumer(shared, warpgroup - kProducers);
    if (visible.masked_end > 0) consumer.start(p, index);
    consumer.consume(p, visible);
    /*%^by_columns%*/
    const int first_column = 0;
    /*%/by_columns%*/
    /*%#by_columns%*/
    const int first_column = cluster_rank() * kHeadDimV;
    /*%/by_columns%*/
    write_rows(p, index, index.m * kTileM + consumer.warp_row(), first_column, consumer.rows,
               consumer.output);
  }
  /*%#cluster%*/
  // The other CTA may still arrive at barriers of this one, and copy to it.
  cluster_sync();
  /*%/cluster%*/
}

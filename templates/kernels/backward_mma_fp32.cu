// FlashAttention-2's backward pass (Dao, arXiv 2307.08691, algorithm 2) in fp32, on tensor cores that
// multiply bf16: each number is the sum of three bf16 numbers, and each product the sum of six (Henry, Tang,
// Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// 2019). A CTA owns kTileN keys of one K/V head, and the rows of Q and dO of all query heads that share the
// K/V head stream past. Half of the warps compute S^T = K Q^T, P^T and dV; the other half compute dP^T = V
// dO^T, dS^T and dK. A warp of either half has 16 keys.
/*%#dq_sum%*/
// Then all warps share out dQ.
/*%/dq_sum%*/
/*%#shared_keys%*/
// Two warps of a half share their keys: each has half of the rows of S^T and dP^T, and every second block of
// 16 columns of dV and dK.
/*%/shared_keys%*/
#include "params/backward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
/*%#dq_sum%*/
#include "parts/mma/backward_dq_split.cuh"
/*%/dq_sum%*/
/*%#ds_tile%*/
#include "parts/mma/backward_ds_split.cuh"
/*%/ds_tile%*/
#include "parts/mma/backward_key_tile.cuh"
#include "parts/mma/backward_rows_split.cuh"
#include "parts/mma/backward_weights_split.cuh"
#include "parts/mma/loader_split.cuh"
#include "parts/mma/split_products.cuh"
#include "ptx/finite.cuh"
#include "ptx/load_shared_16.cuh"
#include "ptx/math.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/shared_pair.cuh"
#include "ptx/store_shared_16.cuh"
#include "ptx/thread_index.cuh"

constexpr int kHalf = kThreads / 64;  // warps of a half
/*%#shared_keys%*/
constexpr int kKeyWarps = kHalf / kSharers;  // groups of kSharers warps; the warps of a group share keys
/*%/shared_keys%*/
constexpr int kSteps = kTileM / 16;          // of 16 query rows
constexpr int kOwnRows = kTileM / kSharers;  // whose P or dS the warp computes
constexpr int kWidest = kHeadDim > kHeadDimV ? kHeadDim : kHeadDimV;
constexpr int kSums = ((kWidest + 15) / 16 + kSharers - 1) / kSharers * 8;  // of a thread
constexpr int kPBytes = 16 * kTileM * 4;                                    // of P^T of 16 keys

// What follows from this thread's number.
struct Place {
  int lane;
  int warp;      // in its half
  int key_warp;  // its keys: 16 * key_warp and the 15 after it, in the tile
  int part;      // tells warps with the same keys apart

  __device__ __forceinline__ Place() {
    const int thread = thread_index();
    lane = thread % 32, warp = thread / 32 % kHalf;
    key_warp = warp / kSharers, part = warp % kSharers;
  }
};

// dV += P^T dO, for a warp's keys. P^T goes through shared memory, to the warp that computes its dS^T, too.
/*%#causal%*/
// edge: the first of the tile's rows that sees its first key; each key further on is seen from one row later.
/*%/causal%*/
/*%^causal%*/
// edge: how many of the tile's keys exist.
/*%/causal%*/
__device__ __forceinline__ void add_values(float (&dv)[kSums], unsigned shared, int edge,
                                           const BackwardParams& params) {
  const Place at;
  const int own_row = at.part * kOwnRows;  // the warp's first, in the tile
  SplitSum<kOwnRows / 2> sum;
  multiply_rows<TileQK, kTileN, kTileM, kOwnRows>(
      sum, shared + at.key_warp * 16 * TileQK::kPitch + lane_offset_rows_first<TileQK>(at.lane),
      shared + kOffsetQ + own_row * TileQK::kPitch + lane_offset_columns_first<TileQK>(at.lane));
  const unsigned p_lane = shared + kOffsetP + at.key_warp * kPBytes + at.lane * 16;
  const int key = at.key_warp * 16 + at.lane / 4;  // the thread's first, in the tile
  const int column = at.lane % 4 * 2;              // its first row's, in what the warp computes
  unsigned fragments[kSteps][kParts][4];           // of P^T, for the next product
#pragma unroll
  for (int step = 0; step < kOwnRows / 16; ++step) {
    float p[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row + 16 * step + 8 * half;
      const float2 lse = load_pair(shared + kOffsetRows + (row + column) * 4);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int i = 4 * half + x;
        p[i] = exp2_fast(log2_weight(sum.high[8 * step + i], sum.low[8 * step + i], params.scale,
                                     x % 2 == 0 ? lse.x : lse.y));
        /*%#causal%*/
        if (row + column + x % 2 < edge + key + x / 2 * 8) p[i] = 0;
        /*%/causal%*/
        /*%^causal%*/
        // Keys past the end of K are zeros, but exp(0 - LSE) may be infinite.
        if (key + x / 2 * 8 >= edge) p[i] = 0;
        /*%/causal%*/
      }
      const float* const four = &p[4 * half];
      store_shared(p_lane + row / 8 * 512, uint4{__float_as_uint(four[0]), __float_as_uint(four[1]),
                                                 __float_as_uint(four[2]), __float_as_uint(four[3])});
    }
    /*%^shared_keys%*/
    split_fragment(fragments[step], p);
    /*%/shared_keys%*/
  }
  named_barrier_arrive(1 + at.warp, 64);
  /*%#shared_keys%*/
  named_barrier_sync(1 + kHalf + at.key_warp, 64);  // the other warp's rows of P^T are there
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    float p[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 four = load_shared_16(p_lane + (2 * step + half) * 512);
      p[4 * half] = __uint_as_float(four.x), p[4 * half + 1] = __uint_as_float(four.y);
      p[4 * half + 2] = __uint_as_float(four.z), p[4 * half + 3] = __uint_as_float(four.w);
    }
    split_fragment(fragments[step], p);
  }
  /*%/shared_keys%*/
  add_columns<kHeadDimV, kSharers>(
      dv, fragments, shared + kOffsetDout + TileV::offset(at.lane % 16, 2 * at.part + at.lane / 16), at.part);
}

// dK += dS^T Q without the scale, for a warp's keys.
/*%#ds_tile%*/
// dS^T is left in shared memory.
/*%/ds_tile%*/
__device__ __forceinline__ void add_keys(float (&dk)[kSums], unsigned shared) {
  const Place at;
  const int own_row = at.part * kOwnRows;  // the warp's first, in the tile
  SplitSum<kOwnRows / 2> sum;
  multiply_rows<TileV, kTileN, kTileM, kOwnRows>(
      sum, shared + kOffsetV + at.key_warp * 16 * TileV::kPitch + lane_offset_rows_first<TileV>(at.lane),
      shared + kOffsetDout + own_row * TileV::kPitch + lane_offset_columns_first<TileV>(at.lane));
  /*%#ds_tile%*/
  const unsigned ds_tile = shared + kOffsetDs + at.key_warp * kDsBytes;
  /*%/ds_tile%*/
  const unsigned p_lane = shared + kOffsetP + at.key_warp * kPBytes + at.lane * 16;
  named_barrier_sync(1 + at.warp, 64);    // P^T is there
  unsigned fragments[kSteps][kParts][4];  // of dS^T, for the next product
#pragma unroll
  for (int step = 0; step < kOwnRows / 16; ++step) {
    float ds[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row + 16 * step + 8 * half;
      const float2 delta = load_pair(shared + kOffsetRows + (kTileM + row + at.lane % 4 * 2) * 4);
      const uint4 p = load_shared_16(p_lane + row / 8 * 512);
      const int i = 8 * step + 4 * half;
      ds[4 * half] = __uint_as_float(p.x) * (sum.at(i) - delta.x);
      ds[4 * half + 1] = __uint_as_float(p.y) * (sum.at(i + 1) - delta.y);
      ds[4 * half + 2] = __uint_as_float(p.z) * (sum.at(i + 2) - delta.x);
      ds[4 * half + 3] = __uint_as_float(p.w) * (sum.at(i + 3) - delta.y);
    }
    /*%#shared_keys%*/
    unsigned fragment[kParts][4];
    /*%/shared_keys%*/
    /*%^shared_keys%*/
    unsigned(&fragment)[kParts][4] = fragments[step];
    /*%/shared_keys%*/
    split_fragment(fragment, ds);
    /*%#ds_tile%*/
    store_ds(ds_tile, fragment, own_row + 16 * step, at.lane);
    /*%/ds_tile%*/
  }
  /*%#shared_keys%*/
  named_barrier_sync(1 + kHalf + kKeyWarps + at.key_warp, 64);  // the other warp's rows are there
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ldmatrix(fragments[step][part],
               ds_tile + part * kDsPartBytes + TileDs::offset(at.lane % 16, 2 * step + at.lane / 16));
    }
  }
  /*%/shared_keys%*/
  add_columns<kHeadDim, kSharers>(
      dk, fragments, shared + kOffsetQ + TileQK::offset(at.lane % 16, 2 * at.part + at.lane / 16), at.part);
}

// Writes a warp's keys and columns of a gradient, from the tile's first key on; `rows` keys exist from there.
// The four lanes of a quad write 32 bytes of a row side by side.
template <int kColumns>
__device__ __forceinline__ void write_gradient(const float (&sum)[kSums], float scale, float* to,
                                               long long row_stride, int rows) {
  const Place at;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.key_warp * 16 + 8 * half + at.lane / 4;
    if (row >= rows) return;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const int column = (i / 2 * kSharers + at.part) * 16 + i % 2 * 8;
      if (column >= kColumns) break;
      *reinterpret_cast<float2*>(to + row * row_stride + column + at.lane % 4 * 2) =
          float2{sum[4 * i + 2 * half] * scale, sum[4 * i + 2 * half + 1] * scale};
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads/*%#min_ctas%*/, kMinCtas/*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const unsigned shared = shared_address(shared_bytes);  // where the parts of K begin

  const KeyTile tile = key_tile_of_block(params);
  const int first_key = tile.n * kTileN;

  const int tiles_q = (params.seqlen_q + kTileM - 1) / kTileM;
  /*%#causal%*/
  const int first_m = max(first_key - diagonal(params), 0) / kTileM;  // rows above see none of the CTA's keys
  /*%/causal%*/
  /*%^causal%*/
  const int first_m = 0;
  /*%/causal%*/
  const int steps = params.group * max(tiles_q - first_m, 0);

  // What the next copies copy.
  int copy_m = first_m;
  int copy_head = tile.head * params.group;
  SplitCopy<kTileM, kHeadDim> q_copy(
      head_of(params.q, tile.batch * params.q_batch, copy_head * params.q_head), params.q_row);
  SplitCopy<kTileM, kHeadDimV> dout_copy(
      head_of(params.dout, tile.batch * params.dout_batch, copy_head * params.dout_head), params.dout_row);
  float held_row = 0;
  const auto start_copies = [&] {
    q_copy.start(copy_m * kTileM, params.seqlen_q);
    dout_copy.start(copy_m * kTileM, params.seqlen_q);
    held_row = load_row(params, tile.batch * params.heads + copy_head, copy_m * kTileM);
    if (++copy_m == tiles_q) {
      copy_m = first_m;
      ++copy_head;
      q_copy.source += params.q_head;
      dout_copy.source += params.dout_head;
    }
  };
  const auto as_it_is = [](float x) { return x; };

  float sum[kSums] = {};  // this thread's part of the warp's keys of dV or dK
  if (steps > 0) {
    {
      SplitCopy<kTileN, kHeadDim> k_copy(
          head_of(params.k, tile.batch * params.k_batch, tile.head * params.k_head), params.k_row);
      k_copy.start(first_key, params.seqlen_k);
      k_copy.finish(shared, finite);
      SplitCopy<kTileN, kHeadDimV> v_copy(
          head_of(params.v, tile.batch * params.v_batch, tile.head * params.v_head), params.v_row);
      v_copy.start(first_key, params.seqlen_k);
      v_copy.finish(shared + kOffsetV, as_it_is);
    }
    start_copies();
    int m = first_m;
    /*%#dq_sum%*/
    int pair = tile.batch * params.heads + tile.head * params.group;
    /*%/dq_sum%*/
    for (int i = 0; i < steps; ++i) {
      q_copy.finish(shared + kOffsetQ, as_it_is);
      dout_copy.finish(shared + kOffsetDout, as_it_is);
      store_row(shared + kOffsetRows, held_row);
      __syncthreads();  // the rows are there, and all warps are done with the last step
      if (thread_index() < kThreads / 2) {
        /*%#causal%*/
        add_values(sum, shared, first_key - diagonal(params) - m * kTileM, params);
        /*%/causal%*/
        /*%^causal%*/
        add_values(sum, shared, params.seqlen_k - first_key, params);
        /*%/causal%*/
      } else {
        add_keys(sum, shared);
      }
      __syncthreads();  // all warps are done with Q and dO
      if (i + 1 < steps) start_copies();
      /*%#dq_sum%*/
      add_dq(shared, pair, m, params);
      /*%/dq_sum%*/
      if (++m == tiles_q) {
        m = first_m;
        /*%#dq_sum%*/
        ++pair;
        /*%/dq_sum%*/
      }
    }
  }

  const int rows = params.seqlen_k - first_key;
  if (threadIdx.x < kThreads / 2) {
    float* const dv = static_cast<float*>(params.dv) + tile.batch * params.dv_batch +
                      tile.head * params.dv_head + first_key * params.dv_row;
    write_gradient<kHeadDimV>(sum, 1.0f, dv, params.dv_row, rows);
  } else {
    float* const dk = static_cast<float*>(params.dk) + tile.batch * params.dk_batch +
                      tile.head * params.dk_head + first_key * params.dk_row;
    write_gradient<kHeadDim>(sum, params.scale, dk, params.dk_row, rows);
  }
}

// backward fp32 d64 causal deterministic, schedule simt-backward:m64n64w4, for sm_80.
// Written by flashjit 0.1.0 from templates/kernels/backward_preprocess.cu.

constexpr int kElementBytes = 4;  // of dO and O
constexpr int kChunks = 16;       // of 16 bytes in a row of dO and O
constexpr int kLanes = 8;         // side by side on a row
constexpr int kRows = 128;        // per CTA
constexpr int kThreads = 256;     // per CTA
constexpr bool kCareful = false;  // sums of S, dP and delta lose less

// Before the backward pass proper (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2, line 4): delta, the
// sum of dO * O of each query row. A CTA does kRows rows of one head, up to the end of the padding.

// A divisor as the host prepares it, so that a kernel divides by one multiplication (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994). Host and device compile this one file.

struct Divisor {
  unsigned multiplier;  // ceil(2^(31 + shift) / divisor), which is below 2^32
  int shift;            // ceil(log2(divisor))
};

// What the host hands to the kernels of a backward pass. Host and device compile this one file, so the layout
// cannot drift. In the arrays of the workspace each head's rows are padded to whole tiles of the schedule, and
// from there to a multiple of kBackwardRowPadding, so that a tile of rows can be copied whole.

struct BackwardParams {
  const void* q;  // element (b, h, i, x) of q is at q + b * q_batch + h * q_head + i * q_row + x, in elements
  const void* k;
  const void* v;
  const void* o;
  const void* dout;  // the gradient of o
  const float* lse;  // (batch, heads, seqlen_q), packed, natural log, as the forward pass wrote it
  void* dq;
  void* dk;
  void* dv;

  float* lse_log2;  // workspace (batch, heads, padded_q): lse * log2(e); +inf, so that P is 0, for rows that
                    // see no key and for padding. The fp32 kernels read lse itself
  float* delta;     // workspace (batch, heads, padded_q): the row's sum of dO * O; 0 for padding
  float* dq_sum;    // workspace (batch, heads, padded_q, head_dim), if the schedule adds dQ up: unscaled sums
  // Workspace, if kernels have tiles copied as they are (parts/wgmma_fp32_backward/row_parts.cuh,
  // key_parts.cuh):
  unsigned char* row_parts;  // tiles of (batch, heads, padded_q) rows
  unsigned char* key_parts;  // tiles of (batch, heads_kv, seqlen_k) keys, each head's padded to whole tiles
  int* counters;    // workspace, one per kBackwardCounterRows rows of the arrays above: how far the additions
                    // to dQ have come, if the kernel that does them also writes dQ
  float* key_sums;  // workspace, if the queries of a tile of keys are shared out: unscaled sums of dV and dK,
                    // of all tiles (parts/wgmma_backward/key_sums.cuh), each head's keys padded to whole
                    // tiles, or of those that are divided (parts/wgmma_backward/divided_tiles.cuh)
  int* tile_counter;  // zeros: two, and one for each divided tile; a kernel that draws its tiles from it
                      // leaves all of them zero again

  long long q_batch, q_head, q_row;
  long long k_batch, k_head, k_row;
  long long v_batch, v_head, v_row;
  long long o_batch, o_head, o_row;
  long long dout_batch, dout_head, dout_row;
  long long dq_batch, dq_head, dq_row;
  long long dk_batch, dk_head, dk_row;
  long long dv_batch, dv_head, dv_row;

  int batch, heads, heads_kv;
  int group;        // query heads that a tile of keys meets: heads / heads_kv / head_splits
  int head_splits;  // parts into which the heads that share a K/V head are divided …
  int row_splits;   // … and each head's rows, where the queries of a tile of keys are shared out; else 1
  int head_parts;   // heads_kv * head_splits
  int seqlen_q, seqlen_k;
  int padded_q;      // seqlen_q, padded
  int tiles;         // per head and batch, of this kernel's grid
  int section;       // (batch, head) pairs of this kernel's grid that are ordered longest tiles first
  int last_section;  // first pair of the last section
  int last_pairs;    // pairs of the last section
  int divided_tiles;    // of a grid over keys, the last ones, where they are divided in two
                        // (parts/wgmma_backward/divided_tiles.cuh); else none
  int undivided_tiles;  // which come before these
  int least_steps;      // of the smaller part of the first divided tile …
  int more_steps;       // … and how many more there would be in that of a tile after the last one

  float scale;       // of the logits
  float scale_log2;  // scale * log2(e)

  // For division by what their names say:
  Divisor by_heads, by_heads_kv;
  Divisor by_head_splits, by_row_splits, by_head_parts;
  Divisor by_group;
  Divisor by_tiles;    // tiles, of this kernel's grid
  Divisor by_pairs;    // (batch, head) pairs of the grid: batch * heads or batch * heads_kv
  Divisor by_section;  // pairs of any section but the last
  Divisor by_last_pairs;
  Divisor by_section_tiles;
  Divisor by_divided_tiles;
};

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}

// Adds a block to a sum (scores.cuh).

// lost: what the additions to the sum have lost to rounding so far, if kept (Kahan's sum, Higham section
// 4.3). An infinite sum has lost nothing, since no correction would bring it back.
__device__ __forceinline__ void add_block(float& sum, float& lost, float block) {
  if constexpr (kCareful) {
    const float term = block - lost;
    const float more = sum + term;
    lost = more - more == 0 ? (more - sum) - term : 0;
    sum = more;
  } else {
    sum += block;
  }
}

// Elements of a tensor that are read and written together: 16 bytes.

constexpr int kVector = 16 / kElementBytes;

// 16 bytes of a tensor's elements as fp32 (PTX ISA, "cvt").

__device__ __forceinline__ void widen(float (&to)[kVector], uint4 from) {
  const unsigned words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = __uint_as_float(words[i]);
  }
}

constexpr int kSteps = kRows * kLanes / kThreads;      // rows of which a lane has a part
constexpr int kAtOnce = kSteps % 4 == 0 ? 4 : kSteps;  // rows whose loads are in flight together
static_assert(kSteps % kAtOnce == 0 && kRows <= kThreads);

// A lane's 16 bytes of a row; zeros where there are none.
__device__ __forceinline__ uint4 load_chunk(const unsigned char* from, bool inside) {
  return inside ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}

// sum + x y, one dim after the other.
__device__ __forceinline__ float dot(const uint4& x, const uint4& y, float sum = 0) {
  float a[kVector], b[kVector];
  widen(a, x);
  widen(b, y);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum = fmaf(a[i], b[i], sum);
  return sum;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flashjit_backward_simt_fp32_d64_causal_deterministic_m64n64w4_preprocess(const __grid_constant__ BackwardParams params) {
  // Neighbouring CTAs have the same rows of neighbouring heads, which often lie next to each other. The first
  // heads come last: the next kernel begins with them, and finds their rows in L2.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int rows_of_heads = divide(block, params.by_heads);
  const int head = block - rows_of_heads * params.heads;
  const int batch = divide(rows_of_heads, params.by_tiles);
  const int first_row = (rows_of_heads - batch * params.tiles) * kRows;
  const int head_index = batch * params.heads + head;
  const long long padded = static_cast<long long>(head_index) * params.padded_q + first_row;

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  const unsigned char* o = static_cast<const unsigned char*>(params.o) +
                           (batch * params.o_batch + head * params.o_head) * kElementBytes;
  const unsigned char* dout = static_cast<const unsigned char*>(params.dout) +
                              (batch * params.dout_batch + head * params.dout_head) * kElementBytes;
#pragma unroll 1
  for (int step = 0; step < kSteps; step += kAtOnce) {
    float sum[kAtOnce] = {};
    // Adds in the order in which simt's kernels add up dP (multiply_rows of parts/simt/scores.cuh), with a
    // lane for each block. So where one key has all the weight and O is its V, delta equals dP to the last
    // bit and dS is 0.
    float part[kAtOnce], lost[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first_row + ((step + i) * kThreads + thread) / kLanes;
      const bool inside = row < params.seqlen_q && 2 * lane < kChunks;
      const unsigned char* const of_o = o + row * params.o_row * kElementBytes + 32 * lane;
      const unsigned char* const of_dout = dout + row * params.dout_row * kElementBytes + 32 * lane;
      part[i] = dot(load_chunk(of_o, inside), load_chunk(of_dout, inside));
      part[i] = dot(load_chunk(of_o + 16, inside), load_chunk(of_dout + 16, inside), part[i]);
    }
#pragma unroll
    for (int from = 0; from < kChunks / 2; ++from) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        add_block(sum[i], lost[i], __shfl_sync(0xffffffffu, part[i], from, kLanes));
    }
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        params.delta[padded + ((step + i) * kThreads + thread) / kLanes] = sum[i];
      }
    }
  }
}

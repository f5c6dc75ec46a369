// backward fp32 d72/64 causal, schedule wgmma-backward:m64n64s1, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/backward_mma_sum.cu.

constexpr int kElementBytes = 4;  // of dQ
constexpr int kHeadDim = 72;      // columns of dQ
constexpr int kRows = 128;        // per CTA
constexpr int kThreads = 256;     // per CTA

// The last kernel of a backward pass that adds dQ up in the layout of mma's accumulators: scales the sums,
// rounds them and puts them in order. A CTA does kRows rows of one head. Their sums lie in blocks of 16 rows
// and 8 columns, one row of blocks after another (ptx/reduction_fragment.cuh).

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

constexpr int kBlocks = kHeadDim / 8;  // side by side

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashjit_backward_wgmma_fp32_d72v64_causal_m64n64s1_sum(const __grid_constant__ BackwardParams params) {
  const int block = static_cast<int>(blockIdx.x);
  const int head_index = divide(block, params.by_tiles);
  const int first_row = (block - head_index * params.tiles) * kRows;
  const int batch = divide(head_index, params.by_heads);
  const int head = head_index - batch * params.heads;
  const float4* const sums = reinterpret_cast<const float4*>(
      params.dq_sum + (static_cast<long long>(head_index) * params.padded_q + first_row) * kHeadDim);
  unsigned char* const dq = static_cast<unsigned char*>(params.dq) +
                            (batch * params.dq_batch + head * params.dq_head) * kElementBytes;

  // The accumulators of lanes 4 * quad … 4 * quad + 3: each has two columns of rows `quad` and `quad` + 8.
#pragma unroll 2
  for (int i = threadIdx.x; i < kRows / 2 * kBlocks; i += kThreads) {
    const int quad = i % 8, which = i / 8;  // of the blocks
    const float4* const from = sums + which * 32;
    float value[2][8];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float4 four = from[quad * 4 + x];
      value[0][2 * x] = four.x * params.scale, value[0][2 * x + 1] = four.y * params.scale;
      value[1][2 * x] = four.z * params.scale, value[1][2 * x + 1] = four.w * params.scale;
    }
    const int row = first_row + which / kBlocks * 16 + quad;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= params.seqlen_q) continue;
      unsigned char* const to = dq + ((row + 8 * half) * params.dq_row + which % kBlocks * 8) * kElementBytes;
      const float(&v)[8] = value[half];
      reinterpret_cast<float4*>(to)[0] = float4{v[0], v[1], v[2], v[3]};
      reinterpret_cast<float4*>(to)[1] = float4{v[4], v[5], v[6], v[7]};
    }
  }
}

// backward fp32 d72/64 causal, schedule wgmma-backward:m64n64s1, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/backward_mma_fp32_preprocess.cu.

constexpr int kHeadDimV = 64;          // columns of O and dO
constexpr int kRows = 128;             // per CTA
constexpr int kThreads = 256;          // per CTA, a warp for 16 rows
constexpr int kHeadDim = 72;           // columns of Q and dQ
constexpr int kRowPartsBytes = 74240;  // of a tile of rows in the workspace

// Before the backward pass in fp32 on tensor cores (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2,
// line 4): delta, the sum of dO * O of each query row. A CTA does kRows rows of one head, up to the end of
// the padding.
// And it splits the rows of Q and dO into their parts, for the kernel that has them copied.

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

// Pairs of fp32 to packed 16-bit elements (PTX ISA, "cvt").

// low goes to bits 0-15.
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Packed 16-bit elements to fp32 (PTX ISA, "cvt").

__device__ __forceinline__ float low_half(unsigned pair) {
  return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_half(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// fp32 numbers as sums of bf16 numbers.

// bf16 has 8 of fp32's 24 bits, and all of its exponents. So three parts, each taken from what the parts
// before leave, add up to the number, if that is not below 2^-110, where the last parts vanish.
constexpr int kParts = 3;

// Splits two neighbouring numbers; the same part of both is packed.
__device__ __forceinline__ void split(float low, float high, unsigned (&parts)[kParts]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    parts[part] = pack(low, high);
    low -= low_half(parts[part]);
    high -= high_half(parts[part]);
  }
}

// Splits what has the layout of an accumulator of 16 rows and 16 columns, which is also that of an A
// fragment.
__device__ __forceinline__ void split_fragment(unsigned (&fragment)[kParts][4], const float* numbers) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned parts[kParts];
    split(numbers[2 * i], numbers[2 * i + 1], parts);
#pragma unroll
    for (int part = 0; part < kParts; ++part) fragment[part][i] = parts[part];
  }
}

// The warp's tensor-core product (PTX ISA, "mma"): d += a * b, a 16x16, b 16x8, d 16x8 in fp32.
// With lane = 4g + t: a[0] holds (g, 2t..2t+1), a[1] row g + 8, a[2] columns + 8, a[3] both; b0 holds rows
// 2t..2t+1 of column g, b1 rows + 8; d[0], d[1] hold (g, 2t..2t+1), d[2], d[3] the same of row g + 8.

__device__ __forceinline__ void mma(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sums of products in fp32, on tensor cores that multiply bf16. Of the nine products of two numbers' parts,
// three are below the last bit of the whole; the other six are computed.

// A sum of products, kept as two sums. Each time that mma adds 16 products it rounds towards zero, at the
// size of the sum. So small products have a sum of their own, and only products of the first parts are added
// to a large sum.
template <int kSize>
struct SplitSum {
  float high[kSize] = {};  // of the products of both first parts
  float low[kSize] = {};   // of the others

  // Adds A B to the eight numbers from `first` on; a, b: fragments of all parts. The product of both first
  // parts is computed by itself and then added, rounded to nearest: a few more additions for a smaller error.
  __device__ __forceinline__ void multiply_apart(int first, const unsigned (&a)[kParts][4],
                                                 const unsigned (&b)[kParts][4]) {
    multiply_low(first, a, b);
    float product[8] = {};
    multiply_parts(product, a[0], b[0]);
#pragma unroll
    for (int i = 0; i < 8; ++i) high[first + i] += product[i];
  }

  __device__ __forceinline__ float at(int i) const {
    return high[i] + low[i];
  }

 private:
  // The smallest products come first.
  __device__ __forceinline__ void multiply_low(int first, const unsigned (&a)[kParts][4],
                                               const unsigned (&b)[kParts][4]) {
#pragma unroll
    for (int parts = kParts - 1; parts > 0; --parts) {
#pragma unroll
      for (int i = 0; i <= parts; ++i) {
        multiply_parts(&low[first], a[i], b[parts - i]);
      }
    }
  }

  // The two halves of B take turns, so that no product waits for the one before.
  __device__ __forceinline__ static void multiply_parts(float* sum, const unsigned (&a)[4],
                                                        const unsigned (&b)[4]) {
    mma(sum, a, b[0], b[1]);
    mma(sum + 4, a, b[2], b[3]);
  }
};

// Where a head begins, in fp32.

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const float* head_of(const void* tensor, long long batch, long long head) {
  return static_cast<const float*>(tensor) + batch + head;
}

// Eight numbers as their parts.

// Splits eight neighbouring numbers, after `prepare` has been applied to each of them.
template <class Prepare>
__device__ __forceinline__ void split_eight(const float4 (&numbers)[2], const Prepare& prepare,
                                            unsigned (&parts)[4][kParts]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = numbers[half];
    split(prepare(four.x), prepare(four.y), parts[2 * half]);
    split(prepare(four.z), prepare(four.w), parts[2 * half + 1]);
  }
}

// Rows of fp32 in global memory.

// A tile's rows of a head, from the head's row `first` on. Rows from `end` on do not exist.
struct Rows {
  const float* head;
  long long stride;  // from row to row, in elements
  int first, end;

  __device__ __forceinline__ bool have(int row) const { return first + row < end; }
  __device__ __forceinline__ const float* at(int row, int column) const {
    return head + (first + row) * stride + column;
  }
};

// Tiles of fp32 numbers in shared memory, each as three tiles of bf16 whose sum it is.

constexpr int kPanelColumns = 64;
constexpr int kRowBytes = 2 * kPanelColumns;  // of a panel: what the widest swizzle spans

// One panel after another, and in each of them its first parts' rows, then the second and third parts'. So
// one product may have the rows of two parts. The 16-byte chunks of a row change places, and the same chunk
// of eight rows lies in different banks (PTX ISA, "128B swizzle").
template <int kRowsOfTile, int kColumns>
struct SplitTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kPartBytes = kRows * kRowBytes;  // of a panel
  static constexpr int kPanelBytes = kParts * kPartBytes;
  static constexpr int kBytes = (kColumns + kPanelColumns - 1) / kPanelColumns * kPanelBytes;

  // Bytes from the tile's start to a chunk of 8 columns of the first part.
  __device__ static unsigned offset(unsigned row, unsigned chunk) {
    return chunk / 8 * kPanelBytes + row * kRowBytes + (chunk ^ row) % 8 * 16;
  }
};

// Tiles of rows and of keys: 64 of them, since a product of a warpgroup has 64 rows.

using TileQK = SplitTile<64, kHeadDim>;  // of Q or K
using TileV = SplitTile<64, kHeadDimV>;  // of V or dO

// A tile of query rows in the workspace: dO and Q, each as three tiles of bf16 whose sum it is, then LSE and
// delta. The kernel before makes them, so that numbers are split once, and not by each CTA that multiplies
// them; and they lie as they shall lie in shared memory.

struct RowParts {
  static constexpr int kRows = TileQK::kRows;

  // In this order, as bytes from the start of a tile:
  static constexpr int kDout = 0;
  static constexpr int kQ = TileV::kBytes;
  static constexpr int kLse = kQ + TileQK::kBytes;
  static constexpr int kDelta = kLse + kRows * sizeof(float);
  static constexpr int kBytes = kDelta + kRows * sizeof(float);
  static_assert(kBytes == kRowPartsBytes, "the host gives each tile so much of the workspace");

  // pair: the head's number, counted through all batches. tile: of its padded rows.
  __device__ __forceinline__ static unsigned char* of(const BackwardParams& params, int pair, int tile) {
    const int tiles = params.padded_q / kRows;
    return params.row_parts + (static_cast<long long>(pair) * tiles + tile) * kBytes;
  }
};

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// A tile of query rows in parts, written by all threads of a CTA.

// Rows and columns that do not exist become zeros, up to the end of the last panel.
template <class Tile, int kColumns>
__device__ __forceinline__ void split_rows(unsigned char* to, const Rows& rows) {
  constexpr int kChunks = (kColumns + 63) / 64 * 8;  // of 8 columns
  const auto as_it_is = [](float x) { return x; };
#pragma unroll 2
  for (int piece = threadIdx.x; piece < Tile::kRows * kChunks; piece += kThreads) {
    const int row = piece / kChunks, chunk = piece % kChunks;
    float4 numbers[2] = {};
    if (rows.have(row) && (kColumns % 64 == 0 || chunk * 8 < kColumns)) {
      const auto* const from = reinterpret_cast<const float4*>(rows.at(row, chunk * 8));
      numbers[0] = from[0];
      numbers[1] = from[1];
    }
    unsigned parts[4][kParts];
    split_eight(numbers, as_it_is, parts);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      *reinterpret_cast<uint4*>(to + Tile::offset(row, chunk) + part * Tile::kPartBytes) =
          uint4{parts[0][part], parts[1][part], parts[2][part], parts[3][part]};
    }
  }
}

// tile: of the head's padded rows, whose delta is in params.delta.
__device__ __forceinline__ void write_row_parts(const BackwardParams& params, int batch, int head, int tile) {
  const int pair = batch * params.heads + head, first_row = tile * RowParts::kRows;
  unsigned char* const to = RowParts::of(params, pair, tile);
  const float* const q = head_of(params.q, batch * params.q_batch, head * params.q_head);
  const float* const dout = head_of(params.dout, batch * params.dout_batch, head * params.dout_head);
  split_rows<TileV, kHeadDimV>(to + RowParts::kDout, {dout, params.dout_row, first_row, params.seqlen_q});
  split_rows<TileQK, kHeadDim>(to + RowParts::kQ, {q, params.q_row, first_row, params.seqlen_q});
  const int thread = threadIdx.x, row = first_row + thread;
  if (thread >= RowParts::kRows) return;
  // An LSE of +inf makes P 0: for rows past the last, and for those that see no key, or none whose score is
  // above -inf.
  float lse = kInfinity;
  if (row < params.seqlen_q) lse = params.lse[static_cast<long long>(pair) * params.seqlen_q + row];
  reinterpret_cast<float*>(to + RowParts::kLse)[thread] = lse == -kInfinity ? kInfinity : lse;
  reinterpret_cast<float*>(to + RowParts::kDelta)[thread] =
      params.delta[static_cast<long long>(pair) * params.padded_q + row];
}

// A thread's part of a fragment of 16 rows and 16 columns, in parts; rows from `end` on are zeros.
__device__ __forceinline__ void load_fragment(unsigned (&fragment)[kParts][4], const float* from,
                                              long long row_stride, int first_row, int end, int column) {
  const int lane = threadIdx.x % 32;
  float numbers[8] = {};
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    const int row = first_row + x % 2 * 8 + lane / 4, of = column + x / 2 * 8 + lane % 4 * 2;
    if (row < end && (kHeadDimV % 16 == 0 || of < kHeadDimV)) {
      const float2 two = *reinterpret_cast<const float2*>(from + row * row_stride + of);
      numbers[2 * x] = two.x, numbers[2 * x + 1] = two.y;
    }
  }
  split_fragment(fragment, numbers);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flashjit_backward_wgmma_fp32_d72v64_causal_m64n64s1_preprocess(const __grid_constant__ BackwardParams params) {
  // Neighbouring CTAs have the same rows of neighbouring heads, which often lie next to each other.
  const int block = static_cast<int>(blockIdx.x);
  const int rows_of_heads = divide(block, params.by_heads);
  const int head = block - rows_of_heads * params.heads;
  const int batch = divide(rows_of_heads, params.by_tiles);
  const int first_row = (rows_of_heads - batch * params.tiles) * kRows;
  const long long padded =
      (static_cast<long long>(batch) * params.heads + head) * params.padded_q + first_row;

  // The diagonal of O dO^T, by the instructions that make V dO^T in the next kernel, in the same order. So
  // where one key has all the weight and O is its V, delta equals dP to the last bit and dS is 0.
  const float* const o = static_cast<const float*>(params.o) + batch * params.o_batch + head * params.o_head;
  const float* const dout =
      static_cast<const float*>(params.dout) + batch * params.dout_batch + head * params.dout_head;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
  SplitSum<8> sum;
#pragma unroll 2
  for (int column = 0; column < kHeadDimV; column += 16) {
    unsigned of_o[kParts][4], of_dout[kParts][4];
    load_fragment(of_o, o, params.o_row, first_row + warp_row, params.seqlen_q, column);
    load_fragment(of_dout, dout, params.dout_row, first_row + warp_row, params.seqlen_q, column);
    // B's fragments are counted columns first.
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const unsigned other = of_dout[part][1];
      of_dout[part][1] = of_dout[part][2];
      of_dout[part][2] = other;
    }
    sum.multiply_apart(0, of_o, of_dout);
  }
  // Row g of the upper eight rows and of the lower ones is on the diagonal in lane 4 g + g / 2.
  const int row = lane / 4;
  if (lane % 4 == row / 2) {
    params.delta[padded + warp_row + row] = row % 2 == 0 ? sum.at(0) : sum.at(1);
    params.delta[padded + warp_row + row + 8] = row % 2 == 0 ? sum.at(6) : sum.at(7);
  }

  __syncthreads();  // delta is there
#pragma unroll 1
  for (int tile = 0; tile < kRows / RowParts::kRows; ++tile)
    write_row_parts(params, batch, head, first_row / RowParts::kRows + tile);

  float4* const dq = reinterpret_cast<float4*>(params.dq_sum + padded * kHeadDim);
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kHeadDim / 4; i += kThreads) dq[i] = float4{0, 0, 0, 0};
}

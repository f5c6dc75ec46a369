// backward fp32 d64 causal, schedule mma-backward:m32n32w4s1dq1, for sm_80.
// Written by flashjit 0.1.0 from templates/kernels/backward_mma_fp32.cu.

constexpr int kHeadDim = 64;        // columns of Q, K, dQ and dK
constexpr int kHeadDimV = 64;       // columns of V, dO and dV
constexpr int kTileM = 32;          // query rows per step
constexpr int kTileN = 32;          // keys per CTA
constexpr int kThreads = 128;       // per CTA, half of them for dV, half for dK
constexpr int kSharers = 1;         // warps with the same keys, in either half
constexpr int kOffsetV = 12288;     // bytes from the start of shared memory to V
constexpr int kOffsetQ = 24576;     // to Q
constexpr int kOffsetDout = 36864;  // to dO
constexpr int kOffsetDs = 49152;    // to dS^T
constexpr int kOffsetP = 55296;     // to P^T, which is not split
constexpr int kOffsetRows = 59392;  // to LSE and delta of the rows
constexpr int kMinCtas = 3;         // CTAs per multiprocessor that registers must allow

// FlashAttention-2's backward pass (Dao, arXiv 2307.08691, algorithm 2) in fp32, on tensor cores that
// multiply bf16: each number is the sum of three bf16 numbers, and each product the sum of six (Henry, Tang,
// Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// 2019). A CTA owns kTileN keys of one K/V head, and the rows of Q and dO of all query heads that share the
// K/V head stream past. Half of the warps compute S^T = K Q^T, P^T and dV; the other half compute dP^T = V
// dO^T, dS^T and dK. A warp of either half has 16 keys.
// Then all warps share out dQ.

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

// The diagonal of a causal mask: bottom-right aligned.

// Query i sees keys 0 .. i + diagonal(params). Lengths are subtracted before anything is added to them: a row
// and seqlen_k together may be more than an int holds.
template <class Params>
__device__ __forceinline__ int diagonal(const Params& params) {
  return params.seqlen_k - params.seqlen_q;
}

// How a tile of 16-bit elements lies in shared memory.

// Rows of kColumns elements, padded with zeros to whole 16-element steps of mma, in chunks of 16 bytes.
// ldmatrix reads the same chunk of 8 neighbouring rows at once, and the 8 must lie in different banks (16
// bytes = 4 banks of 32). A row of kChunks chunks starts kChunks chunks after its neighbour, so chunk c of
// rows with equal row * kChunks mod 8 would collide: those rows exchange their chunks by an XOR, which keeps
// each chunk in its row.
template <int kColumns>
struct SharedTile {
  static constexpr int kChunks = (kColumns + 15) / 16 * 2;
  static constexpr int kPitch = kChunks * 16;  // bytes from row to row
  // Chunks that exchange places: the largest power of 2 up to 8 that divides kChunks.
  static constexpr int kSpan = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;

  __device__ static unsigned phase(unsigned row) { return row / (8 / kSpan) % kSpan; }

  // Bytes from the tile's start to a chunk.
  __device__ static unsigned offset(unsigned row, unsigned chunk) {
    return row * kPitch + (chunk ^ phase(row)) * 16;
  }

  // From the address of (row, chunk 0 or 1) to that of (row + row_step, chunk + chunk_step), where row_step
  // is a multiple of 8 and chunk_step is even. An XOR will do, since a tile starts at a multiple of 128
  // bytes.
  __device__ static unsigned step(unsigned address, int row_step, int chunk_step) {
    return (address ^ (chunk_step % kSpan * 16)) + row_step * kPitch + chunk_step / kSpan * (kSpan * 16);
  }
};

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

// A word to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// The parts of dS^T in shared memory, 16 keys after 16 keys.

using TileDs = SharedTile<kTileM>;  // a row for each key

constexpr int kDsPartBytes = 16 * TileDs::kPitch;  // of one part of 16 keys
constexpr int kDsBytes = kParts * kDsPartBytes;    // of all parts

// Stores a fragment of 16 keys and the 16 query rows from `row` on.
__device__ __forceinline__ void store_ds(unsigned ds_tile, const unsigned (&fragment)[kParts][4], int row,
                                         int lane) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const unsigned(&f)[4] = fragment[part];
    const unsigned to = ds_tile + part * kDsPartBytes;
#pragma unroll
    for (int x = 0; x < 4; ++x)
      store_shared(to + TileDs::offset(x % 2 * 8 + lane / 4, row / 8 + x / 2) + lane % 4 * 4, f[x]);
  }
}

// Where a lane starts to read the fragments of mma from a tile in shared memory.

// Where a lane finds its row of a fragment's four 8x8 matrices, which cover rows 0-15 of 16 columns. The
// matrices are counted rows first (A as it lies, B transposed).
template <class Tile>
__device__ __forceinline__ unsigned lane_offset_rows_first(unsigned lane) {
  return Tile::offset(lane % 16, lane / 16);
}

// Likewise with matrices counted columns first (B as it lies, two fragments of 8 rows; A transposed).
template <class Tile>
__device__ __forceinline__ unsigned lane_offset_columns_first(unsigned lane) {
  return Tile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
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

  // Adds A B to the eight numbers from `first` on; a, b: fragments of all parts.
  __device__ __forceinline__ void multiply(int first, const unsigned (&a)[kParts][4],
                                           const unsigned (&b)[kParts][4]) {
    multiply_low(first, a, b);
    multiply_parts(&high[first], a[0], b[0]);
  }
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

// ldmatrix with each 8x8 matrix transposed on the way (PTX ISA, "ldmatrix").

__device__ __forceinline__ void ldmatrix_transposed(unsigned (&fragment)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// Adds accumulators of mma to sums in global memory (PTX ISA, "red"; vectors: sm_90 and later). The 128 sums
// of a product of 16 rows and 8 columns are contiguous, in an order that lets each instruction of a warp add
// to contiguous memory: with vectors lane by lane, the four of each lane together; without vectors
// accumulator by accumulator, those of all lanes together.

constexpr int kLaneSums = 1;  // from one lane's sums to the next's

// sums: this lane's first; sum: its four accumulators.
__device__ __forceinline__ void add_fragment(float* sums, const float* sum) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(sums + 32 * i), "f"(sum[i]) : "memory");
}

// Which thread of the CTA this is (PTX ISA, "%tid").

// Read anew wherever it is needed: the asm keeps the compiler from holding it, and what is computed from it,
// in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int thread_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index < 1024u);
  return index;
}

// dQ of a step of the backward pass over keys in fp32, summed in the workspace. All warps share it out: a
// warp has 16 rows, and every kDqSharers-th block of 16 columns.

constexpr int kDqSharers = kThreads / 32 / (kTileM / 16);  // warps that share rows

// dQ += dS K for the rows of tile m of a batch and head, numbered `pair`, and all keys of the CTA.
__device__ __forceinline__ void add_dq(unsigned shared, int pair, int m, const BackwardParams& params) {
  using Tile = SharedTile<kHeadDim>;
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
  const int dq_row = warp / kDqSharers * 16;
  const unsigned ds_lane =
      shared + kOffsetDs + TileDs::offset(lane % 8 + lane / 16 * 8, dq_row / 8 + lane / 8 % 2);
  unsigned ds[kTileN / 16][kParts][4];
#pragma unroll
  for (int step = 0; step < kTileN / 16; ++step) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ldmatrix_transposed(ds[step][part], ds_lane + step * kDsBytes + part * kDsPartBytes);
  }
  // The sums lie in blocks of 16 rows and 8 columns, one row of blocks after another.
  const long long row = static_cast<long long>(pair) * params.padded_q + m * kTileM + dq_row;
  float* const to = params.dq_sum + row * kHeadDim + lane * kLaneSums;
#pragma unroll 1
  for (int block = warp % kDqSharers; block < Tile::kChunks / 2; block += kDqSharers) {
    const unsigned k_lane = shared + Tile::offset(lane % 16, 2 * block + lane / 16);
    SplitSum<8> sum;
#pragma unroll
    for (int step = 0; step < kTileN / 16; ++step) {
      unsigned k[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ldmatrix_transposed(k[part], k_lane + (part * kTileN + 16 * step) * Tile::kPitch);
      sum.multiply(0, ds[step], k);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (kHeadDim % 16 != 0 && 16 * block + 8 * half >= kHeadDim) break;
      const float dq[4] = {sum.at(4 * half), sum.at(4 * half + 1), sum.at(4 * half + 2),
                           sum.at(4 * half + 3)};
      add_fragment(to + 256 * block + 128 * half, dq);
    }
  }
}

// Which CTA this is (PTX ISA, "%ctaid").

// Read anew wherever it is needed: the asm keeps the compiler from holding it, and what is computed from it,
// in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  __builtin_assume(index < 0x7fffffffu);
  return index;
}

// Which tile of keys a CTA of the backward pass owns.

struct KeyTile {
  int n, head, batch;
};

// All tiles of a K/V head, then the next head's: CTAs that run at the same time share Q and dO in L2. Under a
// causal mask the first keys, which most rows see, come first. Plain divisions: with prepared divisors
// (parts/divide.cuh) ptxas makes code that spills at d96 on sm_100.
__device__ __forceinline__ KeyTile key_tile_of_block(const BackwardParams& params) {
  const int block = block_index();
  const int pair = block / params.tiles;
  KeyTile tile;
  tile.n = block - pair * params.tiles;
  tile.batch = pair / params.heads_kv;
  tile.head = pair - tile.batch * params.heads_kv;
  return tile;
}

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// LSE and delta of a tile's query rows, on their way through a register to shared memory: first all of LSE,
// then all of delta.

static_assert(2 * kTileM <= kThreads, "a thread has one number");

// This thread's number of the tile that begins at first_row. LSE is +inf, so that P is 0, for rows past the
// last. pair: the head's number, counted through all batches.
__device__ __forceinline__ float load_row(const BackwardParams& params, int pair, int first_row) {
  const int thread = thread_index(), row = first_row + thread % kTileM;
  if (thread >= kTileM) {
    return thread < 2 * kTileM ? params.delta[static_cast<long long>(pair) * params.padded_q + row] : 0.0f;
  }
  return row < params.seqlen_q ? params.lse[static_cast<long long>(pair) * params.seqlen_q + row] : kInfinity;
}

// LSE becomes +inf, too, for rows that see no key, or none whose score is above -inf.
__device__ __forceinline__ void store_row(unsigned rows, float number) {
  const int thread = thread_index();
  if (number == -kInfinity) number = kInfinity;  // not in load_row, where it would wait for the load
  if (thread < 2 * kTileM) store_shared(rows + thread * 4, __float_as_uint(number));
}

// P of the backward pass in fp32: what a score in two floats weighs beside an LSE in one.

constexpr float kLog2e = 1.442695040888963407f;

// log2 of P = exp((high + low) * scale - lse). The difference is taken before the change of base: where a
// weight matters the difference is small, and so is its rounding error. A difference below 2^-24 of the LSE,
// which is half a unit to one unit in its last place, counts as none, since rounding the LSE may have made
// it: a key with all the weight weighs 1.
__device__ __forceinline__ float log2_weight(float high, float low, float scale, float lse) {
  constexpr float kRounding = 1.001f / (1 << 24);
  const float difference = fmaf(low, scale, fmaf(high, scale, -lse));
  return fabsf(difference) < fabsf(lse) * kRounding ? 0.0f : difference * kLog2e;
}

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

// Sixteen bytes to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// The parts of eight numbers, on their way to shared memory.

// Stores each part as a chunk of 16 bytes, part_bytes after the part before.
__device__ __forceinline__ void store_parts(unsigned to, int part_bytes, const unsigned (&parts)[4][kParts]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    store_shared(to + part * part_bytes,
                 uint4{parts[0][part], parts[1][part], parts[2][part], parts[3][part]});
  }
}

// Copies tiles of fp32 from global to shared memory through registers, and splits them on the way: the loads
// are under way while the warp computes, and the stores of the parts follow.

// In shared memory a tile is one tile of bf16 for each part, the first part's first. kLanes threads copy each
// row and take turns at its pieces of 8 elements, each of which is a chunk of every part. Where eight threads
// have rows that begin in the same bank, each row is begun at another piece, so that the eight threads write
// to all banks.
template <int kRows, int kColumns>
struct SplitCopy {
  using Tile = SharedTile<kColumns>;
  static_assert(kThreads % kRows == 0, "threads divide into rows");
  static constexpr int kLanes = kThreads / kRows;
  static constexpr int kPasses = (Tile::kChunks + kLanes - 1) / kLanes;
  static constexpr int kPartBytes = kRows * Tile::kPitch;
  // Rows of different phases begin with different passes, where these come in whole turns.
  static constexpr int kTurn = Tile::kSpan > kLanes ? Tile::kSpan / kLanes : 1;
  static constexpr int kBeginnings = kPasses % kTurn == 0 ? kTurn : 1;

  const float* source;   // row 0 of the head
  long long row_stride;  // in elements
  float4 held[kPasses][2];

  __device__ SplitCopy(const float* source, long long row_stride) : source(source), row_stride(row_stride) {}

  // Loads rows first … first + kRows - 1; rows from `end` on do not exist and become zeros.
  __device__ void start(int first, int end) {
    const int thread = thread_index(), row = thread / kLanes;
    const bool inside = first + row < end;
    const auto* const from = reinterpret_cast<const float4*>(source + (first + row) * row_stride);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int piece = piece_of(row, thread % kLanes, pass);
      held[pass][0] = held[pass][1] = float4{0, 0, 0, 0};
      if (inside && is_there<kColumns / 8>(piece)) {
        held[pass][0] = from[2 * piece];
        held[pass][1] = from[2 * piece + 1];
      }
    }
  }

  // Stores the parts of the numbers that `start` loaded, after `prepare` has been applied to each number.
  template <class Prepare>
  __device__ void finish(unsigned tile, const Prepare& prepare) const {
    const int thread = threadIdx.x, row = thread / kLanes;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      unsigned parts[4][kParts];
      split_eight(held[pass], prepare, parts);
      const int piece = piece_of(row, thread % kLanes, pass);
      if (!is_there<Tile::kChunks>(piece)) continue;
      store_parts(tile + Tile::offset(row, piece), kPartBytes, parts);
    }
  }

 private:
  __device__ static int piece_of(int row, int lane, int pass) {
    return lane + kLanes * (pass ^ Tile::phase(row) % kBeginnings);
  }

  // Whether a row of kPieces pieces has this piece.
  template <int kPieces>
  __device__ static bool is_there(int piece) {
    return kPasses * kLanes == kPieces || piece < kPieces;
  }
};

// Loads of matrix fragments from shared memory (PTX ISA, "ldmatrix"). Lane 8i + r gives the address of row r
// of the i-th 8x8 matrix of 16-bit elements; register i of lane 4r + c receives its elements (r, 2c) and (r,
// 2c + 1).

__device__ __forceinline__ void ldmatrix(unsigned (&fragment)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// Products of one warp's 16 rows in fp32, of tiles that lie in shared memory in parts, part after part.

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

// sum = A B^T over all columns of two tiles of kRowsA and kRowsB rows, for 16 rows of A and kRows rows of B.
// a_lane, b_lane: where this lane starts to read the first part, rows first in A and columns first in B.
template <class Tile, int kRowsA, int kRowsB, int kRows>
__device__ __forceinline__ void multiply_rows(SplitSum<kRows / 2>& sum, unsigned a_lane, unsigned b_lane) {
#pragma unroll
  for (int step = 0; step < Tile::kChunks / 2; ++step) {
    unsigned a[kParts][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ldmatrix(a[part], Tile::step(a_lane + part * kRowsA * Tile::kPitch, 0, 2 * step));
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) {
      unsigned b[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ldmatrix(b[part], Tile::step(b_lane + part * kRowsB * Tile::kPitch, 16 * j, 2 * step));
      sum.multiply_apart(8 * j, a, b);
    }
  }
}

// output += A B for all rows of B's tile, and every kEvery-th block of 16 of its columns from `first` on.
// b_lane: where this lane starts to read the first part of that block, rows first. The tile's part is summed
// by itself, since the output is larger the more tiles came before.
template <int kColumns, int kEvery, int kSteps, int kOutputs>
__device__ __forceinline__ void add_columns(float (&output)[kOutputs], const unsigned (&a)[kSteps][kParts][4],
                                            unsigned b_lane, int first) {
  using Tile = SharedTile<kColumns>;
  constexpr int kBlocks = Tile::kChunks / 2;
#pragma unroll
  for (int j = 0; j < (kBlocks + kEvery - 1) / kEvery; ++j) {
    if (kBlocks % kEvery != 0 && first + kEvery * j >= kBlocks) break;
    SplitSum<8> sum;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned b[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ldmatrix_transposed(
            b[part], Tile::step(b_lane + part * 16 * kSteps * Tile::kPitch, 16 * step, 2 * kEvery * j));
      }
      sum.multiply(0, a[step], b);
    }
#pragma unroll
    for (int i = 0; i < 8 && 8 * j + i < kOutputs; ++i) output[8 * j + i] += sum.at(i);
  }
}

// Replaces infinities by finite numbers (PTX ISA, "min", "max"; a NaN stays a NaN).

// Subtracting its first bf16 part from an infinity would give NaN. So 2^119 takes the place of whatever is
// larger: its product with a number below 2^9 is finite, and so is that with every part but the first of a
// number of up to 2^17.
__device__ __forceinline__ float finite(float x) {
  constexpr float kLargest = 0x1p119f;
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(kLargest));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-kLargest));
  return x;
}

// Sixteen bytes of shared memory (PTX ISA, "ld").

__device__ __forceinline__ uint4 load_shared_16(unsigned address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// The fast exponential of fp32 (PTX ISA, "ex2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The sixteen numbered barriers of a CTA (PTX ISA, "bar"). Number 0 is __syncthreads'.

// Waits until `threads` threads have come to this barrier, whether or not they wait there.
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Arrivals at a numbered barrier of a CTA (PTX ISA, "bar").

// Counts this thread without waiting.
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Addresses of shared memory (PTX ISA, "State spaces").

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Two neighbouring floats of shared memory (PTX ISA, "ld").

__device__ __forceinline__ float2 load_pair(unsigned address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

constexpr int kHalf = kThreads / 64;  // warps of a half
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
// edge: the first of the tile's rows that sees its first key; each key further on is seen from one row later.
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
        if (row + column + x % 2 < edge + key + x / 2 * 8) p[i] = 0;
      }
      const float* const four = &p[4 * half];
      store_shared(p_lane + row / 8 * 512, uint4{__float_as_uint(four[0]), __float_as_uint(four[1]),
                                                 __float_as_uint(four[2]), __float_as_uint(four[3])});
    }
    split_fragment(fragments[step], p);
  }
  named_barrier_arrive(1 + at.warp, 64);
  add_columns<kHeadDimV, kSharers>(
      dv, fragments, shared + kOffsetDout + TileV::offset(at.lane % 16, 2 * at.part + at.lane / 16), at.part);
}

// dK += dS^T Q without the scale, for a warp's keys.
// dS^T is left in shared memory.
__device__ __forceinline__ void add_keys(float (&dk)[kSums], unsigned shared) {
  const Place at;
  const int own_row = at.part * kOwnRows;  // the warp's first, in the tile
  SplitSum<kOwnRows / 2> sum;
  multiply_rows<TileV, kTileN, kTileM, kOwnRows>(
      sum, shared + kOffsetV + at.key_warp * 16 * TileV::kPitch + lane_offset_rows_first<TileV>(at.lane),
      shared + kOffsetDout + own_row * TileV::kPitch + lane_offset_columns_first<TileV>(at.lane));
  const unsigned ds_tile = shared + kOffsetDs + at.key_warp * kDsBytes;
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
    unsigned(&fragment)[kParts][4] = fragments[step];
    split_fragment(fragment, ds);
    store_ds(ds_tile, fragment, own_row + 16 * step, at.lane);
  }
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

extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas)
    flashjit_backward_mma_fp32_d64_causal_m32n32w4s1dq1(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const unsigned shared = shared_address(shared_bytes);  // where the parts of K begin

  const KeyTile tile = key_tile_of_block(params);
  const int first_key = tile.n * kTileN;

  const int tiles_q = (params.seqlen_q + kTileM - 1) / kTileM;
  const int first_m = max(first_key - diagonal(params), 0) / kTileM;  // rows above see none of the CTA's keys
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
    int pair = tile.batch * params.heads + tile.head * params.group;
    for (int i = 0; i < steps; ++i) {
      q_copy.finish(shared + kOffsetQ, as_it_is);
      dout_copy.finish(shared + kOffsetDout, as_it_is);
      store_row(shared + kOffsetRows, held_row);
      __syncthreads();  // the rows are there, and all warps are done with the last step
      if (thread_index() < kThreads / 2) {
        add_values(sum, shared, first_key - diagonal(params) - m * kTileM, params);
      } else {
        add_keys(sum, shared);
      }
      __syncthreads();  // all warps are done with Q and dO
      if (i + 1 < steps) start_copies();
      add_dq(shared, pair, m, params);
      if (++m == tiles_q) {
        m = first_m;
        ++pair;
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

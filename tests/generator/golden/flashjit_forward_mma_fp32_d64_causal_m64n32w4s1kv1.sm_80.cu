// forward fp32 d64 causal, schedule mma:m64n32w4s1kv1, for sm_80.
// Written by flashjit 0.1.0 from templates/kernels/forward_mma_fp32.cu.

constexpr int kHeadDim = 64;     // columns of Q and K
constexpr int kHeadDimV = 64;    // columns of V and O
constexpr int kTileM = 64;       // query rows per CTA
constexpr int kTileN = 32;       // keys per step
constexpr int kThreads = 128;    // per CTA
constexpr int kOffsetV = 12288;  // bytes from the start of shared memory to V
constexpr int kOffsetQ = 24576;  // bytes from the start of shared memory to Q
constexpr float kLazy = 8.0f;    // log2 of the growth that a shift tolerates

// FlashAttention-2's forward pass (Dao, arXiv 2307.08691) in fp32, on tensor cores that multiply bf16: each
// number is the sum of three bf16 numbers, and each product the sum of six (Henry, Tang, Heinecke,
// "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019). A CTA
// computes kTileM rows of O of one head; K and V stream through shared memory from the last key that any row
// sees down to the first. Each warp owns 16 rows from Q to O and never talks to the others (split-Q).

// A divisor as the host prepares it, so that a kernel divides by one multiplication (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994). Host and device compile this one file.

struct Divisor {
  unsigned multiplier;  // ceil(2^(31 + shift) / divisor), which is below 2^32
  int shift;            // ceil(log2(divisor))
};

// How the keys of the first ForwardParams::shared_tiles tiles are cut into even shares. Host and device
// compile this one file, so the layout cannot drift.

// The keys lie in one row, measured in blocks, or under a mask in what tiles weigh
// (parts/wgmma/share_bounds.cuh).
struct ShareRow {
  int unit;  // the row's period: the blocks of a tile, or under a mask what the tiles of a head weigh
  int all;   // the whole row
  // Under a mask, `first` is how many keys a head's first tile would see if it were full of queries, and
  // `past` is how many of these lie past the last key.
  int first, past;
  int seeing;  // tiles of a head that see a key
};

// What the host hands to a forward kernel. Host and device compile this one file, so the layout cannot drift.

// The row of keys that is cut into even shares, and the divisors that it takes to find a cut.
struct ShareCuts {
  ShareRow row;
  Divisor by_unit, by_all, by_shares;
};

struct ForwardParams {
  const void* q;  // element (b, h, i, x) of q is at q + b * q_batch + h * q_head + i * q_row + x, in elements
  const void* k;
  const void* v;
  void* o;
  float* lse;         // (batch, heads, seqlen_q), packed, natural log; null: not wanted
  int* tile_counter;  // zeros, and the kernel leaves them zero: two for a dynamic tile order; where clusters
                      // or CTAs share a tile's keys, those of parts/wgmma/sharers.cuh

  long long q_batch, q_head, q_row;
  long long k_batch, k_head, k_row;
  long long v_batch, v_head, v_row;
  long long o_batch, o_head, o_row;

  int batch, heads;
  int heads_kv;  // for the host only
  int seqlen_q, seqlen_k;
  int packed;         // log2 of a query's places: adjacent rows of a tile, one per head; 0: heads not packed
  int heads_of_pack;  // heads that share K and V, with a place each; the last places may stay empty
  int places;         // of a query, in all packs together
  int tiles_m;  // ceil((seqlen_q << packed) / tile_m), or / (2 * tile_m) where two CTAs load for each other
  int section;  // (batch, head) pairs that share L2 and are ordered longest tiles first; a pack is one head
  float scale_log2;  // scale * log2(e) of the logits: exp(scale * x) = exp2(scale_log2 * x)
  int last_section;  // first pair of the last section, which goes on to the end
  int clusters;      // that share out a tile's keys among them
  int shared_tiles;  // number of leading tiles whose keys are cut into even shares for all CTAs; 0: none
  ShareCuts cuts;    // of the keys of these tiles
  int riffled_from;  // dynamic order: number of its second wave's first tile
  int riffled;       // dynamic order: tiles of that wave that come from its two halves in turn
  float* pieces;     // where CTAs share keys through device memory: their partial results, 16-byte aligned

  // For division by what their names say:
  Divisor by_heads;         // packs of a sequence, or heads where none are packed
  Divisor by_group;         // packs or heads that share K and V
  Divisor by_tiles;         // tiles_m
  Divisor by_section;       // pairs of any section but the last
  Divisor by_last_section;  // pairs of the last section
  Divisor by_section_tiles;
  Divisor by_clusters;
};

// The shift of a row that has seen no key, or only scores of -inf. Where numbers are split, K's infinities
// become 2^119 (ptx/finite.cuh), so such a score is -2^119 times a number of Q. The shift lies above it if
// that number is above 2^-19.

constexpr float kUnset = -0x1p100f;

// The fast exponential of fp32 (PTX ISA, "ex2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLn2 = 0.693147180559945309f;

// Exchange between the lanes of a warp (PTX ISA, "shfl.sync").

// The quad is the four lanes that share the rows of an accumulator (see ptx/mma.cuh).
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Online softmax (FlashAttention-2, algorithm 1) of the rows whose scores a thread holds, with exp(scale * x)
// computed as exp2(scale_log2 * x). The layout is that of an mma accumulator: of 4 neighbouring
// scores the first two belong to row 0, the others to row 1 (8 rows below), and the 4 lanes of a quad share
// these rows.

struct SoftmaxRows {
  // Subtracted from scale_log2 * score: the row's maximum of that product, or near it.
  float shift[2] = {kUnset, kUnset};
  float sum[2] = {0, 0};  // of this thread's exponentials
};

// The largest of this thread's scores in each of its two rows. Two chains per row, since the latency of max
// counts.
template <int kScores>
__device__ __forceinline__ void find_peaks(const float (&scores)[kScores], float (&peak)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float even = scores[2 * row], odd = scores[2 * row + 1];
#pragma unroll
    for (int i = 4; i < kScores; i += 4) {
      even = fmaxf(even, scores[i + 2 * row]);
      odd = fmaxf(odd, scores[i + 2 * row + 1]);
    }
    peak[row] = fmaxf(even, odd);
  }
}

// Whether a score exceeds its row's shift by more than kLazy. Below that an exponential grows to 2^kLazy at
// most, which costs no precision: O, the sum and P share the factor, and all are floating point.
__device__ __forceinline__ bool outgrown(const SoftmaxRows& rows, const float (&peak)[2], float scale_log2) {
  return peak[0] * scale_log2 - kLazy > rows.shift[0] || peak[1] * scale_log2 - kLazy > rows.shift[1];
}

// Moves the shifts to the rows' maxima and rescales the sums made with the old shifts. All lanes of the warp
// take part.
template <int kOutputs>
__device__ __forceinline__ void move_shift(SoftmaxRows& rows, const float (&peak)[2],
                                           float (&output)[kOutputs], float scale_log2) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float shift = fmaxf(rows.shift[row], quad_max(peak[row]) * scale_log2);
    const float factor = exp2_fast(rows.shift[row] - shift);
    rows.shift[row] = shift;
    rows.sum[row] *= factor;
#pragma unroll
    for (int i = 0; i < kOutputs; i += 4) {
      output[i + 2 * row] *= factor;
      output[i + 2 * row + 1] *= factor;
    }
  }
}

// Turns scores into exponentials, and adds them to the rows' sums: the block's own sum first, as for O. If
// all keys scored alike, each addition to a sum of many would round the same way.
template <int kScores>
__device__ __forceinline__ void exponentiate(SoftmaxRows& rows, float (&scores)[kScores]) {
  float sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int row = i / 2 % 2;
    scores[i] = exp2_fast(scores[i] - rows.shift[row]);
    sum[row] += scores[i];
  }
  rows.sum[0] += sum[0];
  rows.sum[1] += sum[1];
}

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}

// Which query tile a CTA computes.

struct TileIndex {
  int m, head, batch;
};

// The order of tiles along a 1-D grid (the other dimensions are limited to 65,535).
// The last rows see most keys. Longest tiles come first, so that short ones fill the gaps at the end, but
// only among the heads of one section, whose K and V fit into L2.
__device__ __forceinline__ TileIndex tile_at(const ForwardParams& params, int block) {
  TileIndex tile;
  // The section's (batch, head) pairs.
  const int first_pair = min(divide(block, params.by_section_tiles) * params.section, params.last_section);
  const bool last = first_pair == params.last_section;
  const int pairs = last ? params.batch * params.heads - params.last_section : params.section;
  const int place = block - first_pair * params.tiles_m;
  const int row = divide(place, last ? params.by_last_section : params.by_section);
  const int pair = first_pair + place - row * pairs;
  tile.m = params.tiles_m - 1 - row;
  tile.batch = divide(pair, params.by_heads);
  tile.head = pair - tile.batch * params.heads;
  return tile;
}

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// The end of a tile: O normalised and written, and the rows' log-sum-exp.

// Writes a warp's 16 rows, from the head's row first_row on, and of these the columns from first_column on.
// The four lanes of a quad write 32 bytes of a row side by side. Whoever has the first column writes the LSE.
__device__ __forceinline__ void write_rows(const ForwardParams& params, const TileIndex& index, int first_row,
                                           int first_column, const SoftmaxRows& rows,
                                           const float (&output)[kHeadDimV / 2]) {
  const int lane = threadIdx.x % 32;
  float* const head =
      static_cast<float*>(params.o) + index.batch * params.o_batch + index.head * params.o_head;
  float* const lse =
      params.lse + (static_cast<long long>(index.batch) * params.heads + index.head) * params.seqlen_q;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(rows.sum[half]);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a row that saw no key gives 0
    const int row = first_row + lane / 4 + 8 * half;
    if (row >= params.seqlen_q) continue;
    float* const to = head + row * params.o_row + first_column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDimV / 8; ++i) {
      *reinterpret_cast<float2*>(to + 8 * i) =
          float2{output[4 * i + 2 * half] * inverse, output[4 * i + 2 * half + 1] * inverse};
    }
    if (params.lse != nullptr && first_column == 0 && lane % 4 == 0)
      lse[row] = sum == 0.0f ? -kInfinity : (rows.shift[half] + log2f(sum)) * kLn2;
  }
}

// Where a head begins, in fp32.

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const float* head_of(const void* tensor, long long batch, long long head) {
  return static_cast<const float*>(tensor) + batch + head;
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

// Which thread of the CTA this is (PTX ISA, "%tid").

// Read anew wherever it is needed: the asm keeps the compiler from holding it, and what is computed from it,
// in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int thread_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index < 1024u);
  return index;
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

// Loads of matrix fragments from shared memory (PTX ISA, "ldmatrix"). Lane 8i + r gives the address of row r
// of the i-th 8x8 matrix of 16-bit elements; register i of lane 4r + c receives its elements (r, 2c) and (r,
// 2c + 1).

__device__ __forceinline__ void ldmatrix(unsigned (&fragment)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// ldmatrix with each 8x8 matrix transposed on the way (PTX ISA, "ldmatrix").

__device__ __forceinline__ void ldmatrix_transposed(unsigned (&fragment)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
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
      sum.multiply(8 * j, a, b);
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

// The diagonal of a causal mask: bottom-right aligned.

// Query i sees keys 0 .. i + diagonal(params). Lengths are subtracted before anything is added to them: a row
// and seqlen_k together may be more than an int holds.
template <class Params>
__device__ __forceinline__ int diagonal(const Params& params) {
  return params.seqlen_k - params.seqlen_q;
}

// Masks the scores of one accumulator (its layout: parts/mma/softmax.cuh).

// Row 0 of the accumulator sees its first `seen` keys (none if negative), and each row further down sees
// kMore keys more. Scores of the other keys become -inf.
template <int kMore, int kScores>
__device__ __forceinline__ void mask_keys(float (&scores)[kScores], int seen) {
  const int lane = threadIdx.x % 32;
  seen += kMore * (lane / 4) - lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int key = i / 4 * 8 + i % 2, row = i / 2 % 2 * 8;
    if (key - kMore * row >= seen) scores[i] = -kInfinity;
  }
}

// Which keys the query rows of a CTA see: where its loop over tiles of keys begins, and which tiles need a
// mask.

// Tiles of keys unmasked_end … masked_end - 1 need a mask. Tiles below need none, and no row sees tiles
// above.
struct VisibleKeys {
  int by_first;  // keys that the CTA's first row sees, if positive; each row further down sees one more
  int unmasked_end, masked_end;

  template <class Params>
  __device__ __forceinline__ VisibleKeys(const Params& params, int first_row) {
    by_first = diagonal(params) + first_row + 1;
    const int by_last = min(params.seqlen_k, by_first + kTileM - 1);
    unmasked_end = max(by_first, 0) / kTileN;
    masked_end = (max(by_last, 0) + kTileN - 1) / kTileN;
  }

  // Masks the scores of one accumulator, whose row 0 is the tile's row `row`. The diagonal hides keys past
  // the end of K, too.
  template <int kScores, class Params>
  __device__ __forceinline__ void mask(float (&scores)[kScores], int row, int first_key,
                                       const Params&) const {
    mask_keys<1>(scores, by_first + row - first_key);
  }
};

// Which CTA this is (PTX ISA, "%ctaid").

// Read anew wherever it is needed: the asm keeps the compiler from holding it, and what is computed from it,
// in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  __builtin_assume(index < 0x7fffffffu);
  return index;
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

// Addresses of shared memory (PTX ISA, "State spaces").

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// scores = Q K^T for the warp's rows. q_lane, k_lane: where this lane starts in the first part.
__device__ __forceinline__ void multiply_qk(float (&scores)[kTileN / 2], unsigned q_lane, unsigned k_lane) {
  SplitSum<kTileN / 2> sum;
  multiply_rows<TileQK, kTileM, kTileN, kTileN>(sum, q_lane, k_lane);
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) scores[i] = sum.at(i);
}

// output += P V.
__device__ __forceinline__ void add_pv(float (&output)[kHeadDimV / 2], const float (&weights)[kTileN / 2],
                                       unsigned v_lane) {
  unsigned p[kTileN / 16][kParts][4];
#pragma unroll
  for (int step = 0; step < kTileN / 16; ++step) split_fragment(p[step], &weights[8 * step]);
  add_columns<kHeadDimV, 1>(output, p, v_lane, 0);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flashjit_forward_mma_fp32_d64_causal_m64n32w4s1kv1(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  // The parts of a tile of K, of V, and of Q.
  const unsigned k_tile = shared_address(shared), v_tile = k_tile + kOffsetV, q_tile = k_tile + kOffsetQ;

  const TileIndex index = tile_at(params, block_index());
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;  // the warp's first, in the tile
  const int first_row = index.m * kTileM;      // of the CTA

  const VisibleKeys visible(params, first_row);

  SoftmaxRows rows;
  float output[kHeadDimV / 2] = {};  // this thread's part of the warp's rows of O

  if (visible.masked_end > 0) {
    const int head_kv = divide(index.head, params.by_group);
    SplitCopy<kTileN, kHeadDim> k_copy(
        head_of(params.k, index.batch * params.k_batch, head_kv * params.k_head), params.k_row);
    SplitCopy<kTileN, kHeadDimV> v_copy(
        head_of(params.v, index.batch * params.v_batch, head_kv * params.v_head), params.v_row);
    {
      // Q takes the softmax's scale: S comes out in units of log2, and scores that equal the shift weigh
      // exactly 1.
      SplitCopy<kTileM, kHeadDim> q_copy(
          head_of(params.q, index.batch * params.q_batch, index.head * params.q_head), params.q_row);
      q_copy.start(first_row, params.seqlen_q);
      q_copy.finish(q_tile, [&](float x) { return x * params.scale_log2; });
    }

    int n = visible.masked_end - 1;
    k_copy.start(n * kTileN, params.seqlen_k);

    // Where this lane starts to read.
    const unsigned q_lane = q_tile + warp_row * TileQK::kPitch + lane_offset_rows_first<TileQK>(lane);
    const unsigned k_lane = k_tile + lane_offset_columns_first<TileQK>(lane);
    const unsigned v_lane = v_tile + lane_offset_rows_first<TileV>(lane);

    for (; n >= 0; --n) {
      // V is loaded beside the first product, and the next tile of K beside the second, so that registers
      // hold only one of them at a time.
      k_copy.finish(k_tile, finite);
      __syncthreads();
      v_copy.start(n * kTileN, params.seqlen_k);
      float scores[kTileN / 2];
      multiply_qk(scores, q_lane, k_lane);
      if (n >= visible.unmasked_end) visible.mask(scores, warp_row, n * kTileN, params);

      v_copy.finish(v_tile, [](float x) { return x; });
      __syncthreads();
      if (n > 0) k_copy.start((n - 1) * kTileN, params.seqlen_k);
      float peak[2];
      find_peaks(scores, peak);
      if (__any_sync(0xffffffffu, outgrown(rows, peak, 1))) move_shift(rows, peak, output, 1);
      exponentiate(rows, scores);
      add_pv(output, scores, v_lane);
    }
  }

  write_rows(params, index, first_row + warp_row, 0, rows, output);
}

// forward fp16 d64 full, schedule mma:m64n64w4s1kv1, for sm_75.
// Written by flashjit 0.1.0 from templates/kernels/forward_mma.cu.

constexpr int kHeadDim = 64;       // columns of Q and K
constexpr int kHeadDimV = 64;      // columns of V and O
constexpr int kTileM = 64;         // query rows per CTA
constexpr int kTileN = 64;         // keys per step
constexpr int kBlockN = 64;        // keys whose scores are held at a time
constexpr int kThreads = 128;      // per CTA
constexpr int kRowsPerWarp = 16;   // query rows of one warp
constexpr int kRowTiles = 1;       // mma tiles of 16 rows in them
constexpr int kStages = 1;         // slots of K and V in shared memory
constexpr int kTileBytesK = 8192;  // bytes of a tile of K
constexpr int kSlotBytes = 16384;  // bytes of a tile of K and a tile of V
constexpr int kOffsetQ = 16384;    // bytes from the start of shared memory to Q
constexpr float kLazy = 8.0f;      // log2 of the growth that a shift tolerates
constexpr int kUnroll = 1;         // steps in one turn of the loop over unmasked tiles
constexpr int kMinCtas = 1;        // CTAs per multiprocessor that registers must allow

// FlashAttention-2's forward pass (Dao, arXiv 2307.08691) on warp-level tensor cores. A CTA computes kTileM
// rows of O of one head; K and V stream through shared memory from the last key that any row sees down to the
// first. Each warp owns its rows from Q to O and never talks to the others (split-Q).

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
  unsigned short first, second;  // conversions of pairs came with sm_80
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(first) : "f"(low));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(second) : "f"(high));
  asm("mov.b32 %0, {%1, %2};" : "=r"(pair) : "h"(first), "h"(second));
  return pair;
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

// A word to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Writes accumulators to global memory: rounded, and through shared memory, so that whole chunks of rows are
// written.

// Rounds a warp's 16 rows and stores them to shared memory, from chunk first_chunk of each row on.
template <int kColumns, int kOutputs>
__device__ __forceinline__ void stage_rows(const float (&output)[kOutputs], unsigned tile, int first_row,
                                           int first_chunk, int lane) {
#pragma unroll
  for (int i = 0; i < kOutputs; i += 4) {
    const unsigned column = lane % 4 * 4;  // in bytes, within the chunk
    const int row = first_row + lane / 4;
    store_shared(tile + SharedTile<kColumns>::offset(row, first_chunk + i / 4) + column,
                 pack(output[i], output[i + 1]));
    store_shared(tile + SharedTile<kColumns>::offset(row + 8, first_chunk + i / 4) + column,
                 pack(output[i + 2], output[i + 3]));
  }
}

// Writes a warp's kRows staged rows to global memory, 16 bytes per lane; rows from `end` on do not exist.
template <int kColumns, int kRows>
__device__ __forceinline__ void write_rows(unsigned tile, int tile_row, char* output, long long row_bytes,
                                           int end, int lane) {
  constexpr int kLanes = SharedTile<kColumns>::kSpan;  // per row
  const int row = lane / kLanes, chunk = lane % kLanes;
  output += row * row_bytes + chunk * 16;
#pragma unroll
  for (int r = 0; r < kRows; r += 32 / kLanes) {
#pragma unroll
    for (int c = 0; c < SharedTile<kColumns>::kChunks; c += kLanes) {
      const bool padding = (chunk + c) * 8 >= kColumns;
      if (row + r < end && !padding) {
        *reinterpret_cast<uint4*>(output + c * 16) =
            load_shared_16(tile + SharedTile<kColumns>::offset(tile_row + row + r, chunk + c));
      }
    }
    output += 32 / kLanes * row_bytes;
  }
}

// The shift of a row that has seen no key, or only scores of -inf: finite, so that no difference is NaN, and
// the lowest finite number.

constexpr float kUnset = -0x1.fffffep127f;

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

// Turns 8 scores, 4 of each row, into exponentials, packed as the A fragment of mma over 16 keys (the layouts
// agree), and adds them to `sum`.
__device__ __forceinline__ void exponentiate(const float (&shift)[2], const float* scores,
                                             unsigned (&fragment)[4], float (&sum)[2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i % 2;
    const float low = exp2_fast(fmaf(scores[2 * i], scale_log2, -shift[row]));
    const float high = exp2_fast(fmaf(scores[2 * i + 1], scale_log2, -shift[row]));
    sum[row] += low + high;
    fragment[i] = pack(low, high);
  }
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
// All tiles of a head, then the next head's: CTAs that run at the same time share K and V in L2.
__device__ __forceinline__ TileIndex tile_at(const ForwardParams& params, int block) {
  TileIndex tile;
  const int pair = divide(block, params.by_tiles);
  tile.m = block - pair * params.tiles_m;
  tile.batch = divide(pair, params.by_heads);
  tile.head = pair - tile.batch * params.heads;
  return tile;
}

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// The fast logarithm of fp32 (PTX ISA, "lg2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The fast reciprocal of fp32 (PTX ISA, "rcp"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
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

// The end of a tile: O normalised and written, and the rows' log-sum-exp.

// Divides by the row's sum of exponentials; a row that saw no key becomes 0. Leaves the whole row's sum in
// rows.sum.
template <int kOutputs>
__device__ __forceinline__ void normalise(SoftmaxRows& rows, float (&output)[kOutputs]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.sum[row] = quad_sum(rows.sum[row]);
    const float inverse = rows.sum[row] == 0.0f ? 0.0f : reciprocal_fast(rows.sum[row]);
#pragma unroll
    for (int i = 0; i < kOutputs; i += 4) {
      output[i + 2 * row] *= inverse;
      output[i + 2 * row + 1] *= inverse;
    }
  }
}

// log(sum(exp(scale * x))) of a row, from the whole row's sum.
__device__ __forceinline__ float log_sum_exp(const SoftmaxRows& rows, int row) {
  return rows.sum[row] == 0.0f ? -kInfinity : (rows.shift[row] + log2_fast(rows.sum[row])) * kLn2;
}

// Writes a warp's rows of a tile. O goes through shared memory at `staging`, which has space for the tile and
// which no warp reads any more. There no warp touches another warp's rows, so the CTA need not synchronise.
__device__ __forceinline__ void write_tile(const ForwardParams& params, const TileIndex& index,
                                           SoftmaxRows (&rows)[kRowTiles],
                                           float (&output)[kRowTiles][kHeadDimV / 2], unsigned staging) {
  const int thread = thread_index(), lane = thread % 32;
  const int tile_row = thread / 32 * kRowsPerWarp;
  const int first_row = index.m * kTileM + tile_row;
  const int rows_left = params.seqlen_q - first_row;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    normalise(rows[r], output[r]);
    stage_rows<kHeadDimV>(output[r], staging, tile_row + 16 * r, 0, lane);
  }
  __syncwarp();
  char* const to = static_cast<char*>(params.o) +
                   2 * (index.batch * params.o_batch + index.head * params.o_head + first_row * params.o_row);
  write_rows<kHeadDimV, kRowsPerWarp>(staging, tile_row, to, 2 * params.o_row, rows_left, lane);
  if (params.lse != nullptr && lane % 4 == 0) {
    float* const lse = params.lse +
                       (static_cast<long long>(index.batch) * params.heads + index.head) * params.seqlen_q +
                       first_row;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * r + 8 * half + lane / 4;
        if (row < rows_left) lse[row] = log_sum_exp(rows[r], half);
      }
    }
  }
}

// Where a head begins.

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const unsigned short* head_of(const void* tensor, long long batch,
                                                         long long head) {
  return static_cast<const unsigned short*>(tensor) + batch + head;
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

// Loads of matrix fragments from shared memory (PTX ISA, "ldmatrix"). Lane 8i + r gives the address of row r
// of the i-th 8x8 matrix of 16-bit elements; register i of lane 4r + c receives its elements (r, 2c) and (r,
// 2c + 1).

__device__ __forceinline__ void ldmatrix(unsigned (&fragment)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// The warp's tensor-core product (PTX ISA, "mma"): d += a * b, a 16x16, b 16x8, d 16x8 in fp32.
// With lane = 4g + t: a[0] holds (g, 2t..2t+1), a[1] row g + 8, a[2] columns + 8, a[3] both; b0 holds rows
// 2t..2t+1 of column g, b1 rows + 8; d[0], d[1] hold (g, 2t..2t+1), d[2], d[3] the same of row g + 8.

// Turing multiplies 8 deep: two products over the halves of k.
__device__ __forceinline__ void mma(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
}

// S = Q K^T for one warp, from shared memory through mma. A warp holds kRowTiles accumulators of 16 rows;
// each fragment of K that it loads serves them all.

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

constexpr int kStepsQK = (kHeadDim + 15) / 16;  // of 16 columns of Q and K

// Loads the A fragments of 16 columns of the warp's rows of Q. q_lane, k_lane: where this lane starts to
// read.
__device__ __forceinline__ void load_q(unsigned (&q)[kRowTiles][4], unsigned q_lane, int step) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) ldmatrix(q[r], TileQK::step(q_lane, 16 * r, 2 * step));
}

// scores += Q K^T over 16 columns, for as many keys as there are scores.
template <int kScores>
__device__ __forceinline__ void multiply_qk(float (&scores)[kRowTiles][kScores],
                                            const unsigned (&q)[kRowTiles][4], unsigned k_lane, int step) {
#pragma unroll
  for (int j = 0; j < kScores / 8; ++j) {
    unsigned k[4];
    ldmatrix(k, TileQK::step(k_lane, 16 * j, 2 * step));
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      mma(&scores[r][8 * j], q[r], k[0], k[1]);
      mma(&scores[r][8 * j + 4], q[r], k[2], k[3]);
    }
  }
}

// Where lanes start to read their warp's rows of Q, and tiles of K and V: for kernels that work this out anew
// in each step.

__device__ __forceinline__ unsigned start_q(unsigned q_tile, unsigned thread) {
  return q_tile + thread / 32 * kRowsPerWarp * TileQK::kPitch + lane_offset_rows_first<TileQK>(thread % 32);
}
__device__ __forceinline__ unsigned start_k(unsigned k_tile, unsigned thread) {
  return k_tile + lane_offset_columns_first<TileQK>(thread % 32);
}
__device__ __forceinline__ unsigned start_v(unsigned v_tile, unsigned thread) {
  return v_tile + lane_offset_rows_first<TileV>(thread % 32);
}

// Sixteen bytes to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// Copies tiles from global to shared memory through registers, for Turing, which has no cp.async: the loads
// are under way while the warp computes, and the stores follow.

// Threads take the tile's chunks in order, kThreads at a time.
template <int kRows, int kColumns>
struct TileCopy {
  using Tile = SharedTile<kColumns>;
  static constexpr int kPieces = kRows * Tile::kChunks;  // of 16 bytes
  static constexpr int kPasses = (kPieces + kThreads - 1) / kThreads;

  const char* source;    // row 0 of the tensor
  long long row_stride;  // in elements
  unsigned target;       // the tile in shared memory that `held` goes to
  uint4 held[kPasses];

  // tensor: row 0 of the head, row_stride in elements.
  __device__ TileCopy(const void* tensor, long long row_stride)
      : source(static_cast<const char*>(tensor)), row_stride(row_stride) {}

  // Loads rows first … first + kRows - 1. kGuarded: rows from `end` on do not exist and become zeros.
  template <bool kGuarded>
  __device__ void start(unsigned tile, int first, int end) {
    target = tile;
    const int thread = thread_index();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int piece = thread + pass * kThreads;
      const int row = first + piece / Tile::kChunks, chunk = piece % Tile::kChunks;
      const bool inside = kPieces % kThreads == 0 || piece < kPieces;
      const bool padding = kColumns % 16 != 0 && chunk * 8 >= kColumns;
      held[pass] = uint4{0, 0, 0, 0};
      if (inside && !padding && (!kGuarded || row < end))
        held[pass] = *reinterpret_cast<const uint4*>(source + 2 * (row * row_stride) + chunk * 16);
    }
  }

  // Stores what `start` loaded.
  __device__ void finish() const {
    const int thread = thread_index();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int piece = thread + pass * kThreads;
      if (kPieces % kThreads == 0 || piece < kPieces)
        store_shared(target + Tile::offset(piece / Tile::kChunks, piece % Tile::kChunks), held[pass]);
    }
  }
};

// ldmatrix with each 8x8 matrix transposed on the way (PTX ISA, "ldmatrix").

__device__ __forceinline__ void ldmatrix_transposed(unsigned (&fragment)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

// Products of one warp through mma: of fragments in registers and a tile in shared memory, summed over the
// tile's rows.

// sum += A B over 16 columns of A, which meet rows first_row … first_row + 15 of B's tile. b_lane: where this
// lane starts to read, rows first.
template <class Tile, int kColumns, int kRowTiles>
__device__ __forceinline__ void multiply_columns(float (&sum)[kRowTiles][kColumns / 2],
                                                 const unsigned (&a)[kRowTiles][4], unsigned b_lane,
                                                 int first_row) {
#pragma unroll
  for (int j = 0; j < (kColumns + 15) / 16; ++j) {
    unsigned b[4];
    ldmatrix_transposed(b, Tile::step(b_lane, first_row, 2 * j));
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      mma(&sum[r][8 * j], a[r], b[0], b[1]);
      if (16 * j + 8 < kColumns) mma(&sum[r][8 * j + 4], a[r], b[2], b[3]);
    }
  }
}

// A block's softmax for the kRowTiles accumulators of a warp, and the product that follows it.

// Moves the shifts of all the warp's rows if any of them is outgrown.
template <int kScores>
__device__ __forceinline__ void raise(SoftmaxRows (&rows)[kRowTiles],
                                      float (&output)[kRowTiles][kHeadDimV / 2],
                                      const float (&scores)[kRowTiles][kScores], float scale_log2) {
  float peak[kRowTiles][2];
  bool move = false;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    find_peaks(scores[r], peak[r]);
    move |= outgrown(rows[r], peak[r], scale_log2);
  }
  if (__any_sync(0xffffffffu, move)) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) move_shift(rows[r], peak[r], output[r], scale_log2);
  }
}

// O += P V, where P follows from the scores with the shifts as they are.
template <int kScores>
__device__ __forceinline__ void add_pv(SoftmaxRows (&rows)[kRowTiles],
                                       float (&output)[kRowTiles][kHeadDimV / 2],
                                       const float (&scores)[kRowTiles][kScores], unsigned v_lane,
                                       float scale_log2) {
#pragma unroll
  for (int i = 0; i < kScores / 8; ++i) {
    unsigned p[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      exponentiate(rows[r].shift, &scores[r][8 * i], p[r], rows[r].sum, scale_log2);
    multiply_columns<TileV, kHeadDimV>(output, p, v_lane, 16 * i);
  }
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
  int unmasked_end, masked_end;

  template <class Params>
  __device__ __forceinline__ VisibleKeys(const Params& params, int) {
    unmasked_end = params.seqlen_k / kTileN;
    masked_end = (params.seqlen_k + kTileN - 1) / kTileN;
  }

  // Masks the scores of one accumulator for keys past the end of K, in all rows alike.
  template <int kScores, class Params>
  __device__ __forceinline__ void mask(float (&scores)[kScores], int, int first_key,
                                       const Params& params) const {
    mask_keys<0>(scores, params.seqlen_k - first_key);
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

// Addresses of shared memory (PTX ISA, "State spaces").

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas)
    flashjit_forward_mma_fp16_d64_m64n64w4s1kv1(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned slots = shared_address(shared);  // kStages of them, each a tile of K and a tile of V
  const unsigned q_tile = slots + kOffsetQ;

  const TileIndex index = tile_at(params, block_index());
  const int first_row = index.m * kTileM;                // of the CTA
  const int warp_row = threadIdx.x / 32 * kRowsPerWarp;  // the warp's first, in the tile
  const VisibleKeys visible(params, first_row);

  SoftmaxRows rows[kRowTiles];
  float output[kRowTiles][kHeadDimV / 2] = {};  // this thread's part of the warp's rows of O

  if (visible.masked_end > 0) {
    const int head_kv = divide(index.head, params.by_group);
    TileCopy<kTileM, kHeadDim> q_copy(
        head_of(params.q, index.batch * params.q_batch, index.head * params.q_head), params.q_row);
    TileCopy<kTileN, kHeadDim> k_copy(
        head_of(params.k, index.batch * params.k_batch, head_kv * params.k_head), params.k_row);
    TileCopy<kTileN, kHeadDimV> v_copy(
        head_of(params.v, index.batch * params.v_batch, head_kv * params.v_head), params.v_row);

    // The last tile may reach beyond seqlen_k, so its copies are guarded, and no other tile's are.
    const int last = visible.masked_end - 1;
    int n = last;
    q_copy.start<true>(q_tile, first_row, params.seqlen_q);
    q_copy.finish();
    k_copy.start<true>(slots, n * kTileN, params.seqlen_k);

    v_copy.start<true>(slots + kTileBytesK, n * kTileN, params.seqlen_k);

    int stage = 0;
    // S for as many keys of tile n as there are scores, from the tile's key `first` on.
    const auto multiply = [&](auto& scores, int first) {
      // Computed anew in each step, as v_lane is: copies in flight take registers, and few are left.
      const unsigned k_lane = start_k(slots, thread_index());
      const unsigned q_lane = start_q(q_tile, thread_index());
#pragma unroll
      for (auto& row : scores) {
#pragma unroll
        for (float& score : row) score = 0;
      }
      const unsigned k_block = k_lane + stage * kSlotBytes + first * TileQK::kPitch;
#pragma unroll
      for (int i = 0; i < kStepsQK; ++i) {
        unsigned q[kRowTiles][4];
        load_q(q, q_lane, i);
        multiply_qk(scores, q, k_block, i);
      }
    };
    const auto mask = [&](auto& scores, int first) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        visible.mask(scores[r], warp_row + 16 * r, n * kTileN + first, params);
    };
    // A step begins when its tile of K has arrived and no warp reads the previous step's tiles any more.
    const auto begin = [&] {
      k_copy.finish();
      __syncthreads();
      if (n != last) v_copy.start<false>(slots + kTileBytesK, n * kTileN, params.seqlen_k);
    };
    // A step's second half begins when V has arrived and no warp reads K any more.
    const auto turn_to_v = [&] {
      v_copy.finish();
      __syncthreads();
      if (n >= kStages)
        k_copy.start<false>(slots + stage * kSlotBytes, (n - kStages) * kTileN, params.seqlen_k);
    };
    // Keys past the end are hidden from all warps alike: warps compute whole tiles, and the mask does the
    // rest.
    const auto seen = [](int) { return true; };

    // Softmax of a block's scores, and O += P V.
    const auto accumulate = [&](const auto& scores, int first) {
      raise(rows, output, scores, params.scale_log2);
      const unsigned v_lane = start_v(slots + kTileBytesK, thread_index());
      add_pv(rows, output, scores, v_lane + stage * kSlotBytes + first * TileV::kPitch, params.scale_log2);
    };
    for (; n >= visible.unmasked_end; --n) {
      begin();
      float scores[kRowTiles][kBlockN / 2];
      if (seen(0)) multiply(scores, 0);
      turn_to_v();
      if (seen(0)) {
        mask(scores, 0);
        accumulate(scores, 0);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
#pragma unroll kUnroll
    for (; n >= 0; --n) {
      begin();
      float scores[kRowTiles][kBlockN / 2];
      multiply(scores, 0);
      turn_to_v();
      accumulate(scores, 0);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }

  // O takes the place of the tiles in the first slots once all warps have read them.
  __syncthreads();
  write_tile(params, tile_at(params, block_index()), rows, output, slots);
}

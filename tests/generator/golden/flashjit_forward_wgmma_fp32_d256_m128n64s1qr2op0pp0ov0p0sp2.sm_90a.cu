// forward fp32 d256 full, schedule wgmma:m128n64s1qr2op0pp0ov0p0sp2, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/forward_wgmma_fp32.cu.

constexpr int kHeadDim = 128;            // columns of Q and K, a half
constexpr int kHeadDimV = 128;           // columns of V and O, a half
constexpr int kTileM = 128;              // query rows per cluster
constexpr int kTileN = 64;               // keys per block
constexpr int kProducers = 1;            // warpgroups that load and split
constexpr int kWarpgroups = 2;           // that compute, 64 rows each
constexpr int kThreads = 384;            // per CTA
constexpr int kColumnsAtOnce = 64;       // of V, in one product
constexpr int kStages = 1;               // blocks of K, and of V, in shared memory
constexpr int kScoreSums = 96;           // registers that a thread has for its scores' sums
constexpr int kProducerRegisters = 88;   // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 208;  // per thread, after setmaxnreg
constexpr int kSharedBytes = 229440;     // of dynamic shared memory
constexpr float kLazy = 14.0f;           // log2 of the growth that a shift tolerates
constexpr int kCluster = 2;              // CTAs that share out the columns
constexpr int kQRegisterParts = 1;       // of Q, in registers

// FlashAttention's forward pass on Hopper in fp32, on tensor cores that multiply bf16: each number is the sum
// of three bf16 numbers, and each product the sum of six (Henry, Tang, Heinecke, "Leveraging the bfloat16
// Artificial Intelligence Datatype For Higher-Precision Computations", 2019). Warpgroups have roles as in
// FlashAttention-3 (arXiv 2407.08608): kProducers load blocks of K and V, split them and put the parts into
// shared memory, and kWarpgroups compute 64 query rows each with asynchronous products.
// While one of these is busy with its softmax, tensor cores have another one's products.

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

// Where a head begins, in fp32.

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const float* head_of(const void* tensor, long long batch, long long head) {
  return static_cast<const float*>(tensor) + batch + head;
}

// Which thread of a warpgroup this one is.

__device__ __forceinline__ int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int warp_of_warpgroup() {
  return static_cast<int>(threadIdx.x / 32 % 4);
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

// Shared-memory barriers that count arrivals, and bytes (ptx/mbarrier_bytes.cuh), by PTX ISA, "Parallel
// Synchronization: mbarrier".

// The phase completes when `arrivals` threads have arrived and every byte that was expected has landed.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Returns once the phase of this parity has completed. A fresh barrier counts as having completed parity 1.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra out;\n"
      "bra again;\n"
      "out:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Barriers that also count the bytes of asynchronous copies (PTX ISA, "Parallel Synchronization: mbarrier").

// Makes initialised barriers visible to the asynchronous copies that will complete on them.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// What a CTA keeps in shared memory: Q, and rings of blocks of K and V, each as three tiles of bf16 whose sum
// it is.

using TileQ = SplitTile<64, kHeadDim>;  // of one warpgroup
using TileK = SplitTile<kTileN, kHeadDim>;
using TileV = SplitTile<kTileN, kHeadDimV>;

// Offsets from the start of shared memory.
constexpr int kQ = 0;
constexpr int kK = kWarpgroups * TileQ::kBytes;
constexpr int kV = kK + kStages * TileK::kBytes;
constexpr int kSums = kV + kStages * TileV::kBytes;      // of the other CTA's columns: its part of the scores
constexpr int kSumsBytes = 64 * kTileN * sizeof(float);  // of one warpgroup
constexpr int kKFull = kSums + kWarpgroups * kSumsBytes;  // barriers: a block of K has been split,
constexpr int kVFull = kKFull + 8 * kStages;
constexpr int kKEmpty = kVFull + 8 * kStages;  // and all warpgroups have multiplied it
constexpr int kVEmpty = kKEmpty + 8 * kStages;
constexpr int kSumsFull = kVEmpty + 8 * kStages;        // a warpgroup's sums have come,
constexpr int kSumsRead = kSumsFull + 8 * kWarpgroups;  // and the other CTA has added those that it got
static_assert(kSumsRead + 8 * kWarpgroups == kSharedBytes, "the host allocates what this lays out");

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  constexpr int kFills = 4, kReads = 4 * kWarpgroups;  // a warp arrives once
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, kFills);
    mbarrier_init(shared + kVFull + 8 * stage, kFills);
    mbarrier_init(shared + kKEmpty + 8 * stage, kReads);
    mbarrier_init(shared + kVEmpty + 8 * stage, kReads);
  }
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    mbarrier_init(shared + kSumsFull + 8 * warpgroup, 4);  // a warp arrives once
    mbarrier_init(shared + kSumsRead + 8 * warpgroup, 4);
  }
  mbarrier_init_fence();
}

// Warpgroup-wide asynchronous products (PTX ISA, "wgmma"). 128 threads multiply 64 rows. With lane = 4g + t,
// a thread's accumulators 4j .. 4j + 3 hold columns 8j + 2t and 8j + 2t + 1 of its warp's rows g and g + 8.

// Returns once at most kInFlight committed groups are unfinished.
template <int kInFlight>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}

// Describes a tile of 128-byte rows, swizzled over 1024 bytes. Its blocks of eight rows are 1024 bytes apart;
// panels of 64 columns are panel_bytes apart (used only where rows run along k). To move the address up by
// some bytes, add bytes / 16 to the descriptor.
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned address, unsigned panel_bytes) {
  constexpr unsigned long long kSwizzle128 = 1ull << 62;
  constexpr unsigned long long kEightRows = 1024 / 16;
  return kSwizzle128 | kEightRows << 32 | static_cast<unsigned long long>(panel_bytes / 16) << 16 |
         (address & 0x3ffff) / 16;
}

// How products in fp32 name their tiles.

// Tiles come as the lower halves of their descriptors, to which a step adds bytes / 16. The upper half is the
// same for all of them: the rows' swizzle, and the bytes of eight rows / 16 (PTX ISA, "matrix descriptor
// format").
constexpr unsigned kUpperHalf = 1u << 30 | 8 * kRowBytes / 16;

__device__ __forceinline__ unsigned lower_half(unsigned address) {
  return static_cast<unsigned>(wgmma_descriptor(address, 0));
}

// The two products of a block of keys, each one asm statement that the renderer writes down. Of the nine
// products of two numbers' parts, three are below the last bit of the whole; the other six are computed. The
// smallest come first: each time that a tensor core adds 16 products it rounds towards zero, at the size of
// the sum, which is of no consequence while the sum is small.

constexpr int kQSteps = (kHeadDim + 15) / 16;  // of 16 columns, which one product takes

// Begins the sums whose sum is q k^T: 64 x kTileN.
// Products of both first parts have a sum of their own, which begins with the third part of q. The others
// share one of twice the width: the second and third parts of k lie side by side, as do the first and second,
// so that a product reads its part of q once for both.
__device__ __forceinline__ void wgmma_scores(float (&sum)[kScoreSums],
                                             const unsigned (&q)[kQSteps][kQRegisterParts][4],
                                             unsigned q_tile,
                                             unsigned k_tile) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      ".reg .b32 low;\n"
      ".reg .b64 b;\n"
      ".reg .b64 a;\n"
      "wgmma.fence.sync.aligned;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "add.u32 low, %128, 1024;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 0;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %128, 1026;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 2;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 1028;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 4;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 1030;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 6;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2560;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1536;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2562;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1538;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2564;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1540;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2566;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1542;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "add.u32 low, %129, 512;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%96, %97, %98, %99}, b, accumulate, 1, 1, 0;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %129, 514;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%100, %101, %102, %103}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 516;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%104, %105, %106, %107}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 518;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%108, %109, %110, %111}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 2048;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%112, %113, %114, %115}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 2050;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%116, %117, %118, %119}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 2052;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%120, %121, %122, %123}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 2054;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "{%124, %125, %126, %127}, b, accumulate, 1, 1, 0;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %128, 512;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 0;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 514;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 2;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 516;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 4;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 518;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 6;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2048;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1536;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2050;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1538;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2052;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1540;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %128, 2054;\n"
      "mov.b64 a, {low, %130};\n"
      "add.u32 low, %129, 1542;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,\n"
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %129, 0;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%96, %97, %98, %99}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 2;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%100, %101, %102, %103}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 4;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%104, %105, %106, %107}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 6;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%108, %109, %110, %111}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 1536;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%112, %113, %114, %115}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 1538;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%116, %117, %118, %119}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 1540;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%120, %121, %122, %123}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %129, 1542;\n"
      "mov.b64 b, {low, %130};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%124, %125, %126, %127}, b, accumulate, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      :
      "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3]),
      "=f"(sum[4]), "=f"(sum[5]), "=f"(sum[6]), "=f"(sum[7]),
      "=f"(sum[8]), "=f"(sum[9]), "=f"(sum[10]), "=f"(sum[11]),
      "=f"(sum[12]), "=f"(sum[13]), "=f"(sum[14]), "=f"(sum[15]),
      "=f"(sum[16]), "=f"(sum[17]), "=f"(sum[18]), "=f"(sum[19]),
      "=f"(sum[20]), "=f"(sum[21]), "=f"(sum[22]), "=f"(sum[23]),
      "=f"(sum[24]), "=f"(sum[25]), "=f"(sum[26]), "=f"(sum[27]),
      "=f"(sum[28]), "=f"(sum[29]), "=f"(sum[30]), "=f"(sum[31]),
      "=f"(sum[32]), "=f"(sum[33]), "=f"(sum[34]), "=f"(sum[35]),
      "=f"(sum[36]), "=f"(sum[37]), "=f"(sum[38]), "=f"(sum[39]),
      "=f"(sum[40]), "=f"(sum[41]), "=f"(sum[42]), "=f"(sum[43]),
      "=f"(sum[44]), "=f"(sum[45]), "=f"(sum[46]), "=f"(sum[47]),
      "=f"(sum[48]), "=f"(sum[49]), "=f"(sum[50]), "=f"(sum[51]),
      "=f"(sum[52]), "=f"(sum[53]), "=f"(sum[54]), "=f"(sum[55]),
      "=f"(sum[56]), "=f"(sum[57]), "=f"(sum[58]), "=f"(sum[59]),
      "=f"(sum[60]), "=f"(sum[61]), "=f"(sum[62]), "=f"(sum[63]),
      "=f"(sum[64]), "=f"(sum[65]), "=f"(sum[66]), "=f"(sum[67]),
      "=f"(sum[68]), "=f"(sum[69]), "=f"(sum[70]), "=f"(sum[71]),
      "=f"(sum[72]), "=f"(sum[73]), "=f"(sum[74]), "=f"(sum[75]),
      "=f"(sum[76]), "=f"(sum[77]), "=f"(sum[78]), "=f"(sum[79]),
      "=f"(sum[80]), "=f"(sum[81]), "=f"(sum[82]), "=f"(sum[83]),
      "=f"(sum[84]), "=f"(sum[85]), "=f"(sum[86]), "=f"(sum[87]),
      "=f"(sum[88]), "=f"(sum[89]), "=f"(sum[90]), "=f"(sum[91]),
      "=f"(sum[92]), "=f"(sum[93]), "=f"(sum[94]), "=f"(sum[95])
      :
      "r"(q[0][0][0]), "r"(q[0][0][1]), "r"(q[0][0][2]), "r"(q[0][0][3]),
      "r"(q[1][0][0]), "r"(q[1][0][1]), "r"(q[1][0][2]), "r"(q[1][0][3]),
      "r"(q[2][0][0]), "r"(q[2][0][1]), "r"(q[2][0][2]), "r"(q[2][0][3]),
      "r"(q[3][0][0]), "r"(q[3][0][1]), "r"(q[3][0][2]), "r"(q[3][0][3]),
      "r"(q[4][0][0]), "r"(q[4][0][1]), "r"(q[4][0][2]), "r"(q[4][0][3]),
      "r"(q[5][0][0]), "r"(q[5][0][1]), "r"(q[5][0][2]), "r"(q[5][0][3]),
      "r"(q[6][0][0]), "r"(q[6][0][1]), "r"(q[6][0][2]), "r"(q[6][0][3]),
      "r"(q[7][0][0]), "r"(q[7][0][1]), "r"(q[7][0][2]), "r"(q[7][0][3]),
      "r"(q_tile),
      "r"(k_tile), "n"(kUpperHalf)
      : "memory");
}

// Begins sum = p v for columns of v: 64 x kColumnsAtOnce.
__device__ __forceinline__ void wgmma_values(float (&sum)[kColumnsAtOnce / 2],
                                             const unsigned (&p)[kTileN / 16][kParts][4], unsigned v_tile) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      ".reg .b32 low;\n"
      ".reg .b64 b;\n"
      "wgmma.fence.sync.aligned;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "add.u32 low, %80, 1024;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, b, accumulate, 1, 1, 1;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %80, 1152;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%44, %45, %46, %47}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 1280;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%56, %57, %58, %59}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 1408;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%68, %69, %70, %71}, b, accumulate, 1, 1, 1;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %80, 512;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%36, %37, %38, %39}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 640;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%48, %49, %50, %51}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 768;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%60, %61, %62, %63}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 896;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%72, %73, %74, %75}, b, accumulate, 1, 1, 1;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %80, 0;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%40, %41, %42, %43}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 128;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%52, %53, %54, %55}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 256;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%64, %65, %66, %67}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 384;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%76, %77, %78, %79}, b, accumulate, 1, 1, 1;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %80, 512;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 640;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%44, %45, %46, %47}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 768;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%56, %57, %58, %59}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 896;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%68, %69, %70, %71}, b, accumulate, 1, 1, 1;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %80, 0;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%36, %37, %38, %39}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 128;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%48, %49, %50, %51}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 256;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%60, %61, %62, %63}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 384;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%72, %73, %74, %75}, b, accumulate, 1, 1, 1;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %80, 0;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 128;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%44, %45, %46, %47}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 256;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%56, %57, %58, %59}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %80, 384;\n"
      "mov.b64 b, {low, %81};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%68, %69, %70, %71}, b, accumulate, 1, 1, 1;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      :
      "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3]),
      "=f"(sum[4]), "=f"(sum[5]), "=f"(sum[6]), "=f"(sum[7]),
      "=f"(sum[8]), "=f"(sum[9]), "=f"(sum[10]), "=f"(sum[11]),
      "=f"(sum[12]), "=f"(sum[13]), "=f"(sum[14]), "=f"(sum[15]),
      "=f"(sum[16]), "=f"(sum[17]), "=f"(sum[18]), "=f"(sum[19]),
      "=f"(sum[20]), "=f"(sum[21]), "=f"(sum[22]), "=f"(sum[23]),
      "=f"(sum[24]), "=f"(sum[25]), "=f"(sum[26]), "=f"(sum[27]),
      "=f"(sum[28]), "=f"(sum[29]), "=f"(sum[30]), "=f"(sum[31])
      :
      "r"(p[0][0][0]), "r"(p[0][0][1]), "r"(p[0][0][2]), "r"(p[0][0][3]),
      "r"(p[0][1][0]), "r"(p[0][1][1]), "r"(p[0][1][2]), "r"(p[0][1][3]),
      "r"(p[0][2][0]), "r"(p[0][2][1]), "r"(p[0][2][2]), "r"(p[0][2][3]),
      "r"(p[1][0][0]), "r"(p[1][0][1]), "r"(p[1][0][2]), "r"(p[1][0][3]),
      "r"(p[1][1][0]), "r"(p[1][1][1]), "r"(p[1][1][2]), "r"(p[1][1][3]),
      "r"(p[1][2][0]), "r"(p[1][2][1]), "r"(p[1][2][2]), "r"(p[1][2][3]),
      "r"(p[2][0][0]), "r"(p[2][0][1]), "r"(p[2][0][2]), "r"(p[2][0][3]),
      "r"(p[2][1][0]), "r"(p[2][1][1]), "r"(p[2][1][2]), "r"(p[2][1][3]),
      "r"(p[2][2][0]), "r"(p[2][2][1]), "r"(p[2][2][2]), "r"(p[2][2][3]),
      "r"(p[3][0][0]), "r"(p[3][0][1]), "r"(p[3][0][2]), "r"(p[3][0][3]),
      "r"(p[3][1][0]), "r"(p[3][1][1]), "r"(p[3][1][2]), "r"(p[3][1][3]),
      "r"(p[3][2][0]), "r"(p[3][2][1]), "r"(p[3][2][2]), "r"(p[3][2][3]),
      "r"(v_tile), "n"(kUpperHalf)
      : "memory");
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

// Copies a tile of fp32 from global to shared memory through registers, and splits it on the way.

// kRows rows of a tile, from the address `to` on, by kCopiers threads, of which this is one. `wait` is called
// once the first loads are under way; it returns when their place is free. Threads take pieces in their
// order, so that a warp reads whole lines, and eight threads write to all banks. Rows that do not exist
// become zeros, and so do columns up to kPadded: whole steps of wgmma, unless more are asked for.
template <class Tile, int kRows, int kColumns, int kCopiers, int kPadded = (kColumns + 15) / 16 * 16,
          class Prepare, class Wait>
__device__ __forceinline__ void split_copy(const Rows& rows, unsigned to, int thread, const Prepare& prepare,
                                           const Wait& wait) {
  // A thread has some pieces under way together, as many each time if that can be.
  constexpr int kChunks = kPadded / 8, kPieces = kRows * kChunks;  // of 8 numbers
  constexpr int kPasses = (kPieces + kCopiers - 1) / kCopiers, kBatches = (kPasses + 4) / 5;
  constexpr int kHeld = (kPasses + kBatches - 1) / kBatches;
  constexpr bool kWhole = kPieces == kCopiers * kHeld * kBatches;
  int first = thread;
#pragma unroll 1
  for (int batch = 0; batch < kBatches; ++batch) {
    float4 held[kHeld][2];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int piece = first + kCopiers * i, row = piece / kChunks, column = piece % kChunks * 8;
      held[i][0] = held[i][1] = float4{0, 0, 0, 0};
      if ((kWhole || row < kRows) && rows.have(row) && (kPadded == kColumns || column < kColumns)) {
        const auto* const from = reinterpret_cast<const float4*>(rows.at(row, column));
        held[i][0] = from[0];
        held[i][1] = from[1];
      }
    }
    if (batch == 0) wait();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int piece = first + kCopiers * i;
      if (!kWhole && piece >= kPieces) continue;
      unsigned parts[4][kParts];
      split_eight(held[i], prepare, parts);
      store_parts(to + Tile::offset(piece / kChunks, piece % kChunks), Tile::kPartBytes, parts);
    }
    first += kCopiers * kHeld;
  }
}

// Order between ordinary accesses to shared memory and those of the asynchronous proxy (PTX ISA,
// "membar/fence").

// What this thread wrote to shared memory before the fence is visible to TMA and wgmma after it.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The sixteen numbered barriers of a CTA (PTX ISA, "bar"). Number 0 is __syncthreads'.

// Waits until `threads` threads have come to this barrier, whether or not they wait there.
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// A consumer's rows of Q, which take the softmax's scale: S comes out in units of log2, and scores that equal
// the shift weigh exactly 1.

// All parts, in shared memory.
__device__ __forceinline__ void store_query(unsigned tile, const Rows& rows, float scale, int warpgroup) {
  split_copy<TileQ, 64, kHeadDim, 128>(
      rows, tile, threadIdx.x % 128, [&](float x) { return x * scale; }, [] {});
  fence_async_shared();
  named_barrier_sync(1 + warpgroup, 128);
}

// The first parts, as fragments of A in registers: 16 rows of a warp.
__device__ __forceinline__ void load_query(unsigned (&q)[kQSteps][kQRegisterParts][4], const Rows& rows,
                                           float scale) {
  const int first_row = 16 * warp_of_warpgroup() + lane() / 4, first_column = lane() % 4 * 2;
#pragma unroll
  for (int step = 0; step < kQSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i % 2 * 8, column = 16 * step + first_column + i / 2 * 8;
      float2 two{0, 0};
      if (rows.have(row) && (kHeadDim % 16 == 0 || column < kHeadDim))
        two = *reinterpret_cast<const float2*>(rows.at(row, column));
      unsigned parts[kParts];
      split(two.x * scale, two.y * scale, parts);
#pragma unroll
      for (int part = 0; part < kQRegisterParts; ++part) q[step][part][i] = parts[part];
    }
  }
}

// Places of shared memory that are filled in turn.

// A place in a ring of kStages, and the parity that its barriers are waited for with.
struct RingPlace {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// CTAs of a cluster, and each other's shared memory (PTX ISA, "mapa", "barrier.cluster").

// This CTA's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// The address in CTA `rank` that corresponds to a shared-memory address of this CTA.
__device__ __forceinline__ unsigned in_cta(int rank, unsigned address) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Waits for all threads of the cluster that have not returned.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Arrivals at barriers of other CTAs of a cluster (PTX ISA, "mbarrier.arrive").

// Arrives at another CTA's barrier. This says that the thread has read, not that it has written: that would
// need .release.cluster, which waits for everything under way.
__device__ __forceinline__ void cluster_arrive_read(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Four neighbouring floats of shared memory (PTX ISA, "ld").

__device__ __forceinline__ float4 load_four(unsigned address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address)
               : "memory");
  return four;
}

// Stores to another CTA's shared memory that tell a barrier there when they have landed (PTX ISA,
// "st.async").

// The 16 bytes complete on a barrier of the CTA that they go to.
__device__ __forceinline__ void store_async(unsigned address, float4 four, unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w), "r"(barrier)
      : "memory");
}

// Scores, added up over the two CTAs of a cluster, each of which has half of the columns of Q and K. A thread
// has the same rows and keys as its twin in the other CTA, and sends its scores to a place that only the twin
// reads.

struct SumOfScores {
  unsigned here, there;  // this CTA's shared memory, and the other's
  int place;             // what this thread's twin sends, from its first four scores on
  int full, read;        // barriers of the warpgroup: all has come, the other CTA has read what it got
  int parity = 0;        // of `full`, and the other one of `read`

  __device__ __forceinline__ SumOfScores(unsigned shared, int warpgroup)
      : here(shared), there(in_cta(cluster_rank() ^ 1, shared)) {
    place = kSums + warpgroup * kSumsBytes + 16 * static_cast<int>(threadIdx.x % 128);
    full = kSumsFull + 8 * warpgroup;
    read = kSumsRead + 8 * warpgroup;
  }

  // scores += the twin's, which comes to the same sums, to the bit: additions commute.
  __device__ __forceinline__ void add(float (&scores)[kTileN / 2]) {
    constexpr int kApart = 16 * 128;  // bytes from a thread's four scores to its next four
    if (lane() == 0) mbarrier_arrive_expecting(here + full, 32 * sizeof(scores));
    mbarrier_wait(here + read, parity ^ 1);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4) {
      store_async(there + place + i / 4 * kApart,
                  float4{scores[i], scores[i + 1], scores[i + 2], scores[i + 3]}, there + full);
    }
    mbarrier_wait(here + full, parity);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4) {
      const float4 others = load_four(here + place + i / 4 * kApart);
      scores[i] += others.x;
      scores[i + 1] += others.y;
      scores[i + 2] += others.z;
      scores[i + 3] += others.w;
    }
    parity ^= 1;
  }

  // Gives the place back. An arrival does not wait for loads, and ptxas moves additions below it. So this
  // comes after something that the warp waits for and that takes all sums.
  __device__ __forceinline__ void tell_read() const {
    __syncwarp();
    if (lane() == 0) cluster_arrive_read(there + read);
    __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
  }
};

// Registers that asynchronous products use without the compiler knowing (ptx/wgmma.cuh).

// Ties registers to this point of the program: the compiler does not know of products in flight, and would
// move reads of their registers above the wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// A warpgroup that computes 64 rows of O.

struct Consumer {
  unsigned shared;
  int warpgroup;  // which of those that compute
  int first_row;  // in the tile
  RingPlace place;
  SumOfScores sum_of_scores{shared, warpgroup};
  unsigned q[kQSteps][kQRegisterParts][4];
  SoftmaxRows rows;
  float output[kHeadDimV / 2];  // this thread's part of the warpgroup's rows of O

  __device__ __forceinline__ Consumer(unsigned shared, int warpgroup) : shared(shared), warpgroup(warpgroup) {
    first_row = 64 * warpgroup;
  }

  __device__ __forceinline__ int warp_row() const { return first_row + 16 * warp_of_warpgroup(); }

  __device__ __forceinline__ void start(const ForwardParams& p, const TileIndex& index) {
    const float* head = head_of(p.q, index.batch * p.q_batch, index.head * p.q_head);
    head += cluster_rank() * kHeadDim;
    const Rows from{head, p.q_row, index.m * kTileM + first_row, p.seqlen_q};
    store_query(shared + kQ + warpgroup * TileQ::kBytes, from, p.scale_log2, warpgroup);
    load_query(q, from, p.scale_log2);
  }

  __device__ __forceinline__ void wait(unsigned full) const {
    mbarrier_wait(shared + full + 8 * place.stage, place.parity);
  }
  // Called once products have read the block.
  __device__ __forceinline__ void release(unsigned empty) const {
    if (lane() == 0) mbarrier_arrive(shared + empty + 8 * place.stage);
    __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
  }

  // scores = Q K^T.
  __device__ __forceinline__ void multiply_qk(float (&scores)[kTileN / 2]) {
    float sum[kScoreSums];
    wait(kKFull);
    wgmma_scores(sum,
                 q,
                 lower_half(shared + kQ + warpgroup * TileQ::kBytes),
                 lower_half(shared + kK + place.stage * TileK::kBytes));
    wgmma_wait<0>();
    pin(sum);
    release(kKEmpty);
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) {
      scores[i] = sum[i] + (sum[kTileN / 2 + i] + sum[kTileN + i]);
    }
    sum_of_scores.add(scores);
  }

  // How many columns of V a product takes that begins with column kFirst.
  template <int kFirst>
  static constexpr int kColumnsFrom =
      kHeadDimV - kFirst < kColumnsAtOnce ? kHeadDimV - kFirst : kColumnsAtOnce;

  // Begins sum = P V for the columns from kFirst on.
  template <int kFirst>
  __device__ __forceinline__ void multiply_pv(float (&sum)[kColumnsFrom<kFirst> / 2],
                                              const unsigned (&weights)[kTileN / 16][kParts][4]) const {
    constexpr int kOffset = kFirst / 64 * TileV::kPanelBytes + kFirst % 64 * 2;
    wgmma_values(sum, weights, lower_half(shared + kV + place.stage * TileV::kBytes + kOffset));
  }

  // Adds a sum that has come to O. A block's part is summed by itself, since O is larger the more blocks came
  // before.
  template <int kFirst>
  __device__ __forceinline__ void add(float (&sum)[kColumnsFrom<kFirst> / 2]) {
    pin(sum);
#pragma unroll
    for (int i = 0; i < kColumnsFrom<kFirst> / 2; ++i) output[kFirst / 2 + i] += sum[i];
  }

  // output += P V, some columns after others.
  template <int kFirst = 0>
  __device__ __forceinline__ void add_pv(const unsigned (&weights)[kTileN / 16][kParts][4]) {
    float sum[kColumnsFrom<kFirst> / 2];
    multiply_pv<kFirst>(sum, weights);
    wgmma_wait<0>();
    add<kFirst>(sum);
    constexpr int kNext = kFirst + kColumnsFrom<kFirst>;
    if constexpr (kNext < kHeadDimV) add_pv<kNext>(weights);
  }

  // From the last block that any row of the tile sees down to the first.
  __device__ __forceinline__ void consume(const ForwardParams& p, const VisibleKeys& visible) {
#pragma unroll
    for (float& x : output) x = 0;
    for (int n = visible.masked_end - 1; n >= 0; --n, place.advance()) {
      float scores[kTileN / 2];
      multiply_qk(scores);
      if (n >= visible.unmasked_end) visible.mask(scores, warp_row(), n * kTileN, p);
      float peak[2];
      find_peaks(scores, peak);
      if (__any_sync(0xffffffffu, outgrown(rows, peak, 1))) move_shift(rows, peak, output, 1);
      // Not before: the vote looks at every lane's peaks, so all that came from the other CTA has been read.
      sum_of_scores.tell_read();
      exponentiate(rows, scores);
      unsigned weights[kTileN / 16][kParts][4];
#pragma unroll
      for (int step = 0; step < kTileN / 16; ++step) split_fragment(weights[step], &scores[8 * step]);
      wait(kVFull);
      add_pv(weights);
      release(kVEmpty);
    }
  }
};

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

// Warpgroups that load blocks of K and V and split them into their parts.

struct Producer {
  unsigned shared;
  const ForwardParams& p;
  const float *k, *v;  // row 0 of the head
  RingPlace place;

  __device__ __forceinline__ Producer(unsigned shared, const ForwardParams& p, const TileIndex& index)
      : shared(shared), p(p) {
    const int head_kv = divide(index.head, p.by_group);
    k = head_of(p.k, index.batch * p.k_batch, head_kv * p.k_head);
    v = head_of(p.v, index.batch * p.v_batch, head_kv * p.v_head);
    k += cluster_rank() * kHeadDim;
    v += cluster_rank() * kHeadDimV;
  }

  // Fills a block's place once it is empty, and tells the consumers.
  template <class Tile, int kColumns, class Prepare>
  __device__ __forceinline__ void fill(const Rows& rows, unsigned ring, unsigned empty, unsigned full,
                                       const Prepare& prepare) const {
    const auto wait = [&] { mbarrier_wait(empty + 8 * place.stage, place.parity ^ 1); };
    const unsigned tile = ring + place.stage * Tile::kBytes;
    split_copy<Tile, kTileN, kColumns, 128>(rows, tile, threadIdx.x % 128, prepare, wait);
    fence_async_shared();
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(full + 8 * place.stage);
  }

  __device__ __forceinline__ void fill_k(int n) const {
    fill<TileK, kHeadDim>({k, p.k_row, n * kTileN, p.seqlen_k}, shared + kK, shared + kKEmpty,
                          shared + kKFull, finite);
  }
  __device__ __forceinline__ void fill_v(int n) const {
    fill<TileV, kHeadDimV>({v, p.v_row, n * kTileN, p.seqlen_k}, shared + kV, shared + kVEmpty,
                           shared + kVFull, [](float x) { return x; });
  }

  // From block end - 1, the last that any row sees, down to the first.
  __device__ __forceinline__ void produce(int end) {
    for (int n = end - 1; n >= 0; --n, place.advance()) {
      fill_k(n);
      fill_v(n);
    }
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

// Moves registers between the warpgroups of a CTA (PTX ISA, "setmaxnreg"). The pool is what the launch
// allocated: a request beyond it waits forever.

template <int kRegisters>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Addresses of shared memory (PTX ISA, "State spaces").

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// What the CTA works on.
// A cluster's CTAs share a tile: each has half of the columns of Q, K, V and O.
__device__ __forceinline__ TileIndex own_tile(const ForwardParams& p) {
  return tile_at(p, block_index() / kCluster);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashjit_forward_wgmma_fp32_d256_m128n64s1qr2op0pp0ov0p0sp2(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  cluster_sync();

  // Each role finds the tile's place by itself: it would cost a producer's few registers to be handed it.
  if (warpgroup < kProducers) {
    give_up_registers<kProducerRegisters>();
    const TileIndex index = own_tile(p);
    const VisibleKeys visible(p, index.m * kTileM);
    Producer producer(shared, p, index);
    producer.produce(visible.masked_end);
  } else {
    take_registers<kConsumerRegisters>();
    const TileIndex index = own_tile(p);
    const VisibleKeys visible(p, index.m * kTileM);
    Consumer consumer(shared, warpgroup - kProducers);
    if (visible.masked_end > 0) consumer.start(p, index);
    consumer.consume(p, visible);
    const int first_column = cluster_rank() * kHeadDimV;
    write_rows(p, index, index.m * kTileM + consumer.warp_row(), first_column, consumer.rows,
               consumer.output);
  }
  // The other CTA may still arrive at barriers of this one, and copy to it.
  cluster_sync();
}

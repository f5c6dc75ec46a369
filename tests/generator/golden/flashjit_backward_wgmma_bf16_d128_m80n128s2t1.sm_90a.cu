// backward bf16 d128 full, schedule wgmma-backward:m80n128s2t1, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/backward_wgmma.cu.

constexpr int kHeadDim = 128;            // columns of Q, K, dQ and dK
constexpr int kHeadDimV = 128;           // columns of V, dO and dV
constexpr int kTileM = 80;               // query rows per step
constexpr int kTileN = 128;              // keys per CTA
constexpr int kScoreColumns = 80;        // of the scores of a warpgroup's 64 rows
constexpr int kThreads = 384;            // per CTA, the producer's warpgroup included
constexpr int kCtasPerTile = 1;          // that work on one tile of the grid together
constexpr int kProducerRegisters = 24;   // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 240;  // per thread, after setmaxnreg
constexpr int kSharedBytes = 230904;     // of dynamic shared memory
constexpr int kKeyStages = 1;            // tile of K and V at a time
constexpr int kExchangeStages = 2;       // of what the warpgroups hand to each other
constexpr int kDqN = 80;                 // columns of a warpgroup's product for dQ
constexpr int kShareStages = 1;          // of a step's dQ on its way out

// FlashAttention backward on Hopper, over keys: CTAs work on one tile of K and V after another, with a
// warpgroup that feeds shared memory through TMA and two that compute 64 keys each.

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

// Numbers, hidden from the compiler.

// Keeps what is computed from a number out of registers until it is needed: the compiler would work it out as
// early as it can.
__device__ __forceinline__ int anew(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// Which thread of a warpgroup this one is.

__device__ __forceinline__ int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int warp_of_warpgroup() {
  return static_cast<int>(threadIdx.x / 32 % 4);
}

// How the host lays out the rows of a backward pass's workspace.

constexpr int kBackwardRowPadding = 128;  // what a head's rows are padded to a multiple of
constexpr int kBackwardCounterRows = 32;  // rows to a counter

// A divisor, hidden from the compiler.

__device__ __forceinline__ Divisor anew(const Divisor& divisor) {
  return {static_cast<unsigned>(anew(static_cast<int>(divisor.multiplier))), anew(divisor.shift)};
}

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}

// A special register (PTX ISA, "%nctaid").

// CTAs of the grid, read again wherever the number is needed, as in ptx/block_index.cuh.
__device__ __forceinline__ int grid_size() {
  unsigned size;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(size));
  return static_cast<int>(size);
}

// Order between CTAs through a word of global memory: the side that waits (PTX ISA, "ld.acquire").

// All writes before the other side's release are visible after this load.
__device__ __forceinline__ int load_acquire(const int* word) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Which tile of keys comes when, and which queries see it.

constexpr int kTileKeys = kTileN * kCtasPerTile;

struct KeyTile {
  int key;  // the first of this CTA's
  int head_kv, batch;
  int divided;     // which of the divided tiles it is a part of; negative in a whole one
  int first_step;  // of kTileM queries, the first that the tile meets …
  int end_step;    // … and the one after the last: the same for each query head of the group
  int start_step;  // where the tile begins; after the last step it goes on at the first
  int stop_step;      // the last step that it takes of each head's …
  int steps_of_head;  // … and how many

  __device__ __forceinline__ int steps(const BackwardParams& p) const {
    return p.group * steps_of_head;
  }
  // The first query head that it meets, counted over the batch.
  __device__ __forceinline__ int first_head(const BackwardParams& p) const {
    return batch * p.heads + head_kv * p.group;
  }
  __device__ __forceinline__ int starts_at() const { return start_step; }
  // Goes on to the next step. Returns whether that is the first of the group's next head.
  __device__ __forceinline__ bool advance(int& m) const {
    const bool stops = m == stop_step;
    if (stops) m = start_step - 1;
    if (++m == end_step) m = 0;
    return stops;
  }
};

__device__ __forceinline__ int tile_count(const BackwardParams& p) {
  return p.undivided_tiles + 2 * p.divided_tiles;
}

constexpr int kStepsApart = 2;  // at the most
// Where the n-th tile of a head starts if they are evenly spread over `steps`.
__device__ __forceinline__ int spread_start(int n, int steps, const BackwardParams& p) {
  const long long before = static_cast<long long>(n) * steps;
  return before <= 0x7fffffff ? divide(static_cast<int>(before), p.by_tiles) : 0;
}

__device__ __forceinline__ KeyTile tile_at(int index, const BackwardParams& p) {
  const int tiles = anew(p.tiles);
  // After the larger parts of the divided tiles come the smaller ones, the largest of these first.
  int divided = index - anew(p.undivided_tiles);
  const bool smaller = divided >= anew(p.divided_tiles);
  if (smaller) {
    divided = 2 * anew(p.divided_tiles) - 1 - divided;
    index = anew(p.undivided_tiles) + divided;
  }
  // All tiles of a head, then the next head: what runs together shares Q and dO.
  const int batch_head = divide(index, anew(p.by_tiles));
  int n = index - batch_head * tiles;
  KeyTile tile;
  tile.key = n * kTileKeys;
  tile.batch = divide(batch_head, p.by_heads_kv);
  tile.head_kv = batch_head - tile.batch * p.heads_kv;
  tile.end_step = (anew(p.seqlen_q) + kTileM - 1) / kTileM;
  tile.first_step = 0;
  // So that tiles do not add at the same places at once; but what one has loaded or added others find in L2.
  tile.start_step =
      tile.first_step + min(kStepsApart * n, spread_start(n, tile.end_step - tile.first_step, p));
  // A divided tile's smaller part goes on where its larger one stops.
  tile.divided = divided;
  tile.steps_of_head = tile.end_step;
  if (divided >= 0) {
    const int fewer = anew(p.least_steps) + divide(divided * p.more_steps, anew(p.by_divided_tiles));
    const int more = tile.end_step - fewer;
    tile.steps_of_head = smaller ? fewer : more;
    if (smaller) tile.start_step += more;
    if (tile.start_step >= tile.end_step) tile.start_step -= tile.end_step;
  }
  tile.stop_step = tile.start_step + tile.steps_of_head - 1;
  if (tile.stop_step >= tile.end_step) tile.stop_step -= tile.end_step;
  return tile;
}

// Order between CTAs through a word of global memory: the side that signals (PTX ISA, "red.release").

// All writes that this thread has seen, its own CTA's additions included, come before the addition.
__device__ __forceinline__ void add_release(int* word, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Order between CTAs through the bits of a word of global memory: the side that waits (PTX ISA,
// "atom.acquire").

// Sets bits. Returns those before. All writes before a release that set one of them are visible after it.
__device__ __forceinline__ int or_acquire(int* word, int bits) {
  int before;
  asm volatile("atom.acquire.gpu.global.or.b32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(bits) : "memory");
  return before;
}

// Which tile's share of a step's dQ is stored: that of whoever comes there first. Others add theirs once that
// is done, so that the sums need not be cleared.
// By the same bits the parts of a divided tile agree who leaves its sums of dV and dK, and who adds them.

// Counters: one for each step's queries, after those of others, of which every head has room for two.
static_assert(kTileM >= 2 * kBackwardCounterRows && kBackwardRowPadding / kBackwardCounterRows / 2 >= 2);

// What has become of the first share of step m's queries: two bits for each CTA of a tile.
// Heads are query heads, counted over the batch.
__device__ __forceinline__ int* shares_left(int head, int m, const BackwardParams& p) {
  const int steps = anew(p.padded_q) / (2 * kBackwardCounterRows);  // room for them
  return p.counters + (anew(p.batch) * p.heads + head) * steps + m;
}

// This CTA's bits: a first share is on its way, and has left.
__device__ __forceinline__ int first_claimed() {
  return 1;
}
__device__ __forceinline__ int first_left() {
  return 2 * first_claimed();
}

// Whether this CTA's share is the first. Else returns once the first one has left.
__device__ __forceinline__ bool comes_first(int* shares) {
  int seen = or_acquire(shares, first_claimed());
  if ((seen & first_claimed()) == 0) return true;
  while ((seen & first_left()) == 0) seen = load_acquire(shares);
  return false;
}

// Notes that a first share has left.
__device__ __forceinline__ void note_share(int* shares, bool first) {
  if (first) add_release(shares, first_left());
}

// For one thread: work(shares, head, m, comes_first) at each step of a tile. comes_first() returns once this
// tile's share may leave, and says that nobody's has left before. What it does ends with note_share.
template <class Work>
__device__ __forceinline__ void add_in_order(const KeyTile& tile, int& step, const BackwardParams& p,
                                             const Work& work) {
  int head = tile.first_head(p);
  int m = tile.starts_at();
#pragma unroll 1
  for (int left = tile.steps(p); left > 0; --left, ++step) {
    int* const shares = shares_left(head, m, p);
    work(shares, head, m, [&] { return comes_first(shares); });
    if (tile.advance(m)) ++head;
  }
}

// Pairs of fp32 to packed 16-bit elements (PTX ISA, "cvt").

// low goes to bits 0-15.
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

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

// What the tensor memory accelerator (TMA) copies: boxes of a tensor (PTX ISA, "Tensors").

// A CUtensorMap, made by the host; opaque here.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// Where a box starts in the tensor, dimension 0 first. Each map has dimensions of its own.
struct BoxOrigin {
  int x0, x1, x2, x3, x4;
};

// Boxes of a tensor to shared memory (PTX ISA, "cp.async.bulk.tensor").

// Starts the copy of one box into shared memory; its bytes complete on the barrier. Elements outside the
// tensor arrive as zeros, and count as bytes.
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, unsigned barrier,
                                         const BoxOrigin& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5, %6}], "
      "[%7];" ::"r"(to),
      "l"(&map), "r"(at.x0), "r"(at.x1), "r"(at.x2), "r"(at.x3), "r"(at.x4), "r"(barrier)
      : "memory");
}

// Groups of bulk copies out of shared memory, including those of TMA (PTX ISA, "cp.async.bulk.commit_group").

// The copies that this thread has started so far become a group; a thread can wait for its own groups only.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Returns once all groups but the last kInFlight have read their shared memory, which may then be written
// again.
template <int kInFlight = 0>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kInFlight) : "memory");
}

// Boxes of a tensor from shared memory (PTX ISA, "cp.async.bulk.tensor").

// Starts the copy of one box out of shared memory; elements outside the tensor are dropped.
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned from, const BoxOrigin& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(at.x0), "r"(at.x1), "r"(at.x2), "r"(at.x3), "r"(at.x4)
      : "memory");
}

// Tiles in shared memory, for the backward pass: panels of 64 columns, each row 128 bytes, swizzled as TMA
// does it over 1024 bytes. Where a head dim ends inside a panel, the rest of the panel is zero.

constexpr int kRowBytes = 128;  // 64 columns of 16 bits
constexpr int kPanelsQk = (kHeadDim + 63) / 64;
constexpr int kPanelsV = (kHeadDimV + 63) / 64;
constexpr int kBoxPanelsQk = kHeadDim % 64 == 0 ? kPanelsQk : 1;  // panels that one TMA box moves
constexpr int kBoxPanelsV = kHeadDimV % 64 == 0 ? kPanelsV : 1;

constexpr int kPartsQk = 1;
constexpr int kPartsV = 1;

// What a step of 16 rows adds to a descriptor (ptx/wgmma.cuh), in its units of 16 bytes.
constexpr int kSixteenRows = 16 * kRowBytes / 16;

// What a step of 16 columns adds, in tiles whose panels are kRows high, where the product sums over columns.
template <int kRows>
__device__ __forceinline__ constexpr unsigned column_step(int step) {
  return step / 4 * (kRows * kRowBytes / 16) + step % 4 * 2;
}

// Where a box of kBoxPanels panels starts: {columns, rows, panels, heads, batches}. Maps of single panels
// span whole rows, so that TMA sees where a head ends.
template <int kBoxPanels>
__device__ __forceinline__ BoxOrigin box_at(int panel, int row, int head, int batch) {
  return kBoxPanels == 1 ? BoxOrigin{64 * panel, row, 0, head, batch} : BoxOrigin{0, row, panel, head, batch};
}

// Panels of kRows rows, all or those from first_panel on; the caller has told the barrier how many bytes to
// expect.
template <int kPanels, int kBoxPanels, int kRows>
__device__ __forceinline__ void load_tile(unsigned to, const TensorMap& map, unsigned barrier, int row,
                                          int head, int batch, int first_panel = 0) {
#pragma unroll
  for (int panel = 0; panel < kPanels; panel += kBoxPanels) {
    tma_load(to + panel * kRows * kRowBytes, map, barrier,
             box_at<kBoxPanels>(first_panel + panel, row, head, batch));
  }
}

template <int kPanels, int kBoxPanels, int kRows>
__device__ __forceinline__ void store_tile(const TensorMap& map, unsigned from, int row, int head,
                                           int batch) {
#pragma unroll
  for (int panel = 0; panel < kPanels; panel += kBoxPanels) {
    tma_store(map, from + panel * kRows * kRowBytes, box_at<kBoxPanels>(panel, row, head, batch));
  }
  bulk_commit();
}

// Bytes from the start of a tile to this lane's 16 bytes of the first 16 columns of 64 rows, for stmatrix of
// four 8x8 matrices: lanes 0-15 have the first eight columns of a warp's 16 rows, lanes 16-31 the others.
__device__ __forceinline__ unsigned fragment_offset(int first_row) {
  const int row = first_row + 16 * warp_of_warpgroup() + lane() % 16;
  return row * kRowBytes + ((lane() / 16 ^ row % 8) * 16);
}

// The same for columns 16 * step .. 16 * step + 15 of tiles of kRows rows.
template <int kRows>
__device__ __forceinline__ unsigned at_column_step(unsigned fragment, int step) {
  return (fragment ^ step % 4 * 32) + step / 4 * (kRows * kRowBytes);
}

// Two neighbouring accumulators as a pair, scaled; zeros where the head dim has ended.
template <int kCount>
__device__ __forceinline__ unsigned scaled_pair(const float (&d)[kCount], int i, float scale) {
  return i < kCount ? pack(d[i] * scale, d[i + 1] * scale) : 0;
}

// One arrival per warp: tells whoever waits that this warp is done with what the barrier guards.
__device__ __forceinline__ void arrive_once(unsigned barrier) {
  if (lane() == 0) mbarrier_arrive(barrier);
}

// Where everything lies in the shared memory of a CTA that owns kTileN keys, and its barriers.

constexpr int kStages = 2;         // of Q and dO: one step's and the next one's
constexpr int kConsumerWarps = 8;  // of two warpgroups, which read Q and dO
constexpr int kOwnerWarps = 8;  // which sum dV, or dK: all, since each warpgroup owns 64 keys
constexpr int kKeyReaders = kOwnerWarps;
constexpr int kExchangeReaders = kOwnerWarps;
constexpr int kTicketReaders = kConsumerWarps + 2;  // and two threads, that feed and send

constexpr int kKBytes = kTileN * kRowBytes * kPanelsQk;
constexpr int kVBytes = kTileN * kRowBytes * kPanelsV;
constexpr int kQBytes = kTileM * kRowBytes * kPanelsQk;  // of one stage
constexpr int kDoBytes = kTileM * kRowBytes * kPanelsV;
constexpr int kRowStatistics = 4 * kTileM;  // bytes: a float a query
constexpr int kDsBytes = kTileN * kTileM * 2;  // of dS, or P, of a step
constexpr int kShareParts = 2;               // in which a step's dQ leaves
constexpr int kPartOfShare = 4 * 64 * kDqN;  // bytes: of the first product, or of each warpgroup's
constexpr int kShareBytes = kShareParts * kPartOfShare;  // one part from each warpgroup

constexpr int kK = 0;
constexpr int kV = kK + kKeyStages * kKBytes;
constexpr int kQ = kV + kKeyStages * kVBytes;
constexpr int kDo = kQ + kStages * kQBytes;
constexpr int kExchange = kDo + kStages * kDoBytes;  // between the warpgroups: dS for dQ, or P for dS
constexpr int kStepsEnd = kExchange + kExchangeStages * kDsBytes;
constexpr int kCopiesEnd = kStepsEnd;
constexpr int kShare = kCopiesEnd;
constexpr int kLse = kShare + kShareStages * kShareBytes;
constexpr int kDelta = kLse + kStages * kRowStatistics;

constexpr int kKFull = kDelta + kStages * kRowStatistics;
constexpr int kVFull = kKFull + 8 * kKeyStages;
constexpr int kDvStaged = kVFull + 8 * kKeyStages;      // in V's place
constexpr int kDkStaged = kDvStaged + 8 * kKeyStages;   // in K's place
constexpr int kKeysEmpty = kDkStaged + 8 * kKeyStages;  // dV and dK have left
constexpr int kQFull = kKeysEmpty + 8 * kKeyStages;
constexpr int kQEmpty = kQFull + 8 * kStages;
constexpr int kDoFull = kQEmpty + 8 * kStages;
constexpr int kDoEmpty = kDoFull + 8 * kStages;
constexpr int kExchangeFull = kDoEmpty + 8 * kStages;
constexpr int kExchangeEmpty = kExchangeFull + 8 * kExchangeStages;
constexpr int kKRead = kExchangeEmpty + 8 * kExchangeStages;  // products have read K: dK may take its place
constexpr int kReadEnd = kKRead + 8;
constexpr int kShareStaged = kReadEnd;  // each part of each stage
constexpr int kShareSent = kShareStaged + 8 * kShareStages * kShareParts;
constexpr int kDqEnd = kShareSent + 8 * kShareStages * kShareParts;
constexpr int kTickets = kDqEnd;

// A word of shared memory (PTX ISA, "ld").

__device__ __forceinline__ unsigned load_shared(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// A word to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// How CTAs share out the tiles of a grid: one thread of each takes numbers from a counter in device memory
// and hands them on to all who work on the tile.

// From kTickets on, which is the layout's: of two tiles' numbers the barriers that say that one has come,
// those that say that all have read it, and the numbers.
constexpr int kTicketFull = kTickets;
constexpr int kTicketEmpty = kTicketFull + 16;
constexpr int kTicket = kTicketEmpty + 16;
constexpr int kTicketBytes = kTicket + 8 - kTickets;

__device__ __forceinline__ void make_ticket_barriers(unsigned shared, int readers) {
  for (int slot = 0; slot < 2; ++slot) {
    mbarrier_init(shared + kTicketFull + 8 * slot, 1);
    mbarrier_init(shared + kTicketEmpty + 8 * slot, readers);
  }
}

__device__ __forceinline__ void wait_for_ticket(unsigned shared, int round) {
  mbarrier_wait(shared + kTicketFull + 8 * (round % 2), round / 2 % 2);
}

// Says that it has been read.
__device__ __forceinline__ void return_ticket(unsigned shared, int round) {
  mbarrier_arrive(shared + kTicketEmpty + 8 * (round % 2));
}

// May be read between wait_for_ticket and return_ticket.
__device__ __forceinline__ int number_of_ticket(unsigned shared, int round) {
  return load_shared(shared + kTicket + 4 * (round % 2));
}

// For one thread.
__device__ __forceinline__ int read_ticket(unsigned shared, int round) {
  wait_for_ticket(shared, round);
  const int index = number_of_ticket(shared, round);
  return_ticket(shared, round);
  return index;
}

// For a whole warp.
__device__ __forceinline__ void return_ticket_together(unsigned shared, int round) {
  __syncwarp();  // all lanes have read it
  if (lane() == 0) return_ticket(shared, round);
}
__device__ __forceinline__ int read_ticket_together(unsigned shared, int round) {
  wait_for_ticket(shared, round);
  const int index = number_of_ticket(shared, round);
  return_ticket_together(shared, round);
  return index;
}

// The tile of the CTA's n-th round; -1 after the last one. The last CTA to finish leaves the counter zero:
// the others have drawn by then.
__device__ __forceinline__ int next_ticket(unsigned shared, int round, int tiles, const BackwardParams& p) {
  const int slot = round % 2;
  mbarrier_wait(shared + kTicketEmpty + 8 * slot, round / 2 % 2 ^ 1);
  int index = atomicAdd(p.tile_counter, 1);
  if (index >= tiles) {
    index = -1;
    __threadfence();  // with an addition that is in order itself ptxas spills at head_dim 256
    if (atomicAdd(p.tile_counter + 1, 1) == grid_size() / kCtasPerTile - 1) {
      __threadfence();
      p.tile_counter[0] = 0;
      p.tile_counter[1] = 0;
    }
  }
  store_shared(shared + kTicket + 4 * slot, index);
  mbarrier_arrive(shared + kTicketFull + 8 * slot);
  return index;
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

constexpr int kPartKnown = kTickets + kTicketBytes;  // of two tiles: it is known what becomes of their sums …
constexpr int kPart = kPartKnown + 16;               // … and what: 4 bytes each
static_assert(kPart + 8 <= kSharedBytes);

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  for (int stage = 0; stage < kKeyStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, 1);
    mbarrier_init(shared + kVFull + 8 * stage, 1);
    mbarrier_init(shared + kKeysEmpty + 8 * stage, 1);
    mbarrier_init(shared + kDvStaged + 8 * stage, kOwnerWarps);
    mbarrier_init(shared + kDkStaged + 8 * stage, kOwnerWarps);
  }
  mbarrier_init(shared + kKRead, kKeyReaders);
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kQFull + 8 * stage, 1);
    mbarrier_init(shared + kQEmpty + 8 * stage, kConsumerWarps);
    mbarrier_init(shared + kDoFull + 8 * stage, 1);
    mbarrier_init(shared + kDoEmpty + 8 * stage, kConsumerWarps);
  }
  for (int stage = 0; stage < kExchangeStages; ++stage) {
    mbarrier_init(shared + kExchangeFull + 8 * stage, kOwnerWarps);
    mbarrier_init(shared + kExchangeEmpty + 8 * stage, kExchangeReaders);
  }
  for (int part = 0; part < kShareStages * kShareParts; ++part) {
    mbarrier_init(shared + kShareStaged + 8 * part, 4);
    mbarrier_init(shared + kShareSent + 8 * part, 1);
  }
  for (int slot = 0; slot < 2; ++slot) mbarrier_init(shared + kPartKnown + 8 * slot, 1);
  make_ticket_barriers(shared, kTicketReaders);
  mbarrier_init_fence();
}

// The last tiles of a grid are divided in two, so that all CTAs end at about the same time. The part that
// comes first to its end leaves its sums of dV and dK in device memory, and the other one adds them to its
// own. Two sums have the same sum in either order, so that dK and dV have the same bits from run to run.

// What becomes of a tile's sums.
struct Part {
  int word;

  static __device__ __forceinline__ Part of(int divided, bool first) {
    return {4 * divided + (first ? 1 : 2)};
  }
  __device__ __forceinline__ bool whole() const { return word == 0; }
  __device__ __forceinline__ bool leaves_sums() const { return (word & 1) != 0; }
  __device__ __forceinline__ bool adds_sums() const { return (word & 2) != 0; }
  __device__ __forceinline__ int divided() const { return word >> 2; }
};

// Bits of a divided tile's word: those of dq_order.cuh, here of the sums that the first part leaves.
__device__ __forceinline__ int* sums_left(int divided, const BackwardParams& p) {
  return p.tile_counter + 2 + divided;
}

// For the thread that deals tiles, which has asked for all of a tile's rows. Where the tile is a second part,
// returns only once the first one has left its sums.
__device__ __forceinline__ void tell_part(int divided, int round, const BackwardParams& p, unsigned shared) {
  Part part{0};
  if (divided >= 0) part = Part::of(divided, comes_first(sums_left(divided, p)));
  store_shared(shared + kPart + 4 * (round % 2), static_cast<unsigned>(part.word));
  mbarrier_arrive(shared + kPartKnown + 8 * (round % 2));
}

__device__ __forceinline__ void wait_for_part(unsigned shared, int round) {
  mbarrier_wait(shared + kPartKnown + 8 * (round % 2), round / 2 % 2);
}

// May be read once wait_for_part has returned.
__device__ __forceinline__ Part part_of(unsigned shared, int round) {
  return {static_cast<int>(load_shared(shared + kPart + 4 * (round % 2)))};
}

// For the thread that stores gradients, once all consumers have staged theirs, or left their sums.
__device__ __forceinline__ void note_part(const Part& part, const BackwardParams& p) {
  if (part.leaves_sums()) note_share(sums_left(part.divided(), p), true);
  if (part.adds_sums()) *sums_left(part.divided(), p) = 0;
}

// A consumer warp's sums of a divided tile lie as accumulators do (ptx/wgmma.cuh), 16 bytes a lane next to
// each other: those of dV for its 16 keys, then those of dK.
constexpr int kSumsOfDv = 16 * kHeadDimV, kSumsOfDk = 16 * kHeadDim;

__device__ __forceinline__ float* sums_of_part(const Part& part, int warpgroup, const BackwardParams& p) {
  const int warp = part.divided() * kConsumerWarps + 4 * warpgroup + warp_of_warpgroup();
  return p.key_sums + 1ll * warp * (kSumsOfDv + kSumsOfDk) + 4 * anew(lane());
}

template <int kCount>
__device__ __forceinline__ void leave_sums(float* to, const float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    __stcg(reinterpret_cast<float4*>(to + 32 * i), float4{d[i], d[i + 1], d[i + 2], d[i + 3]});
  }
}

template <int kCount>
__device__ __forceinline__ void add_sums(const float* from, float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 other = __ldcg(reinterpret_cast<const float4*>(from + 32 * i));
    d[i] += other.x;
    d[i + 1] += other.y;
    d[i + 2] += other.z;
    d[i + 3] += other.w;
  }
}

// Order between ordinary accesses to shared memory and those of the asynchronous proxy (PTX ISA,
// "membar/fence").

// What this thread wrote to shared memory before the fence is visible to TMA and wgmma after it.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A warp's arrival after it has written what TMA or a product reads.

__device__ __forceinline__ void arrive_written(unsigned barrier) {
  fence_async_shared();
  __syncwarp();
  arrive_once(barrier);
}

// Bulk additions of floats in shared memory to global memory (PTX ISA, "cp.reduce.async.bulk").

// Each float is added atomically. A multiple of 16 bytes, aligned to 16 on both sides.
__device__ __forceinline__ void bulk_add(float* to, unsigned from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}

// Bulk copies of plain bytes from shared to global memory (PTX ISA, "cp.async.bulk").

// A multiple of 16 bytes, aligned to 16 on both sides.
__device__ __forceinline__ void bulk_store(void* to, unsigned from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

// The end of bulk copies out of shared memory (PTX ISA, "cp.async.bulk.wait_group").

// Returns once the writes of all of this thread's groups are complete.
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Order between ordinary accesses to global memory and those of the asynchronous proxy (PTX ISA,
// "membar/fence").

// Writes of either proxy before the fence are visible to reads of the other after it.
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Sixteen bytes to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// A tile's share of a step's dQ leaves through shared memory: consumers stage it there, and a thread beside
// them sends it. Additions from registers would go through the pipe that consumers read statistics from.

// A part of a step's share: where it is staged, and its barriers' number.
struct SharePart {
  int place;
  unsigned staged;

  __device__ __forceinline__ SharePart(int step, int part)
      : place(step % kShareStages * kShareParts + part),
        staged(kShare + step % kShareStages * kShareBytes + part * kPartOfShare) {}
};

// Stages a part in the order of the sums, that of accumulators (ptx/wgmma.cuh): 16 bytes a lane.
template <int kCount>
__device__ __forceinline__ void stage_share(const float (&dq)[kCount], int part, int step, unsigned shared) {
  const SharePart at(step, part);
  const unsigned to = shared + at.staged + anew(threadIdx.x % 128) * 16;
  mbarrier_wait(shared + kShareSent + 8 * at.place, step / kShareStages % 2 ^ 1);
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    store_shared(to + 2048 * j, uint4{__float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]),
                                      __float_as_uint(dq[4 * j + 2]), __float_as_uint(dq[4 * j + 3])});
  }
  arrive_written(shared + kShareStaged + 8 * at.place);
}

// For one thread, which has sent a step's share: gives back the place of a part of the oldest share under
// way, once it has been read.
template <int kPart>
__device__ __forceinline__ void give_back_place(int step, unsigned shared) {
  constexpr int kStepsSince = kShareStages - 1;
  bulk_wait_read<kStepsSince * kShareParts + kShareParts - 1 - kPart>();
  if (step >= kStepsSince) {
    mbarrier_arrive(shared + kShareSent + 8 * SharePart(step - kStepsSince, kPart).place);
  }
}

// For one thread: sends all shares of a tile, and returns when all have been added.
__device__ __forceinline__ void send_shares(const KeyTile& tile, int& step, const BackwardParams& p,
                                            unsigned shared) {
  add_in_order(tile, step, p, [&](int* shares, int head, int m, const auto& comes_first) {
    const bool first = comes_first();
    // Makes what another multiprocessor's copy has stored visible to this one's copy, which adds to it.
    fence_async_global();
#pragma unroll
    for (int part = 0; part < kShareParts; ++part) {
      const SharePart at(step, part);
      // WorkspaceLayout refuses 2^32 rows.
      const unsigned row = static_cast<unsigned>(head) * static_cast<unsigned>(anew(p.padded_q)) + m * kTileM;
      float* sums = p.dq_sum + row * 1ull * kHeadDim + part * (kPartOfShare / 4);
      const int bytes = min(kPartOfShare, 4 * kTileM * kHeadDim - part * kPartOfShare);
      mbarrier_wait(shared + kShareStaged + 8 * at.place, step / kShareStages % 2);
      if (first) {
        bulk_store(sums, shared + at.staged, bytes);
      } else {
        bulk_add(sums, shared + at.staged, bytes);
      }
      bulk_commit();
    }
    give_back_place<0>(step, shared);
    give_back_place<1>(step, shared);
    if (first) {
      bulk_wait();
      note_share(shares, first);
    }
  });
  bulk_wait();
}

// Transposes 8x8 matrices in registers (PTX ISA, "movmatrix").

// Lane 4r + c gives elements (r, 2c) and (r, 2c + 1) of 16 bits, and gets those of the transposed matrix.
__device__ __forceinline__ unsigned movmatrix(unsigned pair) {
  unsigned transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// The fp32 sums of dQ, which lie in memory as wgmma's accumulators do (ptx/wgmma.cuh), and how they become
// dQ. A piece is what a warp has of eight columns of a product: 16 bytes a lane.

constexpr int kPieceFloats = 4 * 32;
// Rows that are converted together.
constexpr int kUnitRows = kTileM == 128 ? 64 : kTileM;
// Transposed, a piece has 16 columns of eight rows. For every eight rows the pieces of 64 columns follow each
// other; the other 64 columns come after all of a step's rows.
constexpr int kPieceRows = 8;
constexpr int kPiecesAcross = kHeadDim / 16;
constexpr int kRowsApart = 4 * kPieceFloats;
__device__ __forceinline__ constexpr int piece_offset(int across) {
  return (across / 4 * (kTileM / kPieceRows) * 4 + across % 4) * kPieceFloats;
}

// The sums of a head (counted over the batch), from a unit's first row on.
__device__ __forceinline__ const float* sums_of(int head, int row, const BackwardParams& p) {
  return p.dq_sum + (static_cast<long long>(head) * anew(p.padded_q) + row) * kHeadDim;
}

// Where a lane writes its part of the pieces of a unit, rows after rows.
struct DqRows {
  const BackwardParams& params;
  int row, end;         // this lane's first row; the end of the unit's or the head's rows
  unsigned short* low;  // its first columns there

  __device__ __forceinline__ DqRows(int head, int first_row, const BackwardParams& p) : params(p) {
    const int thread = anew(lane());
    const int batch = divide(head, p.by_heads);
    row = first_row + thread / 4;
    end = min(first_row + kUnitRows, p.seqlen_q);
    low = static_cast<unsigned short*>(p.dq) + batch * p.dq_batch +
          (head - batch * anew(p.heads)) * p.dq_head + row * p.dq_row + 2 * (thread % 4);
  }
  __device__ __forceinline__ void advance() {
    row += kPieceRows;
    low += kPieceRows * params.dq_row;
  }
  // For all lanes of the warp.
  __device__ __forceinline__ void write(int across, const float4& sum) const {
    const unsigned first = pack(sum.x * params.scale, sum.y * params.scale);
    const unsigned second = pack(sum.z * params.scale, sum.w * params.scale);
    // Pairs of rows become pairs of columns; the second is eight columns further on.
    const unsigned left = movmatrix(first), right = movmatrix(second);
    if (row < end) {
      *reinterpret_cast<unsigned*>(low + 16 * across) = left;
      *reinterpret_cast<unsigned*>(low + 16 * across + 8) = right;
    }
  }
};

// dQ from the fp32 sums of its shares, in the kernel that adds them (dq_order.cuh). Warps that have nothing
// else to do turn sums into dQ, one unit of rows after another, as soon as all tiles of a head's keys have
// added theirs: one warp beside the consumers from the start, and consumers when there are no more tiles.

__device__ __forceinline__ int* units_taken(const BackwardParams& p) {
  return p.counters;
}
// Counts the tiles of a K/V head's keys that have added to dQ; heads are counted over the batch.
__device__ __forceinline__ int* tiles_added(int heads_met, const BackwardParams& p) {
  return p.counters + 1 + heads_met;
}

// Notes that a tile has added all its shares of dQ. Where there are no queries there are no counters.
__device__ __forceinline__ void note_tile_added(int heads_met, const BackwardParams& p) {
  if (p.seqlen_q > 0) add_release(tiles_added(heads_met, p), 1);
}

// Converts a unit to dQ, from `row` of a head (counted over the batch) on. A lane has kAtOnce loads in
// flight, as many as it has registers for.
template <int kAtOnce>
__device__ __forceinline__ void convert_unit(int head, int row, const BackwardParams& p) {
  DqRows to(head, row, p);
  const float* sums = sums_of(head, row, p) + 4 * lane();
#pragma unroll 1
  for (; row < to.end; row += kPieceRows) {
#pragma unroll
    for (int first = 0; first < kPiecesAcross; first += kAtOnce) {
      const int behind = first + kAtOnce < kPiecesAcross ? first + kAtOnce : kPiecesAcross;
      float4 sum[kAtOnce];
#pragma unroll
      for (int i = first; i < behind; ++i) {
        sum[i - first] = __ldcg(reinterpret_cast<const float4*>(sums + piece_offset(i)));
      }
#pragma unroll
      for (int i = first; i < behind; ++i) to.write(i, sum[i - first]);
    }
    sums += kRowsApart;
    to.advance();
  }
}

// Waits until all tiles have added to these heads' dQ.
__device__ __forceinline__ void wait_for_tiles(int heads_met, const BackwardParams& p) {
  // Divided tiles add in two parts.
  const int tiles = anew(p.tiles);
  const int adders = tiles + min(max((heads_met + 1) * tiles - anew(p.undivided_tiles), 0), tiles);
  while (load_acquire(tiles_added(heads_met, p)) < adders) __nanosleep(256);
}

// Takes units, in the order in which heads come, until there are no more.
template <int kAtOnce>
__device__ __forceinline__ void convert_sums(const BackwardParams& p) {
  if (p.seqlen_q == 0) return;
#pragma unroll 1
  for (;;) {
    int unit = 0;
    if (lane() == 0) unit = atomicAdd(units_taken(p), 1);
    unit = __shfl_sync(0xffffffffu, unit, 0);
    const int units_of_head = (anew(p.seqlen_q) + kUnitRows - 1) / kUnitRows;
    const int head = unit / units_of_head;  // over the batch
    if (head >= anew(p.batch) * p.heads) return;
    const int row = (unit - head * units_of_head) * kUnitRows;
    wait_for_tiles(divide(head, p.by_group), p);
    convert_unit<kAtOnce>(head, row, p);
  }
}

// Bulk copies of plain bytes to shared memory (PTX ISA, "cp.async.bulk").

// Starts a copy of a multiple of 16 bytes, aligned to 16 on both sides; its bytes complete on the barrier.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// What runs beside the consumers, one thread each: loading K, Q and LSE; loading V, dO and delta; storing
// finished dV and dK.

constexpr int kBoxPanelsK = kBoxPanelsQk;

// What one of two threads feeds: a tile of keys, then rows of queries with a statistic each.
struct FeedKQ {
  static constexpr bool kDeals = true;  // tiles to all others
  static constexpr int kPanels = kPanelsQk, kBoxPanels = kBoxPanelsQk, kKeysBoxPanels = kBoxPanelsK;
  static constexpr int kKeys = kK, kKeysFull = kKFull;
  static constexpr int kRows = kQ, kStatistics = kLse, kRowsFull = kQFull, kRowsEmpty = kQEmpty;
};
struct FeedVDo {
  static constexpr bool kDeals = false;
  static constexpr int kPanels = kPanelsV, kBoxPanels = kBoxPanelsV, kKeysBoxPanels = kBoxPanelsV;
  static constexpr int kKeys = kV, kKeysFull = kVFull;
  static constexpr int kRows = kDo, kStatistics = kDelta, kRowsFull = kDoFull, kRowsEmpty = kDoEmpty;
};

template <class What>
__device__ __forceinline__ void feed(const TensorMap& map_keys, const TensorMap& map_rows,
                                     const float* statistics, const BackwardParams& p, unsigned shared) {
  constexpr int kKeysBytes = What::kPanels * kTileN * kRowBytes;
  constexpr int kRowsBytes = What::kPanels * kTileM * kRowBytes;
  int step = 0;  // of the CTA, over all its tiles
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index =
        What::kDeals ? next_ticket(shared, round, tile_count(p), p) : read_ticket(shared, round);
    if (index < 0) return;
    const KeyTile tile = tile_at(index, p);
    const int stage_of_keys = round % kKeyStages;
    mbarrier_wait(shared + kKeysEmpty + 8 * stage_of_keys, round / kKeyStages % 2 ^ 1);
    const unsigned keys_full = shared + What::kKeysFull + 8 * stage_of_keys;
    mbarrier_arrive_expecting(keys_full, kKeysBytes);
    load_tile<What::kPanels, What::kKeysBoxPanels, kTileN>(shared + What::kKeys + stage_of_keys * kKeysBytes,
                                                           map_keys, keys_full, tile.key, tile.head_kv,
                                                           tile.batch);
    int head = tile.first_head(p) - tile.batch * p.heads;
    int m = tile.starts_at();
#pragma unroll 1
    for (int left = tile.steps(p); left > 0; --left, ++step) {
      const int stage = step & 1;
      const unsigned full = shared + What::kRowsFull + 8 * stage;
      mbarrier_wait(shared + What::kRowsEmpty + 8 * stage, (step >> 1 & 1) ^ 1);
      mbarrier_arrive_expecting(full, kRowsBytes + kRowStatistics);
      load_tile<What::kPanels, What::kBoxPanels, kTileM>(shared + What::kRows + stage * kRowsBytes, map_rows,
                                                         full, m * kTileM, head, tile.batch);
      // WorkspaceLayout refuses 2^32 rows.
      const unsigned row =
          static_cast<unsigned>(tile.batch * p.heads + head) * static_cast<unsigned>(p.padded_q) + m * kTileM;
      bulk_load(shared + What::kStatistics + stage * kRowStatistics, statistics + row, kRowStatistics, full);
      if (tile.advance(m)) ++head;
    }
    if (What::kDeals) tell_part(tile.divided, round, p, shared);
  }
}

// Where consumers have staged them: in V's place, and in K's.
__device__ __forceinline__ void store_dv(const TensorMap& map, const KeyTile& tile, int stage,
                                         unsigned shared) {
  store_tile<kPanelsV, kBoxPanelsV, kTileN>(map, shared + kV + stage * kVBytes, tile.key, tile.head_kv,
                                            tile.batch);
}
__device__ __forceinline__ void store_dk(const TensorMap& map, const KeyTile& tile, int stage,
                                         unsigned shared) {
  store_tile<kPanelsQk, kBoxPanelsQk, kTileN>(map, shared + kK + stage * kKBytes, tile.key, tile.head_kv,
                                              tile.batch);
}

// Stores dV and dK of each tile, once all consumers have staged them in the places of V and K, which are free
// again when dV and dK have left.
// Of a divided tile the second part alone does so, and stages dV once more when it has added the first one's.
__device__ __forceinline__ void send_gradients(const TensorMap& map_dk, const TensorMap& map_dv,
                                               const BackwardParams& p, unsigned shared) {
  int step = 0;  // of the CTA, over all its tiles
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = read_ticket(shared, round);
    if (index < 0) return;
    send_shares(tile_at(index, p), step, p, shared);
    const KeyTile tile = tile_at(index, p);  // worked out again, as registers are few
    const int stage = round % kKeyStages;
    mbarrier_wait(shared + kDvStaged + 8 * stage, round / kKeyStages % 2);
    wait_for_part(shared, round);
    const Part part = part_of(shared, round);
    if (part.whole()) store_dv(map_dv, tile, stage, shared);
    mbarrier_wait(shared + kDkStaged + 8 * stage, round / kKeyStages % 2);
    if (part.adds_sums()) store_dv(map_dv, tile, stage, shared);
    if (!part.leaves_sums()) store_dk(map_dk, tile, stage, shared);
    note_part(part, p);
    // dK was staged after the tile's last addition to dQ.
    note_tile_added(tile.batch * p.heads_kv + tile.head_kv, p);
    bulk_wait_read();
    mbarrier_arrive(shared + kKeysEmpty + 8 * stage);
  }
}

// The products of the backward pass as single wgmma instructions. C++ cannot say their lists of operands: the
// renderer does.

// 64 x kScoreColumns; both factors are in shared memory, with rows along the sum. s = the product of 16 of
// their columns …
__device__ __forceinline__ void wgmma_scores_first(float (&s)[kScoreColumns / 2], unsigned long long a,
                                                   unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39},\n"
      "%40, %41, accumulate, 1, 1, 0, 0;\n"
      "}\n"
      :
      "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3]),
      "=f"(s[4]), "=f"(s[5]), "=f"(s[6]), "=f"(s[7]),
      "=f"(s[8]), "=f"(s[9]), "=f"(s[10]), "=f"(s[11]),
      "=f"(s[12]), "=f"(s[13]), "=f"(s[14]), "=f"(s[15]),
      "=f"(s[16]), "=f"(s[17]), "=f"(s[18]), "=f"(s[19]),
      "=f"(s[20]), "=f"(s[21]), "=f"(s[22]), "=f"(s[23]),
      "=f"(s[24]), "=f"(s[25]), "=f"(s[26]), "=f"(s[27]),
      "=f"(s[28]), "=f"(s[29]), "=f"(s[30]), "=f"(s[31]),
      "=f"(s[32]), "=f"(s[33]), "=f"(s[34]), "=f"(s[35]),
      "=f"(s[36]), "=f"(s[37]), "=f"(s[38]), "=f"(s[39])
      : "l"(a), "l"(b));
}

// … and s += the product of the next 16.
__device__ __forceinline__ void wgmma_scores_next(float (&s)[kScoreColumns / 2], unsigned long long a,
                                                  unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39},\n"
      "%40, %41, accumulate, 1, 1, 0, 0;\n"
      "}\n"
      :
      "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]),
      "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]),
      "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),
      "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]),
      "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]),
      "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]),
      "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]),
      "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31]),
      "+f"(s[32]), "+f"(s[33]), "+f"(s[34]), "+f"(s[35]),
      "+f"(s[36]), "+f"(s[37]), "+f"(s[38]), "+f"(s[39])
      : "l"(a), "l"(b));
}

// A gradient of K or Q += 16 columns in registers times 16 rows of the other one: 64 x kHeadDim / kPartsQk.
__device__ __forceinline__ void wgmma_gradient_qk(float* d, const unsigned* a, unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},\n"
      "{%64, %65, %66, %67}, %68, accumulate, 1, 1, 1;\n"
      "}\n"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
      "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
      "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
      "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
      "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
      "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
      "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// dV += 16 columns of P, transposed, times 16 rows of dO: 64 x kHeadDimV / kPartsV.
__device__ __forceinline__ void wgmma_gradient_v(float* d, const unsigned* a, unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},\n"
      "{%64, %65, %66, %67}, %68, accumulate, 1, 1, 1;\n"
      "}\n"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
      "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
      "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
      "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
      "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
      "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
      "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// dQ transposed, of 64 columns and kDqN rows, from 16 keys: K transposed times dS.
__device__ __forceinline__ void wgmma_dq_first(float (&d)[kDqN / 2], unsigned long long a,
                                               unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39},\n"
      "%40, %41, accumulate, 1, 1, 1, 0;\n"
      "}\n"
      :
      "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]),
      "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
      "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]),
      "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
      "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]),
      "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
      "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
      "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]),
      "=f"(d[32]), "=f"(d[33]), "=f"(d[34]), "=f"(d[35]),
      "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39])
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_dq_next(float (&d)[kDqN / 2], unsigned long long a,
                                              unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39},\n"
      "%40, %41, accumulate, 1, 1, 1, 0;\n"
      "}\n"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
      : "l"(a), "l"(b));
}

// Registers that asynchronous products use without the compiler knowing (ptx/wgmma.cuh).

// Ties registers to this point of the program: the compiler does not know of products in flight, and would
// move reads of their registers above the wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Registers of packed numbers that asynchronous products read (ptx/wgmma.cuh): as ptx/pin.cuh.

// Only registers kFirst to kEnd - 1 …
template <int kFirst, int kEnd, int kCount>
__device__ __forceinline__ void pin_some(unsigned (&registers)[kCount]) {
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// … or all.
template <int kCount>
__device__ __forceinline__ void pin(unsigned (&registers)[kCount]) {
  pin_some<0, kCount>(registers);
}

// Stores of matrix fragments to shared memory (PTX ISA, "stmatrix"), the inverse of ldmatrix.

__device__ __forceinline__ void stmatrix(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
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

// The beginning and end of a group of asynchronous products, where each product is an asm statement of its
// own (PTX ISA, "wgmma.fence", "wgmma.commit_group").

// The products issued next see all registers and shared memory written so far.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Products over whole tiles: chains of wgmma that a warpgroup issues and commits as one group.

// s = 64 rows of a tile times all rows of another, summed over kColumns columns of both; with kAdds, s +=
// that. kRowsA and kRowsB are the numbers of rows of their panels.
template <int kColumns, int kRowsA, int kRowsB, bool kAdds = false>
__device__ __forceinline__ void issue_scores(float (&s)[kScoreColumns / 2], unsigned rows, unsigned columns) {
  const unsigned long long a = wgmma_descriptor(rows, 0), b = wgmma_descriptor(columns, 0);
  if (kAdds) pin(s);
  wgmma_fence();
  if (!kAdds) wgmma_scores_first(s, a, b);
#pragma unroll
  for (int i = kAdds ? 0 : 1; i < (kColumns + 15) / 16; ++i) {
    wgmma_scores_next(s, a + column_step<kRowsA>(i), b + column_step<kRowsB>(i));
  }
  wgmma_commit();
}

// d += fragments a, 16 columns each, times the rows of a tile whose panels have kRows rows; only fragments
// kFirst to kEnd - 1. The columns of d take kParts products.
template <void (*kProduct)(float*, const unsigned*, unsigned long long), int kParts, int kRows, int kFirst,
          int kEnd, int kCount>
__device__ __forceinline__ void issue_gradient(float (&d)[kCount], unsigned (&a)[kRows / 4], unsigned tile) {
  constexpr int kPartBytes = (2 * kCount + 63) / 64 / kParts * kRows * kRowBytes;
  const unsigned long long b = wgmma_descriptor(tile, kRows * kRowBytes);
  if (kFirst == 0) pin(d);
  pin_some<4 * kFirst, 4 * kEnd>(a);
  wgmma_fence();
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      kProduct(d + part * (kCount / kParts), a + 4 * i, b + i * kSixteenRows + part * (kPartBytes / 16));
    }
  }
  wgmma_commit();
}

template <int kRows, int kFirst = 0, int kEnd = kRows / 16>
__device__ __forceinline__ void issue_gradient_qk(float (&d)[kHeadDim / 2], unsigned (&a)[kRows / 4],
                                                  unsigned tile) {
  issue_gradient<wgmma_gradient_qk, kPartsQk, kRows, kFirst, kEnd>(d, a, tile);
}
template <int kRows, int kFirst = 0, int kEnd = kRows / 16>
__device__ __forceinline__ void issue_gradient_v(float (&d)[kHeadDimV / 2], unsigned (&a)[kRows / 4],
                                                 unsigned tile) {
  issue_gradient<wgmma_gradient_v, kPartsV, kRows, kFirst, kEnd>(d, a, tile);
}

// Where accumulators begin as plain zeros, ptxas would wait for every product right away (its warning C7515):
// so they are pinned.
template <int kCount>
__device__ __forceinline__ void clear(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[i] = 0;
  pin(d);
}

// Stages accumulators, scaled, in 64 rows of a tile whose panels have kRows rows. `fragment` is the
// fragment_offset() of these rows.
template <int kRows, int kCount>
__device__ __forceinline__ void stage_gradient(const float (&d)[kCount], unsigned tile, unsigned fragment,
                                               float scale) {
#pragma unroll
  for (int i = 0; i < (kCount + 7) / 8; ++i) {
    stmatrix(tile + at_column_step<kRows>(fragment, i), scaled_pair(d, 8 * i, scale),
             scaled_pair(d, 8 * i + 2, scale), scaled_pair(d, 8 * i + 4, scale),
             scaled_pair(d, 8 * i + 6, scale));
  }
}

// stmatrix with each 8x8 matrix transposed on the way (PTX ISA, "stmatrix").

__device__ __forceinline__ void stmatrix_transposed(unsigned address, unsigned a, unsigned b, unsigned c,
                                                    unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// What a warpgroup that owns keys knows in every step.
// For dQ it shares the dS of a step with the other warpgroup, and adds its part of the dQ of the step before.

struct KeyState {
  const BackwardParams& params;
  const unsigned shared;
  const int warpgroup;      // 0 or 1
  const unsigned fragment;  // bytes to this lane's piece of the warpgroup's rows
  int step = 0;             // of the CTA, over all its tiles: it says which stage, and which parity
  int round = 0;            // tiles so far

  unsigned ds[kTileM / 4];  // of the step, transposed, as pairs
  float dq[kDqN / 2];

  __device__ __forceinline__ KeyState(const BackwardParams& parameters, unsigned shared_memory, int number)
      : params(parameters),
        shared(shared_memory),
        warpgroup(number),
        fragment(fragment_offset(64 * number)) {}

  __device__ __forceinline__ unsigned k_tile() const { return shared + kK + round % kKeyStages * kKBytes; }
  __device__ __forceinline__ unsigned v_tile() const { return shared + kV + round % kKeyStages * kVBytes; }

  __device__ __forceinline__ unsigned rows_of(unsigned tile) const {
    return tile + warpgroup * 64 * kRowBytes;
  }

  // Shares both warpgroups' dS of a step, for dQ one step later.
  __device__ __forceinline__ void share_ds(int stage) {
    // The very first step finds its stage empty; the other stage has the zeros that count as step -1's dS.
    mbarrier_wait(shared + kExchangeEmpty + 8 * stage, (step >> 1 & 1) ^ 1 ^ stage);
    const unsigned to = shared + kExchange + stage * kDsBytes;
    // One row per query; this warpgroup's keys are in a panel of their own.
    const int thread = anew(lane());
    const unsigned piece = to + warpgroup * kTileM * kRowBytes + (thread / 16 * 8 + thread % 8) * kRowBytes +
                           ((2 * warp_of_warpgroup() + thread / 8 % 2) ^ thread % 8) * 16;
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) {
      stmatrix_transposed(piece + 16 * i * kRowBytes, ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
    }
    arrive_written(shared + kExchangeFull + 8 * stage);
  }

  // dQ of the step before: this warpgroup's 64 queries, or its 64 columns where there are fewer queries. A
  // tile's first step multiplies what is there and drops the result: with a branch here, ptxas would wait for
  // every product right away (its warning C7514).
  __device__ __forceinline__ void issue_dq(int before) {
    const int stage = before & 1;
    mbarrier_wait(shared + kExchangeFull + 8 * stage, before >> 1 & 1);
    const unsigned ds_tile = shared + kExchange + stage * kDsBytes, keys = k_tile();
    const unsigned panel = warpgroup * kTileN * kRowBytes;
    const unsigned long long a = wgmma_descriptor(keys + panel, 0), b = wgmma_descriptor(ds_tile, 0);
    wgmma_fence();
    wgmma_dq_first(dq, a, b);
#pragma unroll
    for (int i = 1; i < kTileN / 16; ++i) wgmma_dq_next(dq, a + i * kSixteenRows, b + column_step<kTileM>(i));
    wgmma_commit();
  }

  __device__ __forceinline__ void add_dq() const { stage_share(dq, warpgroup, step - 1, shared); }
};

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// The fast exponential of fp32 (PTX ISA, "ex2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two neighbouring floats of shared memory (PTX ISA, "ld").

__device__ __forceinline__ float2 load_pair(unsigned address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

// Packed 16-bit elements to fp32 (PTX ISA, "cvt").

__device__ __forceinline__ float low_half(unsigned pair) {
  return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_half(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// From scores to P and dS, transposed: a row per key, and a column per query, whose LSE and delta lie in
// shared memory. P and dS are kept as pairs, which is how products take them from registers.

// Whether causality or the end of the keys hides a score of 64 keys and the queries from `query` on.
__device__ __forceinline__ bool needs_mask(int first_key, int, const BackwardParams& p) {
  return first_key + 64 > p.seqlen_k;
}

// The first query that sees a key, counted from `query` on.
__device__ __forceinline__ int first_seeing(int, int, const BackwardParams&) {
  return 0;
}

__device__ __forceinline__ void mask(float (&s)[kTileM / 2], int first_key, int query,
                                     const BackwardParams& p) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int key = first_key + 16 * warp_of_warpgroup() + lane() / 4 + 8 * row;
    // Counted from this thread's first one.
    int first = first_seeing(key, query, p) - 2 * (lane() % 4);
    if (key >= p.seqlen_k) first = kTileM;
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) {
      if (i / 2 * 8 + i % 2 < first) s[i / 2 * 4 + 2 * row + i % 2] = -kInfinity;
    }
  }
}

// A lane's columns of LSE or delta in shared memory, a float per query.
using Statistics = float2[kTileM / 8];
__device__ __forceinline__ void load_statistics(Statistics& pairs, unsigned from) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) pairs[j] = load_pair(from + 32 * j + 8 * (lane() % 4));
}

// p = exp(S - LSE).
__device__ __forceinline__ void exponentiate(unsigned (&p)[kTileM / 4], const float (&s)[kTileM / 2],
                                             const Statistics& lse, float scale_log2) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) {
    const float2 shift = lse[j];
    p[2 * j] =
        pack(exp2_fast(s[4 * j] * scale_log2 - shift.x), exp2_fast(s[4 * j + 1] * scale_log2 - shift.y));
    p[2 * j + 1] =
        pack(exp2_fast(s[4 * j + 2] * scale_log2 - shift.x), exp2_fast(s[4 * j + 3] * scale_log2 - shift.y));
  }
}

// Subtracts delta from dP, once dP is there.
__device__ __forceinline__ void subtract(float (&dp)[kTileM / 2], const Statistics& delta) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) {
    dp[4 * j] -= delta[j].x;
    dp[4 * j + 1] -= delta[j].y;
    dp[4 * j + 2] -= delta[j].x;
    dp[4 * j + 3] -= delta[j].y;
  }
}

// ds = P (dP - delta), without the scale, which dK and dQ get at the end; delta is in dp already. P is taken
// as it was rounded, since its scores are gone from the registers; p and ds may be the same.
__device__ __forceinline__ void differentiate(unsigned (&ds)[kTileM / 4], const unsigned (&p)[kTileM / 4],
                                              const float (&dp)[kTileM / 2]) {
#pragma unroll
  for (int i = 0; i < kTileM / 4; ++i) {
    ds[i] = pack(low_half(p[i]) * dp[2 * i], high_half(p[i]) * dp[2 * i + 1]);
  }
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

// The steps of a warpgroup that owns keys: each adds the products of kTileM queries to dK and dV. Everything
// is transposed, with a row per key, so that the registers of P and dS are what the products for dV and dK
// take.

struct KeySteps : KeyState {
  float dk[kHeadDim / 2];
  float dv[kHeadDimV / 2];
  unsigned p[kTileM / 4];  // of the step, transposed, as pairs

  using KeyState::KeyState;

  // One step: S, while the queries' statistics are read; dP, beside the exponentials; then dS and the
  // gradients. `first` marks the tile's first step, which has none before it.
  __device__ __forceinline__ void compute_step(int first_key, int query, bool first) {
    const int stage = step & 1, parity = step >> 1 & 1;
    float s[kTileM / 2], dp[kTileM / 2];
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    const unsigned q = shared + kQ + stage * kQBytes, dout = shared + kDo + stage * kDoBytes;
    issue_scores<kHeadDim, kTileN, kTileM>(s, rows_of(k_tile()), q);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
    // dK is done, so dP need not wait for S, nor for delta.
    issue_scores<kHeadDimV, kTileN, kTileM>(dp, rows_of(v_tile()), dout);
    Statistics lse;
    load_statistics(lse, shared + kLse + stage * kRowStatistics);
    wgmma_wait<1>();
    pin(s);
    if (!first) release_step(stage ^ 1);
    take_turn();
    if (needs_mask(first_key, query, params)) mask(s, first_key, query, params);
    exponentiate(p, s, lse, params.scale_log2);
    add_gradients(dp, q, dout, first);
  }

  // The warpgroups take turns at the exponentials, so that one's run beside the other's products. Turns order
  // work, not data.
  __device__ __forceinline__ void take_turn() const { named_barrier_sync(1 + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() const { named_barrier_arrive(2 - warpgroup, 256); }

  // dS is formed while dV runs, from a copy of P (registers that a product reads may not be read meanwhile),
  // and dQ of the step before comes with dK.
  __device__ __forceinline__ void add_gradients(float (&dp)[kTileM / 2], unsigned q, unsigned dout,
                                                bool first) {
    unsigned copy[kTileM / 4];
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) copy[i] = p[i];
    issue_gradient_v<kTileM>(dv, p, dout);
    pass_turn();
    Statistics delta;
    load_statistics(delta, shared + kDelta + (step & 1) * kRowStatistics);
    wgmma_wait<1>();
    pin(dp);
    subtract(dp, delta);
    differentiate(ds, copy, dp);
    share_ds(step & 1);
    issue_dq(step - 1);
    issue_gradient_qk<kTileM>(dk, ds, q);
    wgmma_wait<1>();
    pin(dv);
    pin(p);
    pin(dq);
    arrive_once(shared + kExchangeEmpty + 8 * ((step & 1) ^ 1));
    if (!first) add_dq();
    // 80 queries leave no registers for S beside dK.
    wgmma_wait<0>();
    pin(dk);
    pin(ds);
  }

  // Gives back Q and dO of a step, once products have read them, and every lane the statistics.
  __device__ __forceinline__ void release_step(int stage) const {
    arrive_once(shared + kQEmpty + 8 * stage);
    arrive_once(shared + kDoEmpty + 8 * stage);
  }
};

// A consumer: a warpgroup that owns 64 keys of a tile, and sums their dK and dV over the tile's queries.
// It adds its share of dQ, too.

struct KeyOwner : KeySteps {
  using KeySteps::KeySteps;

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    clear(dk);
    clear(dv);
    mbarrier_wait(shared + kKFull + 8 * (round % kKeyStages), round / kKeyStages % 2);
    mbarrier_wait(shared + kVFull + 8 * (round % kKeyStages), round / kKeyStages % 2);

    const int first_key = tile.key + 64 * warpgroup;
    bool first = true;
    int m = tile.starts_at(), left = tile.steps(params);
#pragma unroll 1
    for (; left > 0; --left) {
      compute_step(first_key, m * kTileM, first);
      first = false;
      ++step;
      tile.advance(m);
    }
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
    if (!first) release_step((step - 1) & 1);
    issue_dq(step - 1);
    // The products that read V are complete, and a warp's rows of dV lie where its own rows of V were.
    stage_gradient<kTileN>(dv, v_tile(), fragment, 1.0f);
    arrive_written(shared + kDvStaged + 8 * (round % kKeyStages));
    wgmma_wait<0>();
    pin(dq);
    if (!first) add_dq();
    arrive_once(shared + kKRead);
    mbarrier_wait(shared + kKRead, round % 2);
    join_parts();
    stage_gradient<kTileN>(dk, k_tile(), fragment, params.scale);
    arrive_written(shared + kDkStaged + 8 * (round % kKeyStages));
  }

  // Only now, when this tile's last share of dQ is on its way: whoever is waited for may wait for that share.
  __device__ __forceinline__ void join_parts() {
    wait_for_part(shared, round);
    // All lanes agree, which ptxas has to be told.
    const Part part{__shfl_sync(0xffffffffu, part_of(shared, round).word, 0)};
    if (part.whole()) return;
    float* const sums = sums_of_part(part, warpgroup, params);
    if (part.leaves_sums()) {
      leave_sums(sums, dv);
      leave_sums(sums + kSumsOfDv, dk);
    } else {
      add_sums(sums, dv);
      add_sums(sums + kSumsOfDv, dk);
      stage_gradient<kTileN>(dv, v_tile(), fragment, 1.0f);
    }
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) pass_turn();  // warpgroup 0 goes first
#pragma unroll 1
    for (;; ++round) {
      const int index = read_ticket_together(shared, round);
      if (index < 0) break;
      compute(tile_at(index, params));
    }
    if (warpgroup == 0) take_turn();  // and takes the last arrival
  }
};

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

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashjit_backward_wgmma_bf16_d128_m80n128s2t1(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
                   const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
                   const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  // The first dQ product has no earlier step whose dS it could multiply, so it multiplies zeros.
  for (int at = 16 * static_cast<int>(threadIdx.x); at < kDsBytes; at += 16 * kThreads) {
    store_shared(shared + kExchange + kDsBytes + at, uint4{0, 0, 0, 0});
  }
  fence_async_shared();
  __syncthreads();

  if (warpgroup == 0) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) feed<FeedKQ>(map_k, map_q, p.lse_log2, p, shared);
    if (threadIdx.x == 32) feed<FeedVDo>(map_v, map_dout, p.delta, p, shared);
    if (threadIdx.x == 64) send_gradients(map_dk, map_dv, p, shared);
    if (threadIdx.x >= 96) convert_sums<2>(p);
  } else {
    take_registers<kConsumerRegisters>();
    KeyOwner owner(p, shared, warpgroup - 1);
    owner.run();
    convert_sums<8>(p);
  }
}

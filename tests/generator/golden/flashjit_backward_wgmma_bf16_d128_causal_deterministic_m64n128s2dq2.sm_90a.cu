// backward bf16 d128 causal deterministic, schedule wgmma-backward:m64n128s2dq2, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/backward_wgmma.cu.

constexpr int kHeadDim = 128;            // columns of Q, K, dQ and dK
constexpr int kHeadDimV = 128;           // columns of V, dO and dV
constexpr int kTileM = 64;               // query rows per step
constexpr int kTileN = 128;              // keys per CTA
constexpr int kScoreColumns = 64;        // of the scores of a warpgroup's 64 rows
constexpr int kThreads = 384;            // per CTA, the producer's warpgroup included
constexpr int kCtasPerTile = 1;          // that work on one tile of the grid together
constexpr int kProducerRegisters = 24;   // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 240;  // per thread, after setmaxnreg
constexpr int kSharedBytes = 230672;     // of dynamic shared memory
constexpr int kKeyStages = 2;            // tiles of K and V: this one's, and the next one's
constexpr int kExchangeStages = 2;       // of what the warpgroups hand to each other
constexpr int kDqN = 64;                 // columns of a warpgroup's product for dQ

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
constexpr int kDqWarps = kConsumerWarps;
constexpr int kKeyReaders = kOwnerWarps;
constexpr int kExchangeReaders = kOwnerWarps;
constexpr int kTicketReaders = kConsumerWarps + 2;  // and two threads, that feed and send

constexpr int kKBytes = kTileN * kRowBytes * kPanelsQk;
constexpr int kVBytes = kTileN * kRowBytes * kPanelsV;
constexpr int kQBytes = kTileM * kRowBytes * kPanelsQk;  // of one stage
constexpr int kDoBytes = kTileM * kRowBytes * kPanelsV;
constexpr int kRowStatistics = 4 * kTileM;  // bytes: a float a query
constexpr int kDsBytes = kTileN * kTileM * 2;  // of dS, or P, of a step

constexpr int kK = 0;
constexpr int kV = kK + kKeyStages * kKBytes;
constexpr int kQ = kV + kKeyStages * kVBytes;
constexpr int kDo = kQ + kStages * kQBytes;
constexpr int kExchange = kDo + kStages * kDoBytes;  // between the warpgroups: dS for dQ, or P for dS
constexpr int kStepsEnd = kExchange + kExchangeStages * kDsBytes;
constexpr int kCopiesEnd = kStepsEnd;
constexpr int kLse = kCopiesEnd;
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
constexpr int kMayAdd = kReadEnd;              // this tile may add to a step's dQ
constexpr int kAdded = kMayAdd + 8 * kStages;  // it has added
constexpr int kStores = kAdded + 8 * kStages;  // whether it stores instead: 4 bytes
constexpr int kDqEnd = kStores + 4 * kStages;
constexpr int kTickets = kDqEnd;

// A special register (PTX ISA, "%nctaid").

// CTAs of the grid, read again wherever the number is needed, as in ptx/block_index.cuh.
__device__ __forceinline__ int grid_size() {
  unsigned size;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(size));
  return static_cast<int>(size);
}

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

static_assert(kTickets + kTicketBytes <= kSharedBytes);

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
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kMayAdd + 8 * stage, 1);
    mbarrier_init(shared + kAdded + 8 * stage, kDqWarps);
  }
  make_ticket_barriers(shared, kTicketReaders);
  mbarrier_init_fence();
}

// How the host lays out the rows of a backward pass's workspace.

constexpr int kBackwardRowPadding = 128;  // what a head's rows are padded to a multiple of
constexpr int kBackwardCounterRows = 32;  // rows to a counter

// Numbers, hidden from the compiler.

// Keeps what is computed from a number out of registers until it is needed: the compiler would work it out as
// early as it can.
__device__ __forceinline__ int anew(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// A divisor, hidden from the compiler.

__device__ __forceinline__ Divisor anew(const Divisor& divisor) {
  return {static_cast<unsigned>(anew(static_cast<int>(divisor.multiplier))), anew(divisor.shift)};
}

// The diagonal of a causal mask: bottom-right aligned.

// Query i sees keys 0 .. i + diagonal(params). Lengths are subtracted before anything is added to them: a row
// and seqlen_k together may be more than an int holds.
template <class Params>
__device__ __forceinline__ int diagonal(const Params& params) {
  return params.seqlen_k - params.seqlen_q;
}

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
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
  int first_step;  // of kTileM queries, the first that the tile meets …
  int end_step;    // … and the one after the last: the same for each query head of the group

  __device__ __forceinline__ int steps(const BackwardParams& p) const {
    return p.group * max(0, end_step - first_step);
  }
  // The first query head that it meets, counted over the batch.
  __device__ __forceinline__ int first_head(const BackwardParams& p) const {
    return batch * p.heads + head_kv * p.group;
  }
  __device__ __forceinline__ int starts_at() const {
    return first_step;
  }
  // Goes on to the next step. Returns whether that is the first of the group's next head.
  __device__ __forceinline__ bool advance(int& m) const {
    if (++m == end_step) m = first_step;
    return m == starts_at();
  }
  __device__ __forceinline__ int step_before(int m) const { return (m == first_step ? end_step : m) - 1; }
  // Rows of the workspace's arrays before those of the first head that it meets.
  __device__ __forceinline__ long long first_row(const BackwardParams& p) const {
    return static_cast<long long>(first_head(p)) * p.padded_q;
  }
};

__device__ __forceinline__ int tile_count(const BackwardParams& p) {
  return p.tiles * p.heads_kv * p.batch;
}

__device__ __forceinline__ KeyTile tile_at(int index, const BackwardParams& p) {
  const int tiles = anew(p.tiles);
  // All tiles of a head, then the next head: what runs together shares Q and dO.
  const int batch_head = divide(index, anew(p.by_tiles));
  int n = index - batch_head * tiles;
  n = tiles - 1 - n;  // the tile that comes first to some queries is the one that starts there
  KeyTile tile;
  tile.key = n * kTileKeys;
  tile.batch = divide(batch_head, p.by_heads_kv);
  tile.head_kv = batch_head - tile.batch * p.heads_kv;
  tile.end_step = (anew(p.seqlen_q) + kTileM - 1) / kTileM;
  tile.first_step = max(0, tile.key - diagonal(p)) / kTileM;
  return tile;
}

// Order between CTAs through a word of global memory: the side that signals (PTX ISA, "red.release").

// All writes that this thread has seen, its own CTA's additions included, come before the addition.
__device__ __forceinline__ void add_release(int* word, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// A tile's rank among those that add to a step's dQ: the order in which they come there, beginning with who
// starts there. Unless all tiles are at work at once, it is also the order in which they are taken, so that
// whoever is waited for is at work already.

// Counters: one for each step's queries, after those of others, of which every head has room for two.
static_assert(kTileM >= 2 * kBackwardCounterRows && kBackwardRowPadding / kBackwardCounterRows / 2 >= 2);

struct DqRank {
  int number;  // from 0
  // Tile n is the n-th from the last of those that see some of the step's queries.
  __device__ __forceinline__ DqRank(const KeyTile& tile, const BackwardParams& p) {
    move_to(tile.starts_at(), false, tile, p);
  }
  __device__ __forceinline__ void move_to(int m, bool, const KeyTile& tile, const BackwardParams& p) {
    const int adders =
        min(anew(p.tiles),
            ((m + 1) * kTileM + (anew(p.seqlen_k) - anew(p.seqlen_q)) + kTileKeys - 1) / kTileKeys);
    number = adders - 1 - tile.key / kTileKeys;
  }
};

// Shares of step m's queries that have left, from every CTA of a tile.
// Heads are query heads, counted over the batch.
__device__ __forceinline__ int* shares_left(int head, int m, const BackwardParams& p) {
  const int steps = anew(p.padded_q) / (2 * kBackwardCounterRows);  // room for them
  return p.counters + (anew(p.batch) * p.heads + head) * steps + m;
}

__device__ __forceinline__ void wait_for_earlier(const int* shares, const DqRank& rank) {
  const int awaited = rank.number * kCtasPerTile;
  if (awaited > 0) {
    while (load_acquire(shares) < awaited) continue;
  }
}

// Notes that this CTA's share has left.
__device__ __forceinline__ void note_share(int* shares, bool) {
  add_release(shares, 1);
}

// For one thread: work(shares, head, m, comes_first) at each step of a tile. comes_first() returns once this
// tile's share may leave, and says that nobody's has left before. What it does ends with note_share.
template <class Work>
__device__ __forceinline__ void add_in_order(const KeyTile& tile, int& step, const BackwardParams& p,
                                             const Work& work) {
  DqRank rank(tile, p);
  int head = tile.first_head(p);
  int m = tile.starts_at();
#pragma unroll 1
  for (int left = tile.steps(p); left > 0; --left, ++step) {
    int* const shares = shares_left(head, m, p);
    work(shares, head, m, [&] {
      wait_for_earlier(shares, rank);
      return rank.number == 0;
    });
    const bool next_head = tile.advance(m);
    if (next_head) ++head;
    rank.move_to(m, next_head, tile, p);
  }
}

// Additions in global memory that return nothing (PTX ISA, "red"; vectors: sm_90 and later).

// Four neighbouring sums, aligned to 16 bytes; each is added atomically.
__device__ __forceinline__ void add_global(float* sums, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums), "f"(a), "f"(b),
               "f"(c), "f"(d)
               : "memory");
}

// A tile's share of a step's dQ leaves from accumulators, once a thread beside the consumers says how.

// dQ's sums lie as accumulators do (ptx/wgmma.cuh): 16 bytes a lane, next to each other. `place` is where
// this lane's begin, in units of 16 bytes (WorkspaceLayout refuses 2^32 of them).
__device__ __forceinline__ void leave_share(
    const float (&dq)[kDqN / 2], unsigned place, int step,
    const BackwardParams& p, unsigned shared) {
  float* sums = p.dq_sum + 4ull * place;
  mbarrier_wait(shared + kMayAdd + 8 * (step & 1), step >> 1 & 1);
  if (load_shared(shared + kStores + 4 * (step & 1)) != 0) {
#pragma unroll
    for (int j = 0; j < kDqN / 8; ++j) {
      __stcg(reinterpret_cast<float4*>(sums + 512 * j),
             float4{dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
    }
  } else {
#pragma unroll
    for (int j = 0; j < kDqN / 8; ++j) {
      add_global(sums + 512 * j, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    }
  }
  __syncwarp();
  arrive_once(shared + kAdded + 8 * (step & 1));
}

// For one thread: tells the consumers at each step of a tile how its share leaves, once it may.
__device__ __forceinline__ void order_shares(const KeyTile& tile, int& step, const BackwardParams& p,
                                             unsigned shared) {
  add_in_order(tile, step, p, [&](int* shares, int, int, const auto& comes_first) {
    const bool first = comes_first();
    store_shared(shared + kStores + 4 * (step & 1), static_cast<unsigned>(first));
    mbarrier_arrive(shared + kMayAdd + 8 * (step & 1));
    mbarrier_wait(shared + kAdded + 8 * (step & 1), step >> 1 & 1);
    note_share(shares, first);
  });
}

// The fp32 sums of dQ, which lie in memory as wgmma's accumulators do (ptx/wgmma.cuh), and how they become
// dQ. A piece is what a warp has of eight columns of a product: 16 bytes a lane.

constexpr int kPieceFloats = 4 * 32;
// Rows that are converted together.
constexpr int kUnitRows = kTileM == 128 ? 64 : kTileM;
// A piece has 16 rows of eight columns. For every eight columns the pieces of 64 rows follow each other.
constexpr int kPieceRows = 16;
constexpr int kPiecesAcross = kHeadDim / 8;
constexpr int kRowsApart = kPieceFloats;
__device__ __forceinline__ constexpr int piece_offset(int across) {
  return across * 4 * kPieceFloats;
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
    // The second pair belongs to the row that is 8 further down.
    if (row < end) *reinterpret_cast<unsigned*>(low + 8 * across) = first;
    if (row + 8 < end) *reinterpret_cast<unsigned*>(low + 8 * params.dq_row + 8 * across) = second;
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
  const int adders = p.tiles * kCtasPerTile;
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
    // No tile adds to queries that see no key; their dQ is zero already.
    if ((row / kTileM + 1) * kTileM <= p.seqlen_q - anew(p.seqlen_k)) continue;
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
__device__ __forceinline__ void send_gradients(const TensorMap& map_dk, const TensorMap& map_dv,
                                               const BackwardParams& p, unsigned shared) {
  int step = 0;  // of the CTA, over all its tiles
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = read_ticket(shared, round);
    if (index < 0) return;
    order_shares(tile_at(index, p), step, p, shared);
    const KeyTile tile = tile_at(index, p);  // worked out again, as registers are few
    const int stage = round % kKeyStages;
    mbarrier_wait(shared + kDvStaged + 8 * stage, round / kKeyStages % 2);
    store_dv(map_dv, tile, stage, shared);
    mbarrier_wait(shared + kDkStaged + 8 * stage, round / kKeyStages % 2);
    store_dk(map_dk, tile, stage, shared);
    // dK was staged after the tile's last addition to dQ.
    note_tile_added(tile.batch * p.heads_kv + tile.head_kv, p);
    bulk_wait_read();
    mbarrier_arrive(shared + kKeysEmpty + 8 * stage);
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
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "%32, %33, accumulate, 1, 1, 0, 0;\n"
      "}\n"
      :
      "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3]),
      "=f"(s[4]), "=f"(s[5]), "=f"(s[6]), "=f"(s[7]),
      "=f"(s[8]), "=f"(s[9]), "=f"(s[10]), "=f"(s[11]),
      "=f"(s[12]), "=f"(s[13]), "=f"(s[14]), "=f"(s[15]),
      "=f"(s[16]), "=f"(s[17]), "=f"(s[18]), "=f"(s[19]),
      "=f"(s[20]), "=f"(s[21]), "=f"(s[22]), "=f"(s[23]),
      "=f"(s[24]), "=f"(s[25]), "=f"(s[26]), "=f"(s[27]),
      "=f"(s[28]), "=f"(s[29]), "=f"(s[30]), "=f"(s[31])
      : "l"(a), "l"(b));
}

// … and s += the product of the next 16.
__device__ __forceinline__ void wgmma_scores_next(float (&s)[kScoreColumns / 2], unsigned long long a,
                                                  unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "%32, %33, accumulate, 1, 1, 0, 0;\n"
      "}\n"
      :
      "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]),
      "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]),
      "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),
      "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]),
      "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]),
      "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]),
      "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]),
      "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
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

// dQ of 64 rows and kDqN columns, from 16 keys: dS times K. dS lies in shared memory with a row per key, so
// both factors are read across their rows.
__device__ __forceinline__ void wgmma_dq_first(float (&d)[kDqN / 2], unsigned long long a,
                                               unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "%32, %33, accumulate, 1, 1, 1, 1;\n"
      "}\n"
      :
      "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]),
      "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
      "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]),
      "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
      "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]),
      "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
      "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
      "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_dq_next(float (&d)[kDqN / 2], unsigned long long a,
                                              unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "%32, %33, accumulate, 1, 1, 1, 1;\n"
      "}\n"
      :
      "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
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
  unsigned place = 0;  // where the dQ of the step before belongs

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
    // Worked out again at each step: kept for the loop, its eight places would stay in registers.
    const unsigned piece = static_cast<unsigned>(anew(static_cast<int>(fragment)));
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) {
      stmatrix(to + at_column_step<kTileN>(piece, i), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
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
    const unsigned long long a = wgmma_descriptor(kTileM == 128 ? ds_tile + panel : ds_tile, 0);
    const unsigned long long b = wgmma_descriptor(kTileM == 128 ? keys : keys + panel, 0);
    wgmma_fence();
    wgmma_dq_first(dq, a, b);
#pragma unroll
    for (int i = 1; i < kTileN / 16; ++i) wgmma_dq_next(dq, a + i * kSixteenRows, b + i * kSixteenRows);
    wgmma_commit();
  }

  __device__ __forceinline__ void add_dq() const {
    leave_share(dq, place, step - 1, params, shared);
  }
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
__device__ __forceinline__ bool needs_mask(int first_key, int query, const BackwardParams& p) {
  return (first_key + 64 > p.seqlen_k) | (query + diagonal(p) < first_key + 63);
}

// The first query that sees a key, counted from `query` on.
__device__ __forceinline__ int first_seeing(int key, int query, const BackwardParams& p) {
  return key - diagonal(p) - query;
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

// dP begins as -delta, to which the product adds, so that afterwards nothing is left to subtract or wait for.
__device__ __forceinline__ void begin_gradient(float (&dp)[kTileM / 2], const Statistics& delta) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) {
    dp[4 * j] = dp[4 * j + 2] = -delta[j].x;
    dp[4 * j + 1] = dp[4 * j + 3] = -delta[j].y;
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
    Statistics lse, delta;
    load_statistics(delta, shared + kDelta + stage * kRowStatistics);
    load_statistics(lse, shared + kLse + stage * kRowStatistics);
    wgmma_wait<0>();
    pin(s);
    pin(dk);
    pin(ds);
    if (!first) release_step(stage ^ 1);
    begin_gradient(dp, delta);
    issue_scores<kHeadDimV, kTileN, kTileM, true>(dp, rows_of(v_tile()), dout);
    if (needs_mask(first_key, query, params)) mask(s, first_key, query, params);
    exponentiate(p, s, lse, params.scale_log2);
    add_gradients(dp, q, dout, first);
  }

  // dV and the dQ of the step before run while dS is formed.
  __device__ __forceinline__ void add_gradients(float (&dp)[kTileM / 2], unsigned q, unsigned dout,
                                                bool first) {
    issue_gradient_v<kTileM>(dv, p, dout);
    issue_dq(step - 1);
    wgmma_wait<1>();  // P, which dV multiplies, may be read again only now
    pin(dp);
    pin(dv);
    pin(p);
    differentiate(ds, p, dp);
    share_ds(step & 1);
    wgmma_wait<0>();
    pin(dq);
    arrive_once(shared + kExchangeEmpty + 8 * ((step & 1) ^ 1));
    issue_gradient_qk<kTileM>(dk, ds, q);
    if (!first) add_dq();  // what dQ waits for, dK need not wait for
  }

  // A tile's first step, where its queries see none of this warpgroup's keys.
  // It only shares zeros as its dS.
  __device__ __forceinline__ void skip_first_step() {
    const int stage = step & 1, parity = step >> 1 & 1;
    // Without these, a later wait would take this step's phase for its own.
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) ds[i] = 0;
    share_ds(stage);
    arrive_once(shared + kExchangeEmpty + 8 * (stage ^ 1));
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
    place = (tile.first_row(params) + m * kTileM) * (kHeadDim / 4) +
            warpgroup * 16 * (kTileM == 128 ? kHeadDim : kTileM) + threadIdx.x % 128;
    // Only a group's first head skips this step; later heads compute it in vain. Here no product is under
    // way; with a branch there, ptxas would wait for every product right away (its warning C7514).
    if (left > 0 && m * kTileM + kTileM + diagonal(params) <= first_key) {
      skip_first_step();
      first = false;
      ++step;
      --left;
      tile.advance(m);
    }
#pragma unroll 1
    for (; left > 0; --left) {
      compute_step(first_key, m * kTileM, first);
      if (!first) {
        place += static_cast<unsigned>(m - tile.step_before(m)) * (kTileM * kHeadDim / 4);
        // On to the group's next head.
        if (m == tile.starts_at()) place += params.padded_q * (kHeadDim / 4);
      }
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
    stage_gradient<kTileN>(dk, k_tile(), fragment, params.scale);
    arrive_written(shared + kDkStaged + 8 * (round % kKeyStages));
  }

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;; ++round) {
      const int index = read_ticket_together(shared, round);
      if (index < 0) break;
      compute(tile_at(index, params));
    }
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

// Sixteen bytes to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashjit_backward_wgmma_bf16_d128_causal_deterministic_m64n128s2dq2(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
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

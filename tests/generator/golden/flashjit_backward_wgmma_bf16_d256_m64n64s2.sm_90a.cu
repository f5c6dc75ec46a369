// backward bf16 d256 full, schedule wgmma-backward:m64n64s2, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/backward_wgmma_pair.cu.

constexpr int kHeadDim = 256;            // columns of Q, K, dQ and dK
constexpr int kHeadDimV = 256;           // columns of V, dO and dV
constexpr int kTileM = 64;               // query rows per step
constexpr int kTileN = 64;               // keys per CTA
constexpr int kScoreColumns = 64;        // of the scores of a warpgroup's 64 rows
constexpr int kThreads = 512;            // per CTA, the producer's warpgroup included
constexpr int kCtasPerTile = 2;          // that work on one tile of the grid together
constexpr int kProducerRegisters = 32;   // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 192;  // per thread, after setmaxnreg
constexpr int kSharedBytes = 230648;     // of dynamic shared memory
constexpr int kKeyStages = 1;            // tile of K and V at a time
constexpr int kExchangeStages = 1;       // of what the warpgroups hand to each other
constexpr int kDqN = 128;                // columns of a warpgroup's product for dQ
constexpr int kDqRegisters = 96;         // registers of who sums dQ, per thread, after setmaxnreg

// FlashAttention backward on Hopper, over keys, for wide heads, in one pass: clusters of two CTAs work on one
// tile of K and V after another. Each CTA has a warpgroup that feeds shared memory through TMA, one that sums
// dV of its keys, one that sums dK, and one that adds up half of the columns of dQ.

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

// Products that a gradient's columns take: with 512 threads ptxas has no instruction for 256 of them.
constexpr int kPartsQk = kHeadDim > 192 ? 2 : 1;
constexpr int kPartsV = kHeadDimV > 192 ? 2 : 1;

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
constexpr int kOwnerWarps = 4;  // which sum dV, or dK: one warpgroup each
constexpr int kDqWarps = 4;  // which sum dQ
constexpr int kKeyReaders = kOwnerWarps + kDqWarps;
constexpr int kExchangeReaders = kDqWarps + 1;  // and the other CTA, when its copy has come
// Besides these warps, two threads of each CTA that feed and send, and one more of the second CTA that feeds.
constexpr int kTicketReaders = 2 * (kConsumerWarps + kDqWarps + 2) + 1;

constexpr int kKBytes = kTileN * kRowBytes * kPanelsQk;
constexpr int kVBytes = kTileN * kRowBytes * kPanelsV;
constexpr int kQBytes = kTileM * kRowBytes * kPanelsQk;  // of one stage
constexpr int kDoBytes = kTileM * kRowBytes * kPanelsV;
constexpr int kRowStatistics = 4 * kTileM;  // bytes: a float a query
constexpr int kDsBytes = kTileN * kTileM * 2;  // of dS, or P, of a step
// The panels from which this CTA sums dQ, those of the other CTA's keys, and their dS.
constexpr int kDqPanels = 2;
constexpr int kOtherKBytes = kDqPanels * kTileN * kRowBytes;

constexpr int kK = 0;
constexpr int kV = kK + kKeyStages * kKBytes;
constexpr int kQ = kV + kKeyStages * kVBytes;
constexpr int kDo = kQ + kStages * kQBytes;
constexpr int kExchange = kDo + kStages * kDoBytes;  // between the warpgroups: dS for dQ, or P for dS
constexpr int kStepsEnd = kExchange + kExchangeStages * kDsBytes;
constexpr int kOtherDs = kStepsEnd;
constexpr int kOtherK = kOtherDs + kDsBytes;
constexpr int kCopiesEnd = kOtherK + kOtherKBytes;
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
constexpr int kVRead = kKRead + 8;  // products have read V: dV may take its place
constexpr int kReadEnd = kVRead + 8;
constexpr int kMayAdd = kReadEnd;              // this tile may add to a step's dQ
constexpr int kAdded = kMayAdd + 8 * kStages;  // it has added
constexpr int kStores = kAdded + 8 * kStages;  // whether it stores instead: 4 bytes
constexpr int kDqEnd = kStores + 4 * kStages;
constexpr int kDsFull = kDqEnd;  // in P's place
constexpr int kOtherDsFull = kDsFull + 8 * kExchangeStages;
constexpr int kOtherDsEmpty = kOtherDsFull + 8;  // the other CTA has read its copy
constexpr int kDqReady = kOtherDsEmpty + 8;  // a step's, in registers
constexpr int kTickets = kDqReady + 8;

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

// Words that CTAs of a cluster put into each other's shared memory, and waits for them (PTX ISA,
// "mbarrier.arrive", "mbarrier.try_wait").

// Stores a word for another CTA, or this one. The receiver waits for it at a barrier of its own, and answers
// at a barrier of the sender.
__device__ __forceinline__ void cluster_store(unsigned address, unsigned value) {
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void cluster_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void cluster_wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra out;\n"
      "bra again;\n"
      "out:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

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

// How CTAs share out the tiles of a grid: one thread of each takes numbers from a counter in device memory
// and hands them on to all who work on the tile.
// Here the first CTA of two does so for both.

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
  cluster_wait(shared + kTicketFull + 8 * (round % 2), round / 2 % 2);
}

// Says that it has been read.
__device__ __forceinline__ void return_ticket(unsigned shared, int round) {
  cluster_arrive(in_cta(0, shared + kTicketEmpty + 8 * (round % 2)));
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
  if (cluster_rank() != 0) return read_ticket(shared, round);
  const int slot = round % 2;
  cluster_wait(shared + kTicketEmpty + 8 * slot, round / 2 % 2 ^ 1);
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
  for (int rank = 0; rank < kCtasPerTile; ++rank) {
    cluster_store(in_cta(rank, shared + kTicket + 4 * slot), index);
    cluster_arrive(in_cta(rank, shared + kTicketFull + 8 * slot));
  }
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
  mbarrier_init(shared + kVRead, kOwnerWarps);
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
  for (int stage = 0; stage < kExchangeStages; ++stage) {
    mbarrier_init(shared + kDsFull + 8 * stage, kOwnerWarps);
  }
  mbarrier_init(shared + kOtherDsFull, 1);
  mbarrier_init(shared + kOtherDsEmpty, kDqWarps);
  mbarrier_init(shared + kDqReady, kDqWarps);
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
  int start_step;  // where the tile begins; after the last step it goes on at the first

  __device__ __forceinline__ int steps(const BackwardParams& p) const {
    return p.group * max(0, end_step - first_step);
  }
  // The first query head that it meets, counted over the batch.
  __device__ __forceinline__ int first_head(const BackwardParams& p) const {
    return batch * p.heads + head_kv * p.group;
  }
  __device__ __forceinline__ int starts_at() const {
    return start_step;
  }
  // Goes on to the next step. Returns whether that is the first of the group's next head.
  __device__ __forceinline__ bool advance(int& m) const {
    if (++m == end_step) m = first_step;
    return m == starts_at();
  }
  // Rows of the workspace's arrays before those of the first head that it meets.
  __device__ __forceinline__ long long first_row(const BackwardParams& p) const {
    return static_cast<long long>(first_head(p)) * p.padded_q;
  }
};

__device__ __forceinline__ int tile_count(const BackwardParams& p) {
  return p.tiles * p.heads_kv * p.batch;
}

constexpr int kStepsApart = 2;  // at the most
// Where the n-th tile of a head starts if they are evenly spread over `steps`.
__device__ __forceinline__ int spread_start(int n, int steps, const BackwardParams& p) {
  const long long before = static_cast<long long>(n) * steps;
  return before <= 0x7fffffff ? divide(static_cast<int>(before), p.by_tiles) : 0;
}

__device__ __forceinline__ KeyTile tile_at(int index, const BackwardParams& p) {
  const int tiles = anew(p.tiles);
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
  tile.key += cluster_rank() * kTileN;  // the steps are both CTAs'
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
  return 1 << 2 * cluster_rank();  // the CTAs of a pair have columns of their own
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
// comes_first(wait_until_ready): unless a first share has left already, a CTA claims it only when its own is
// ready to leave. What that takes comes from both CTAs of a pair, and two pairs could wait for each other.
template <class Work>
__device__ __forceinline__ void add_in_order(const KeyTile& tile, int& step, const BackwardParams& p,
                                             const Work& work) {
  int head = tile.first_head(p);
  int m = tile.starts_at();
#pragma unroll 1
  for (int left = tile.steps(p); left > 0; --left, ++step) {
    int* const shares = shares_left(head, m, p);
    work(shares, head, m, [&](const auto& wait_until_ready) {
      if ((load_acquire(shares) & first_left()) != 0) return false;
      wait_until_ready();
      return comes_first(shares);
    });
    if (tile.advance(m)) ++head;
  }
}

// Additions in global memory that return nothing (PTX ISA, "red"; vectors: sm_90 and later).

// Four neighbouring sums, aligned to 16 bytes; each is added atomically.
__device__ __forceinline__ void add_global(float* sums, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums), "f"(a), "f"(b),
               "f"(c), "f"(d)
               : "memory");
}

// A word to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
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
      __nanosleep(20);  // or P and dS, in the same pipe, would wait for all additions
    }
  }
  __syncwarp();
  arrive_once(shared + kAdded + 8 * (step & 1));
}

// For one thread: tells the consumers at each step of a tile how its share leaves, once it may.
__device__ __forceinline__ void order_shares(const KeyTile& tile, int& step, const BackwardParams& p,
                                             unsigned shared) {
  add_in_order(tile, step, p, [&](int* shares, int, int, const auto& comes_first) {
    const bool first = comes_first([&] { mbarrier_wait(shared + kDqReady, step & 1); });
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

constexpr int kBoxPanelsK = 1;  // panels of K that one box moves: K also comes in other parts

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

// Loads the other CTA's keys: the panels of those columns of dQ that this CTA sums.
__device__ __forceinline__ void load_other_keys(const TensorMap& map, unsigned barrier, const KeyTile& tile,
                                                unsigned shared) {
  const int rank = cluster_rank();
  load_tile<kDqPanels, 1, kTileN>(shared + kOtherK, map, barrier, tile.key + (rank == 0 ? kTileN : -kTileN),
                                  tile.head_kv, tile.batch, rank * (kPanelsQk - kDqPanels));
}

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
    mbarrier_arrive_expecting(keys_full, kKeysBytes + (What::kDeals ? kOtherKBytes : 0));
    load_tile<What::kPanels, What::kKeysBoxPanels, kTileN>(shared + What::kKeys + stage_of_keys * kKeysBytes,
                                                           map_keys, keys_full, tile.key, tile.head_kv,
                                                           tile.batch);
    if (What::kDeals) load_other_keys(map_keys, keys_full, tile, shared);
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
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},\n"
      "%64, %65, accumulate, 1, 1, 1, 1;\n"
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
      "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39]),
      "=f"(d[40]), "=f"(d[41]), "=f"(d[42]), "=f"(d[43]),
      "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47]),
      "=f"(d[48]), "=f"(d[49]), "=f"(d[50]), "=f"(d[51]),
      "=f"(d[52]), "=f"(d[53]), "=f"(d[54]), "=f"(d[55]),
      "=f"(d[56]), "=f"(d[57]), "=f"(d[58]), "=f"(d[59]),
      "=f"(d[60]), "=f"(d[61]), "=f"(d[62]), "=f"(d[63])
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_dq_next(float (&d)[kDqN / 2], unsigned long long a,
                                              unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},\n"
      "%64, %65, accumulate, 1, 1, 1, 1;\n"
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
      : "l"(a), "l"(b));
}

// Arrivals at barriers of other CTAs of a cluster (PTX ISA, "mbarrier.arrive").

// Arrives at another CTA's barrier. This says that the thread has read, not that it has written: that would
// need .release.cluster, which waits for everything under way.
__device__ __forceinline__ void cluster_arrive_read(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Registers that asynchronous products use without the compiler knowing (ptx/wgmma.cuh).

// Ties registers to this point of the program: the compiler does not know of products in flight, and would
// move reads of their registers above the wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
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

// dQ where two CTAs of a cluster work on a tile, with 64 keys each and the same queries. A third warpgroup
// in each CTA sums half of dQ's columns. For them it gets the other CTA's dS, and it already has the same columns
// of the other CTA's keys.

struct QueryOwner {
  static constexpr unsigned kPanelBytes = kTileN * kRowBytes;

  const BackwardParams& params;
  const unsigned shared;
  const int rank;
  int step = 0;   // of the CTA, over all its tiles
  int round = 0;  // tiles so far

  float dq[kDqN / 2];

  __device__ __forceinline__ QueryOwner(const BackwardParams& parameters, unsigned shared_memory)
      : params(parameters), shared(shared_memory), rank(cluster_rank()) {}

  // dQ from the keys of one CTA: their dS times some columns of theirs, in panels that lie `apart` bytes
  // apart. `first`: d begins with it.
  template <auto kBegin, auto kAdd, int kCount>
  __device__ __forceinline__ void issue(float (&d)[kCount], unsigned ds_tile, unsigned columns,
                                        unsigned apart, bool first) {
    const unsigned long long a = wgmma_descriptor(ds_tile, 0), b = wgmma_descriptor(columns, apart);
    wgmma_fence();
    if (first) kBegin(d, a, b);
#pragma unroll
    for (int i = first ? 1 : 0; i < kTileN / 16; ++i) kAdd(d, a + i * kSixteenRows, b + i * kSixteenRows);
    wgmma_commit();
  }

  // One product for both panels.
  __device__ __forceinline__ void issue_all(unsigned ds_tile, unsigned panels, bool first) {
    issue<wgmma_dq_first, wgmma_dq_next>(dq, ds_tile, panels, kPanelBytes, first);
  }

  // `row` is the first row of the step's queries in dQ's sums.
  __device__ __forceinline__ void compute_step(unsigned row) {
    const int first_panel = rank * (kPanelsQk - kDqPanels);
    const int stage = step % kExchangeStages;
    const unsigned ds_tile = shared + kExchange + stage * kDsBytes;
    const unsigned exchange_empty = shared + kExchangeEmpty + 8 * stage;
    if (threadIdx.x % 128 == 0) mbarrier_arrive_expecting(shared + kOtherDsFull, kDsBytes);
    __syncwarp();
    mbarrier_wait(shared + kDsFull + 8 * stage, step / kExchangeStages & 1);
    issue_all(ds_tile, shared + kK + first_panel * kPanelBytes, true);
    mbarrier_wait(shared + kOtherDsFull, step & 1);
    // The other CTA's dS has been copied.
    if (threadIdx.x % 128 == 0) cluster_arrive_read(in_cta(rank ^ 1, exchange_empty));
    __syncwarp();
    issue_all(shared + kOtherDs, shared + kOtherK, false);
    wgmma_wait<1>();
    arrive_once(exchange_empty);
    wgmma_wait<0>();
    pin(dq);
    if (lane() == 0) cluster_arrive_read(in_cta(rank ^ 1, shared + kOtherDsEmpty));
    arrive_once(shared + kDqReady);
    // Each phase has to be seen by someone, and if a first share has left already, nobody else waits.
    mbarrier_wait(shared + kDqReady, step & 1);
    const unsigned place = row * (kHeadDim / 4) + first_panel * (64 / 8) * 128 + threadIdx.x % 128;
    leave_share(dq, place, step, params, shared);
    ++step;
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    mbarrier_wait(shared + kKFull, round % 2);
    int m = tile.starts_at();
    unsigned head_row = tile.first_row(params);
#pragma unroll 1
    for (int left = tile.steps(params); left > 0; --left) {
      compute_step(head_row + m * kTileM);
      if (tile.advance(m)) head_row += params.padded_q;
    }
    arrive_once(shared + kKRead);
  }
};

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

// Registers of packed numbers that asynchronous products read (ptx/wgmma.cuh): as ptx/pin.cuh.

// Only registers kFirst to kEnd - 1.
template <int kFirst, int kEnd, int kCount>
__device__ __forceinline__ void pin_some(unsigned (&registers)[kCount]) {
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Stores of matrix fragments to shared memory (PTX ISA, "stmatrix"), the inverse of ldmatrix.

__device__ __forceinline__ void stmatrix(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
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

// Sixteen bytes of shared memory (PTX ISA, "ld").

__device__ __forceinline__ uint4 load_shared_16(unsigned address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// Copies from one CTA of a cluster to another (PTX ISA, "cp.async.bulk").

// Starts a copy of this CTA's shared memory to another's; its bytes complete on a barrier there.
__device__ __forceinline__ void bulk_send(unsigned to, unsigned from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Sixteen bytes to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// Consumers where one warpgroup can't hold both dK and dV of its keys: two that share 64 keys. The owner of
// dV computes S and P, and hands P to the owner of dK, which computes dP and dS. Each issues the gradient of
// the step before ahead of its scores, so that Q and dO go back to the producer half a step before they are
// asked for again.
// dS takes P's place, from where it goes to dQ (pair.cuh) and to the other CTA.

// What both keep: which step of the CTA this is, over all its tiles; it says which stage, and which parity.
struct SharedKeys {
  static constexpr int kPieces = kTileM / 16;  // of 16 bytes of P
  static constexpr int kEarly = kPieces - 1;  // pieces whose registers are free before the gradient is done

  const BackwardParams& params;
  const unsigned shared;
  const unsigned fragment;  // bytes to this lane's piece of a tile's rows
  int step = 0;
  int round = 0;  // tiles so far

  __device__ __forceinline__ SharedKeys(const BackwardParams& parameters, unsigned shared_memory)
      : params(parameters), shared(shared_memory), fragment(fragment_offset(0)) {}

  __device__ __forceinline__ unsigned q_tile(int at) const { return shared + kQ + (at & 1) * kQBytes; }
  __device__ __forceinline__ unsigned do_tile(int at) const { return shared + kDo + (at & 1) * kDoBytes; }
  __device__ __forceinline__ unsigned exchange() const {
    return shared + kExchange + step % kExchangeStages * kDsBytes;
  }
  // Where this thread's registers of P lie in shared memory: a warp's take 2 KB, in their order, with each
  // lane's 16 bytes next to its neighbour's.
  __device__ __forceinline__ unsigned p_pieces() const {
    return exchange() + warp_of_warpgroup() * kPieces * 512 + lane() * 16;
  }
  __device__ __forceinline__ unsigned exchange_barrier(int barrier) const {
    return shared + barrier + 8 * (step % kExchangeStages);
  }
  __device__ __forceinline__ int exchange_parity() const { return step / kExchangeStages & 1; }
  __device__ __forceinline__ void wait_for(int barrier, int at) const {
    mbarrier_wait(shared + barrier + 8 * (at & 1), at >> 1 & 1);
  }
  __device__ __forceinline__ void release(int barrier, int at) const {
    arrive_once(shared + barrier + 8 * (at & 1));
  }
};

struct ValueOwner : SharedKeys {
  float dv[kHeadDimV / 2];
  unsigned p[kTileM / 4];  // of the step before, transposed, as pairs

  using SharedKeys::SharedKeys;

  __device__ __forceinline__ void finish_scores(float (&s)[kTileM / 2], const Statistics& lse, int key,
                                                int query) {
    if (needs_mask(key, query, params)) mask(s, key, query, params);
    exponentiate(p, s, lse, params.scale_log2);
    __syncwarp();
    release(kQEmpty, step);
    mbarrier_wait(exchange_barrier(kExchangeEmpty), exchange_parity() ^ 1);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      store_shared(p_pieces() + 512 * i, uint4{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]});
    }
    __syncwarp();
    arrive_once(exchange_barrier(kExchangeFull));
    ++step;
  }

  __device__ __forceinline__ void first_step(int key, int query) {
    float s[kTileM / 2];
    wait_for(kQFull, step);
    issue_scores<kHeadDim, kTileN, kTileM>(s, shared + kK, q_tile(step));
    Statistics lse;
    load_statistics(lse, shared + kLse + (step & 1) * kRowStatistics);
    wgmma_wait<0>();
    pin(s);
    finish_scores(s, lse, key, query);
  }

  __device__ __forceinline__ void next_step(int key, int query) {
    float s[kTileM / 2];
    wait_for(kDoFull, step - 1);
    // S takes the registers of most of P, while the rest is multiplied.
    issue_gradient_v<kTileM, 0, kEarly>(dv, p, do_tile(step - 1));
    issue_gradient_v<kTileM, kEarly>(dv, p, do_tile(step - 1));
    wait_for(kQFull, step);
    wgmma_wait<1>();
    pin_some<0, 4 * kEarly>(p);
    issue_scores<kHeadDim, kTileN, kTileM>(s, shared + kK, q_tile(step));
    Statistics lse;
    load_statistics(lse, shared + kLse + (step & 1) * kRowStatistics);
    wgmma_wait<1>();
    pin(dv);
    pin_some<4 * kEarly, kTileM / 4>(p);
    release(kDoEmpty, step - 1);
    wgmma_wait<0>();
    pin(s);
    finish_scores(s, lse, key, query);
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    clear(dv);
    mbarrier_wait(shared + kKFull, round % 2);
    int m = tile.starts_at();
    int left = tile.steps(params);
    const bool any = left > 0;
    if (any) first_step(tile.key, m * kTileM);
#pragma unroll 1
    while (--left > 0) {
      tile.advance(m);
      next_step(tile.key, m * kTileM);
    }
    arrive_once(shared + kKRead);
    if (any) {
      wait_for(kDoFull, step - 1);
      issue_gradient_v<kTileM>(dv, p, do_tile(step - 1));
      wgmma_wait<0>();
      pin(dv);
      release(kDoEmpty, step - 1);
    }
    mbarrier_wait(shared + kVRead, round % 2);
    stage_gradient<kTileN>(dv, shared + kV, fragment, 1.0f);
    arrive_written(shared + kDvStaged);
  }
};

struct KeyOwner : SharedKeys {
  float dk[kHeadDim / 2];
  unsigned ds[kTileM / 4];  // of the step before, transposed, as pairs

  using SharedKeys::SharedKeys;

  // Copies this warp's rows of dS to the other CTA, once their place there is free.
  __device__ __forceinline__ void send_ds() const {
    constexpr int kBytes = kDsBytes / 4;
    mbarrier_wait(shared + kOtherDsEmpty, (step & 1) ^ 1);
    __syncwarp();  // a lane that came out of its wait late would wait for what this copy leads to
    if (lane() == 0) {
      const unsigned rows = warp_of_warpgroup() * kBytes;
      const int other = cluster_rank() ^ 1;
      bulk_send(in_cta(other, shared + kOtherDs + rows), exchange() + rows, kBytes,
                in_cta(other, shared + kOtherDsFull));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void finish_scores(const float (&dp)[kTileM / 2]) {
    mbarrier_wait(exchange_barrier(kExchangeFull), exchange_parity());
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint4 piece = load_shared_16(p_pieces() + 512 * i);
      ds[4 * i] = piece.x;
      ds[4 * i + 1] = piece.y;
      ds[4 * i + 2] = piece.z;
      ds[4 * i + 3] = piece.w;
    }
    differentiate(ds, ds, dp);
    __syncwarp();
    // One row per key: the rows of a warp take the place of its pieces of P.
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      stmatrix(exchange() + at_column_step<kTileN>(fragment, i), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2],
               ds[4 * i + 3]);
    }
    arrive_written(exchange_barrier(kDsFull));
    release(kDoEmpty, step);
    send_ds();
    ++step;
  }

  __device__ __forceinline__ void first_step() {
    float dp[kTileM / 2];
    wait_for(kDoFull, step);
    Statistics delta;
    load_statistics(delta, shared + kDelta + (step & 1) * kRowStatistics);
    begin_gradient(dp, delta);
    issue_scores<kHeadDimV, kTileN, kTileM, true>(dp, shared + kV, do_tile(step));
    wgmma_wait<0>();
    pin(dp);
    finish_scores(dp);
  }

  __device__ __forceinline__ void next_step() {
    float dp[kTileM / 2];
    wait_for(kQFull, step - 1);
    issue_gradient_qk<kTileM, 0, kEarly>(dk, ds, q_tile(step - 1));
    issue_gradient_qk<kTileM, kEarly>(dk, ds, q_tile(step - 1));
    wait_for(kDoFull, step);
    wgmma_wait<1>();
    pin_some<0, 4 * kEarly>(ds);
    Statistics delta;
    load_statistics(delta, shared + kDelta + (step & 1) * kRowStatistics);
    begin_gradient(dp, delta);
    issue_scores<kHeadDimV, kTileN, kTileM, true>(dp, shared + kV, do_tile(step));
    wgmma_wait<1>();
    pin(dk);
    pin_some<4 * kEarly, kTileM / 4>(ds);
    release(kQEmpty, step - 1);
    wgmma_wait<0>();
    pin(dp);
    finish_scores(dp);
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    clear(dk);
    mbarrier_wait(shared + kVFull, round % 2);
    int left = tile.steps(params);
    const bool any = left > 0;
    if (any) first_step();
#pragma unroll 1
    while (--left > 0) next_step();
    arrive_once(shared + kVRead);
    if (any) {
      wait_for(kQFull, step - 1);
      issue_gradient_qk<kTileM>(dk, ds, q_tile(step - 1));
      wgmma_wait<0>();
      pin(dk);
      release(kQEmpty, step - 1);
    }
    mbarrier_wait(shared + kKRead, round % 2);
    stage_gradient<kTileN>(dk, shared + kK, fragment, params.scale);
    arrive_written(shared + kDkStaged);
  }
};

// An owner's life: tile after tile until there are no more.
template <class Owner>
__device__ __forceinline__ void compute_tiles(Owner owner, const BackwardParams& p) {
#pragma unroll 1
  for (;; ++owner.round) {
    const int index = read_ticket_together(owner.shared, owner.round);
    if (index < 0) return;
    owner.compute(tile_at(index, p));
  }
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

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashjit_backward_wgmma_bf16_d256_m64n64s2(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
                   const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
                   const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  __syncthreads();
  cluster_sync();

  if (warpgroup == 0) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) feed<FeedKQ>(map_k, map_q, p.lse_log2, p, shared);
    if (threadIdx.x == 32) feed<FeedVDo>(map_v, map_dout, p.delta, p, shared);
    if (threadIdx.x == 64) send_gradients(map_dk, map_dv, p, shared);
    if (threadIdx.x >= 96) convert_sums<2>(p);
  } else if (warpgroup == 3) {
    give_up_registers<kDqRegisters>();
    compute_tiles(QueryOwner(p, shared), p);
  } else {
    take_registers<kConsumerRegisters>();
    if (warpgroup == 1) {
      compute_tiles(ValueOwner(p, shared), p);
    } else {
      compute_tiles(KeyOwner(p, shared), p);
    }
    convert_sums<8>(p);
  }
  // The other CTA may still arrive at barriers of this one, and copy from and to it.
  cluster_sync();
}

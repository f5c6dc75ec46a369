// forward bf16 d128 causal, schedule wgmma:m64n128s3pp0p0sp8, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/forward_wgmma.cu.

constexpr int kHeadDim = 128;              // columns of Q and K
constexpr int kHeadDimV = 128;             // columns of V and O
constexpr int kTileM = 64;                 // query rows per tile
constexpr int kTileN = 128;                // keys per block
constexpr int kWarpgroups = 1;             // that compute, 64 rows each
constexpr int kThreads = 256;              // per CTA, the producer's warpgroup included
constexpr int kStages = 3;                 // blocks of K, and of V, in flight
constexpr int kProducerRegisters = 56;     // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 248;    // per thread, after setmaxnreg
constexpr int kSharedBytes = 217192;       // of dynamic shared memory
constexpr int kQRegisterSteps = 8;         // of 16 columns of Q that live in registers
constexpr int kUnroll = 1;                 // of the loop over unmasked blocks
constexpr int kCluster = 8;                // CTAs that share out the keys of a tile
constexpr float kLazy = 14.0f;             // log2 of the growth that a shift tolerates
constexpr float kLargestSum = 0x1p14f;     // of a thread's exponentials in a block, up to which a shift stays
constexpr float kLostSum = 0x1p86f;        // of them, above which scores are computed again
constexpr float kHeadroom = 40.0f;         // log2 of how far above a row's scores its shift goes
constexpr float kSumAfterMove = 0x1p-40f;  // what the largest lane's sum becomes when a shift moves

// FlashAttention forward on Hopper (FlashAttention-3, arXiv 2407.08608): a warpgroup that feeds shared memory
// through TMA, and kWarpgroups that compute 64 query rows each with asynchronous products.
// The kCluster CTAs of a cluster share out a tile's keys and merge their partial results.

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

// O of a consumer: 64 rows of kHeadDimV columns, laid out as wgmma's accumulators (ptx/wgmma.cuh). O has PTX
// registers of its own, o0, o1, …, that asm statements name. As a C++ array it would be an operand of each
// statement that uses it, and of all statements in between: the compilers would take up to a tenth longer,
// and could not move softmax's instructions past one another.

// Called once, before all that names them.
__device__ __forceinline__ void declare_output() {
  asm volatile(".reg .f32 o<%0>;" ::"n"(kHeadDimV / 2));
}

__device__ __forceinline__ void clear_output() {
  asm volatile(
      "mov.f32 o0, 0f00000000; mov.f32 o1, 0f00000000; mov.f32 o2, 0f00000000; mov.f32 o3, 0f00000000;\n"
      "mov.f32 o4, 0f00000000; mov.f32 o5, 0f00000000; mov.f32 o6, 0f00000000; mov.f32 o7, 0f00000000;\n"
      "mov.f32 o8, 0f00000000; mov.f32 o9, 0f00000000; mov.f32 o10, 0f00000000; mov.f32 o11, 0f00000000;\n"
      "mov.f32 o12, 0f00000000; mov.f32 o13, 0f00000000; mov.f32 o14, 0f00000000; mov.f32 o15, 0f00000000;\n"
      "mov.f32 o16, 0f00000000; mov.f32 o17, 0f00000000; mov.f32 o18, 0f00000000; mov.f32 o19, 0f00000000;\n"
      "mov.f32 o20, 0f00000000; mov.f32 o21, 0f00000000; mov.f32 o22, 0f00000000; mov.f32 o23, 0f00000000;\n"
      "mov.f32 o24, 0f00000000; mov.f32 o25, 0f00000000; mov.f32 o26, 0f00000000; mov.f32 o27, 0f00000000;\n"
      "mov.f32 o28, 0f00000000; mov.f32 o29, 0f00000000; mov.f32 o30, 0f00000000; mov.f32 o31, 0f00000000;\n"
      "mov.f32 o32, 0f00000000; mov.f32 o33, 0f00000000; mov.f32 o34, 0f00000000; mov.f32 o35, 0f00000000;\n"
      "mov.f32 o36, 0f00000000; mov.f32 o37, 0f00000000; mov.f32 o38, 0f00000000; mov.f32 o39, 0f00000000;\n"
      "mov.f32 o40, 0f00000000; mov.f32 o41, 0f00000000; mov.f32 o42, 0f00000000; mov.f32 o43, 0f00000000;\n"
      "mov.f32 o44, 0f00000000; mov.f32 o45, 0f00000000; mov.f32 o46, 0f00000000; mov.f32 o47, 0f00000000;\n"
      "mov.f32 o48, 0f00000000; mov.f32 o49, 0f00000000; mov.f32 o50, 0f00000000; mov.f32 o51, 0f00000000;\n"
      "mov.f32 o52, 0f00000000; mov.f32 o53, 0f00000000; mov.f32 o54, 0f00000000; mov.f32 o55, 0f00000000;\n"
      "mov.f32 o56, 0f00000000; mov.f32 o57, 0f00000000; mov.f32 o58, 0f00000000; mov.f32 o59, 0f00000000;\n"
      "mov.f32 o60, 0f00000000; mov.f32 o61, 0f00000000; mov.f32 o62, 0f00000000; mov.f32 o63, 0f00000000;\n"
  );
}

// Scales O by a factor for each of the thread's two rows.
__device__ __forceinline__ void scale_output(const float (&factor)[2]) {
  asm volatile(
      "mul.f32 o0, o0, %0; mul.f32 o1, o1, %0; mul.f32 o2, o2, %1; mul.f32 o3, o3, %1;\n"
      "mul.f32 o4, o4, %0; mul.f32 o5, o5, %0; mul.f32 o6, o6, %1; mul.f32 o7, o7, %1;\n"
      "mul.f32 o8, o8, %0; mul.f32 o9, o9, %0; mul.f32 o10, o10, %1; mul.f32 o11, o11, %1;\n"
      "mul.f32 o12, o12, %0; mul.f32 o13, o13, %0; mul.f32 o14, o14, %1; mul.f32 o15, o15, %1;\n"
      "mul.f32 o16, o16, %0; mul.f32 o17, o17, %0; mul.f32 o18, o18, %1; mul.f32 o19, o19, %1;\n"
      "mul.f32 o20, o20, %0; mul.f32 o21, o21, %0; mul.f32 o22, o22, %1; mul.f32 o23, o23, %1;\n"
      "mul.f32 o24, o24, %0; mul.f32 o25, o25, %0; mul.f32 o26, o26, %1; mul.f32 o27, o27, %1;\n"
      "mul.f32 o28, o28, %0; mul.f32 o29, o29, %0; mul.f32 o30, o30, %1; mul.f32 o31, o31, %1;\n"
      "mul.f32 o32, o32, %0; mul.f32 o33, o33, %0; mul.f32 o34, o34, %1; mul.f32 o35, o35, %1;\n"
      "mul.f32 o36, o36, %0; mul.f32 o37, o37, %0; mul.f32 o38, o38, %1; mul.f32 o39, o39, %1;\n"
      "mul.f32 o40, o40, %0; mul.f32 o41, o41, %0; mul.f32 o42, o42, %1; mul.f32 o43, o43, %1;\n"
      "mul.f32 o44, o44, %0; mul.f32 o45, o45, %0; mul.f32 o46, o46, %1; mul.f32 o47, o47, %1;\n"
      "mul.f32 o48, o48, %0; mul.f32 o49, o49, %0; mul.f32 o50, o50, %1; mul.f32 o51, o51, %1;\n"
      "mul.f32 o52, o52, %0; mul.f32 o53, o53, %0; mul.f32 o54, o54, %1; mul.f32 o55, o55, %1;\n"
      "mul.f32 o56, o56, %0; mul.f32 o57, o57, %0; mul.f32 o58, o58, %1; mul.f32 o59, o59, %1;\n"
      "mul.f32 o60, o60, %0; mul.f32 o61, o61, %0; mul.f32 o62, o62, %1; mul.f32 o63, o63, %1;\n"
      ::"f"(factor[0]),
      "f"(factor[1]));
}

__device__ __forceinline__ void read_output(float (&o)[kHeadDimV / 2]) {
  asm volatile(
      "mov.f32 %0, o0; mov.f32 %1, o1; mov.f32 %2, o2; mov.f32 %3, o3;\n"
      "mov.f32 %4, o4; mov.f32 %5, o5; mov.f32 %6, o6; mov.f32 %7, o7;\n"
      "mov.f32 %8, o8; mov.f32 %9, o9; mov.f32 %10, o10; mov.f32 %11, o11;\n"
      "mov.f32 %12, o12; mov.f32 %13, o13; mov.f32 %14, o14; mov.f32 %15, o15;\n"
      "mov.f32 %16, o16; mov.f32 %17, o17; mov.f32 %18, o18; mov.f32 %19, o19;\n"
      "mov.f32 %20, o20; mov.f32 %21, o21; mov.f32 %22, o22; mov.f32 %23, o23;\n"
      "mov.f32 %24, o24; mov.f32 %25, o25; mov.f32 %26, o26; mov.f32 %27, o27;\n"
      "mov.f32 %28, o28; mov.f32 %29, o29; mov.f32 %30, o30; mov.f32 %31, o31;\n"
      "mov.f32 %32, o32; mov.f32 %33, o33; mov.f32 %34, o34; mov.f32 %35, o35;\n"
      "mov.f32 %36, o36; mov.f32 %37, o37; mov.f32 %38, o38; mov.f32 %39, o39;\n"
      "mov.f32 %40, o40; mov.f32 %41, o41; mov.f32 %42, o42; mov.f32 %43, o43;\n"
      "mov.f32 %44, o44; mov.f32 %45, o45; mov.f32 %46, o46; mov.f32 %47, o47;\n"
      "mov.f32 %48, o48; mov.f32 %49, o49; mov.f32 %50, o50; mov.f32 %51, o51;\n"
      "mov.f32 %52, o52; mov.f32 %53, o53; mov.f32 %54, o54; mov.f32 %55, o55;\n"
      "mov.f32 %56, o56; mov.f32 %57, o57; mov.f32 %58, o58; mov.f32 %59, o59;\n"
      "mov.f32 %60, o60; mov.f32 %61, o61; mov.f32 %62, o62; mov.f32 %63, o63;\n"
      :
      "=f"(o[0]), "=f"(o[1]), "=f"(o[2]), "=f"(o[3]),
      "=f"(o[4]), "=f"(o[5]), "=f"(o[6]), "=f"(o[7]),
      "=f"(o[8]), "=f"(o[9]), "=f"(o[10]), "=f"(o[11]),
      "=f"(o[12]), "=f"(o[13]), "=f"(o[14]), "=f"(o[15]),
      "=f"(o[16]), "=f"(o[17]), "=f"(o[18]), "=f"(o[19]),
      "=f"(o[20]), "=f"(o[21]), "=f"(o[22]), "=f"(o[23]),
      "=f"(o[24]), "=f"(o[25]), "=f"(o[26]), "=f"(o[27]),
      "=f"(o[28]), "=f"(o[29]), "=f"(o[30]), "=f"(o[31]),
      "=f"(o[32]), "=f"(o[33]), "=f"(o[34]), "=f"(o[35]),
      "=f"(o[36]), "=f"(o[37]), "=f"(o[38]), "=f"(o[39]),
      "=f"(o[40]), "=f"(o[41]), "=f"(o[42]), "=f"(o[43]),
      "=f"(o[44]), "=f"(o[45]), "=f"(o[46]), "=f"(o[47]),
      "=f"(o[48]), "=f"(o[49]), "=f"(o[50]), "=f"(o[51]),
      "=f"(o[52]), "=f"(o[53]), "=f"(o[54]), "=f"(o[55]),
      "=f"(o[56]), "=f"(o[57]), "=f"(o[58]), "=f"(o[59]),
      "=f"(o[60]), "=f"(o[61]), "=f"(o[62]), "=f"(o[63])
  );
}

// The diagonal of a causal mask: bottom-right aligned.

// Query i sees keys 0 .. i + diagonal(params). Lengths are subtracted before anything is added to them: a row
// and seqlen_k together may be more than an int holds.
template <class Params>
__device__ __forceinline__ int diagonal(const Params& params) {
  return params.seqlen_k - params.seqlen_q;
}

// Which thread of a warpgroup this one is.

__device__ __forceinline__ int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int warp_of_warpgroup() {
  return static_cast<int>(threadIdx.x / 32 % 4);
}

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}

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

// What the tensor memory accelerator (TMA) copies: boxes of a tensor (PTX ISA, "Tensors").

// A CUtensorMap, made by the host; opaque here.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// Where a box starts in the tensor, dimension 0 first. Each map has dimensions of its own.
struct BoxOrigin {
  int x0, x1, x2, x3, x4;
};

// Which tile comes when, and which keys its rows see.

// With p.packed = 0 a row is a query. Else the rows of p.heads_of_pack heads that share K and V lie side by
// side: heads first, in 2^p.packed places, then queries.
struct Tile {
  int row;   // first
  int pack;  // of heads, or a head
  int batch;
  // This CTA's share of the blocks of kTileN keys that some row of the tile sees: `blocks` of them, every
  // `shares`-th one from `first` on.
  int first, shares, blocks;
};

// How many of the first n blocks are in the CTA's share. Blocks are dealt like cards, so that CTAs that work
// side by side read adjacent ones.
__device__ __forceinline__ int blocks_of_share(int n, const Tile& tile) {
  return (n - tile.first + tile.shares - 1) / tile.shares;
}

// From the first row of a warpgroup to that of the next.
constexpr int kRowStep = 64;

__device__ __forceinline__ int row_count(const ForwardParams& p) {
  return p.seqlen_q << p.packed;
}

// By a shift, which ptxas places better than one more parameter.
__device__ __forceinline__ int packs_of_sequence(const ForwardParams& p) {
  return p.places >> p.packed;
}

// How many keys, from the first on, some row before `row_end` sees.
__device__ __forceinline__ int keys_before(int row_end, const ForwardParams& p) {
  return max(0, min(p.seqlen_k, ((min(row_end, row_count(p)) - 1) >> p.packed) + 1 + diagonal(p)));
}

// Which of a pack's heads a row belongs to; from p.heads_of_pack on, to none.
__device__ __forceinline__ int place_of(int row, const ForwardParams& p) {
  return row & ((1 << p.packed) - 1);
}

// Where a panel of 64 rows of Q or O starts: {columns, heads of a pack, queries, packs, batches}.
__device__ __forceinline__ BoxOrigin rows_at(int panel, int row, const Tile& tile, const ForwardParams& p) {
  return {64 * panel, 0, row >> p.packed, tile.pack, tile.batch};
}

// The p.clusters clusters of a tile lie side by side, and so do a cluster's CTAs: which tile is this CTA's,
// and which of the tile's clusters it is in.
__device__ __forceinline__ int only_tile(const ForwardParams& p) {
  return divide(static_cast<int>(blockIdx.x) / kCluster, p.by_clusters);
}
__device__ __forceinline__ int cluster_of_tile(const ForwardParams& p) {
  return static_cast<int>(blockIdx.x) / kCluster - only_tile(p) * p.clusters;
}

// All tiles of a head, the longest first, then the next head: what runs together shares K and V.
__device__ __forceinline__ Tile tile_at(int index, const ForwardParams& p) {
  const int packs = packs_of_sequence(p);
  const int batch_head = divide(index, p.by_tiles);
  const int m = p.tiles_m - 1 - (index - batch_head * p.tiles_m);
  Tile tile;
  tile.row = m * kTileM;
  tile.batch = divide(batch_head, p.by_heads);
  tile.pack = batch_head - tile.batch * packs;
  const int seen = (keys_before(tile.row + kTileM, p) + kTileN - 1) / kTileN;
  tile.shares = p.clusters * kCluster;
  tile.first = cluster_of_tile(p) * kCluster + cluster_rank();
  tile.blocks = blocks_of_share(seen, tile);
  return tile;
}

// Which rows a thread of a consumer holds (ptx/wgmma.cuh), and which keys they see.

struct RowsOfThread {
  int row;         // of the first; the second is 8 below
  int visible[2];  // keys that they see
  // From one block's first key to the next one's.
  int keys_a_block = kTileN;

  __device__ __forceinline__ RowsOfThread(int first_row, const ForwardParams& p)
      : row(first_row + 16 * warp_of_warpgroup() + lane() / 4) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      visible[which] = min(((row + 8 * which) >> p.packed) + 1 + diagonal(p), p.seqlen_k);
    }
  }

  // Keys are counted from the first one of the tile's first block on.
  __device__ __forceinline__ void count_from(const Tile& tile) {
    visible[0] -= tile.first * kTileN;
    visible[1] -= tile.first * kTileN;
    keys_a_block = tile.shares * kTileN;
  }

  // The first column of a masked block that row 0 or 1 does not see, counted from this thread's first column.
  // `left` of the tile's blocks are still to come (block_at).
  __device__ __forceinline__ int first_hidden(int which, int left) const {
    return visible[which] - left * keys_a_block - 2 * (lane() % 4);
  }
};

// In which order blocks of keys come.

// The block after which `left` others are still to come, where all rows see the first `full` in full. Blocks
// go from the last one down, except that block 0 comes right after the blocks that not all rows see in full.
// So a row sees both ends of its keys first, where its largest scores tend to be, and the shift that it takes
// from them rarely has to move.
__device__ __forceinline__ int ends_first(int left, int full) {
  return left >= full ? left : left == full - 1 ? 0 : left + 1;
}

// Which blocks of a CTA's share of the keys the rows of a tile see, and in which order.

// Blocks of this CTA's share that at least one of the 64 rows from `row` on sees; none where the rows are
// past the end.
__device__ __forceinline__ int blocks_of_rows(int row, const Tile& tile, const ForwardParams& p) {
  const int seen = row < row_count(p) ? (keys_before(row + 64, p) + kTileN - 1) / kTileN : 0;
  return blocks_of_share(seen, tile);
}

// The share's first n blocks are seen in full by all rows from `row` on, and by then each row has seen a key
// of a later block of the share. Where the diagonal runs through the share's last block, some rows see
// nothing of it, and the block before it is their first: that one is not counted.
__device__ __forceinline__ int full_blocks(int row, const Tile& tile, const ForwardParams& p) {
  const int full = blocks_of_share(keys_before(row + 1, p) / kTileN, tile);
  return max(0, full - (full < blocks_of_rows(row, tile, p)));
}

// The last of the share's blocks that all rows of the tile see in full, counted from the share's first.
// No warpgroup has fewer such blocks than the first one, which has the tile's first rows, and full_blocks
// takes off one at most.
__device__ __forceinline__ int last_full_block(const Tile& tile, const ForwardParams& p) {
  return blocks_of_share(keys_before(tile.row + 1, p) / kTileN, tile) - 1;
}

// The block of a share after which `left` others are still to come.
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams& p) {
  return tile.first + ends_first(left, last_full_block(tile, p)) * tile.shares;
}

// The shift of a row that has seen no key, or only scores of -inf: finite, so that no difference is NaN, and
// the lowest finite number.

constexpr float kUnset = -0x1.fffffep127f;

// S of a consumer: the scores of 64 rows and a block of keys, laid out as wgmma's accumulators
// (ptx/wgmma.cuh). Their exponentials take the same place, and P holds these as pairs. Like O
// (output_registers.cuh), S and P have PTX registers of their own, s0, s1, … and p0, p1, …: C++ arrays would
// be operands of each product, and of the pins that keep the compiler from moving reads above the wait for
// it. The accumulators of 16 columns are, in order, the fragment of 16 rows of V.

// Called once, before all that names them.
__device__ __forceinline__ void declare_scores() {
  asm volatile(
      ".reg .f32 s<%0>;\n"
      ".reg .b32 p<%1>;" ::"n"(kTileN / 2),
      "n"(kTileN / 4));
}

// Hides the columns from `first_hidden` on, which is counted for each of the two rows from this thread's
// first column.
__device__ __forceinline__ void hide_scores(int first_hidden0, int first_hidden1) {
  asm volatile(
      "{\n"
      ".reg .pred hidden;\n"
      "setp.le.s32 hidden, %0, 0; @hidden mov.f32 s0, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 0; @hidden mov.f32 s2, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 1; @hidden mov.f32 s1, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 1; @hidden mov.f32 s3, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 8; @hidden mov.f32 s4, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 8; @hidden mov.f32 s6, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 9; @hidden mov.f32 s5, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 9; @hidden mov.f32 s7, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 16; @hidden mov.f32 s8, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 16; @hidden mov.f32 s10, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 17; @hidden mov.f32 s9, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 17; @hidden mov.f32 s11, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 24; @hidden mov.f32 s12, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 24; @hidden mov.f32 s14, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 25; @hidden mov.f32 s13, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 25; @hidden mov.f32 s15, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 32; @hidden mov.f32 s16, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 32; @hidden mov.f32 s18, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 33; @hidden mov.f32 s17, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 33; @hidden mov.f32 s19, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 40; @hidden mov.f32 s20, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 40; @hidden mov.f32 s22, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 41; @hidden mov.f32 s21, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 41; @hidden mov.f32 s23, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 48; @hidden mov.f32 s24, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 48; @hidden mov.f32 s26, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 49; @hidden mov.f32 s25, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 49; @hidden mov.f32 s27, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 56; @hidden mov.f32 s28, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 56; @hidden mov.f32 s30, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 57; @hidden mov.f32 s29, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 57; @hidden mov.f32 s31, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 64; @hidden mov.f32 s32, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 64; @hidden mov.f32 s34, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 65; @hidden mov.f32 s33, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 65; @hidden mov.f32 s35, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 72; @hidden mov.f32 s36, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 72; @hidden mov.f32 s38, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 73; @hidden mov.f32 s37, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 73; @hidden mov.f32 s39, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 80; @hidden mov.f32 s40, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 80; @hidden mov.f32 s42, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 81; @hidden mov.f32 s41, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 81; @hidden mov.f32 s43, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 88; @hidden mov.f32 s44, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 88; @hidden mov.f32 s46, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 89; @hidden mov.f32 s45, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 89; @hidden mov.f32 s47, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 96; @hidden mov.f32 s48, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 96; @hidden mov.f32 s50, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 97; @hidden mov.f32 s49, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 97; @hidden mov.f32 s51, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 104; @hidden mov.f32 s52, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 104; @hidden mov.f32 s54, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 105; @hidden mov.f32 s53, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 105; @hidden mov.f32 s55, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 112; @hidden mov.f32 s56, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 112; @hidden mov.f32 s58, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 113; @hidden mov.f32 s57, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 113; @hidden mov.f32 s59, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 120; @hidden mov.f32 s60, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 120; @hidden mov.f32 s62, 0fff800000;\n"
      "setp.le.s32 hidden, %0, 121; @hidden mov.f32 s61, 0fff800000;\n"
      "setp.le.s32 hidden, %1, 121; @hidden mov.f32 s63, 0fff800000;\n"
      "}\n" ::"r"(first_hidden0),
      "r"(first_hidden1));
}

// The largest of this thread's scores of each row, in several chains that run side by side.
__device__ __forceinline__ void find_peaks(float (&peak)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<8>;\n"
      "max.f32 x0, s0, s8;\n"
      "max.f32 x1, s1, s9;\n"
      "max.f32 x2, s4, s12;\n"
      "max.f32 x3, s5, s13;\n"
      "max.f32 x0, x0, s16;\n"
      "max.f32 x1, x1, s17;\n"
      "max.f32 x2, x2, s20;\n"
      "max.f32 x3, x3, s21;\n"
      "max.f32 x0, x0, s24;\n"
      "max.f32 x1, x1, s25;\n"
      "max.f32 x2, x2, s28;\n"
      "max.f32 x3, x3, s29;\n"
      "max.f32 x0, x0, s32;\n"
      "max.f32 x1, x1, s33;\n"
      "max.f32 x2, x2, s36;\n"
      "max.f32 x3, x3, s37;\n"
      "max.f32 x0, x0, s40;\n"
      "max.f32 x1, x1, s41;\n"
      "max.f32 x2, x2, s44;\n"
      "max.f32 x3, x3, s45;\n"
      "max.f32 x0, x0, s48;\n"
      "max.f32 x1, x1, s49;\n"
      "max.f32 x2, x2, s52;\n"
      "max.f32 x3, x3, s53;\n"
      "max.f32 x0, x0, s56;\n"
      "max.f32 x1, x1, s57;\n"
      "max.f32 x2, x2, s60;\n"
      "max.f32 x3, x3, s61;\n"
      "max.f32 x0, x0, x2;\n"
      "max.f32 x1, x1, x3;\n"
      "max.f32 %0, x0, x1;\n"
      "max.f32 x0, s2, s10;\n"
      "max.f32 x1, s3, s11;\n"
      "max.f32 x2, s6, s14;\n"
      "max.f32 x3, s7, s15;\n"
      "max.f32 x0, x0, s18;\n"
      "max.f32 x1, x1, s19;\n"
      "max.f32 x2, x2, s22;\n"
      "max.f32 x3, x3, s23;\n"
      "max.f32 x0, x0, s26;\n"
      "max.f32 x1, x1, s27;\n"
      "max.f32 x2, x2, s30;\n"
      "max.f32 x3, x3, s31;\n"
      "max.f32 x0, x0, s34;\n"
      "max.f32 x1, x1, s35;\n"
      "max.f32 x2, x2, s38;\n"
      "max.f32 x3, x3, s39;\n"
      "max.f32 x0, x0, s42;\n"
      "max.f32 x1, x1, s43;\n"
      "max.f32 x2, x2, s46;\n"
      "max.f32 x3, x3, s47;\n"
      "max.f32 x0, x0, s50;\n"
      "max.f32 x1, x1, s51;\n"
      "max.f32 x2, x2, s54;\n"
      "max.f32 x3, x3, s55;\n"
      "max.f32 x0, x0, s58;\n"
      "max.f32 x1, x1, s59;\n"
      "max.f32 x2, x2, s62;\n"
      "max.f32 x3, x3, s63;\n"
      "max.f32 x0, x0, x2;\n"
      "max.f32 x1, x1, x3;\n"
      "max.f32 %1, x0, x1;\n"
      "}\n"
      : "=f"(peak[0]), "=f"(peak[1]));
}

// exp2(scale_log2 * score - shift) in the scores' place: of the first three quarters of the columns, which
// start the sums of each row's exponentials …
__device__ __forceinline__ void take_first_exponentials(float scale_log2, const float (&shift)[2],
                                                        float (&sum)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<4>;\n"
      "fma.rn.f32 s0, s0, %2, %3; ex2.approx.ftz.f32 s0, s0; mov.f32 x0, s0;\n"
      "fma.rn.f32 s1, s1, %2, %3; ex2.approx.ftz.f32 s1, s1; mov.f32 x1, s1;\n"
      "fma.rn.f32 s4, s4, %2, %3; ex2.approx.ftz.f32 s4, s4; add.f32 x0, x0, s4;\n"
      "fma.rn.f32 s5, s5, %2, %3; ex2.approx.ftz.f32 s5, s5; add.f32 x1, x1, s5;\n"
      "fma.rn.f32 s8, s8, %2, %3; ex2.approx.ftz.f32 s8, s8; add.f32 x0, x0, s8;\n"
      "fma.rn.f32 s9, s9, %2, %3; ex2.approx.ftz.f32 s9, s9; add.f32 x1, x1, s9;\n"
      "fma.rn.f32 s12, s12, %2, %3; ex2.approx.ftz.f32 s12, s12; add.f32 x0, x0, s12;\n"
      "fma.rn.f32 s13, s13, %2, %3; ex2.approx.ftz.f32 s13, s13; add.f32 x1, x1, s13;\n"
      "fma.rn.f32 s16, s16, %2, %3; ex2.approx.ftz.f32 s16, s16; add.f32 x0, x0, s16;\n"
      "fma.rn.f32 s17, s17, %2, %3; ex2.approx.ftz.f32 s17, s17; add.f32 x1, x1, s17;\n"
      "fma.rn.f32 s20, s20, %2, %3; ex2.approx.ftz.f32 s20, s20; add.f32 x0, x0, s20;\n"
      "fma.rn.f32 s21, s21, %2, %3; ex2.approx.ftz.f32 s21, s21; add.f32 x1, x1, s21;\n"
      "fma.rn.f32 s24, s24, %2, %3; ex2.approx.ftz.f32 s24, s24; add.f32 x0, x0, s24;\n"
      "fma.rn.f32 s25, s25, %2, %3; ex2.approx.ftz.f32 s25, s25; add.f32 x1, x1, s25;\n"
      "fma.rn.f32 s28, s28, %2, %3; ex2.approx.ftz.f32 s28, s28; add.f32 x0, x0, s28;\n"
      "fma.rn.f32 s29, s29, %2, %3; ex2.approx.ftz.f32 s29, s29; add.f32 x1, x1, s29;\n"
      "fma.rn.f32 s32, s32, %2, %3; ex2.approx.ftz.f32 s32, s32; add.f32 x0, x0, s32;\n"
      "fma.rn.f32 s33, s33, %2, %3; ex2.approx.ftz.f32 s33, s33; add.f32 x1, x1, s33;\n"
      "fma.rn.f32 s36, s36, %2, %3; ex2.approx.ftz.f32 s36, s36; add.f32 x0, x0, s36;\n"
      "fma.rn.f32 s37, s37, %2, %3; ex2.approx.ftz.f32 s37, s37; add.f32 x1, x1, s37;\n"
      "fma.rn.f32 s40, s40, %2, %3; ex2.approx.ftz.f32 s40, s40; add.f32 x0, x0, s40;\n"
      "fma.rn.f32 s41, s41, %2, %3; ex2.approx.ftz.f32 s41, s41; add.f32 x1, x1, s41;\n"
      "fma.rn.f32 s44, s44, %2, %3; ex2.approx.ftz.f32 s44, s44; add.f32 x0, x0, s44;\n"
      "fma.rn.f32 s45, s45, %2, %3; ex2.approx.ftz.f32 s45, s45; add.f32 x1, x1, s45;\n"
      "fma.rn.f32 s2, s2, %2, %4; ex2.approx.ftz.f32 s2, s2; mov.f32 x2, s2;\n"
      "fma.rn.f32 s3, s3, %2, %4; ex2.approx.ftz.f32 s3, s3; mov.f32 x3, s3;\n"
      "fma.rn.f32 s6, s6, %2, %4; ex2.approx.ftz.f32 s6, s6; add.f32 x2, x2, s6;\n"
      "fma.rn.f32 s7, s7, %2, %4; ex2.approx.ftz.f32 s7, s7; add.f32 x3, x3, s7;\n"
      "fma.rn.f32 s10, s10, %2, %4; ex2.approx.ftz.f32 s10, s10; add.f32 x2, x2, s10;\n"
      "fma.rn.f32 s11, s11, %2, %4; ex2.approx.ftz.f32 s11, s11; add.f32 x3, x3, s11;\n"
      "fma.rn.f32 s14, s14, %2, %4; ex2.approx.ftz.f32 s14, s14; add.f32 x2, x2, s14;\n"
      "fma.rn.f32 s15, s15, %2, %4; ex2.approx.ftz.f32 s15, s15; add.f32 x3, x3, s15;\n"
      "fma.rn.f32 s18, s18, %2, %4; ex2.approx.ftz.f32 s18, s18; add.f32 x2, x2, s18;\n"
      "fma.rn.f32 s19, s19, %2, %4; ex2.approx.ftz.f32 s19, s19; add.f32 x3, x3, s19;\n"
      "fma.rn.f32 s22, s22, %2, %4; ex2.approx.ftz.f32 s22, s22; add.f32 x2, x2, s22;\n"
      "fma.rn.f32 s23, s23, %2, %4; ex2.approx.ftz.f32 s23, s23; add.f32 x3, x3, s23;\n"
      "fma.rn.f32 s26, s26, %2, %4; ex2.approx.ftz.f32 s26, s26; add.f32 x2, x2, s26;\n"
      "fma.rn.f32 s27, s27, %2, %4; ex2.approx.ftz.f32 s27, s27; add.f32 x3, x3, s27;\n"
      "fma.rn.f32 s30, s30, %2, %4; ex2.approx.ftz.f32 s30, s30; add.f32 x2, x2, s30;\n"
      "fma.rn.f32 s31, s31, %2, %4; ex2.approx.ftz.f32 s31, s31; add.f32 x3, x3, s31;\n"
      "fma.rn.f32 s34, s34, %2, %4; ex2.approx.ftz.f32 s34, s34; add.f32 x2, x2, s34;\n"
      "fma.rn.f32 s35, s35, %2, %4; ex2.approx.ftz.f32 s35, s35; add.f32 x3, x3, s35;\n"
      "fma.rn.f32 s38, s38, %2, %4; ex2.approx.ftz.f32 s38, s38; add.f32 x2, x2, s38;\n"
      "fma.rn.f32 s39, s39, %2, %4; ex2.approx.ftz.f32 s39, s39; add.f32 x3, x3, s39;\n"
      "fma.rn.f32 s42, s42, %2, %4; ex2.approx.ftz.f32 s42, s42; add.f32 x2, x2, s42;\n"
      "fma.rn.f32 s43, s43, %2, %4; ex2.approx.ftz.f32 s43, s43; add.f32 x3, x3, s43;\n"
      "fma.rn.f32 s46, s46, %2, %4; ex2.approx.ftz.f32 s46, s46; add.f32 x2, x2, s46;\n"
      "fma.rn.f32 s47, s47, %2, %4; ex2.approx.ftz.f32 s47, s47; add.f32 x3, x3, s47;\n"
      "add.f32 %0, x0, x1;\n"
      "add.f32 %1, x2, x3;\n"
      "}\n"
      : "=f"(sum[0]), "=f"(sum[1])
      : "f"(scale_log2), "f"(-shift[0]), "f"(-shift[1]));
}

// … and of the others, which join them.
__device__ __forceinline__ void take_last_exponentials(float scale_log2, const float (&shift)[2],
                                                       float (&sum)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<4>;\n"
      "fma.rn.f32 s48, s48, %2, %3; ex2.approx.ftz.f32 s48, s48; add.f32 x0, %0, s48;\n"
      "fma.rn.f32 s49, s49, %2, %3; ex2.approx.ftz.f32 s49, s49; mov.f32 x1, s49;\n"
      "fma.rn.f32 s52, s52, %2, %3; ex2.approx.ftz.f32 s52, s52; add.f32 x0, x0, s52;\n"
      "fma.rn.f32 s53, s53, %2, %3; ex2.approx.ftz.f32 s53, s53; add.f32 x1, x1, s53;\n"
      "fma.rn.f32 s56, s56, %2, %3; ex2.approx.ftz.f32 s56, s56; add.f32 x0, x0, s56;\n"
      "fma.rn.f32 s57, s57, %2, %3; ex2.approx.ftz.f32 s57, s57; add.f32 x1, x1, s57;\n"
      "fma.rn.f32 s60, s60, %2, %3; ex2.approx.ftz.f32 s60, s60; add.f32 x0, x0, s60;\n"
      "fma.rn.f32 s61, s61, %2, %3; ex2.approx.ftz.f32 s61, s61; add.f32 x1, x1, s61;\n"
      "fma.rn.f32 s50, s50, %2, %4; ex2.approx.ftz.f32 s50, s50; add.f32 x2, %1, s50;\n"
      "fma.rn.f32 s51, s51, %2, %4; ex2.approx.ftz.f32 s51, s51; mov.f32 x3, s51;\n"
      "fma.rn.f32 s54, s54, %2, %4; ex2.approx.ftz.f32 s54, s54; add.f32 x2, x2, s54;\n"
      "fma.rn.f32 s55, s55, %2, %4; ex2.approx.ftz.f32 s55, s55; add.f32 x3, x3, s55;\n"
      "fma.rn.f32 s58, s58, %2, %4; ex2.approx.ftz.f32 s58, s58; add.f32 x2, x2, s58;\n"
      "fma.rn.f32 s59, s59, %2, %4; ex2.approx.ftz.f32 s59, s59; add.f32 x3, x3, s59;\n"
      "fma.rn.f32 s62, s62, %2, %4; ex2.approx.ftz.f32 s62, s62; add.f32 x2, x2, s62;\n"
      "fma.rn.f32 s63, s63, %2, %4; ex2.approx.ftz.f32 s63, s63; add.f32 x3, x3, s63;\n"
      "add.f32 %0, x0, x1;\n"
      "add.f32 %1, x2, x3;\n"
      "}\n"
      : "+f"(sum[0]), "+f"(sum[1])
      : "f"(scale_log2), "f"(-shift[0]), "f"(-shift[1]));
}

__device__ __forceinline__ void pack_exponentials() {
  asm volatile(
      "cvt.rn.bf16x2.f32 p0, s1, s0;\n"
      "cvt.rn.bf16x2.f32 p1, s3, s2;\n"
      "cvt.rn.bf16x2.f32 p2, s5, s4;\n"
      "cvt.rn.bf16x2.f32 p3, s7, s6;\n"
      "cvt.rn.bf16x2.f32 p4, s9, s8;\n"
      "cvt.rn.bf16x2.f32 p5, s11, s10;\n"
      "cvt.rn.bf16x2.f32 p6, s13, s12;\n"
      "cvt.rn.bf16x2.f32 p7, s15, s14;\n"
      "cvt.rn.bf16x2.f32 p8, s17, s16;\n"
      "cvt.rn.bf16x2.f32 p9, s19, s18;\n"
      "cvt.rn.bf16x2.f32 p10, s21, s20;\n"
      "cvt.rn.bf16x2.f32 p11, s23, s22;\n"
      "cvt.rn.bf16x2.f32 p12, s25, s24;\n"
      "cvt.rn.bf16x2.f32 p13, s27, s26;\n"
      "cvt.rn.bf16x2.f32 p14, s29, s28;\n"
      "cvt.rn.bf16x2.f32 p15, s31, s30;\n"
      "cvt.rn.bf16x2.f32 p16, s33, s32;\n"
      "cvt.rn.bf16x2.f32 p17, s35, s34;\n"
      "cvt.rn.bf16x2.f32 p18, s37, s36;\n"
      "cvt.rn.bf16x2.f32 p19, s39, s38;\n"
      "cvt.rn.bf16x2.f32 p20, s41, s40;\n"
      "cvt.rn.bf16x2.f32 p21, s43, s42;\n"
      "cvt.rn.bf16x2.f32 p22, s45, s44;\n"
      "cvt.rn.bf16x2.f32 p23, s47, s46;\n"
      "cvt.rn.bf16x2.f32 p24, s49, s48;\n"
      "cvt.rn.bf16x2.f32 p25, s51, s50;\n"
      "cvt.rn.bf16x2.f32 p26, s53, s52;\n"
      "cvt.rn.bf16x2.f32 p27, s55, s54;\n"
      "cvt.rn.bf16x2.f32 p28, s57, s56;\n"
      "cvt.rn.bf16x2.f32 p29, s59, s58;\n"
      "cvt.rn.bf16x2.f32 p30, s61, s60;\n"
      "cvt.rn.bf16x2.f32 p31, s63, s62;\n"
  );
}

// Scales the exponentials by a factor for each of the thread's two rows.
__device__ __forceinline__ void scale_exponentials(const float (&factor)[2]) {
  asm volatile(
      "mul.f32 s0, s0, %0; mul.f32 s1, s1, %0; mul.f32 s2, s2, %1; mul.f32 s3, s3, %1;\n"
      "mul.f32 s4, s4, %0; mul.f32 s5, s5, %0; mul.f32 s6, s6, %1; mul.f32 s7, s7, %1;\n"
      "mul.f32 s8, s8, %0; mul.f32 s9, s9, %0; mul.f32 s10, s10, %1; mul.f32 s11, s11, %1;\n"
      "mul.f32 s12, s12, %0; mul.f32 s13, s13, %0; mul.f32 s14, s14, %1; mul.f32 s15, s15, %1;\n"
      "mul.f32 s16, s16, %0; mul.f32 s17, s17, %0; mul.f32 s18, s18, %1; mul.f32 s19, s19, %1;\n"
      "mul.f32 s20, s20, %0; mul.f32 s21, s21, %0; mul.f32 s22, s22, %1; mul.f32 s23, s23, %1;\n"
      "mul.f32 s24, s24, %0; mul.f32 s25, s25, %0; mul.f32 s26, s26, %1; mul.f32 s27, s27, %1;\n"
      "mul.f32 s28, s28, %0; mul.f32 s29, s29, %0; mul.f32 s30, s30, %1; mul.f32 s31, s31, %1;\n"
      "mul.f32 s32, s32, %0; mul.f32 s33, s33, %0; mul.f32 s34, s34, %1; mul.f32 s35, s35, %1;\n"
      "mul.f32 s36, s36, %0; mul.f32 s37, s37, %0; mul.f32 s38, s38, %1; mul.f32 s39, s39, %1;\n"
      "mul.f32 s40, s40, %0; mul.f32 s41, s41, %0; mul.f32 s42, s42, %1; mul.f32 s43, s43, %1;\n"
      "mul.f32 s44, s44, %0; mul.f32 s45, s45, %0; mul.f32 s46, s46, %1; mul.f32 s47, s47, %1;\n"
      "mul.f32 s48, s48, %0; mul.f32 s49, s49, %0; mul.f32 s50, s50, %1; mul.f32 s51, s51, %1;\n"
      "mul.f32 s52, s52, %0; mul.f32 s53, s53, %0; mul.f32 s54, s54, %1; mul.f32 s55, s55, %1;\n"
      "mul.f32 s56, s56, %0; mul.f32 s57, s57, %0; mul.f32 s58, s58, %1; mul.f32 s59, s59, %1;\n"
      "mul.f32 s60, s60, %0; mul.f32 s61, s61, %0; mul.f32 s62, s62, %1; mul.f32 s63, s63, %1;\n"
      ::"f"(factor[0]), "f"(factor[1]));
}

__device__ __forceinline__ void clear_scores() {
  asm volatile(
      "mov.f32 s0, 0f00000000; mov.f32 s1, 0f00000000; mov.f32 s2, 0f00000000; mov.f32 s3, 0f00000000;\n"
      "mov.f32 s4, 0f00000000; mov.f32 s5, 0f00000000; mov.f32 s6, 0f00000000; mov.f32 s7, 0f00000000;\n"
      "mov.f32 s8, 0f00000000; mov.f32 s9, 0f00000000; mov.f32 s10, 0f00000000; mov.f32 s11, 0f00000000;\n"
      "mov.f32 s12, 0f00000000; mov.f32 s13, 0f00000000; mov.f32 s14, 0f00000000; mov.f32 s15, 0f00000000;\n"
      "mov.f32 s16, 0f00000000; mov.f32 s17, 0f00000000; mov.f32 s18, 0f00000000; mov.f32 s19, 0f00000000;\n"
      "mov.f32 s20, 0f00000000; mov.f32 s21, 0f00000000; mov.f32 s22, 0f00000000; mov.f32 s23, 0f00000000;\n"
      "mov.f32 s24, 0f00000000; mov.f32 s25, 0f00000000; mov.f32 s26, 0f00000000; mov.f32 s27, 0f00000000;\n"
      "mov.f32 s28, 0f00000000; mov.f32 s29, 0f00000000; mov.f32 s30, 0f00000000; mov.f32 s31, 0f00000000;\n"
      "mov.f32 s32, 0f00000000; mov.f32 s33, 0f00000000; mov.f32 s34, 0f00000000; mov.f32 s35, 0f00000000;\n"
      "mov.f32 s36, 0f00000000; mov.f32 s37, 0f00000000; mov.f32 s38, 0f00000000; mov.f32 s39, 0f00000000;\n"
      "mov.f32 s40, 0f00000000; mov.f32 s41, 0f00000000; mov.f32 s42, 0f00000000; mov.f32 s43, 0f00000000;\n"
      "mov.f32 s44, 0f00000000; mov.f32 s45, 0f00000000; mov.f32 s46, 0f00000000; mov.f32 s47, 0f00000000;\n"
      "mov.f32 s48, 0f00000000; mov.f32 s49, 0f00000000; mov.f32 s50, 0f00000000; mov.f32 s51, 0f00000000;\n"
      "mov.f32 s52, 0f00000000; mov.f32 s53, 0f00000000; mov.f32 s54, 0f00000000; mov.f32 s55, 0f00000000;\n"
      "mov.f32 s56, 0f00000000; mov.f32 s57, 0f00000000; mov.f32 s58, 0f00000000; mov.f32 s59, 0f00000000;\n"
      "mov.f32 s60, 0f00000000; mov.f32 s61, 0f00000000; mov.f32 s62, 0f00000000; mov.f32 s63, 0f00000000;\n"
  );
}

// s += q k^T over 16 columns of the head, by the warp's own products (PTX ISA, "mma"). Pointers are to this
// thread's first elements in device memory: of its two rows of Q, and of its first key. Groups of eight keys
// are `eight_rows` elements apart.
__device__ __forceinline__ void add_score_products(const unsigned short* q_low, const unsigned short* q_high,
                                                   const unsigned short* key, long long eight_rows) {
  asm volatile(
      "{\n"
      ".reg .b64 key;\n"
      ".reg .b32 q<4>, k<2>;\n"
      "ld.global.b32 q0, [%0]; ld.global.b32 q1, [%1];\n"
      "ld.global.b32 q2, [%0 + 16];\n"
      "ld.global.b32 q3, [%1 + 16];\n"
      "mov.b64 key, %2;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s0, s1, s2, s3}, {q0, q1, q2, q3}, {k0, k1}, {s0, s1, s2, s3};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s4, s5, s6, s7}, {q0, q1, q2, q3}, {k0, k1}, {s4, s5, s6, s7};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s8, s9, s10, s11}, {q0, q1, q2, q3}, {k0, k1}, {s8, s9, s10, s11};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s12, s13, s14, s15}, {q0, q1, q2, q3}, {k0, k1}, {s12, s13, s14, s15};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s16, s17, s18, s19}, {q0, q1, q2, q3}, {k0, k1}, {s16, s17, s18, s19};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s20, s21, s22, s23}, {q0, q1, q2, q3}, {k0, k1}, {s20, s21, s22, s23};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s24, s25, s26, s27}, {q0, q1, q2, q3}, {k0, k1}, {s24, s25, s26, s27};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s28, s29, s30, s31}, {q0, q1, q2, q3}, {k0, k1}, {s28, s29, s30, s31};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s32, s33, s34, s35}, {q0, q1, q2, q3}, {k0, k1}, {s32, s33, s34, s35};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s36, s37, s38, s39}, {q0, q1, q2, q3}, {k0, k1}, {s36, s37, s38, s39};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s40, s41, s42, s43}, {q0, q1, q2, q3}, {k0, k1}, {s40, s41, s42, s43};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s44, s45, s46, s47}, {q0, q1, q2, q3}, {k0, k1}, {s44, s45, s46, s47};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s48, s49, s50, s51}, {q0, q1, q2, q3}, {k0, k1}, {s48, s49, s50, s51};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s52, s53, s54, s55}, {q0, q1, q2, q3}, {k0, k1}, {s52, s53, s54, s55};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s56, s57, s58, s59}, {q0, q1, q2, q3}, {k0, k1}, {s56, s57, s58, s59};\n"
      "add.s64 key, key, %3;\n"
      "ld.global.b32 k0, [key];\n"
      "ld.global.b32 k1, [key + 16];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
      "{s60, s61, s62, s63}, {q0, q1, q2, q3}, {k0, k1}, {s60, s61, s62, s63};\n"
      "}\n" ::"l"(q_low),
      "l"(q_high), "l"(key),
      "l"(2 * eight_rows)
      : "memory");
}

// The fast logarithm of fp32 (PTX ISA, "lg2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The fast exponential of fp32 (PTX ISA, "ex2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLn2 = 0.693147180559945309f;

// The fast reciprocal of fp32 (PTX ISA, "rcp"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

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

// Online softmax (FlashAttention-2, algorithm 1) of a warpgroup's scores, apart from O, which is in flight
// meanwhile: what O must be scaled by is kept for later.

// The two rows of a thread, 8 apart; four lanes share them.
struct SoftmaxState {
  // Exponentials are exp2(scale_log2 * score - shift), where shift is the row's scaled maximum, or near it.
  float shift[2] = {kUnset, kUnset};
  float sum[2] = {0, 0};     // of this thread's exponentials
  float factor[2] = {1, 1};  // what O still has to be scaled by
  bool moved = true;  // some lane of the warp may have a factor that is not 1
};

// Moves the shifts above the rows' maxima, so that scores that grow by less need no further move, scales the
// sums and keeps the factors for O.
__device__ __forceinline__ void follow_peaks(SoftmaxState& rows, float scale_log2) {
  float peaks[2];
  find_peaks(peaks);
  peaks[0] *= scale_log2;
  peaks[1] *= scale_log2;
  // A shift stays while no scaled score exceeds it by more than kLazy, so that no exponential exceeds
  // 2^kLazy. O, the sum and P share the factor, and all are floating point, so nothing is lost of values
  // below 2^100. Each thread checks its own scores and the warp votes: no shuffles.
  rows.moved = __any_sync(0xffffffffu, peaks[0] - rows.shift[0] > kLazy || peaks[1] - rows.shift[1] > kLazy);
  if (!rows.moved) return;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float shift = fmaxf(rows.shift[row], quad_max(peaks[row]) + kHeadroom);
    rows.factor[row] = exp2_fast(rows.shift[row] - shift);
    rows.sum[row] *= rows.factor[row];
    rows.shift[row] = shift;
  }
}

// Adds a block's sums to those of the rows.
__device__ __forceinline__ void add(float (&sum)[2], const float (&of_block)[2]) {
  sum[0] += of_block[0];
  sum[1] += of_block[1];
}

// Whether in some lane of the warp the sum of a row's exponentials is too large for the row's shift to stay …
__device__ __forceinline__ bool has_outgrown(const float (&sum)[2]) {
  return __any_sync(0xffffffffu, !(sum[0] <= kLargestSum && sum[1] <= kLargestSum));
}

// … or so large that exponentials overflowed, or nearly did.
__device__ __forceinline__ bool are_lost(const float (&sum)[2]) {
  return __any_sync(0xffffffffu, !(sum[0] < kLostSum && sum[1] < kLostSum));
}

// What the largest of a row's lane sums becomes when its shift moves, however many keys are left.
__device__ __forceinline__ float sum_after_move(int) {
  return kSumAfterMove;
}

// Factors for rows whose exponentials were taken against a shift far below their maximum: the larger of the
// row's largest lane sum and a power of two near its sum so far becomes `after`, to within fp32's last bits.
// (Where one key outweighs all others, its exponential is its lane's sum, and P rounds as little as the
// textbook's 1.)
__device__ __forceinline__ void choose_factors(const SoftmaxState& rows, const float (&sum)[2], float after,
                                               float (&factor)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float before = __uint_as_float(__float_as_uint(rows.sum[row]) & 0x7f800000u);  // its power of two
    factor[row] = after * reciprocal_fast(fmaxf(quad_max(fmaxf(sum[row], before)), after));
  }
}

// Moves rows: their shifts, their sums and their exponentials. All sixteen rows of a warp move together,
// since what grew in one soon will in the others.
__device__ __forceinline__ void shrink(SoftmaxState& rows, float (&sum)[2], const float (&factor)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.factor[row] = factor[row];
    rows.shift[row] -= log2_fast(factor[row]);
    rows.sum[row] *= factor[row];
    sum[row] *= factor[row];
  }
  scale_exponentials(factor);
}

// Scales O by the factors kept for it.
__device__ __forceinline__ void rescale(const SoftmaxState& rows) {
  if (!rows.moved) return;
  scale_output(rows.factor);
}

// No factor is kept for O any more.
__device__ __forceinline__ void settle(SoftmaxState& rows) {
  rows.moved = false;
}

// Computes scores a second time, where exponentials taken without a maximum have overflowed. It happens to
// single warps and hardly ever, so it uses no shared memory and few instructions: Q and K come from device
// memory, and warp-level products multiply them.

// s = q k^T of this warp's 16 rows and a block that lies inside K, laid out as wgmma leaves it: wgmma's
// accumulators are those of a row of mma products, side by side.
__device__ __forceinline__ void recompute_scores(const Tile& tile, int row, int block,
                                                 const ForwardParams& p) {
  const int column = 2 * (lane() % 4);  // this thread's first
  const auto* q = static_cast<const unsigned short*>(p.q) + tile.batch * p.q_batch;
  const auto* k = static_cast<const unsigned short*>(p.k) + tile.batch * p.k_batch +
                  divide(tile.pack, p.by_group) * p.k_head;
  // Rows past the end or of no head are computed from the last row, and never stored.
  const auto row_at = [&](int i) {
    const int packed_row = min(i, row_count(p) - 1);
    return q + (packed_row >> p.packed) * p.q_row +
           (tile.pack * p.heads_of_pack + min(place_of(packed_row, p), p.heads_of_pack - 1)) * p.q_head +
           column;
  };
  const auto* q_low = row_at(row);
  const auto* q_high = row_at(row + 8);
  const auto* k_first = k + (block * kTileN + lane() / 4) * p.k_row + column;
  clear_scores();
#pragma unroll 1
  for (int step = 0; step < kHeadDim; step += 16) {
    add_score_products(q_low + step, q_high + step, k_first + step, 8 * p.k_row);
  }
}

// Online softmax, one block after the other: what becomes of a warpgroup's scores between the product that
// makes them and the product that takes P.

struct BlockSoftmax {
  const float scale_log2;
  SoftmaxState rows;

  __device__ __forceinline__ explicit BlockSoftmax(float scale) : scale_log2(scale) {}

  // Chooses the shifts that a block's exponentials are taken against. A masked block's number is `left`
  // (block_at).
  __device__ __forceinline__ void choose_shifts(const RowsOfThread& mine, int left, bool masked) {
    if (masked) hide_scores(mine.first_hidden(0, left), mine.first_hidden(1, left));
    // Where nothing is hidden, every row has seen keys before and keeps its shift, with no search for a
    // maximum: the sums will tell whether some score was far above it (move_outgrown).
    if (!masked) return;
    follow_peaks(rows, scale_log2);
  }

  // The first three quarters of the scores become exponentials, and are summed …
  __device__ __forceinline__ void begin_exponentials(float (&sum)[2]) const {
    take_first_exponentials(scale_log2, rows.shift, sum);
  }
  // … and the others.
  __device__ __forceinline__ void end_exponentials(float (&sum)[2]) const {
    take_last_exponentials(scale_log2, rows.shift, sum);
  }
  __device__ __forceinline__ void exponentiate(float (&sum)[2]) const {
    begin_exponentials(sum);
    end_exponentials(sum);
  }

  // Where sums have outgrown their shifts, moves the shifts of all rows of the warp, unless some exponentials
  // are lost. Returns whether they moved. (The vote on lost exponentials runs beside the quads' shuffles.)
  __device__ __forceinline__ bool move_outgrown(int left, float (&sum)[2]) {
    float factor[2];
    choose_factors(rows, sum, sum_after_move((left + 1) * kTileN - 1), factor);
    const bool some_lost = are_lost(sum);
    if (!some_lost) shrink(rows, sum, factor);
    return !some_lost;
  }

  // The textbook's softmax for a block whose exponentials are lost. No product is in flight here.
  __device__ __forceinline__ void start_over(const RowsOfThread& mine, const Tile& tile, int left,
                                             const ForwardParams& p, float (&sum)[2]) {
    recompute_scores(tile, mine.row, block_at(left, tile, p), p);
    follow_peaks(rows, scale_log2);
    exponentiate(sum);
  }

  // From a block's exponentials to P. No product is in flight here.
  __device__ __forceinline__ void finish(const RowsOfThread& mine, const Tile& tile, int left, bool masked,
                                         const ForwardParams& p, float (&sum)[2]) {
    if (!masked) rows.moved = has_outgrown(sum);
    pack_exponentials();
    // The vote ran beside the packing, which is in vain in warps that move: they pack again.
    if (!masked && rows.moved) {
      if (!move_outgrown(left, sum)) start_over(mine, tile, left, p, sum);
      pack_exponentials();
    }
    add(rows.sum, sum);
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

// Where everything lies in the CTA's shared memory. Tiles are panels of 64 columns, each row 128 bytes,
// swizzled as TMA does it over 1024 bytes.

constexpr int kRowBytes = 128;  // 64 columns of 16 bits
constexpr int kPanelsQk = (kHeadDim + 63) / 64;
constexpr int kPanelsV = (kHeadDimV + 63) / 64;

// Bytes of one warpgroup's Q.
constexpr int kQBytes = 64 * kRowBytes * kPanelsQk;
// Bytes of one block of K or V, as it is copied.
constexpr int kKLoaded = kTileN * kHeadDim * 2;
constexpr int kVLoaded = kTileN * kHeadDimV * 2;
// Bytes of one stage.
constexpr int kKBytes = kTileN * kRowBytes * kPanelsQk;
constexpr int kVBytes = kTileN * kRowBytes * kPanelsV;

constexpr int kQ = 0;
constexpr int kK = kQ + kWarpgroups * kQBytes;
constexpr int kV = kK + kStages * kKBytes;

constexpr int kKFull = kV + kStages * kVBytes;
constexpr int kKEmpty = kKFull + 8 * kStages;
constexpr int kVFull = kKEmpty + 8 * kStages;
constexpr int kVEmpty = kVFull + 8 * kStages;
constexpr int kQFull = kVEmpty + 8 * kStages;
constexpr int kSums = kQFull + 8 * kWarpgroups;  // of every CTA's rows, with their shifts
static_assert(kSums + kCluster * kTileM * 8 <= kSharedBytes);

// Each CTA adds up some groups of eight of O's columns, from all CTAs' partial results.
constexpr int kGroupsOfCta = (kHeadDimV / 8 + kCluster - 1) / kCluster;
constexpr int kPieceBytes = 4 * 4;  // two columns of two rows
constexpr int kPieces = kK;         // where K and V have been
static_assert(kCluster * kTileM * 2 * kGroupsOfCta * kPieceBytes <= kStages * (kKBytes + kVBytes));

// A place in a ring of kStages buffers, and the parity its barriers are waited for with.
struct RingPlace {
  int stage, parity;
};

__device__ __forceinline__ void advance(RingPlace& place) {
  if (++place.stage == kStages) {
    place.stage = 0;
    place.parity ^= 1;
  }
}

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  constexpr int kConsumerWarps = 4 * kWarpgroups;
  constexpr int kReaders = kConsumerWarps;  // of a block of K or V
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, 1);
    mbarrier_init(shared + kVFull + 8 * stage, 1);
    mbarrier_init(shared + kKEmpty + 8 * stage, kReaders);
    mbarrier_init(shared + kVEmpty + 8 * stage, kReaders);
  }
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    mbarrier_init(shared + kQFull + 8 * warpgroup, 1);
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

// What a consumer shares with others: the rings of K and V that the producer fills, and barriers.

struct ConsumerRings {
  const unsigned shared;
  const int warpgroup;  // 0 .. kWarpgroups - 1
  RingPlace k_place{0, 0}, v_place{0, 0};
  unsigned k_tile, v_tile;  // lower halves of the descriptors of the blocks there (products.cuh)

  __device__ __forceinline__ ConsumerRings(unsigned shared_memory, int number)
      : shared(shared_memory),
        warpgroup(number),
        k_tile(static_cast<unsigned>(wgmma_descriptor(shared_memory + kK, 0))),
        v_tile(static_cast<unsigned>(wgmma_descriptor(shared_memory + kV, kTileN * kRowBytes))) {
  }

  __device__ __forceinline__ void wait_k() const {
    mbarrier_wait(shared + kKFull + 8 * k_place.stage, k_place.parity);
  }
  __device__ __forceinline__ void wait_v() const {
    mbarrier_wait(shared + kVFull + 8 * v_place.stage, v_place.parity);
  }

  // One arrival per warp: its products have read the block. The descriptors move along: computing them from
  // the stage would delay the next product.
  __device__ __forceinline__ void release_k() {
    if (lane() == 0) mbarrier_arrive(shared + kKEmpty + 8 * k_place.stage);
    advance(k_place);
    k_tile += (k_place.stage == 0 ? 1 - kStages : 1) * (kKBytes / 16);
  }
  __device__ __forceinline__ void release_v() {
    if (lane() == 0) mbarrier_arrive(shared + kVEmpty + 8 * v_place.stage);
    advance(v_place);
    v_tile += (v_place.stage == 0 ? 1 - kStages : 1) * (kVBytes / 16);
  }

  // Takes blocks that other rows of the tile see and these rows do not, and gives them back, so that the
  // rings move on.
  __device__ __forceinline__ void pass_blocks(int count) {
#pragma unroll 1  // few, and rarely any
    for (; count > 0; --count) {
      wait_k();
      release_k();
      wait_v();
      release_v();
    }
  }
};

// Where a warp's fragments lie in a swizzled tile of 64 rows.

// Bytes from the start of a 64-row tile to this lane's 16 bytes of columns 16 * step .. 16 * step + 15, for
// ldmatrix and stmatrix of four 8x8 matrices: lanes 0-15 have the first eight columns of a warp's 16 rows,
// lanes 16-31 the others.
__device__ __forceinline__ unsigned fragment_offset(int step) {
  const int row = 16 * warp_of_warpgroup() + lane() % 16;
  const int piece = 2 * step + lane() / 16;
  return piece / 8 * (64 * kRowBytes) + row * kRowBytes + ((piece % 8 ^ row % 8) * 16);
}

// The two products of a block of keys, each one asm statement: C++ cannot say the operands of wgmma, and the
// compilers take their time over every list of them. The renderer writes them down.

// Tiles come as the lower halves of their descriptors, to which a step adds bytes / 16. The upper half is the
// same for all of them: their rows' swizzle, and the bytes of eight rows / 16 (PTX ISA, "matrix descriptor
// format").
constexpr unsigned kUpperHalf = 1u << 30 | 8 * kRowBytes / 16;

// 16 columns of the head are 32 bytes of a row, four such steps to a panel.
constexpr int k_step(int step) {
  return step / 4 * (kTileN * kRowBytes / 16) + step % 4 * 2;
}

// 16 keys are 16 rows.
constexpr int v_step(int step) {
  return step * (16 * kRowBytes / 16);
}

// Begins s = q k^T, 16 columns of the head at a time: 64 x kTileN.
__device__ __forceinline__ void wgmma_scores(
    const unsigned (&q)[kQRegisterSteps][4],
    unsigned k_tile) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      ".reg .b32 low;\n"
      ".reg .b64 b;\n"
      "wgmma.fence.sync.aligned;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "add.u32 low, %32, %33;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%0, %1, %2, %3}, b, accumulate, 1, 1, 0;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %32, %34;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%4, %5, %6, %7}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %32, %35;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%8, %9, %10, %11}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %32, %36;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%12, %13, %14, %15}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %32, %37;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%16, %17, %18, %19}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %32, %38;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%20, %21, %22, %23}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %32, %39;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%24, %25, %26, %27}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %32, %40;\n"
      "mov.b64 b, {low, %41};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31,\n"
      "s32, s33, s34, s35, s36, s37, s38, s39, s40, s41, s42, s43, s44, s45, s46, s47,\n"
      "s48, s49, s50, s51, s52, s53, s54, s55, s56, s57, s58, s59, s60, s61, s62, s63},\n"
      "{%28, %29, %30, %31}, b, accumulate, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      ::
      "r"(q[0][0]), "r"(q[0][1]), "r"(q[0][2]), "r"(q[0][3]),
      "r"(q[1][0]), "r"(q[1][1]), "r"(q[1][2]), "r"(q[1][3]),
      "r"(q[2][0]), "r"(q[2][1]), "r"(q[2][2]), "r"(q[2][3]),
      "r"(q[3][0]), "r"(q[3][1]), "r"(q[3][2]), "r"(q[3][3]),
      "r"(q[4][0]), "r"(q[4][1]), "r"(q[4][2]), "r"(q[4][3]),
      "r"(q[5][0]), "r"(q[5][1]), "r"(q[5][2]), "r"(q[5][3]),
      "r"(q[6][0]), "r"(q[6][1]), "r"(q[6][2]), "r"(q[6][3]),
      "r"(q[7][0]), "r"(q[7][1]), "r"(q[7][2]), "r"(q[7][3]),
      "r"(k_tile),
      "n"(k_step(0)), "n"(k_step(1)), "n"(k_step(2)), "n"(k_step(3)),
      "n"(k_step(4)), "n"(k_step(5)), "n"(k_step(6)), "n"(k_step(7)),
      "n"(kUpperHalf)
      : "memory");
}

// Begins o += p v, 16 keys at a time: 64 x kHeadDimV. The keys' rows of v run along o's columns.
__device__ __forceinline__ void wgmma_values(unsigned v_tile) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      ".reg .b32 low;\n"
      ".reg .b64 b;\n"
      "wgmma.fence.sync.aligned;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %0, %1;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p0, p1, p2, p3}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %2;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p4, p5, p6, p7}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %3;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p8, p9, p10, p11}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %4;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p12, p13, p14, p15}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %5;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p16, p17, p18, p19}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %6;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p20, p21, p22, p23}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %7;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p24, p25, p26, p27}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %8;\n"
      "mov.b64 b, {low, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63},\n"
      "{p28, p29, p30, p31}, b, accumulate, 1, 1, 1;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      ::"r"(v_tile),
      "n"(v_step(0)), "n"(v_step(1)), "n"(v_step(2)), "n"(v_step(3)),
      "n"(v_step(4)), "n"(v_step(5)), "n"(v_step(6)), "n"(v_step(7)),
      "n"(kUpperHalf)
      : "memory");
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

// A consumer's scores, and what its softmax knows of their rows. Its 64 rows of Q stay in registers, in
// shared memory or in both, while blocks of K pass by.

struct ConsumerScores : ConsumerRings {
  int q_parity = 0;
  bool first;  // whether the next block of K is a tile's first
  BlockSoftmax softmax;
  unsigned q[kQRegisterSteps][4];

  __device__ __forceinline__ ConsumerScores(unsigned shared_memory, int number, float scale)
      : ConsumerRings(shared_memory, number), softmax(scale) {
    declare_scores();
  }

  __device__ __forceinline__ void load_q() {
    const unsigned tile = shared + kQ + warpgroup * kQBytes;
    mbarrier_wait(shared + kQFull + 8 * warpgroup, q_parity);
    q_parity ^= 1;
#pragma unroll
    for (int step = 0; step < kQRegisterSteps; ++step) ldmatrix(q[step], tile + fragment_offset(step));
  }

  __device__ __forceinline__ void issue_scores() {
    wgmma_scores(
        q,
        k_tile);
  }
};

// A consumer's steps, in which softmax of a block runs beside the values of the block before. Products run
// asynchronously; none is in flight from one step to the next, or ptxas would serialise them (its warning
// C7510).

struct ConsumerSteps : ConsumerScores {
  using ConsumerScores::ConsumerScores;

  // Begins scores of a block and values of the one before, which are in flight together; the scores are there
  // afterwards. The first block of a tile has no values to wait for.
  __device__ __forceinline__ void begin_products(bool masked) {
    issue_scores();
    if (!masked) rescale(softmax.rows);
    if (first) {
      wgmma_wait<0>();
    } else {
      wait_v();
      wgmma_values(v_tile);
      wgmma_wait<1>();
    }
  }

  // Ends a step: brings O and the rows up to date for the next one.
  __device__ __forceinline__ void end_step(bool masked) {
    // Here no values are in flight, whichever way the step went: in begin_products ptxas would have this wait
    // for the scores.
    if (masked) {
      if (!first) rescale(softmax.rows);
      settle(softmax.rows);
    }
    first = false;
  }

  // Softmax of a block runs beside the values of the one before.
  // The values are done before the softmax is: P is packed beside its last quarter, into registers that the
  // values have let go.
  __device__ __forceinline__ void step(const RowsOfThread& mine, const Tile& tile, int left, bool masked,
                                       const ForwardParams& p) {
    wait_k();
    begin_products(masked);
    release_k();
    softmax.choose_shifts(mine, left, masked);
    float sum[2];
    softmax.begin_exponentials(sum);
    wgmma_wait<0>();
    if (!first) release_v();
    softmax.end_exponentials(sum);
    softmax.finish(mine, tile, left, masked, p, sum);
    end_step(masked);
  }

  // What is left after the last block: its values.
  __device__ __forceinline__ void last_step() {
    rescale(softmax.rows);
    wait_v();
    wgmma_values(v_tile);
    wgmma_wait<0>();
    release_v();
  }
};

// A consumer: a warpgroup that computes 64 rows of a tile, one block of keys after another. Blocks are
// counted by how many are left (block_at).

struct Consumer : ConsumerSteps {
  __device__ __forceinline__ Consumer(unsigned shared_memory, int number, float scale)
      : ConsumerSteps(shared_memory, number, scale) {
    declare_output();
  }

  __device__ __forceinline__ void compute(const Tile& tile, const ForwardParams& p) {
    const int row = tile.row + kRowStep * warpgroup;
    RowsOfThread mine(row, p);
    mine.count_from(tile);
    const int blocks = blocks_of_rows(row, tile, p);
    softmax.rows = SoftmaxState();
    clear_output();
    const int passed = tile.blocks - blocks;
    pass_blocks(passed);
    load_q();
    if (blocks > 0) {
      int left = blocks - 1;
      first = true;
      const int full = min(blocks - 1, full_blocks(row, tile, p));
#pragma unroll 1  // the first block apart would take a sixth longer to compile
      do step(mine, tile, left, true, p);
      while (--left >= full);
#pragma unroll kUnroll
      for (; left >= 0; --left) step(mine, tile, left, false, p);
      last_step();
    }
  }
};

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// LSE goes to device memory directly.

// Natural log of the sum of exp(scale * score); -infinity where there is no key.
__device__ __forceinline__ void store_lse(const Tile& tile, const RowsOfThread& mine,
                                          const SoftmaxState& rows, const float (&sum)[2],
                                          const ForwardParams& p) {
  // Checked where a row is stored: after an early return ptxas would take the lanes for diverged in all tiles
  // that follow, and descriptors would come from ordinary registers at each product.
  const bool stores = p.lse != nullptr && lane() % 4 == 0;
  float* lse =
      p.lse + (static_cast<long long>(tile.batch) * p.heads + tile.pack * p.heads_of_pack) * p.seqlen_q;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // The headroom is taken back first: a logarithm near -kHeadroom has fewer bits behind the point.
    const float log2_sum = rows.shift[row] - kHeadroom + log2_fast(sum[row] / kSumAfterMove);
    const int packed_row = mine.row + 8 * row;
    const int place = place_of(packed_row, p);
    if (stores && place < p.heads_of_pack && packed_row < row_count(p)) {
      lse[static_cast<long long>(place) * p.seqlen_q + (packed_row >> p.packed)] =
          sum[row] == 0 ? -kInfinity : log2_sum * kLn2;
    }
  }
}

// Counting in global memory, with memory order between the threads that count (PTX ISA, "atom").

// Adds, and returns the value before. All writes that this thread has seen come before the addition; all
// writes that earlier adders had seen are visible after it.
__device__ __forceinline__ int add_acquire_release(int* word, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
}

// Which CTAs have the same rows and columns of a tile, but different keys; and how they tell each other, by
// counters that are 0 between launches, that their pieces lie in device memory.

struct Sharers {
  int count;
  int counter;  // which counter they share, by tile and CTA of the cluster (counter_of)

  // One CTA of each of the tile's clusters.
  __device__ __forceinline__ Sharers(const Tile&, const ForwardParams& p)
      : count(p.clusters), counter(only_tile(p) * kCluster + cluster_rank()) {}
  __device__ __forceinline__ int place_of(int which, const ForwardParams& p) const {
    return (only_tile(p) * p.clusters + which) * kCluster + cluster_rank();
  }
};

// Where this CTA puts its pieces of a tile.
__device__ __forceinline__ int own_place(const Tile& tile, const ForwardParams& p) {
  return Sharers(tile, p).place_of(cluster_of_tile(p), p);
}

// The sharers' counter for the rows of this warpgroup.
__device__ __forceinline__ int* counter_of(const Sharers& sharers, const Consumer& consumer,
                                           const ForwardParams& p) {
  return p.tile_counter + sharers.counter * kWarpgroups + consumer.warpgroup;
}

// Whether this warp comes after those of all other sharers; if so, it sees their pieces. A counter has a byte
// for each warp of a warpgroup.
__device__ __forceinline__ bool comes_last(const Sharers& sharers, const Consumer& consumer,
                                           const ForwardParams& p) {
  int* counter = counter_of(sharers, consumer, p);
  const int bits = 8 * warp_of_warpgroup();
  int before = 0;
  __syncwarp();  // all of the warp's pieces come before …
  if (lane() == 0) before = add_acquire_release(counter, 1 << bits) >> bits & 255;
  __syncwarp();  // … and what any of its lanes reads comes after
  before = __shfl_sync(0xffffffffu, before, 0);
  const bool last = before == sharers.count - 1;
  if (last && lane() == 0) atomicSub(counter, sharers.count << bits);
  return last;
}

// How CTAs that have the same rows and columns of a tile, but different keys, merge their results through
// device memory. Each puts down what it has added up, and the last of them to come adds up all. The pieces
// are added in the order of their CTAs, so that it does not matter which one comes last.

constexpr int kPiecesOfThread = 1 + kGroupsOfCta;  // its rows' shifts and sums, then one per group of columns

// Where this thread's pieces begin among those of its warpgroup; each is 128 from the last.
__device__ __forceinline__ float4* pieces_at(int place, const Consumer& consumer, const ForwardParams& p) {
  const int warpgroup = place * kWarpgroups + consumer.warpgroup;
  return reinterpret_cast<float4*>(p.pieces) + 128 * kPiecesOfThread * warpgroup + threadIdx.x % 128;
}

__device__ __forceinline__ float4 piece_of_rows(const SoftmaxState& rows) {
  return make_float4(rows.shift[0], rows.shift[1], rows.sum[0], rows.sum[1]);
}

// A sharer's rows join those that are there. The members are the weights of both sides' columns.
struct Join {
  float before[2], weight[2];

  __device__ __forceinline__ Join(SoftmaxState& rows, const float4& share) {
    const float shift[2] = {fmaxf(rows.shift[0], share.x), fmaxf(rows.shift[1], share.y)};
    const float of_share[2] = {share.x, share.y}, sum[2] = {share.z, share.w};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      before[row] = exp2_fast(rows.shift[row] - shift[row]);
      weight[row] = exp2_fast(of_share[row] - shift[row]);
      rows.shift[row] = shift[row];
      rows.sum[row] = before[row] * rows.sum[row] + weight[row] * sum[row];
    }
  }
};

// Loads in flight: this many groups of columns, of this many sharers. Three warpgroups and more have fewer
// registers.
constexpr int kGroupsAtOnce = kHeadDimV <= 128 ? 16 : 8;
constexpr int kSharersAtOnce = kPiecesOfThread <= 3 ? 8 : kPiecesOfThread <= 6 ? 4 : kWarpgroups <= 2 ? 2 : 1;

// Adds the rows of all sharers, and some groups of their columns.
__device__ __forceinline__ void add_groups(const Sharers& sharers, const Consumer& consumer, int first_group,
                                           SoftmaxState& rows, float (&o)[4 * kGroupsOfCta],
                                           const ForwardParams& p) {
#pragma unroll 1
  for (int first = 0; first < sharers.count; first += kSharersAtOnce) {
#pragma unroll
    for (int which = first; which < first + kSharersAtOnce; ++which) {
      const float4* pieces = pieces_at(sharers.place_of(min(which, sharers.count - 1), p), consumer, p);
      float4 share = pieces[0];
      if (which >= sharers.count) share.x = share.y = kUnset;  // weighs nothing
      const Join join(rows, share);
#pragma unroll
      for (int group = first_group; group < min(first_group + kGroupsAtOnce, kGroupsOfCta); ++group) {
        // No infinity is taken for a sharer that is missing: no weight makes 0 of it.
        const float4 piece = which < sharers.count ? pieces[128 * (1 + group)] : float4{0, 0, 0, 0};
        float* of_group = o + 4 * group;
        of_group[0] = join.before[0] * of_group[0] + join.weight[0] * piece.x;
        of_group[1] = join.before[0] * of_group[1] + join.weight[0] * piece.y;
        of_group[2] = join.before[1] * of_group[2] + join.weight[1] * piece.z;
        of_group[3] = join.before[1] * of_group[3] + join.weight[1] * piece.w;
      }
    }
  }
}

// Puts down this CTA's pieces for the other sharers.
__device__ __forceinline__ void put_pieces(float4* to, const SoftmaxState& rows,
                                           const float (&o)[4 * kGroupsOfCta]) {
  to[0] = piece_of_rows(rows);
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; ++group) {
    const float* of_group = o + 4 * group;
    to[128 * (1 + group)] = make_float4(of_group[0], of_group[1], of_group[2], of_group[3]);
  }
}

// Adds up what all sharers have put down.
__device__ __forceinline__ void add_pieces(const Sharers& sharers, const Consumer& consumer,
                                           SoftmaxState& rows, float (&o)[4 * kGroupsOfCta],
                                           const ForwardParams& p) {
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfCta; ++i) o[i] = -0.0f;  // adding the first piece to it keeps every bit
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; group += kGroupsAtOnce) {
    rows = SoftmaxState();
    add_groups(sharers, consumer, group, rows, o, p);
  }
}

// Puts down this CTA's pieces of a tile. If all others have done so, adds up everyone's and returns true; if
// not, this is left to another CTA.
__device__ __forceinline__ bool merge_sharers(const Sharers& sharers, const Consumer& consumer,
                                              const Tile& tile, SoftmaxState& rows,
                                              float (&o)[4 * kGroupsOfCta], const ForwardParams& p) {
  put_pieces(pieces_at(own_place(tile, p), consumer, p), rows, o);
  if (!comes_last(sharers, consumer, p)) return false;
  add_pieces(sharers, consumer, rows, o, p);
  return true;
}

// Pairs of fp32 to packed 16-bit elements (PTX ISA, "cvt").

// low goes to bits 0-15.
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Stores O to device memory from the registers of the threads that have added it up.

// The first column of one of this CTA's groups; it is past the head dim's end where columns do not divide
// among CTAs.
__device__ __forceinline__ int first_column(int group) {
  return 8 * (cluster_rank() * kGroupsOfCta + group);
}

// Normalises O and stores it to device memory.
__device__ __forceinline__ void store_columns(const float (&o)[4 * kGroupsOfCta], const SoftmaxState& rows,
                                              const Tile& tile, const RowsOfThread& mine,
                                              const ForwardParams& p) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int packed_row = mine.row + 8 * row;
    const int place = place_of(packed_row, p);
    if (place >= p.heads_of_pack || packed_row >= row_count(p)) continue;
    const int head = tile.pack * p.heads_of_pack + place;
    unsigned short* to = static_cast<unsigned short*>(p.o) + tile.batch * p.o_batch + head * p.o_head +
                         (packed_row >> p.packed) * p.o_row;
    const float inverse = rows.sum[row] == 0 ? 0.0f : reciprocal_fast(rows.sum[row]);
#pragma unroll
    for (int group = 0; group < kGroupsOfCta; ++group) {
      if (first_column(group) >= kHeadDimV) break;
      const unsigned pair = pack(o[4 * group + 2 * row] * inverse, o[4 * group + 2 * row + 1] * inverse);
      *reinterpret_cast<unsigned*>(to + first_column(group) + 2 * (lane() % 4)) = pair;
    }
  }
}

// Floats for another CTA's shared memory, or this one's (PTX ISA, "st").

__device__ __forceinline__ void cluster_store(unsigned address, float2 pair) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(pair.x), "f"(pair.y)
               : "memory");
}

__device__ __forceinline__ void cluster_store(unsigned address, float4 four) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four.x), "f"(four.y),
               "f"(four.z), "f"(four.w)
               : "memory");
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

// Two neighbouring floats of shared memory (PTX ISA, "ld").

__device__ __forceinline__ float2 load_pair(unsigned address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

// The end of a tile whose keys the CTAs of a cluster have shared out. Each CTA sends all the others its rows'
// shifts and sums, and sends each of them some columns of its O, which the receiver adds up, normalises and
// stores. Where a tile has several clusters, the results of the other clusters are added first (pieces.cuh).

// Where one of the cluster's CTAs puts what a thread has of eight columns …
__device__ __forceinline__ unsigned piece_from(int rank, int group, const Consumer& consumer) {
  const int piece = (rank * kWarpgroups + consumer.warpgroup) * kGroupsOfCta + group;
  return consumer.shared + kPieces + kPieceBytes * (128 * piece + static_cast<int>(threadIdx.x % 128));
}

// … and the shift and the sum of the first of the thread's two rows.
__device__ __forceinline__ unsigned sums_from(int rank, const Consumer& consumer) {
  const int row = 64 * (rank * kWarpgroups + consumer.warpgroup) + 16 * warp_of_warpgroup() + lane() / 4;
  return consumer.shared + kSums + 8 * row;
}

// Sends every CTA this one's shifts and sums, and the columns that it adds up.
__device__ __forceinline__ void send(const Consumer& consumer) {
  const SoftmaxState& rows = consumer.softmax.rows;
  float o[kHeadDimV / 2];
  read_output(o);
  const float sum[2] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
  const int here = cluster_rank();
#pragma unroll
  for (int rank = 0; rank < kCluster; ++rank) {
    if (lane() % 4 == 0) {
      const unsigned there = in_cta(rank, sums_from(here, consumer));
      cluster_store(there, make_float2(rows.shift[0], sum[0]));
      cluster_store(there + 8 * 8, make_float2(rows.shift[1], sum[1]));
    }
    const unsigned there = in_cta(rank, piece_from(here, 0, consumer));
#pragma unroll
    for (int group = 0; group < kGroupsOfCta; ++group) {
      const int x = 4 * (rank * kGroupsOfCta + group);
      if (x < kHeadDimV / 2) {
        cluster_store(there + group * 128 * kPieceBytes, make_float4(o[x], o[x + 1], o[x + 2], o[x + 3]));
      }
    }
  }
}

// The weights of the CTAs' shares of a row, and the whole row's shift and sum.
struct MergedRows {
  SoftmaxState rows;
  float weight[kCluster][2];

  __device__ __forceinline__ explicit MergedRows(const Consumer& consumer) {
    float2 share[kCluster][2];  // shift and sum
#pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        share[rank][row] = load_pair(sums_from(rank, consumer) + 8 * 8 * row);
        rows.shift[row] = fmaxf(rows.shift[row], share[rank][row].x);
      }
    }
#pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        weight[rank][row] = exp2_fast(share[rank][row].x - rows.shift[row]);
        rows.sum[row] += weight[rank][row] * share[rank][row].y;
      }
    }
  }
};

// Adds up this CTA's columns of all shares.
__device__ __forceinline__ void add_up(const Consumer& consumer, const MergedRows& merged,
                                       float (&o)[4 * kGroupsOfCta]) {
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[4 * group + i] = 0;
    if (first_column(group) >= kHeadDimV) continue;
#pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
      const float4 piece = load_four(piece_from(rank, group, consumer));
      o[4 * group + 0] += merged.weight[rank][0] * piece.x;
      o[4 * group + 1] += merged.weight[rank][0] * piece.y;
      o[4 * group + 2] += merged.weight[rank][1] * piece.z;
      o[4 * group + 3] += merged.weight[rank][1] * piece.w;
    }
  }
}

__device__ __forceinline__ void merge(const Consumer& consumer, const Tile& tile, const ForwardParams& p) {
  const RowsOfThread mine(tile.row + kRowStep * consumer.warpgroup, p);
  const bool has_rows = mine.row - lane() / 4 < row_count(p);  // whether the warp has any
  cluster_sync();  // all have begun, and nobody needs K and V any more, whose place the pieces take
  if (has_rows) send(consumer);
  cluster_sync();
  if (!has_rows) return;
  MergedRows merged(consumer);
  float o[4 * kGroupsOfCta];  // two columns of two rows of each group
  add_up(consumer, merged, o);
  if (p.clusters > 1 && !merge_sharers(Sharers(tile, p), consumer, tile, merged.rows, o, p)) return;
  if (cluster_rank() == 0) store_lse(tile, mine, merged.rows, merged.rows.sum, p);
  store_columns(o, merged.rows, tile, mine, p);
}

// A consumer warpgroup's life: this CTA's share of one tile's keys, whose results are merged with the
// others'.

__device__ __forceinline__ void consume(Consumer& consumer, const ForwardParams& p) {
  const Tile tile = tile_at(only_tile(p), p);
  consumer.compute(tile, p);
  merge(consumer, tile, p);
}

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

// Boxes that no other tile reads (PTX ISA, "cp.async.bulk.tensor", .L2::cache_hint, and "createpolicy").

// Starts the copy of one box into shared memory; its bytes complete on the barrier. Elements outside the
// tensor arrive as zeros, and count as bytes. L2 evicts the box's lines first.
__device__ __forceinline__ void tma_load_once(unsigned to, const TensorMap& map, unsigned barrier,
                                              const BoxOrigin& at) {
  asm volatile(
      "{\n"
      ".reg .b64 evict_first;\n"
      "createpolicy.fractional.L2::evict_first.b64 evict_first;\n"
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], evict_first;\n"
      "}" ::"r"(to),
      "l"(&map), "r"(at.x0), "r"(at.x1), "r"(at.x2), "r"(at.x3), "r"(at.x4), "r"(barrier)
      : "memory");
}

// The producer: one thread keeps Q, K and V coming, in the order in which the consumers ask for them.

// Starts the copy of a box of K or V.
__device__ __forceinline__ void load(unsigned to, const TensorMap& map, unsigned barrier,
                                     const BoxOrigin& from) {
  tma_load(to, map, barrier, from);
}

struct Producer {
  const TensorMap& map_q;
  const TensorMap& map_k;  // whole panels
  const TensorMap& map_v;
  unsigned shared;
  RingPlace place{0, 1};  // of the next K; V is one block behind

  // Waits until all warps have read what was there, and says how much is to come.
  __device__ __forceinline__ void expect(unsigned full, unsigned empty, int parity, int bytes) const {
    mbarrier_wait(empty, parity);
    mbarrier_arrive_expecting(full, bytes);
  }

  __device__ __forceinline__ void load_k(const Tile& tile, int block, int head) const {
    const unsigned full = shared + kKFull + 8 * place.stage, empty = shared + kKEmpty + 8 * place.stage;
    expect(full, empty, place.parity, kKLoaded);
    const unsigned to = shared + kK + place.stage * kKBytes;
    load(to, map_k, full, {0, block * kTileN, 0, head, tile.batch});
  }

  __device__ __forceinline__ void load_v(const Tile& tile, int block, int head, const RingPlace& at) const {
    const unsigned full = shared + kVFull + 8 * at.stage, empty = shared + kVEmpty + 8 * at.stage;
    expect(full, empty, at.parity, kVLoaded);
    const unsigned to = shared + kV + at.stage * kVBytes;
    load(to, map_v, full, {0, block * kTileN, 0, head, tile.batch});
  }

  // Other tiles need K and V again, but not Q, whose lines L2 may give up first.
  __device__ __forceinline__ void load_q(const Tile& tile, const ForwardParams& p) const {
#pragma unroll
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      const unsigned barrier = shared + kQFull + 8 * warpgroup;
      mbarrier_arrive_expecting(barrier, kQBytes);
#pragma unroll
      for (int panel = 0; panel < kPanelsQk; ++panel) {
        const unsigned to = shared + kQ + warpgroup * kQBytes + panel * 64 * kRowBytes;
        const BoxOrigin from = rows_at(panel, tile.row + kRowStep * warpgroup, tile, p);
        tma_load_once(to, map_q, barrier, from);
      }
    }
  }

  // K of the first block, Q, then K of each block before V of the one before it.
  __device__ __forceinline__ void load_tile(const Tile& tile, const ForwardParams& p) {
    const int head_kv = divide(tile.pack, p.by_group);
#pragma unroll 1
    for (int left = tile.blocks; left >= 0; --left) {
      const RingPlace at = place;
      if (left < tile.blocks) advance(place);
      if (left > 0) load_k(tile, block_at(left - 1, tile, p), head_kv);
      if (left < tile.blocks) {
        load_v(tile, block_at(left, tile, p), head_kv, at);
      } else {
        load_q(tile, p);
      }
    }
  }
};

__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  producer.load_tile(tile_at(only_tile(p), p), p);
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
    flashjit_forward_wgmma_bf16_d128_causal_m64n128s3pp0p0sp8(const __grid_constant__ TensorMap map_q,
                   const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v,
                   const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  __syncthreads();

  if (warpgroup == 0) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer producer{map_q,
                        map_k,
                        map_v,
                        shared};
      produce(producer, p);
    }
  } else {
    take_registers<kConsumerRegisters>();
    Consumer consumer(shared, warpgroup - 1, p.scale_log2);
    consume(consumer, p);
  }
}

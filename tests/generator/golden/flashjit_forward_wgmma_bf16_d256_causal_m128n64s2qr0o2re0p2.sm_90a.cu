// forward bf16 d256 causal, schedule wgmma:m128n64s2qr0o2re0p2, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/forward_wgmma.cu.

constexpr int kHeadDim = 256;              // columns of Q and K
constexpr int kHeadDimV = 256;             // columns of V and O
constexpr int kTileM = 128;                // query rows per tile
constexpr int kTileN = 64;                 // keys per block
constexpr int kWarpgroups = 2;             // that compute, 64 rows each
constexpr int kThreads = 384;              // per CTA, the producer's warpgroup included
constexpr int kStages = 2;                 // blocks of K, and of V, in flight
constexpr int kProducerRegisters = 40;     // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 232;    // per thread, after setmaxnreg
constexpr int kSharedBytes = 229512;       // of dynamic shared memory
constexpr int kOPasses = 2;                // passes in which O leaves
constexpr float kLazy = 14.0f;             // log2 of the growth that a shift tolerates
constexpr float kLargestSum = 0x1p14f;     // of a thread's exponentials in a block, up to which a shift stays
constexpr float kLostSum = 0x1p86f;        // of them, above which scores are computed again
constexpr float kHeadroom = 40.0f;         // log2 of how far above a row's scores its shift goes
constexpr float kSumAfterMove = 0x1p-40f;  // what the largest lane's sum becomes when a shift moves

// FlashAttention forward on Hopper (FlashAttention-3, arXiv 2407.08608): a warpgroup that feeds shared memory
// through TMA, and kWarpgroups that compute 64 query rows each with asynchronous products.
// CTAs work on one tile after another.

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
  int blocks;  // blocks of kTileN keys that some row of the tile sees: 0 .. blocks - 1
};

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

__device__ __forceinline__ int tile_count(const ForwardParams& p) {
  return p.tiles_m * packs_of_sequence(p) * p.batch;
}

// Which of a pack's heads a row belongs to; from p.heads_of_pack on, to none.
__device__ __forceinline__ int place_of(int row, const ForwardParams& p) {
  return row & ((1 << p.packed) - 1);
}

// Where a panel of 64 rows of Q or O starts: {columns, heads of a pack, queries, packs, batches}.
__device__ __forceinline__ BoxOrigin rows_at(int panel, int row, const Tile& tile, const ForwardParams& p) {
  return {64 * panel, 0, row >> p.packed, tile.pack, tile.batch};
}

// Longest tiles first, among the heads of a section: what runs together finds its K and V in L2.
__device__ __forceinline__ Tile tile_at(int index, const ForwardParams& p) {
  const int packs = packs_of_sequence(p);
  const int first_head = min(divide(index, p.by_section_tiles) * p.section, p.last_section);
  const bool last = first_head == p.last_section;
  const int inside = index - first_head * p.tiles_m;
  const int heads_here = last ? packs * p.batch - p.last_section : p.section;
  const int before = divide(inside, last ? p.by_last_section : p.by_section);
  const int m = p.tiles_m - 1 - before;
  const int batch_head = first_head + inside - before * heads_here;
  Tile tile;
  tile.row = m * kTileM;
  tile.batch = divide(batch_head, p.by_heads);
  tile.pack = batch_head - tile.batch * packs;
  tile.blocks = (keys_before(tile.row + kTileM, p) + kTileN - 1) / kTileN;
  return tile;
}

// Which blocks of keys the rows of a tile see, and in which order.

// Blocks that at least one of the 64 rows from `row` on sees; none where the rows are past the end.
__device__ __forceinline__ int blocks_of_rows(int row, const ForwardParams& p) {
  return row < row_count(p) ? (keys_before(row + 64, p) + kTileN - 1) / kTileN : 0;
}

// Blocks 0 .. n - 1 are seen in full by all rows from `row` on.
__device__ __forceinline__ int full_blocks(int row, const ForwardParams& p) {
  return max(0, (row >> p.packed) + diagonal(p)) / kTileN;
}

// The block of a tile after which `left` others are still to come: from the first one up. So tiles of a head
// that begin together read the same blocks. Downwards, each would begin at its own diagonal, and device
// memory would be asked for all of the head's keys at once.
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams&) {
  return tile.blocks - 1 - left;
}

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
      "mov.f32 o64, 0f00000000; mov.f32 o65, 0f00000000; mov.f32 o66, 0f00000000; mov.f32 o67, 0f00000000;\n"
      "mov.f32 o68, 0f00000000; mov.f32 o69, 0f00000000; mov.f32 o70, 0f00000000; mov.f32 o71, 0f00000000;\n"
      "mov.f32 o72, 0f00000000; mov.f32 o73, 0f00000000; mov.f32 o74, 0f00000000; mov.f32 o75, 0f00000000;\n"
      "mov.f32 o76, 0f00000000; mov.f32 o77, 0f00000000; mov.f32 o78, 0f00000000; mov.f32 o79, 0f00000000;\n"
      "mov.f32 o80, 0f00000000; mov.f32 o81, 0f00000000; mov.f32 o82, 0f00000000; mov.f32 o83, 0f00000000;\n"
      "mov.f32 o84, 0f00000000; mov.f32 o85, 0f00000000; mov.f32 o86, 0f00000000; mov.f32 o87, 0f00000000;\n"
      "mov.f32 o88, 0f00000000; mov.f32 o89, 0f00000000; mov.f32 o90, 0f00000000; mov.f32 o91, 0f00000000;\n"
      "mov.f32 o92, 0f00000000; mov.f32 o93, 0f00000000; mov.f32 o94, 0f00000000; mov.f32 o95, 0f00000000;\n"
      "mov.f32 o96, 0f00000000; mov.f32 o97, 0f00000000; mov.f32 o98, 0f00000000; mov.f32 o99, 0f00000000;\n"
      "mov.f32 o100, 0f00000000; mov.f32 o101, 0f00000000; mov.f32 o102, 0f00000000; mov.f32 o103, 0f00000000;\n"
      "mov.f32 o104, 0f00000000; mov.f32 o105, 0f00000000; mov.f32 o106, 0f00000000; mov.f32 o107, 0f00000000;\n"
      "mov.f32 o108, 0f00000000; mov.f32 o109, 0f00000000; mov.f32 o110, 0f00000000; mov.f32 o111, 0f00000000;\n"
      "mov.f32 o112, 0f00000000; mov.f32 o113, 0f00000000; mov.f32 o114, 0f00000000; mov.f32 o115, 0f00000000;\n"
      "mov.f32 o116, 0f00000000; mov.f32 o117, 0f00000000; mov.f32 o118, 0f00000000; mov.f32 o119, 0f00000000;\n"
      "mov.f32 o120, 0f00000000; mov.f32 o121, 0f00000000; mov.f32 o122, 0f00000000; mov.f32 o123, 0f00000000;\n"
      "mov.f32 o124, 0f00000000; mov.f32 o125, 0f00000000; mov.f32 o126, 0f00000000; mov.f32 o127, 0f00000000;\n"
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
      "mul.f32 o64, o64, %0; mul.f32 o65, o65, %0; mul.f32 o66, o66, %1; mul.f32 o67, o67, %1;\n"
      "mul.f32 o68, o68, %0; mul.f32 o69, o69, %0; mul.f32 o70, o70, %1; mul.f32 o71, o71, %1;\n"
      "mul.f32 o72, o72, %0; mul.f32 o73, o73, %0; mul.f32 o74, o74, %1; mul.f32 o75, o75, %1;\n"
      "mul.f32 o76, o76, %0; mul.f32 o77, o77, %0; mul.f32 o78, o78, %1; mul.f32 o79, o79, %1;\n"
      "mul.f32 o80, o80, %0; mul.f32 o81, o81, %0; mul.f32 o82, o82, %1; mul.f32 o83, o83, %1;\n"
      "mul.f32 o84, o84, %0; mul.f32 o85, o85, %0; mul.f32 o86, o86, %1; mul.f32 o87, o87, %1;\n"
      "mul.f32 o88, o88, %0; mul.f32 o89, o89, %0; mul.f32 o90, o90, %1; mul.f32 o91, o91, %1;\n"
      "mul.f32 o92, o92, %0; mul.f32 o93, o93, %0; mul.f32 o94, o94, %1; mul.f32 o95, o95, %1;\n"
      "mul.f32 o96, o96, %0; mul.f32 o97, o97, %0; mul.f32 o98, o98, %1; mul.f32 o99, o99, %1;\n"
      "mul.f32 o100, o100, %0; mul.f32 o101, o101, %0; mul.f32 o102, o102, %1; mul.f32 o103, o103, %1;\n"
      "mul.f32 o104, o104, %0; mul.f32 o105, o105, %0; mul.f32 o106, o106, %1; mul.f32 o107, o107, %1;\n"
      "mul.f32 o108, o108, %0; mul.f32 o109, o109, %0; mul.f32 o110, o110, %1; mul.f32 o111, o111, %1;\n"
      "mul.f32 o112, o112, %0; mul.f32 o113, o113, %0; mul.f32 o114, o114, %1; mul.f32 o115, o115, %1;\n"
      "mul.f32 o116, o116, %0; mul.f32 o117, o117, %0; mul.f32 o118, o118, %1; mul.f32 o119, o119, %1;\n"
      "mul.f32 o120, o120, %0; mul.f32 o121, o121, %0; mul.f32 o122, o122, %1; mul.f32 o123, o123, %1;\n"
      "mul.f32 o124, o124, %0; mul.f32 o125, o125, %0; mul.f32 o126, o126, %1; mul.f32 o127, o127, %1;\n"
      ::"f"(factor[0]),
      "f"(factor[1]));
}

// Which thread of a warpgroup this one is.

__device__ __forceinline__ int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int warp_of_warpgroup() {
  return static_cast<int>(threadIdx.x / 32 % 4);
}

// Which rows a thread of a consumer holds (ptx/wgmma.cuh), and which keys they see.

struct RowsOfThread {
  int row;         // of the first; the second is 8 below
  int visible[2];  // keys that they see

  __device__ __forceinline__ RowsOfThread(int first_row, const ForwardParams& p)
      : row(first_row + 16 * warp_of_warpgroup() + lane() / 4) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      visible[which] = min(((row + 8 * which) >> p.packed) + 1 + diagonal(p), p.seqlen_k);
    }
  }

  // Blocks are counted by how many of a tile's are still to come.
  __device__ __forceinline__ void count_up_to(int blocks) {
    visible[0] -= (blocks - 1) * kTileN;
    visible[1] -= (blocks - 1) * kTileN;
  }

  // The first column of a masked block that row 0 or 1 does not see, counted from this thread's first column.
  // `left` of the tile's blocks are still to come (block_at).
  __device__ __forceinline__ int first_hidden(int which, int left) const {
    return visible[which] + left * kTileN - 2 * (lane() % 4);
  }
};

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
      "max.f32 x0, x0, x2;\n"
      "max.f32 x1, x1, x3;\n"
      "max.f32 %1, x0, x1;\n"
      "}\n"
      : "=f"(peak[0]), "=f"(peak[1]));
}

// exp2(scale_log2 * score - shift) in the scores' place, and the sum of each row's.
__device__ __forceinline__ void take_exponentials(float scale_log2, const float (&shift)[2],
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
      "add.f32 %0, x0, x1;\n"
      "add.f32 %1, x2, x3;\n"
      "}\n"
      : "=f"(sum[0]), "=f"(sum[1])
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

  // Chooses the shifts that a block's exponentials are taken against.
  __device__ __forceinline__ void choose_shifts(const RowsOfThread& mine, int left, bool masked) {
    if (masked) hide_scores(mine.first_hidden(0, left), mine.first_hidden(1, left));
    // Where nothing is hidden, every row has seen keys before and keeps its shift, with no search for a
    // maximum: the sums will tell whether some score was far above it (move_outgrown).
    if (!masked) return;
    follow_peaks(rows, scale_log2);
  }

  // The scores become exponentials, and are summed.
  __device__ __forceinline__ void exponentiate(float (&sum)[2]) const {
    take_exponentials(scale_log2, rows.shift, sum);
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

  // The rest of a block's softmax, except what needs the registers of the values in flight. ptxas would sink
  // exponentials below the wait for the values, where they would run beside nothing; it sinks none below a
  // branch on their sums.
  __device__ __forceinline__ void hold_exponentials(int left, bool masked, float (&sum)[2]) {
    if (!masked) {
      rows.moved = has_outgrown(sum);
      if (rows.moved) move_outgrown(left, sum);
      return;
    }
    if (__any_sync(0xffffffffu, sum[0] + sum[1] < 0)) __syncwarp();  // never true: see above
  }

  // From a block's exponentials to P. No product is in flight here.
  __device__ __forceinline__ void finish(const RowsOfThread& mine, const Tile& tile, int left, bool masked,
                                         const ForwardParams& p, float (&sum)[2]) {
    if (!masked && rows.moved && are_lost(sum)) start_over(mine, tile, left, p, sum);
    pack_exponentials();
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
constexpr int kO = kV + kStages * kVBytes;
constexpr int kPassPanels = kPanelsV / kOPasses;      // panels of O there at a time
constexpr int kOStep = 64 * kRowBytes * kPassPanels;  // from one warpgroup's O to the next one's

constexpr int kKFull = kO + kWarpgroups * kOStep;
constexpr int kKEmpty = kKFull + 8 * kStages;
constexpr int kVFull = kKEmpty + 8 * kStages;
constexpr int kVEmpty = kVFull + 8 * kStages;
constexpr int kQFull = kVEmpty + 8 * kStages;
constexpr int kQEmpty = kQFull + 8 * kWarpgroups;
constexpr int kEnd = kQEmpty + 8 * kWarpgroups;
constexpr int kTicketFull = kEnd;  // two tile numbers on their way from the producer to the consumers
constexpr int kTicketEmpty = kTicketFull + 16;
constexpr int kTicket = kTicketEmpty + 16;
static_assert(kTicket + 8 <= kSharedBytes);
static_assert(kEnd <= kSharedBytes);

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
    mbarrier_init(shared + kQEmpty + 8 * warpgroup, kOPasses == 0 ? 1 : 4);
  }
  constexpr int kTicketReaders = kConsumerWarps;
  for (int slot = 0; slot < 2; ++slot) {
    mbarrier_init(shared + kTicketFull + 8 * slot, 1);
    mbarrier_init(shared + kTicketEmpty + 8 * slot, kTicketReaders);
  }
  mbarrier_init_fence();
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

  // Warpgroups take turns to issue their products, so that one's softmax runs beside the other's products.
  __device__ __forceinline__ void take_turn() const { named_barrier_sync(1 + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() const {
    named_barrier_arrive(warpgroup + 1 == kWarpgroups ? 1 : 2 + warpgroup, 256);
  }

  // Waits at the warpgroup's own barrier.
  __device__ __forceinline__ void meet() const { named_barrier_sync(8 + warpgroup, 128); }

  // Takes blocks that other rows of the tile see and these rows do not, and gives them back, so that the
  // rings move on.
  __device__ __forceinline__ void pass_blocks(int count, int turns) {
#pragma unroll 1  // few, and rarely any
    for (; count > 0; --count) {
      wait_k();
      release_k();
      if (turns-- > 0) {
        take_turn();
        pass_turn();
      }
      wait_v();
      release_v();
    }
  }
};

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

// The steps of Q that are in shared memory. Their whole descriptors are operands, which ptxas keeps from
// block to block where it has the registers; otherwise it assembles them between the products.
constexpr int kFirstSharedStep = 0;
constexpr int kEndOfSteps = (kHeadDim + 15) / 16;
constexpr int q_step(int step) {
  return step / 4 * (64 * kRowBytes / 16) + step % 4 * 2;
}

// 16 keys are 16 rows.
constexpr int v_step(int step) {
  return step * (16 * kRowBytes / 16);
}

// Begins s = q k^T, 16 columns of the head at a time: 64 x kTileN.
__device__ __forceinline__ void wgmma_scores(
    const unsigned long long (&q_columns)[kEndOfSteps],
    unsigned k_tile) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      ".reg .b32 low;\n"
      ".reg .b64 b;\n"
      "wgmma.fence.sync.aligned;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "add.u32 low, %16, %17;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%0, b, accumulate, 1, 1, 0, 0;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %16, %18;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%1, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %19;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%2, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %20;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%3, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %21;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%4, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %22;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%5, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %23;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%6, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %24;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%7, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %25;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%8, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %26;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%9, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %27;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%10, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %28;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%11, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %29;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%12, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %30;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%13, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %31;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%14, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %16, %32;\n"
      "mov.b64 b, {low, %33};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,\n"
      "s16, s17, s18, s19, s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31},\n"
      "%15, b, accumulate, 1, 1, 0, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      ::
      "l"(q_columns[0]), "l"(q_columns[1]), "l"(q_columns[2]), "l"(q_columns[3]),
      "l"(q_columns[4]), "l"(q_columns[5]), "l"(q_columns[6]), "l"(q_columns[7]),
      "l"(q_columns[8]), "l"(q_columns[9]), "l"(q_columns[10]), "l"(q_columns[11]),
      "l"(q_columns[12]), "l"(q_columns[13]), "l"(q_columns[14]), "l"(q_columns[15]),
      "r"(k_tile),
      "n"(k_step(0)), "n"(k_step(1)), "n"(k_step(2)), "n"(k_step(3)),
      "n"(k_step(4)), "n"(k_step(5)), "n"(k_step(6)), "n"(k_step(7)),
      "n"(k_step(8)), "n"(k_step(9)), "n"(k_step(10)), "n"(k_step(11)),
      "n"(k_step(12)), "n"(k_step(13)), "n"(k_step(14)), "n"(k_step(15)),
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
      "mov.b64 b, {low, %5};\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63,\n"
      "o64, o65, o66, o67, o68, o69, o70, o71, o72, o73, o74, o75, o76, o77, o78, o79,\n"
      "o80, o81, o82, o83, o84, o85, o86, o87, o88, o89, o90, o91, o92, o93, o94, o95,\n"
      "o96, o97, o98, o99, o100, o101, o102, o103, o104, o105, o106, o107, o108, o109, o110, o111,\n"
      "o112, o113, o114, o115, o116, o117, o118, o119, o120, o121, o122, o123, o124, o125, o126, o127},\n"
      "{p0, p1, p2, p3}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %2;\n"
      "mov.b64 b, {low, %5};\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63,\n"
      "o64, o65, o66, o67, o68, o69, o70, o71, o72, o73, o74, o75, o76, o77, o78, o79,\n"
      "o80, o81, o82, o83, o84, o85, o86, o87, o88, o89, o90, o91, o92, o93, o94, o95,\n"
      "o96, o97, o98, o99, o100, o101, o102, o103, o104, o105, o106, o107, o108, o109, o110, o111,\n"
      "o112, o113, o114, o115, o116, o117, o118, o119, o120, o121, o122, o123, o124, o125, o126, o127},\n"
      "{p4, p5, p6, p7}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %3;\n"
      "mov.b64 b, {low, %5};\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63,\n"
      "o64, o65, o66, o67, o68, o69, o70, o71, o72, o73, o74, o75, o76, o77, o78, o79,\n"
      "o80, o81, o82, o83, o84, o85, o86, o87, o88, o89, o90, o91, o92, o93, o94, o95,\n"
      "o96, o97, o98, o99, o100, o101, o102, o103, o104, o105, o106, o107, o108, o109, o110, o111,\n"
      "o112, o113, o114, o115, o116, o117, o118, o119, o120, o121, o122, o123, o124, o125, o126, o127},\n"
      "{p8, p9, p10, p11}, b, accumulate, 1, 1, 1;\n"
      "add.u32 low, %0, %4;\n"
      "mov.b64 b, {low, %5};\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16\n"
      "{o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,\n"
      "o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,\n"
      "o32, o33, o34, o35, o36, o37, o38, o39, o40, o41, o42, o43, o44, o45, o46, o47,\n"
      "o48, o49, o50, o51, o52, o53, o54, o55, o56, o57, o58, o59, o60, o61, o62, o63,\n"
      "o64, o65, o66, o67, o68, o69, o70, o71, o72, o73, o74, o75, o76, o77, o78, o79,\n"
      "o80, o81, o82, o83, o84, o85, o86, o87, o88, o89, o90, o91, o92, o93, o94, o95,\n"
      "o96, o97, o98, o99, o100, o101, o102, o103, o104, o105, o106, o107, o108, o109, o110, o111,\n"
      "o112, o113, o114, o115, o116, o117, o118, o119, o120, o121, o122, o123, o124, o125, o126, o127},\n"
      "{p12, p13, p14, p15}, b, accumulate, 1, 1, 1;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      ::"r"(v_tile),
      "n"(v_step(0)), "n"(v_step(1)), "n"(v_step(2)), "n"(v_step(3)),
      "n"(kUpperHalf)
      : "memory");
}

// A consumer's scores, and what its softmax knows of their rows. Its 64 rows of Q stay in registers, in
// shared memory or in both, while blocks of K pass by.

struct ConsumerScores : ConsumerRings {
  int q_parity = 0;
  bool first;  // whether the next block of K is a tile's first
  BlockSoftmax softmax;
  unsigned long long q_columns[kEndOfSteps];  // descriptors of Q's steps

  __device__ __forceinline__ ConsumerScores(unsigned shared_memory, int number, float scale)
      : ConsumerRings(shared_memory, number), softmax(scale) {
    declare_scores();
  }

  __device__ __forceinline__ void load_q() {
    const unsigned tile = shared + kQ + warpgroup * kQBytes;
    mbarrier_wait(shared + kQFull + 8 * warpgroup, q_parity);
    q_parity ^= 1;
    // Worked out and pinned here: the compilers would work them out again for each block, between a turn and
    // its first product.
    unsigned lower_half = static_cast<unsigned>(wgmma_descriptor(tile, 0));
    asm volatile("" : "+r"(lower_half));
#pragma unroll
    for (int step = kFirstSharedStep; step < kEndOfSteps; ++step) {
      q_columns[step] = static_cast<unsigned long long>(kUpperHalf) << 32 | (lower_half + q_step(step));
    }
  }

  // Called once products have read all of q.
  __device__ __forceinline__ void release_q() const {
    if (lane() == 0) mbarrier_arrive(shared + kQEmpty + 8 * warpgroup);
    __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
  }

  __device__ __forceinline__ void issue_scores() {
    wgmma_scores(
        q_columns,
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
  // It takes no turn.
  __device__ __forceinline__ void begin_products(bool) {
    if (!first) take_turn();
    issue_scores();
    if (first) {
      wgmma_wait<0>();
    } else {
      wait_v();
      wgmma_values(v_tile);
      pass_turn();
      wgmma_wait<1>();
    }
  }

  // Ends a step: brings O and the rows up to date for the next one.
  __device__ __forceinline__ void end_step(bool) {
    if (!first) rescale(softmax.rows);
    first = false;
  }

  // Softmax of a block runs beside the values of the one before.
  __device__ __forceinline__ void step(const RowsOfThread& mine, const Tile& tile, int left, bool masked,
                                       const ForwardParams& p) {
    wait_k();
    begin_products(masked);
    release_k();
    softmax.choose_shifts(mine, left, masked);
    float sum[2];
    softmax.exponentiate(sum);
    softmax.hold_exponentials(left, masked, sum);
    wgmma_wait<0>();
    if (!first) release_v();
    softmax.finish(mine, tile, left, masked, p, sum);
    end_step(masked);
  }

  // What is left after the last block: its values.
  __device__ __forceinline__ void last_step() {
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
    mine.count_up_to(tile.blocks);
    const int blocks = blocks_of_rows(row, p);
    softmax.rows = SoftmaxState();
    clear_output();
    const int passed = tile.blocks - blocks;
    // Each warpgroup takes one turn less than the tile has blocks: the first block that it multiplies takes
    // none.
    const int passed_turns = blocks > 0 ? passed : passed - 1;
    load_q();
    if (blocks > 0) {
      int left = tile.blocks - 1;
      first = true;
      const int full = full_blocks(row, p);
// Two loops would be no faster, and take a third longer to compile.
#pragma unroll 1
      for (; left >= passed; --left) {
        const bool begins = left == tile.blocks - 1;  // searched for its maxima, as masked ones are
        step(mine, tile, left, begins || left < tile.blocks - full, p);
      }
      release_q();
      last_step();
    } else {
      release_q();
    }
    pass_blocks(passed, passed_turns);
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

// O on its way from its registers (output_registers.cuh) to shared memory, from where TMA stores it: panels
// of 64 columns as pairs of 16 bits, each row scaled by its factor (PTX ISA, "stmatrix"). `at` is the address
// of the first fragment of the first panel there (fragments.cuh); this panel is kPlace panels further. With
// the swizzle, the addresses of a panel's four fragments differ in two bits.

template <int kPanel, int kPlace>
__device__ __forceinline__ void stage_panel(unsigned at, const float (&factor)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<2>;\n"
      ".reg .b32 to, pair<4>;\n"
      "mul.f32 x0, o%0, %33; mul.f32 x1, o%1, %33;\n"
      "cvt.rn.bf16x2.f32 pair0, x1, x0;\n"
      "mul.f32 x0, o%2, %34; mul.f32 x1, o%3, %34;\n"
      "cvt.rn.bf16x2.f32 pair1, x1, x0;\n"
      "mul.f32 x0, o%4, %33; mul.f32 x1, o%5, %33;\n"
      "cvt.rn.bf16x2.f32 pair2, x1, x0;\n"
      "mul.f32 x0, o%6, %34; mul.f32 x1, o%7, %34;\n"
      "cvt.rn.bf16x2.f32 pair3, x1, x0;\n"
      "xor.b32 to, %32, 0;\n"
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [to + %35], {pair0, pair1, pair2, pair3};\n"
      "mul.f32 x0, o%8, %33; mul.f32 x1, o%9, %33;\n"
      "cvt.rn.bf16x2.f32 pair0, x1, x0;\n"
      "mul.f32 x0, o%10, %34; mul.f32 x1, o%11, %34;\n"
      "cvt.rn.bf16x2.f32 pair1, x1, x0;\n"
      "mul.f32 x0, o%12, %33; mul.f32 x1, o%13, %33;\n"
      "cvt.rn.bf16x2.f32 pair2, x1, x0;\n"
      "mul.f32 x0, o%14, %34; mul.f32 x1, o%15, %34;\n"
      "cvt.rn.bf16x2.f32 pair3, x1, x0;\n"
      "xor.b32 to, %32, 32;\n"
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [to + %35], {pair0, pair1, pair2, pair3};\n"
      "mul.f32 x0, o%16, %33; mul.f32 x1, o%17, %33;\n"
      "cvt.rn.bf16x2.f32 pair0, x1, x0;\n"
      "mul.f32 x0, o%18, %34; mul.f32 x1, o%19, %34;\n"
      "cvt.rn.bf16x2.f32 pair1, x1, x0;\n"
      "mul.f32 x0, o%20, %33; mul.f32 x1, o%21, %33;\n"
      "cvt.rn.bf16x2.f32 pair2, x1, x0;\n"
      "mul.f32 x0, o%22, %34; mul.f32 x1, o%23, %34;\n"
      "cvt.rn.bf16x2.f32 pair3, x1, x0;\n"
      "xor.b32 to, %32, 64;\n"
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [to + %35], {pair0, pair1, pair2, pair3};\n"
      "mul.f32 x0, o%24, %33; mul.f32 x1, o%25, %33;\n"
      "cvt.rn.bf16x2.f32 pair0, x1, x0;\n"
      "mul.f32 x0, o%26, %34; mul.f32 x1, o%27, %34;\n"
      "cvt.rn.bf16x2.f32 pair1, x1, x0;\n"
      "mul.f32 x0, o%28, %33; mul.f32 x1, o%29, %33;\n"
      "cvt.rn.bf16x2.f32 pair2, x1, x0;\n"
      "mul.f32 x0, o%30, %34; mul.f32 x1, o%31, %34;\n"
      "cvt.rn.bf16x2.f32 pair3, x1, x0;\n"
      "xor.b32 to, %32, 96;\n"
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [to + %35], {pair0, pair1, pair2, pair3};\n"
      "}\n" ::
      "n"(32 * kPanel + 0), "n"(32 * kPanel + 1), "n"(32 * kPanel + 2), "n"(32 * kPanel + 3),
      "n"(32 * kPanel + 4), "n"(32 * kPanel + 5), "n"(32 * kPanel + 6), "n"(32 * kPanel + 7),
      "n"(32 * kPanel + 8), "n"(32 * kPanel + 9), "n"(32 * kPanel + 10), "n"(32 * kPanel + 11),
      "n"(32 * kPanel + 12), "n"(32 * kPanel + 13), "n"(32 * kPanel + 14), "n"(32 * kPanel + 15),
      "n"(32 * kPanel + 16), "n"(32 * kPanel + 17), "n"(32 * kPanel + 18), "n"(32 * kPanel + 19),
      "n"(32 * kPanel + 20), "n"(32 * kPanel + 21), "n"(32 * kPanel + 22), "n"(32 * kPanel + 23),
      "n"(32 * kPanel + 24), "n"(32 * kPanel + 25), "n"(32 * kPanel + 26), "n"(32 * kPanel + 27),
      "n"(32 * kPanel + 28), "n"(32 * kPanel + 29), "n"(32 * kPanel + 30), "n"(32 * kPanel + 31),
      "r"(at), "f"(factor[0]), "f"(factor[1]), "n"(kPlace * 64 * kRowBytes)
      : "memory");
}

// Order between ordinary accesses to shared memory and those of the asynchronous proxy (PTX ISA,
// "membar/fence").

// What this thread wrote to shared memory before the fence is visible to TMA and wgmma after it.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

// The end of a tile: O is normalised and leaves through shared memory and TMA.

// 1 / sum of the rows' exponentials, 0 for a row that saw no key.
__device__ __forceinline__ void normalise(const SoftmaxState& rows, float (&inverse)[2], float (&sum)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    sum[row] = quad_sum(rows.sum[row]);
    inverse[row] = sum[row] == 0 ? 0.0f : reciprocal_fast(sum[row]);
  }
}

// Panels kPanel to kEnd - 1, whose first fragment lies at `at`.
template <int kPanel, int kEnd, int kPlace = 0>
__device__ __forceinline__ void stage_panels(unsigned at, const float (&inverse)[2]) {
  stage_panel<kPanel, kPlace>(at, inverse);
  if constexpr (kPanel + 1 < kEnd) stage_panels<kPanel + 1, kEnd, kPlace + 1>(at, inverse);
}

// O in kOPasses passes of whole panels.
template <int kFirstPanel = 0>
__device__ __forceinline__ void store_output(const Consumer& consumer, const Tile& tile,
                                             const float (&inverse)[2], const TensorMap& map_o,
                                             const ForwardParams& p) {
  const unsigned staged = consumer.shared + kO + consumer.warpgroup * kOStep;
  const bool leader = threadIdx.x % 128 == 0;
  if (leader) bulk_wait_read();
  consumer.meet();
  stage_panels<kFirstPanel, kFirstPanel + kPassPanels>(staged + fragment_offset(0), inverse);
  fence_async_shared();
  consumer.meet();
  if (leader) {
#pragma unroll
    for (int panel = 0; panel < kPassPanels; ++panel) {
      tma_store(map_o, staged + panel * 64 * kRowBytes,
                rows_at(kFirstPanel + panel, tile.row + kRowStep * consumer.warpgroup, tile, p));
    }
    bulk_commit();
  }
  if constexpr (kFirstPanel + kPassPanels < kPanelsV) {
    store_output<kFirstPanel + kPassPanels>(consumer, tile, inverse, map_o, p);
  }
}

__device__ __forceinline__ void finish(Consumer& consumer, const Tile& tile, const TensorMap& map_o,
                                       const ForwardParams& p) {
  float inverse[2], sum[2];
  normalise(consumer.softmax.rows, inverse, sum);
  store_lse(tile, RowsOfThread(tile.row + kRowStep * consumer.warpgroup, p), consumer.softmax.rows, sum, p);
  store_output(consumer, tile, inverse, map_o, p);
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

// Which tile comes next: one producer takes tickets, the numbers of tiles, from a counter in device memory
// and hands them on.

__device__ __forceinline__ void wait_for_ticket(unsigned shared, int slot, int parity) {
  mbarrier_wait(shared + kTicketFull + 8 * slot, parity);
}

// For one thread of each reader: reads the tile's number, and says that it has.
__device__ __forceinline__ int read_ticket(unsigned shared, int slot) {
  const int number = static_cast<int>(load_shared(shared + kTicket + 4 * slot));
  mbarrier_arrive(shared + kTicketEmpty + 8 * slot);
  return number;
}

// The tile at place `drawn` of the order. In the second wave the two halves alternate: the longest, the
// middle one, the second longest, and so on. CTAs then end at times that differ by up to a tile of the third
// wave. Longest first, all would end together, and the third wave's longest tile would end alone.
__device__ __forceinline__ int riffle(int drawn, const ForwardParams& p) {
  const int place = drawn - p.riffled_from;
  if (place < 0 || place >= p.riffled) return drawn;
  return drawn - (place + 1) / 2 + place % 2 * ((p.riffled + 1) / 2);
}

// For the producer: the number of its n-th tile; not below the number of tiles when there are no more.
__device__ __forceinline__ int next_ticket(unsigned shared, int n, const ForwardParams& p) {
  const int slot = n & 1;
  int index = atomicAdd(p.tile_counter, 1);
  index = riffle(index, p);
  mbarrier_wait(shared + kTicketEmpty + 8 * slot, ~n >> 1 & 1);
  store_shared(shared + kTicket + 4 * slot, index);
  mbarrier_arrive(shared + kTicketFull + 8 * slot);
  return index;
}

// The last producer to finish leaves the counter at zero: the others have drawn by then.
__device__ __forceinline__ void leave_counter(const ForwardParams& p) {
  const int takers = static_cast<int>(gridDim.x);
  if (add_acquire_release(p.tile_counter + 1, 1) == takers - 1) {
    p.tile_counter[0] = 0;
    p.tile_counter[1] = 0;
  }
}

// A consumer warpgroup's life: tile after tile until there are no more.

__device__ __forceinline__ void consume(Consumer& consumer, const TensorMap& map_o, const ForwardParams& p) {
  const int tiles = tile_count(p);
  // Warpgroup 0 goes first.
  if (consumer.warpgroup == kWarpgroups - 1) consumer.pass_turn();
  int slot = 0, parity = 0;
  const auto next_index = [&] {
    // One lane reads the ticket and hands it on: if all lanes read it, one lane's arrival would not cover the
    // others' reads for compute-sanitizer.
    wait_for_ticket(consumer.shared, slot, parity);
    const int read = lane() == 0 ? read_ticket(consumer.shared, slot) : 0;
    const int index = __shfl_sync(0xffffffffu, read, 0);
    slot ^= 1;
    parity ^= slot ^ 1;
    return index;
  };
  Tile tile;
  bool computed = false;  // a tile that is still to be finished
  for (;;) {
    const int index = next_index();
    // The next tile's place is worked out beside the waits at the end of this one.
    const Tile next = tile_at(index, p);
    if (computed) finish(consumer, tile, map_o, p);
    if (index >= tiles) break;
    tile = next;
    consumer.compute(tile, p);
    computed = true;
  }
  // Warpgroup 0 takes the last arrival.
  if (consumer.warpgroup == 0) consumer.take_turn();
  if (threadIdx.x % 128 == 0) bulk_wait_read();  // shared memory is no longer the CTA's once it ends
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
  int tiles_loaded = 0;

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
      mbarrier_wait(shared + kQEmpty + 8 * warpgroup, ~tiles_loaded & 1);
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
    ++tiles_loaded;
  }
};

__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  const int tiles = tile_count(p);
  for (;;) {
    const int index = next_ticket(producer.shared, producer.tiles_loaded, p);
    if (index >= tiles) break;
    const Tile tile = tile_at(index, p);
    producer.load_tile(tile, p);
  }
  leave_counter(p);
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
    flashjit_forward_wgmma_bf16_d256_causal_m128n64s2qr0o2re0p2(const __grid_constant__ TensorMap map_q,
                   const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v,
                   const __grid_constant__ TensorMap map_o,
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
    consume(consumer, map_o, p);
  }
}

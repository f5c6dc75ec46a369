// backward fp32 d64 full deterministic, schedule wgmma-backward:m64n64s2dq0, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/backward_wgmma_fp32_dq.cu.

constexpr int kHeadDim = 64;             // columns of Q, K, dQ and dK
constexpr int kHeadDimV = 64;            // columns of V, dO and dV
constexpr int kTileM = 64;               // query rows per tile
constexpr int kTileN = 64;               // keys per tile
constexpr int kProducer = 2;             // the warpgroup that loads
constexpr int kRowPartsBytes = 49664;    // of a tile of rows in the workspace
constexpr int kThreads = 384;            // per CTA
constexpr int kProducerRegisters = 24;   // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 240;  // per thread of the others
constexpr int kSharedBytes = 163920;     // of dynamic shared memory
constexpr int kKeyPartsBytes = 49152;    // of a tile of keys in the workspace
constexpr int kStages = 2;               // tiles of K, and of V, in shared memory

// dQ in fp32, on Hopper's tensor cores that multiply bf16: the second kernel of a backward pass that adds
// nothing up in memory. A CTA owns kTileM query rows of one head, and tiles of K and V stream past, in parts
// that the kernels before have made. One thread has them copied; one warpgroup has S = Q K^T and P, and one
// dP = dO V^T, dS and dQ.

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

// Which CTA this is (PTX ISA, "%ctaid").

// Read anew wherever it is needed: the asm keeps the compiler from holding it, and what is computed from it,
// in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  __builtin_assume(index < 0x7fffffffu);
  return index;
}

// Which tile of query rows a CTA of the backward pass owns.

struct QueryTile {
  int m, head, batch;
};

// All tiles of a head, then the next head's: CTAs that run at the same time share K and V in L2. Under a
// causal mask the last rows, which see most keys, come first. Plain divisions, as in backward_key_tile.cuh.
__device__ __forceinline__ QueryTile query_tile_of_block(const BackwardParams& params) {
  const int block = block_index();
  const int pair = block / params.tiles;
  QueryTile tile;
  tile.m = params.tiles - 1 - (block - pair * params.tiles);
  tile.batch = pair / params.heads;
  tile.head = pair - tile.batch * params.heads;
  return tile;
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

// Tiles of rows and of keys: 64 of them, since a product of a warpgroup has 64 rows.

using TileQK = SplitTile<64, kHeadDim>;  // of Q or K
using TileV = SplitTile<64, kHeadDimV>;  // of V or dO

// The products of a step, as asm statements that the renderer writes down. Of the nine products of two
// numbers' parts, three are below the last bit of the whole; the other six are computed, the smallest first:
// each time that a tensor core adds 16 products it rounds towards zero, at the size of the sum.

// 16 columns of A B^T, where A and B are tiles of 64 rows. first: those of A's first part, which three of the
// six products have. sum = the product of both first parts …
__device__ __forceinline__ void wgmma_high(float (&sum)[32], const unsigned (&first)[4], unsigned b_tile) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      ".reg .b32 low;\n"
      ".reg .b64 b;\n"
      "wgmma.fence.sync.aligned;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "add.u32 low, %36, 0;\n"
      "mov.b64 b, {low, %37};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, b, accumulate, 1, 1, 0;\n"
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
      : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}
// … and sum += the others.
__device__ __forceinline__ void wgmma_low(float (&sum)[32], const unsigned (&first)[4], unsigned a_tile,
                                          unsigned b_tile) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      ".reg .b32 low;\n"
      ".reg .b64 b;\n"
      ".reg .b64 a;\n"
      "wgmma.fence.sync.aligned;\n"
      "setp.eq.b32 accumulate, 0, 0;\n"
      "add.u32 low, %36, 1024;\n"
      "mov.b64 a, {low, %38};\n"
      "add.u32 low, %37, 0;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %36, 512;\n"
      "mov.b64 a, {low, %38};\n"
      "add.u32 low, %37, 512;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %37, 1024;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %36, 512;\n"
      "mov.b64 a, {low, %38};\n"
      "add.u32 low, %37, 0;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %37, 512;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, b, accumulate, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      :
      "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]),
      "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7]),
      "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
      "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]),
      "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]),
      "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
      "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]),
      "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31])
      : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(a_tile), "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}

// A panel's columns of a gradient, from the parts of A in registers: sum = P^T dO, dS^T Q or dS K.
__device__ __forceinline__ void wgmma_gradient(float (&sum)[kPanelColumns / 2],
                                               const unsigned (&a)[4][kParts][4], unsigned b_tile) {
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
      "r"(a[0][0][0]), "r"(a[0][0][1]), "r"(a[0][0][2]), "r"(a[0][0][3]),
      "r"(a[0][1][0]), "r"(a[0][1][1]), "r"(a[0][1][2]), "r"(a[0][1][3]),
      "r"(a[0][2][0]), "r"(a[0][2][1]), "r"(a[0][2][2]), "r"(a[0][2][3]),
      "r"(a[1][0][0]), "r"(a[1][0][1]), "r"(a[1][0][2]), "r"(a[1][0][3]),
      "r"(a[1][1][0]), "r"(a[1][1][1]), "r"(a[1][1][2]), "r"(a[1][1][3]),
      "r"(a[1][2][0]), "r"(a[1][2][1]), "r"(a[1][2][2]), "r"(a[1][2][3]),
      "r"(a[2][0][0]), "r"(a[2][0][1]), "r"(a[2][0][2]), "r"(a[2][0][3]),
      "r"(a[2][1][0]), "r"(a[2][1][1]), "r"(a[2][1][2]), "r"(a[2][1][3]),
      "r"(a[2][2][0]), "r"(a[2][2][1]), "r"(a[2][2][2]), "r"(a[2][2][3]),
      "r"(a[3][0][0]), "r"(a[3][0][1]), "r"(a[3][0][2]), "r"(a[3][0][3]),
      "r"(a[3][1][0]), "r"(a[3][1][1]), "r"(a[3][1][2]), "r"(a[3][1][3]),
      "r"(a[3][2][0]), "r"(a[3][2][1]), "r"(a[3][2][2]), "r"(a[3][2][3]),
      "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}

// Registers that asynchronous products use without the compiler knowing (ptx/wgmma.cuh).

// Ties registers to this point of the program: the compiler does not know of products in flight, and would
// move reads of their registers above the wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// A warpgroup's sum of dV or dK: all of the CTA's keys.

// Columns from kFirst on, as many as one product has.
template <int kColumns, int kFirst>
constexpr int kAtOnce = kColumns - kFirst < kPanelColumns ? kColumns - kFirst : kPanelColumns;

// Begins part = A B for these columns of B.
template <int kColumns, int kFirst>
__device__ __forceinline__ void multiply_gradient(float (&part)[kAtOnce<kColumns, kFirst> / 2],
                                                  const unsigned (&a)[4][kParts][4], unsigned b_tile) {
  wgmma_gradient(part, a, lower_half(b_tile + kFirst / kPanelColumns * TileQK::kPanelBytes));
}

// Adds a part that is on its way, and those of the columns after it.
template <int kColumns, int kFirst>
__device__ __forceinline__ void add_gradient_from(float (&sum)[kColumns / 2],
                                                  float (&part)[kAtOnce<kColumns, kFirst> / 2],
                                                  const unsigned (&a)[4][kParts][4], unsigned b_tile) {
  constexpr int kNow = kAtOnce<kColumns, kFirst>, kNext = kFirst + kNow;
  const auto add = [&] {
    pin(part);
#pragma unroll
    for (int i = 0; i < kNow / 2; ++i) sum[kFirst / 2 + i] += part[i];
  };
  if constexpr (kNext < kColumns) {
    float next[kAtOnce<kColumns, kNext> / 2];
    multiply_gradient<kColumns, kNext>(next, a, b_tile);
    wgmma_wait<1>();
    add();
    add_gradient_from<kColumns, kNext>(sum, next, a, b_tile);
  } else {
    wgmma_wait<0>();
    add();
  }
}

// sum += A B. A step's part is summed by itself, since the sum is larger the more steps came before. While
// some columns are added, tensor cores have the next.
template <int kColumns>
__device__ __forceinline__ void add_gradient(float (&sum)[kColumns / 2], const unsigned (&a)[4][kParts][4],
                                             unsigned b_tile) {
  float part[kAtOnce<kColumns, 0> / 2];
  multiply_gradient<kColumns, 0>(part, a, b_tile);
  add_gradient_from<kColumns, 0>(sum, part, a, b_tile);
}

// Writes the sum, scaled, to the head's rows from first_row on; rows from `end` on do not exist. The four
// lanes of a quad write 32 bytes of a row side by side.
template <int kColumns>
__device__ __forceinline__ void write_gradient(const float (&sum)[kColumns / 2], float scale, float* head,
                                               long long row_stride, int first_row, int end) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 16 * warp_of_warpgroup() + 8 * half + lane() / 4;
    if (row >= end) return;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      *reinterpret_cast<float2*>(head + row * row_stride + 8 * i + lane() % 4 * 2) =
          float2{sum[4 * i + 2 * half] * scale, sum[4 * i + 2 * half + 1] * scale};
    }
  }
}

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

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

// One lane's arrival at a barrier for its warp.

__device__ __forceinline__ void arrive_for_warp(unsigned barrier) {
  if (lane() == 0) mbarrier_arrive(barrier);
  __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
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

// Sixteen bytes to shared memory (PTX ISA, "st").

__device__ __forceinline__ void store_shared(unsigned address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
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

// P on its way from one warpgroup to the other. A thread takes what the thread of the same number has put
// there: both have the same rows and keys.

constexpr int kPBytes = 64 * 64 * sizeof(float);  // P is not split

// Of a thread's numbers, four from the i-th on.
__device__ __forceinline__ unsigned address_of_weights(unsigned place, int i) {
  return place + thread_index() % 128 * 16 + i * 512;
}

__device__ __forceinline__ void store_weights(unsigned place, const float (&p)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    store_shared(address_of_weights(place, i), uint4{__float_as_uint(p[i]), __float_as_uint(p[i + 1]),
                                                     __float_as_uint(p[i + 2]), __float_as_uint(p[i + 3])});
  }
}

__device__ __forceinline__ float4 load_weights(unsigned place, int i) {
  return load_four(address_of_weights(place, i));
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

// What a CTA that owns query rows keeps in shared memory: their Q and dO, and rings of tiles of K and V, each
// as three tiles of bf16 whose sum it is; and P, which one warpgroup hands to the other.

static_assert(kTileM == TileQK::kRows && kTileN == TileQK::kRows, "the host counts the same tiles");

// Offsets from the start of shared memory.
constexpr int kQ = 0;
constexpr int kDout = kQ + TileQK::kBytes;
constexpr int kK = kDout + TileV::kBytes;
constexpr int kV = kK + kStages * TileQK::kBytes;
constexpr int kP = kV + kStages * TileV::kBytes;
// Barriers: Q is there, and dO; a tile of K or V is there; and who reads it is done with it.
constexpr int kQFull = kP + kPBytes;
constexpr int kDoutFull = kQFull + 8;
constexpr int kKFull = kDoutFull + 8;
constexpr int kVFull = kKFull + 8 * kStages;
constexpr int kKEmpty = kVFull + 8 * kStages;
constexpr int kVEmpty = kKEmpty + 8 * kStages;
static_assert(kVEmpty + 8 * kStages == kSharedBytes, "the host allocates what this lays out");

// Numbered barriers.
constexpr int kPIsThere = 1;     // P has been stored, for the warpgroup of dQ
constexpr int kPlaceIsFree = 2;  // the next one may be stored

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  mbarrier_init(shared + kQFull, 1);
  mbarrier_init(shared + kDoutFull, 1);
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, 1);
    mbarrier_init(shared + kVFull + 8 * stage, 1);
    mbarrier_init(shared + kKEmpty + 8 * stage, 8);  // a warp arrives once: both warpgroups read K
    mbarrier_init(shared + kVEmpty + 8 * stage, 4);
  }
  mbarrier_init_fence();
}

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

// LSE or delta of a thread's two rows of an accumulator.

// first: where those of the tile's rows begin, in RowParts.
__device__ __forceinline__ float2 row_numbers(const BackwardParams& params, const QueryTile& tile,
                                              int first) {
  const unsigned char* const rows = RowParts::of(params, tile.batch * params.heads + tile.head, tile.m);
  const float* const numbers =
      reinterpret_cast<const float*>(rows + first) + 16 * warp_of_warpgroup() + lane() / 4;
  return float2{numbers[0], numbers[8]};
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

// The products that S^T and dP^T come from.

// The first part of a tile of 64 rows, in registers: each step reads it three times.
template <int kColumns>
struct FirstPart {
  static constexpr int kSteps = (kColumns + 15) / 16;
  unsigned fragments[kSteps][4];

  __device__ __forceinline__ explicit FirstPart(unsigned tile) {
    const int thread = thread_index() % 128, row = thread / 32 * 16 + thread % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      ldmatrix(fragments[step], tile + SplitTile<64, kColumns>::offset(row, 2 * step + thread % 32 / 16));
  }
};

// This thread's part of A B^T, 64 x 64, as two sums: `high` of the products of both first parts, which are
// added one by one, rounded to nearest, and `low` of the others.
struct Scores {
  float high[32], low[32];

  // a_tile, b_tile: of 64 rows and kColumns columns. While a large product is added, tensor cores have the
  // small ones. All sums are made in the order of SplitSum::multiply_apart (parts/mma/split_sum.cuh), which
  // delta comes from.
  template <int kColumns>
  __device__ __forceinline__ void multiply(const FirstPart<kColumns>& first, unsigned a_tile,
                                           unsigned b_tile) {
    const unsigned a = lower_half(a_tile), b = lower_half(b_tile);
#pragma unroll
    for (int i = 0; i < 32; ++i) high[i] = low[i] = 0;
    pin(low);
#pragma unroll
    for (int step = 0; step < FirstPart<kColumns>::kSteps; ++step) {
      const unsigned at = (step / 4 * TileQK::kPanelBytes + step % 4 * 32) / 16;
      float product[32];
      wgmma_high(product, first.fragments[step], b + at);
      wgmma_low(low, first.fragments[step], a + at, b + at);
      wgmma_wait<1>();
      pin(product);
#pragma unroll
      for (int i = 0; i < 32; ++i) high[i] += product[i];
    }
    wgmma_wait<0>();
    pin(low);
  }

  __device__ __forceinline__ float at(int i) const {
    return high[i] + low[i];
  }
};

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

// The warpgroup that computes dP and dS of a CTA's query rows, and sums dQ.

// dq: without the scale.
__device__ __forceinline__ void sum_dq(float (&dq)[kHeadDim / 2], unsigned shared,
                                       const BackwardParams& params) {
  const QueryTile tile = query_tile_of_block(params);
  const VisibleKeys visible(params, tile.m * kTileM);
  if (visible.masked_end == 0) return;
  named_barrier_arrive(kPlaceIsFree, 256);
  const float2 delta = row_numbers(params, tile, RowParts::kDelta);
  mbarrier_wait(shared + kDoutFull, 0);
  RingPlace place;
  for (int n = 0; n < visible.masked_end; ++n, place.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDimV> first_of_dout(shared + kDout);
    mbarrier_wait(shared + kVFull + barrier, place.parity);
    Scores dp;
    dp.multiply<kHeadDimV>(first_of_dout, shared + kDout, shared + kV + place.stage * TileV::kBytes);
    arrive_for_warp(shared + kVEmpty + barrier);

    named_barrier_sync(kPIsThere, 256);  // and K, which was there before
    float ds[32];                        // without the scale: P (dP - delta)
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 p = load_weights(shared + kP, i);
      ds[i] = p.x * (dp.at(i) - delta.x);
      ds[i + 1] = p.y * (dp.at(i + 1) - delta.x);
      ds[i + 2] = p.z * (dp.at(i + 2) - delta.y);
      ds[i + 3] = p.w * (dp.at(i + 3) - delta.y);
    }
    if (n + 1 < visible.masked_end) named_barrier_arrive(kPlaceIsFree, 256);
    unsigned fragments[4][kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_fragment(fragments[i], &ds[8 * i]);
    add_gradient<kHeadDim>(dq, fragments, shared + kK + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kKEmpty + barrier);
  }
}

// A tile of keys in the workspace: K and V, each as three tiles of bf16 whose sum it is, as they lie in
// shared memory. The kernel that owns keys writes them for the one that owns query rows.

struct KeyParts {
  // Bytes from the start of a tile.
  static constexpr int kK = 0;
  static constexpr int kV = kK + TileQK::kBytes;
  static constexpr int kBytes = kV + TileV::kBytes;
  static_assert(kBytes == kKeyPartsBytes, "the host gives each tile so much of the workspace");

  // pair: the K/V head's number, counted through all batches.
  __device__ __forceinline__ static unsigned char* of(const BackwardParams& params, int pair, int tile) {
    const int tiles = (params.seqlen_k + kTileN - 1) / kTileN;
    return params.key_parts + (static_cast<long long>(pair) * tiles + tile) * kBytes;
  }
};

// Bulk copies of plain bytes to shared memory (PTX ISA, "cp.async.bulk").

// Starts a copy of a multiple of 16 bytes, aligned to 16 on both sides; its bytes complete on the barrier.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The thread that has a CTA's query rows copied to shared memory, and tiles of keys.

__device__ __forceinline__ void produce(unsigned shared, const BackwardParams& params) {
  const QueryTile tile = query_tile_of_block(params);
  const VisibleKeys visible(params, tile.m * kTileM);
  if (visible.masked_end == 0) return;
  const unsigned char* const rows = RowParts::of(params, tile.batch * params.heads + tile.head, tile.m);
  const auto load = [](unsigned to, const unsigned char* from, int bytes, unsigned full) {
    mbarrier_arrive_expecting(full, bytes);
    bulk_load(to, from, bytes, full);
  };
  load(shared + kQ, rows + RowParts::kQ, TileQK::kBytes, shared + kQFull);
  load(shared + kDout, rows + RowParts::kDout, TileV::kBytes, shared + kDoutFull);

  // V comes first, since its place is free sooner: dQ is computed last, from K.
  const int pair = tile.batch * params.heads_kv + tile.head / params.group;
  RingPlace place;
  for (int n = 0; n < visible.masked_end; ++n, place.advance()) {
    const int barrier = 8 * place.stage, parity = place.parity ^ 1;
    const unsigned char* const keys = KeyParts::of(params, pair, n);
    mbarrier_wait(shared + kVEmpty + barrier, parity);
    load(shared + kV + place.stage * TileV::kBytes, keys + KeyParts::kV, TileV::kBytes,
         shared + kVFull + barrier);
    mbarrier_wait(shared + kKEmpty + barrier, parity);
    load(shared + kK + place.stage * TileQK::kBytes, keys + KeyParts::kK, TileQK::kBytes,
         shared + kKFull + barrier);
  }
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

// The fast exponential of fp32 (PTX ISA, "ex2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The warpgroup that computes S and P of a CTA's query rows.

__device__ __forceinline__ void find_weights(unsigned shared, const BackwardParams& params) {
  const QueryTile tile = query_tile_of_block(params);
  const VisibleKeys visible(params, tile.m * kTileM);
  if (visible.masked_end == 0) return;
  const float2 lse = row_numbers(params, tile, RowParts::kLse);
  mbarrier_wait(shared + kQFull, 0);
  RingPlace place;
  for (int n = 0; n < visible.masked_end; ++n, place.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDim> first_of_q(shared + kQ);
    mbarrier_wait(shared + kKFull + barrier, place.parity);
    Scores scores;
    scores.multiply<kHeadDim>(first_of_q, shared + kQ, shared + kK + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kKEmpty + barrier);

    float p[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      p[i] = log2_weight(scores.high[i], scores.low[i], params.scale, i / 2 % 2 == 0 ? lse.x : lse.y);
    }
    if (n >= visible.unmasked_end) visible.mask(p, 16 * warp_of_warpgroup(), n * kTileN, params);
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = exp2_fast(p[i]);
    named_barrier_sync(kPlaceIsFree, 256);
    store_weights(shared + kP, p);
    named_barrier_arrive(kPIsThere, 256);
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
    flashjit_backward_wgmma_fp32_d64_deterministic_m64n64s2dq0_dq(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int warpgroup =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // known to be uniform

  if (threadIdx.x == 0) make_barriers(shared);
  __syncthreads();

  if (warpgroup == kProducer) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x % 128 == 0) produce(shared, params);
    return;
  }
  take_registers<kConsumerRegisters>();
  if (warpgroup == 0) {
    find_weights(shared, params);
    return;
  }
  float dq[kHeadDim / 2] = {};
  sum_dq(dq, shared, params);
  const QueryTile tile = query_tile_of_block(params);
  float* const to =
      static_cast<float*>(params.dq) + tile.batch * params.dq_batch + tile.head * params.dq_head;
  write_gradient<kHeadDim>(dq, params.scale, to, params.dq_row, tile.m * kTileM, params.seqlen_q);
}

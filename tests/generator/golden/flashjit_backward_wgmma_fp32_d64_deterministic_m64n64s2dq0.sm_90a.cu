// backward fp32 d64 full deterministic, schedule wgmma-backward:m64n64s2dq0, for sm_90a.
// Written by flashjit 0.1.0 from templates/kernels/backward_wgmma_fp32.cu.

constexpr int kHeadDim = 64;             // columns of Q, K, dQ and dK
constexpr int kHeadDimV = 64;            // columns of V, dO and dV
constexpr int kTileM = 64;               // query rows per tile
constexpr int kTileN = 64;               // keys per tile
constexpr int kProducer = 2;             // the warpgroup that loads
constexpr int kRowPartsBytes = 49664;    // of a tile of rows in the workspace
constexpr int kThreads = 384;            // per CTA
constexpr int kProducerRegisters = 24;   // per thread, after setmaxnreg
constexpr int kConsumerRegisters = 240;  // per thread of the others
constexpr int kSharedBytes = 164928;     // of dynamic shared memory
constexpr int kKeyPartsBytes = 49152;    // of a tile of keys in the workspace
constexpr int kStages = 2;               // tiles of Q, and of dO, in shared memory

// FlashAttention-2's backward pass (Dao, arXiv 2307.08691, algorithm 2) on Hopper in fp32, on tensor cores
// that multiply bf16: each number is the sum of three bf16 numbers, and each product the sum of six (Henry,
// Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", 2019). A CTA owns kTileN keys of one K/V head, and the rows of Q and dO of all query heads
// that share the K/V head stream past, in parts that the kernel before has made. As in FlashAttention-3
// (arXiv 2407.08608) one thread has them copied, and two warpgroups compute.
// One has S^T = K Q^T, P^T and dV; the other dP^T = V dO^T, dS^T and dK.

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
      "add.u32 low, %37, 1024;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "{%32, %33, %34, %35}, b, accumulate, 1, 1, 0;\n"
      "add.u32 low, %36, 512;\n"
      "mov.b64 a, {low, %38};\n"
      "add.u32 low, %37, 512;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
      "add.u32 low, %36, 1024;\n"
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
      "add.u32 low, %36, 512;\n"
      "mov.b64 a, {low, %38};\n"
      "add.u32 low, %37, 0;\n"
      "mov.b64 b, {low, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n"
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
      "a, b, accumulate, 1, 1, 0, 0;\n"
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

// What a CTA keeps in shared memory: its keys' rows of K and V, and rings of tiles of Q and dO, each as three
// tiles of bf16 whose sum it is; what warpgroups hand to each other; and LSE and delta.

constexpr int kRowsBytes = 2 * 64 * sizeof(float);  // of LSE, and then of delta

static_assert(kTileM == TileQK::kRows && kTileN == TileQK::kRows, "the host counts the same tiles");

// Offsets from the start of shared memory.
constexpr int kK = 0;
constexpr int kV = kK + TileQK::kBytes;
constexpr int kQ = kV + TileV::kBytes;
constexpr int kDout = kQ + kStages * TileQK::kBytes;
constexpr int kP = kDout + kStages * TileV::kBytes;
constexpr int kRows = kP + kPBytes;
// Barriers: a tile of dO is there; a tile of Q with its LSE and delta is; and who reads it is done with it.
constexpr int kDoutFull = kRows + kStages * kRowsBytes;
constexpr int kQFull = kDoutFull + 8 * kStages;
constexpr int kDoutEmpty = kQFull + 8 * kStages;
constexpr int kQEmpty = kDoutEmpty + 8 * kStages;
static_assert(kQEmpty + 8 * kStages == kSharedBytes, "the host allocates what this lays out");

// Numbered barriers.
constexpr int kKeysAreThere = 1;
constexpr int kPIsThere = 2;     // P^T has been stored, for the warpgroup of dK
constexpr int kPlaceIsFree = 3;  // the next one may be stored

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  constexpr int kReads = 8;  // a warp arrives once
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kQFull + 8 * stage, 1);
    mbarrier_init(shared + kDoutFull + 8 * stage, 1);
    mbarrier_init(shared + kQEmpty + 8 * stage, kReads);
    mbarrier_init(shared + kDoutEmpty + 8 * stage, kReads);
  }
  mbarrier_init_fence();
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

// The steps of a CTA: the tiles of query rows that see any of its keys, of one query head of the group after
// the other.

struct Steps {
  int first_m, end_m;
  int left;     // steps, this one included
  int m, pair;  // this step's tile; its query head's number, counted through all batches

  __device__ __forceinline__ Steps(const BackwardParams& params, const KeyTile& tile) {
    end_m = (params.seqlen_q + kTileM - 1) / kTileM;
    first_m = 0;
    left = params.group * max(end_m - first_m, 0);
    m = first_m;
    pair = tile.batch * params.heads + tile.head * params.group;
  }

  __device__ __forceinline__ void advance() {
    --left;
    if (++m < end_m) return;
    m = first_m;
    ++pair;
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

// Two neighbouring floats of shared memory (PTX ISA, "ld").

__device__ __forceinline__ float2 load_pair(unsigned address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

// The warpgroup that computes dP^T and dS^T, and sums dK.

// ds = dS^T of a step without the scale: P^T (dP^T - delta).
__device__ __forceinline__ void find_ds(float (&ds)[32], const Scores& dp, unsigned shared,
                                        unsigned delta_of_rows) {
  const int thread = thread_index() % 128;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const float2 delta = load_pair(delta_of_rows + 8 * i + thread % 4 * 8);
    const float4 p = load_weights(shared + kP, i);
    ds[i] = p.x * (dp.at(i) - delta.x);
    ds[i + 1] = p.y * (dp.at(i + 1) - delta.y);
    ds[i + 2] = p.z * (dp.at(i + 2) - delta.x);
    ds[i + 3] = p.w * (dp.at(i + 3) - delta.y);
  }
}

// dk: without the scale.
__device__ __forceinline__ void sum_dk(float (&dk)[kHeadDim / 2], unsigned shared,
                                       const BackwardParams& params) {
  const KeyTile tile = key_tile_of_block(params);
  Steps step(params, tile);
  if (step.left == 0) return;
  named_barrier_arrive(kPlaceIsFree, 256);
  for (RingPlace place; step.left > 0; place.advance(), step.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDimV> first_of_v(shared + kV);
    mbarrier_wait(shared + kDoutFull + barrier, place.parity);
    Scores dp;
    dp.multiply<kHeadDimV>(first_of_v, shared + kV, shared + kDout + place.stage * TileV::kBytes);
    arrive_for_warp(shared + kDoutEmpty + barrier);

    named_barrier_sync(kPIsThere, 256);  // and so are Q, which P^T was computed from, and delta beside it
    float ds[32];
    find_ds(ds, dp, shared, shared + kRows + place.stage * kRowsBytes + 64 * 4);
    if (step.left > 1) named_barrier_arrive(kPlaceIsFree, 256);
    __syncwarp();  // all lanes have read delta before one of them speaks for the warp
    unsigned fragments[4][kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_fragment(fragments[i], &ds[8 * i]);

    add_gradient<kHeadDim>(dk, fragments, shared + kQ + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kQEmpty + barrier);
  }
}

// Where a head begins, in fp32.

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const float* head_of(const void* tensor, long long batch, long long head) {
  return static_cast<const float*>(tensor) + batch + head;
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

// Bulk copies of plain bytes from shared to global memory (PTX ISA, "cp.async.bulk").

// A multiple of 16 bytes, aligned to 16 on both sides.
__device__ __forceinline__ void bulk_store(void* to, unsigned from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

// Order between ordinary accesses to shared memory and those of the asynchronous proxy (PTX ISA,
// "membar/fence").

// What this thread wrote to shared memory before the fence is visible to TMA and wgmma after it.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

// The CTA's keys, on their way through registers to shared memory.

// K and V, by both warpgroups that multiply them, up to the end of the last panel.
// One thread begins to copy them to the workspace.
__device__ __forceinline__ void split_keys(unsigned shared, const BackwardParams& params) {
  const KeyTile tile = key_tile_of_block(params);
  const float* const k = head_of(params.k, tile.batch * params.k_batch, tile.head * params.k_head);
  const float* const v = head_of(params.v, tile.batch * params.v_batch, tile.head * params.v_head);
  const int thread = thread_index() % 256, first_key = tile.n * kTileN;
  const auto as_it_is = [](float x) { return x; };
  const auto wait_for_nothing = [] {};
  constexpr int kPadded = (kHeadDim + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  constexpr int kPaddedV = (kHeadDimV + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  split_copy<TileQK, 64, kHeadDim, 256, kPadded>({k, params.k_row, first_key, params.seqlen_k}, shared + kK,
                                                 thread, finite, wait_for_nothing);
  split_copy<TileV, 64, kHeadDimV, 256, kPaddedV>({v, params.v_row, first_key, params.seqlen_k}, shared + kV,
                                                  thread, as_it_is, wait_for_nothing);
  fence_async_shared();
  named_barrier_sync(kKeysAreThere, 256);
  if (thread == 0) {
    unsigned char* const to = KeyParts::of(params, tile.batch * params.heads_kv + tile.head, tile.n);
    bulk_store(to, shared + kK, KeyParts::kBytes);
    bulk_commit();
  }
}

// The thread that began to copy them waits until shared memory has been read.
__device__ __forceinline__ void wait_for_copied_keys() {
  if (thread_index() % 256 == 0) bulk_wait_read();
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

// Bulk copies of plain bytes to shared memory (PTX ISA, "cp.async.bulk").

// Starts a copy of a multiple of 16 bytes, aligned to 16 on both sides; its bytes complete on the barrier.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The thread that has tiles of query rows copied to shared memory.

// dO comes first, since its place is free sooner: dV is computed before dK.
__device__ __forceinline__ void produce(unsigned shared, const BackwardParams& params) {
  Steps step(params, key_tile_of_block(params));
  for (RingPlace place; step.left > 0; place.advance(), step.advance()) {
    const int barrier = 8 * place.stage, parity = place.parity ^ 1;
    const unsigned dout_full = shared + kDoutFull + barrier, q_full = shared + kQFull + barrier;
    const unsigned char* const rows = RowParts::of(params, step.pair, step.m);

    mbarrier_wait(shared + kDoutEmpty + barrier, parity);
    mbarrier_arrive_expecting(dout_full, TileV::kBytes);
    bulk_load(shared + kDout + place.stage * TileV::kBytes, rows + RowParts::kDout, TileV::kBytes, dout_full);

    mbarrier_wait(shared + kQEmpty + barrier, parity);
    mbarrier_arrive_expecting(q_full, TileQK::kBytes + kRowsBytes);
    bulk_load(shared + kQ + place.stage * TileQK::kBytes, rows + RowParts::kQ, TileQK::kBytes, q_full);
    bulk_load(shared + kRows + place.stage * kRowsBytes, rows + RowParts::kLse, kRowsBytes, q_full);
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

// The warpgroup that computes S^T and P^T, and sums dV.

// p = P^T of a step.
// edge: how many of the CTA's keys exist.
__device__ __forceinline__ void find_weights(float (&p)[32], const Scores& s, unsigned lse_of_rows, int edge,
                                             float scale) {
  const int thread = thread_index() % 128;
  const int key = thread / 32 * 16 + thread % 32 / 4;  // the thread's first
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const int row = 2 * i + thread % 4 * 2;
    const float2 lse = load_pair(lse_of_rows + row * 4);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      p[i + x] = exp2_fast(log2_weight(s.high[i + x], s.low[i + x], scale, x % 2 == 0 ? lse.x : lse.y));
      // Keys past the end of K are zeros, but exp(0 - LSE) may be infinite.
      if (key + x / 2 * 8 >= edge) p[i + x] = 0;
    }
  }
}

__device__ __forceinline__ void sum_dv(float (&dv)[kHeadDimV / 2], unsigned shared,
                                       const BackwardParams& params) {
  const KeyTile tile = key_tile_of_block(params);
  Steps step(params, tile);
  for (RingPlace place; step.left > 0; place.advance(), step.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDim> first_of_k(shared + kK);
    mbarrier_wait(shared + kQFull + barrier, place.parity);
    Scores scores;
    scores.multiply<kHeadDim>(first_of_k, shared + kK, shared + kQ + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kQEmpty + barrier);

    float p[32];
    const int edge = params.seqlen_k - tile.n * kTileN;
    find_weights(p, scores, shared + kRows + place.stage * kRowsBytes, edge, params.scale);
    named_barrier_sync(kPlaceIsFree, 256);
    store_weights(shared + kP, p);
    named_barrier_arrive(kPIsThere, 256);

    unsigned fragments[4][kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_fragment(fragments[i], &p[8 * i]);
    mbarrier_wait(shared + kDoutFull + barrier, place.parity);
    add_gradient<kHeadDimV>(dv, fragments, shared + kDout + place.stage * TileV::kBytes);
    arrive_for_warp(shared + kDoutEmpty + barrier);
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
    flashjit_backward_wgmma_fp32_d64_deterministic_m64n64s2dq0(const __grid_constant__ BackwardParams params) {
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
  // Each warpgroup finds the tile by itself, and once more for what it writes: registers are short meanwhile.
  split_keys(shared, params);
  if (warpgroup == 0) {
    float dv[kHeadDimV / 2] = {};
    sum_dv(dv, shared, params);
    const KeyTile tile = key_tile_of_block(params);
    float* const to =
        static_cast<float*>(params.dv) + tile.batch * params.dv_batch + tile.head * params.dv_head;
    write_gradient<kHeadDimV>(dv, 1.0f, to, params.dv_row, tile.n * kTileN, params.seqlen_k);
  } else {
    float dk[kHeadDim / 2] = {};
    sum_dk(dk, shared, params);
    const KeyTile tile = key_tile_of_block(params);
    float* const to =
        static_cast<float*>(params.dk) + tile.batch * params.dk_batch + tile.head * params.dk_head;
    write_gradient<kHeadDim>(dk, params.scale, to, params.dk_row, tile.n * kTileN, params.seqlen_k);
  }
  wait_for_copied_keys();
}

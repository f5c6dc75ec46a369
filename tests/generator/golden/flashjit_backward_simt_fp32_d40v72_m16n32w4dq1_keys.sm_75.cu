// backward fp32 d40/72 full, schedule simt-backward:m16n32w4dq1, for sm_75.
// Written by flashjit 0.1.0 from templates/kernels/backward_simt_keys.cu.

constexpr int kHeadDim = 40;       // columns of Q and K
constexpr int kHeadDimV = 72;      // columns of V and dO
constexpr bool kCausal = false;    // bottom-right aligned
constexpr int kTileM = 16;         // query rows of a tile
constexpr int kTileN = 32;         // keys of a tile
constexpr int kWarps = 4;          // per CTA
constexpr int kThreads = 128;      // per CTA
constexpr int kUnroll = 1;         // steps of S and dP per turn of their loops
constexpr bool kPrefetch = false;  // fragments are loaded when they are needed
constexpr int kLanes = 16;         // of a warp side by side across the keys; the others go down the rows
constexpr int kRows = 2;           // of S per thread
constexpr int kKeys = 2;           // columns of S per thread
constexpr bool kCareful = true;    // sums of S, dP and delta lose less
constexpr int kStrideQk = 44;      // floats from row to row of Q and K in shared memory
constexpr int kStrideV = 76;       // floats from row to row of V and dO
constexpr int kStrideP = 48;       // floats from row to row of P and dS
constexpr int kSharedK = 0;        // where K begins in shared memory, in floats
constexpr int kSharedV = 1408;     // V
constexpr int kSharedQ = 3840;     // Q
constexpr int kSharedDout = 4544;  // dO
constexpr int kSharedDs = 5760;    // dS
constexpr int kSharedP = 6528;     // P
constexpr int kSharersK = 8;       // threads side by side on a row of dK
constexpr int kSharersV = 8;       // threads side by side on a row of dV
constexpr int kSharersQ = 8;       // threads side by side on a row of dQ

// dK and dV in fp32 FMA (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2): a CTA owns kTileN keys of a
// K/V head and streams the queries of all its query heads.

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

// Tiles of rows from global to shared memory, 16 bytes per thread and step.

// Writes zeros where not inside. Without cp.async (before sm_80) the copy goes through registers and is done
// at once.
__device__ __forceinline__ void copy_16_bytes(float* to, const float* from, bool inside) {
  *reinterpret_cast<float4*>(to) = inside ? *reinterpret_cast<const float4*>(from) : float4{0, 0, 0, 0};
}

// Makes a group of the tiles copied since the last call, to be waited for together.
__device__ __forceinline__ void commit_tiles() {
}

// Waits until all but the kPending latest groups of tiles have arrived, as far as this thread copies them.
template <int kPending>
__device__ __forceinline__ void wait_for_tiles() {
}

// Copies kTileRows rows of kDim floats. Rows from rows_left on are zero: a masked key has weight 0, and 0
// times what happens to lie behind the tensor may be NaN. kGuarded is false where the tile is known to be
// whole.
template <int kTileRows, int kDim, int kStride, bool kGuarded>
__device__ __forceinline__ void copy_tile(float* to, const float* from, long long row_stride, int rows_left) {
  constexpr int kChunks = kDim / 4;
  constexpr int kRowsPerStep = kThreads / kChunks;
  const int row = threadIdx.x / unsigned{kChunks};
  const int column = threadIdx.x % unsigned{kChunks} * 4;
  to += row * kStride + column;
  from += row * row_stride + column;
  const bool works = kThreads % kChunks == 0 || row < kRowsPerStep;
#pragma unroll 8
  for (int step = 0; step < kTileRows; step += kRowsPerStep) {
    const bool in_tile = step + kRowsPerStep <= kTileRows || row + step < kTileRows;
    if (works && in_tile) copy_16_bytes(to, from, !kGuarded || row + step < rows_left);
    to += kRowsPerStep * kStride;
    from += kRowsPerStep * row_stride;
  }
}

// Which rows and keys of a tile of scores each thread works on.

// A warp's lanes form a grid, kLanes across the keys (and the value columns) and 32 / kLanes down the rows.
// Bits 0 and 1 of the lane number alternate between the two directions: then lanes i and i ^ 1 read the same
// rows, lanes i and i ^ 2 the same keys, and a 128-bit shared load serves half a warp at a time instead of a
// quarter.
struct Place {
  int warp;
  int key_lane;  // works on keys key_lane + kLanes * j of the tile
  int row;       // works on rows row + kRowLanes * i of the tile
};

constexpr int kRowLanes = 32 / kLanes;

__device__ __forceinline__ Place place_of_thread() {
  const int lane = threadIdx.x % 32;
  Place place;
  place.warp = threadIdx.x / 32;
  place.key_lane = (lane & 1) | (lane / 4 % (kLanes / 2)) * 2;
  place.row = place.warp * (kTileM / kWarps) + ((lane / 2 & 1) | lane / (2 * kLanes) * 2);
  return place;
}

// kCount floats, read or written by one instruction where they are 2 or 4; read by two where they are 8.
template <int kCount>
__device__ __forceinline__ void load_floats(float* to, const float* from) {
  if constexpr (kCount == 8) {
    load_floats<4>(to, from);
    load_floats<4>(to + 4, from + 4);
  } else if constexpr (kCount == 4) {
    const float4 value = *reinterpret_cast<const float4*>(from);
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
  } else if constexpr (kCount == 2) {
    const float2 value = *reinterpret_cast<const float2*>(from);
    to[0] = value.x, to[1] = value.y;
  } else {
    to[0] = *from;
  }
}

template <int kCount>
__device__ __forceinline__ void store_floats(float* to, const float* from) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(to) = float4{from[0], from[1], from[2], from[3]};
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(to) = float2{from[0], from[1]};
  } else {
    *to = *from;
  }
}

// Which keys a query sees.

// The keys that query `row` sees are 0 .. visible_keys - 1.
template <class Params>
__device__ __forceinline__ int visible_keys(const Params& params, int) {
  return params.seqlen_k;
}

// Adds a block to a sum (scores.cuh).

// lost: what the additions to the sum have lost to rounding so far, if kept (Kahan's sum, Higham section
// 4.3). An infinite sum has lost nothing, since no correction would bring it back.
__device__ __forceinline__ void add_block(float& sum, float& lost, float block) {
  if constexpr (kCareful) {
    const float term = block - lost;
    const float more = sum + term;
    lost = more - more == 0 ? (more - sum) - term : 0;
    sum = more;
  } else {
    sum += block;
  }
}

// Products of rows with rows, Q K^T, as outer products in registers.

// Dims of a dot product that are summed by themselves before they join its sum so far. A sum that grows over
// all of head_dim rounds at its full size each time, and the weight of a large score shows that error. Blocks
// of 8 reduce the error to a third (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), for
// one addition in nine.
constexpr int kBlock = 8;

// kCount numbers side by side of each of a thread's rows.
template <int kCount>
struct RowFragment {
  float at[kRows][kCount];

  __device__ __forceinline__ void load(const float* from, int row_stride) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) load_floats<kCount>(at[i], from + i * kRowLanes * row_stride);
  }
};

// Runs kSteps steps, each of which first loads a RowFragment and then computes with it. With kPrefetch the
// fragment of the next step is on its way while this one is computed: it takes registers, and hides the
// latency of shared memory.
template <int kCount, int kSteps, class Load, class Compute>
__device__ __forceinline__ void run_steps(Load load, Compute compute) {
  if constexpr (kPrefetch && kSteps % 2 == 0) {
    RowFragment<kCount> even, odd;
    load(even, 0);
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; step += 2) {
      load(odd, step + 1);
      compute(even, step);
      load(even, step + 2 < kSteps ? step + 2 : 0);  // after the last step: loaded for nothing, but no branch
      compute(odd, step + 1);
    }
  } else {
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; ++step) {
      RowFragment<kCount> fragment;
      load(fragment, step);
      compute(fragment, step);
    }
  }
}

// S = Q K^T for kRows x kKeys of the tile. Four columns of Q and K cost kRows + kKeys 128-bit loads and 4 *
// kRows * kKeys FMAs. Rows are padded by 16 bytes, so that lanes on neighbouring rows have no bank conflicts.
// kApart dims at a time are summed by themselves (kBlock).
template <int kDim, int kStride, int kApart = kBlock>
__device__ __forceinline__ void multiply_rows(float (&s)[kRows][kKeys], const float* q, const float* k,
                                              const Place& place) {
  q += place.row * kStride;
  k += place.key_lane * kStride;
  float lost[kRows][kKeys];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = lost[i][j] = 0;
  }
  run_steps<kBlock, kDim / kBlock>(
      [&](RowFragment<kBlock>& a, int step) { a.load(q + kBlock * step, kStride); },
      [&](const RowFragment<kBlock>& a, int step) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          float b[kBlock];
          load_floats<kBlock>(b, k + j * kLanes * kStride + kBlock * step);
#pragma unroll
          for (int first = 0; first < kBlock; first += kApart) {
            float block[kRows];
#pragma unroll
            for (int i = 0; i < kRows; ++i) block[i] = a.at[i][first] * b[first];
#pragma unroll
            for (int x = first + 1; x < first + kApart; ++x) {
#pragma unroll
              for (int i = 0; i < kRows; ++i) block[i] = fmaf(a.at[i][x], b[x], block[i]);
            }
#pragma unroll
            for (int i = 0; i < kRows; ++i) add_block(s[i][j], lost[i][j], block[i]);
          }
        }
      });
}

// How threads share the columns of a row.

// The size of a group of neighbouring columns as a type, for code that is compiled for each size.
template <int kFloats>
struct Group {
  static constexpr int kCount = kFloats;
};

// kSharers threads have kColumns columns each: as many groups of 4 neighbours as there are, then one of 2,
// then one of 1; within a group the threads lie side by side. Calls act(group, first of the thread's columns,
// first of the row's columns) for each group of thread `sharer`.
template <int kColumns, int kSharers, class Act>
__device__ __forceinline__ void for_each_group(int sharer, Act act) {
  constexpr int kQuads = kColumns / 4;
  constexpr int kPairs = kColumns / 2 % 2;
  constexpr int kSingles = kColumns % 2;
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) act(Group<4>{}, 4 * quad, 4 * (quad * kSharers + sharer));
  if constexpr (kPairs != 0) act(Group<2>{}, 4 * kQuads, 4 * kQuads * kSharers + 2 * sharer);
  if constexpr (kSingles != 0) {
    act(Group<1>{}, 4 * kQuads + 2 * kPairs, (4 * kQuads + 2 * kPairs) * kSharers + sharer);
  }
}

// A thread's share of a tile of gradients.

// A share of the kTile rows x kDim columns that all threads of a CTA add up in registers; kSharers threads
// have a row together. A thread's rows are neighbours where they are read side by side. Where each is read
// along its own length, they are apart, so that neighbouring threads have no bank conflicts.
template <int kTile, int kDim, int kSharers, bool kNeighbours>
struct Share {
  static constexpr int kOwners = kThreads / kSharers;
  static constexpr int kOwn = kTile / kOwners;  // rows
  static constexpr int kColumns = kDim / kSharers;
  float at[kOwn][kColumns];

  __device__ __forceinline__ static int sharer() { return threadIdx.x % kSharers; }
  __device__ __forceinline__ static int row(int i) {
    const int owner = threadIdx.x / kSharers;
    return kNeighbours ? owner * kOwn + i : owner + i * kOwners;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int x = 0; x < kColumns; ++x) at[i][x] = 0;
    }
  }

  // Adds tile by tile, so that additions round at the size of a tile's sum and not of the whole (Higham,
  // Accuracy and Stability of Numerical Algorithms, section 4.2).
  __device__ __forceinline__ void operator+=(const Share& tile) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int x = 0; x < kColumns; ++x) at[i][x] += tile.at[i][x];
    }
  }

  // Adds one row of the other factor, weighted for each of the thread's rows.
  template <class Weight>
  __device__ __forceinline__ void add(const float* row, Weight weight) {
    float b[kColumns];
    for_each_group<kColumns, kSharers>(sharer(), [&](auto group, int mine, int column) {
      load_floats<decltype(group)::kCount>(b + mine, row + column);
    });
#pragma unroll
    for (int x = 0; x < kColumns; ++x) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) at[i][x] = fmaf(weight(i), b[x], at[i][x]);
    }
  }

  // Adds all rows to sums in memory, whatever order CTAs come in.
  __device__ __forceinline__ void add_to(float* sums, int row_stride) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      for_each_group<kColumns, kSharers>(sharer(), [&](auto group, int mine, int column) {
        float* const to = sums + row(i) * row_stride + column;
        const float* const own = at[i] + mine;
#pragma unroll
        for (int x = 0; x < decltype(group)::kCount; ++x) atomicAdd(to + x, own[x]);
      });
    }
  }

  // Writes the rows below rows_left to `to`, times factor.
  __device__ __forceinline__ void write(float* to, long long row_stride, int rows_left, float factor) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (row(i) >= rows_left) continue;
      for_each_group<kColumns, kSharers>(sharer(), [&](auto group, int mine, int column) {
        constexpr int kCount = decltype(group)::kCount;
        float value[kCount];
#pragma unroll
        for (int x = 0; x < kCount; ++x) value[x] = at[i][mine + x] * factor;
        store_floats<kCount>(to + row(i) * row_stride + column, value);
      });
    }
  }
};

// The product, over the queries, that adds to a thread's share of the keys' gradients.

// W^T X: W has kTileM rows, a column for each row of the share.
template <class ShareOfKeys, int kStride>
__device__ __forceinline__ ShareOfKeys multiply_transposed(const float* w, const float* x) {
  ShareOfKeys share;
  share.clear();
  w += ShareOfKeys::row(0);
#pragma unroll 4
  for (int m = 0; m < kTileM; ++m) {
    float a[ShareOfKeys::kOwn];
    load_floats<ShareOfKeys::kOwn>(a, w + m * kStrideP);
    share.add(x + m * kStride, [&](int i) { return a[i]; });
  }
  return share;
}

// The product, over the keys, that adds to a thread's share of the queries' gradients.

// W X: W has a row for each row of the share, and kTileN columns.
template <class ShareOfRows, int kStride>
__device__ __forceinline__ ShareOfRows multiply(const float* w, const float* x) {
  ShareOfRows share;
  share.clear();
#pragma unroll 1
  for (int n = 0; n < kTileN; n += 4) {
    float a[ShareOfRows::kOwn][4];
#pragma unroll
    for (int i = 0; i < ShareOfRows::kOwn; ++i) load_floats<4>(a[i], w + ShareOfRows::row(i) * kStrideP + n);
#pragma unroll
    for (int h = 0; h < 4; ++h) share.add(x + (n + h) * kStride, [&](int i) { return a[i][h]; });
  }
  return share;
}

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}

// Which tile of which head a CTA computes.

struct TileIndex {
  int place;  // of the tile among its head's
  int pair;   // number of the (batch, head) pair
  int batch, head;
};

// Causal: the first tile of each (batch, head) pair, then the second, so that tiles with most work go first.
// Otherwise all tiles of a pair, then the next pair's: neighbours share what they read in L2.
__device__ __forceinline__ TileIndex tile_of_block(int tiles, const Divisor& by_tiles, int pairs,
                                                   const Divisor& by_pairs, int heads,
                                                   const Divisor& by_heads) {
  const int index = blockIdx.x;
  const int row = divide(index, kCausal ? by_pairs : by_tiles);
  const int rest = index - row * (kCausal ? pairs : tiles);
  TileIndex tile;
  tile.place = kCausal ? row : rest;
  tile.pair = kCausal ? rest : row;
  tile.batch = divide(tile.pair, by_heads);
  tile.head = tile.pair - tile.batch * heads;
  return tile;
}

// The infinity of fp32.

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// The fast exponential of fp32 (PTX ISA, "ex2"): one MUFU instruction; denormals flush to zero.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// P and dS of a tile of queries and a tile of keys (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2).

constexpr float kLog2e = 1.442695040888963407f;
constexpr float kLn2 = 0.693147180559945309f;

// What the forward pass and the preprocessing kernel computed for a thread's rows.
struct Rows {
  float lse[kRows];    // +inf, so that P is 0, for rows that see no key or lie past the last
  float delta[kRows];  // sum of dO * O

  __device__ __forceinline__ void load(const BackwardParams& params, int head_index, int first_row) {
    const float* const lse_of_head = params.lse + static_cast<long long>(head_index) * params.seqlen_q;
    const float* const delta_of_head = params.delta + static_cast<long long>(head_index) * params.padded_q;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row + i * kRowLanes;
      lse[i] = row < params.seqlen_q ? lse_of_head[row] : kInfinity;
      if (lse[i] == -kInfinity) lse[i] = kInfinity;
      delta[i] = delta_of_head[row];  // padded
    }
  }
};

// S = Q K^T as s + lost: one FMA that rounds, and one for what the first has lost (Ogita, Rump, Oishi,
// Accurate Sum and Dot Product, 2005). Summing in blocks (scores.cuh) would not help: 8 dims are a single
// block, within which a large term rounds 8 times.
__device__ __forceinline__ void multiply_twofold(float (&s)[kRows][kKeys], float (&lost)[kRows][kKeys],
                                                 const float* q, const float* k, const Place& place) {
  q += place.row * kStrideQk;
  k += place.key_lane * kStrideQk;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = lost[i][j] = 0;
  }
  run_steps<kBlock, kHeadDim / kBlock>(
      [&](RowFragment<kBlock>& a, int step) { a.load(q + kBlock * step, kStrideQk); },
      [&](const RowFragment<kBlock>& a, int step) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          float b[kBlock];
          load_floats<kBlock>(b, k + j * kLanes * kStrideQk + kBlock * step);
#pragma unroll
          for (int x = 0; x < kBlock; ++x) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
              const float sum = fmaf(a.at[i][x], b[x], s[i][j]);
              lost[i][j] += fmaf(a.at[i][x], b[x], s[i][j] - sum);
              s[i][j] = sum;
            }
          }
        }
      });
}

// exp((s + lost) * scale - lse). The rounding errors of scaling, difference and change of base are known,
// too, as rest: exp(x + rest) is exp(x) * (1 + rest). The intrinsic keeps the compiler from fusing the
// product into an FMA, which would round differently.
__device__ __forceinline__ float weight_twofold(float s, float lost, float scale, float lse) {
  if (s == -kInfinity) return 0;  // lost is NaN then
  const float high = __fmul_rn(s, scale);
  const float low = fmaf(lost, scale, fmaf(s, scale, -high));
  const float score = high + low;
  const float distance = score - lse;
  const float power = distance * kLog2e;
  const float weight = exp2_fast(power);
  const float rest = (low - (score - high)) + (score - (distance + lse)) + fmaf(power, -kLn2, distance);
  // If one key has all the weight, the LSE is its score, rounded the same way. If the weight is 0, the rest
  // may be inf - inf.
  return distance == 0 || weight == 0 ? weight : fmaf(weight, rest, weight);
}

// P of a tile. The difference is taken before the change of base: where a weight matters the difference is
// small, and so is its rounding error. seen(i) is the number of the tile's keys that row i sees, counted from
// the thread's first.
template <bool kMasked, class Seen>
__device__ __forceinline__ void weigh(float (&p)[kRows][kKeys], const float* q, const float* k,
                                      const Rows& rows, float scale, const Place& place, Seen seen) {
  float lost[kRows][kKeys];
  multiply_twofold(p, lost, q, k, place);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int keys = kMasked ? seen(i) : 0;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      p[i][j] = weight_twofold(p[i][j], lost[i][j], scale, rows.lse[i]);
      if (kMasked && j * kLanes >= keys) p[i][j] = 0;
    }
  }
}

// Turns dP into dS, without the scale.
__device__ __forceinline__ void differentiate(float (&ds)[kRows][kKeys], const float (&p)[kRows][kKeys],
                                              const Rows& rows) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) ds[i][j] = p[i][j] * (ds[i][j] - rows.delta[i]);
  }
}

// Stores to shared memory, row after row of the tile; the padding keeps a warp's stores in different banks.
__device__ __forceinline__ void store_weights(float* to, const float (&weights)[kRows][kKeys],
                                              const Place& place) {
  to += place.row * kStrideP + place.key_lane;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) to[i * kRowLanes * kStrideP + j * kLanes] = weights[i][j];
  }
}

using ShareOfK = Share<kTileN, kHeadDim, kSharersK, true>;
using ShareOfV = Share<kTileN, kHeadDimV, kSharersV, true>;

// A query head of the group, and the CTA's keys.
struct Job {
  int batch, head, heads_end;  // the group's heads end before heads_end
  int begin, end;              // tiles of queries that see a key
  int first_key;
  float* memory;
};

// The copies of a tile of a head's Q and dO, each a group of its own. Where the head begins is worked out
// here, so that no pointer waits in registers.
__device__ __forceinline__ void copy_q(const BackwardParams& params, const Job& job, int head, int tile) {
  const int first_row = tile * kTileM;
  const float* const q = static_cast<const float*>(params.q) + job.batch * params.q_batch +
                         head * params.q_head + first_row * params.q_row;
  copy_tile<kTileM, kHeadDim, kStrideQk, true>(job.memory + kSharedQ, q, params.q_row,
                                               params.seqlen_q - first_row);
  commit_tiles();
}
__device__ __forceinline__ void copy_dout(const BackwardParams& params, const Job& job, int head, int tile) {
  const int first_row = tile * kTileM;
  const float* const dout = static_cast<const float*>(params.dout) + job.batch * params.dout_batch +
                            head * params.dout_head + first_row * params.dout_row;
  copy_tile<kTileM, kHeadDimV, kStrideV, true>(job.memory + kSharedDout, dout, params.dout_row,
                                               params.seqlen_q - first_row);
  commit_tiles();
}

// One tile of queries. The next tile's Q and dO are on their way as soon as this tile's have been read for
// the last time, so that the products after that hide the latency.
template <bool kMasked>
__device__ __forceinline__ void step(const BackwardParams& params, const Job& job, const Place& place,
                                     ShareOfK& dk, ShareOfV& dv, int tile) {
  float* const shared_q = job.memory + kSharedQ;
  float* const shared_dout = job.memory + kSharedDout;
  float* const shared_p = job.memory + kSharedP;
  float* const shared_ds = job.memory + kSharedDs;
  const int first_row = tile * kTileM;
  const int head_index = job.batch * params.heads + job.head;  // among all batches' heads
  Rows rows;
  rows.load(params, head_index, first_row + place.row);
  wait_for_tiles<1>();  // K, V and Q have arrived
  __syncthreads();
  const int first_key = anew(job.first_key);
  float p[kRows][kKeys];
  weigh<kMasked>(p, shared_q, job.memory + kSharedK, rows, params.scale, place, [&](int i) {
    return visible_keys(params, first_row + place.row + i * kRowLanes) - first_key - place.key_lane;
  });
  store_weights(shared_p, p, place);
  wait_for_tiles<0>();
  __syncthreads();
  float ds[kRows][kKeys];
  multiply_rows<kHeadDimV, kStrideV>(ds, shared_dout, job.memory + kSharedV, place);
  differentiate(ds, p, rows);
  store_weights(shared_ds, ds, place);
  __syncthreads();
  // Starts a copy of the next tile: this head's, or the first one of the group's next head.
  const auto start_next = [&](auto copy) {
    int next = anew(tile + 1), head = job.head;
    if (next == job.end) next = job.begin, ++head;
    if (head < job.heads_end) copy(params, job, head, next);
  };
  dk += multiply_transposed<ShareOfK, kStrideQk>(shared_ds, shared_q);
  __syncthreads();
  start_next(copy_q);
  dv += multiply_transposed<ShareOfV, kStrideV>(shared_p, shared_dout);
  __syncthreads();
  start_next(copy_dout);
  const auto dq =
      multiply<Share<kTileM, kHeadDim, kSharersQ, false>, kStrideQk>(shared_ds, job.memory + kSharedK);
  dq.add_to(params.dq_sum + (static_cast<long long>(head_index) * params.padded_q + first_row) * kHeadDim,
            kHeadDim);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashjit_backward_simt_fp32_d40v72_m16n32w4dq1_keys(const __grid_constant__ BackwardParams params) {
  extern __shared__ float4 shared[];

  // Under a mask the first keys, which most queries see, come first.
  const auto [tile_n, pair, batch, head_kv] =
      tile_of_block(params.tiles, params.by_tiles, params.batch * params.heads_kv, params.by_pairs,
                    params.heads_kv, params.by_heads_kv);

  Job job;
  job.first_key = tile_n * kTileN;
  job.memory = reinterpret_cast<float*>(shared);
  const int keys_left = params.seqlen_k - job.first_key;

  // Tiles of queries begin … masked_end - 1 need a mask. Later tiles need none, and earlier ones see no key.
  job.begin = 0;
  job.end = (params.seqlen_q + kTileM - 1) / kTileM;
  int masked_end = keys_left < kTileN ? job.end : 0;

  const Place place = place_of_thread();
  ShareOfK dk;
  ShareOfV dv;
  dk.clear();
  dv.clear();
  if (job.begin < job.end) {
    const float* const k = static_cast<const float*>(params.k) + batch * params.k_batch +
                           head_kv * params.k_head + job.first_key * params.k_row;
    const float* const v = static_cast<const float*>(params.v) + batch * params.v_batch +
                           head_kv * params.v_head + job.first_key * params.v_row;
    copy_tile<kTileN, kHeadDim, kStrideQk, true>(job.memory + kSharedK, k, params.k_row, keys_left);
    copy_tile<kTileN, kHeadDimV, kStrideV, true>(job.memory + kSharedV, v, params.v_row, keys_left);
    job.batch = batch;
    job.head = head_kv * params.group;
    job.heads_end = job.head + params.group;
    copy_q(params, job, job.head, job.begin);
    copy_dout(params, job, job.head, job.begin);
    for (; job.head < job.heads_end; ++job.head) {
      int tile = job.begin;
      for (; tile < masked_end; ++tile) step<true>(params, job, place, dk, dv, tile);
      for (; tile < job.end; ++tile) step<false>(params, job, place, dk, dv, tile);
    }
  }

  dk.write(static_cast<float*>(params.dk) + batch * params.dk_batch + head_kv * params.dk_head +
               job.first_key * params.dk_row,
           params.dk_row, keys_left, params.scale);
  dv.write(static_cast<float*>(params.dv) + batch * params.dv_batch + head_kv * params.dv_head +
               job.first_key * params.dv_row,
           params.dv_row, keys_left, 1.0f);
}

// backward fp32 d64 causal deterministic, schedule simt-backward:m64n64w4, for sm_80.
// Written by flashjit 0.1.0 from templates/kernels/backward_simt_queries.cu.

constexpr int kHeadDim = 64;        // columns of Q and K
constexpr int kHeadDimV = 64;       // columns of V and dO
constexpr bool kCausal = true;      // bottom-right aligned
constexpr int kTileM = 64;          // query rows of a tile
constexpr int kTileN = 64;          // keys of a tile
constexpr int kWarps = 4;           // per CTA
constexpr int kThreads = 128;       // per CTA
constexpr int kUnroll = 1;          // steps of S and dP per turn of their loops
constexpr bool kPrefetch = false;   // fragments are loaded when they are needed
constexpr int kLanes = 8;           // of a warp side by side across the keys; the others go down the rows
constexpr int kRows = 4;            // of S per thread
constexpr int kKeys = 8;            // columns of S per thread
constexpr bool kCareful = false;    // sums of S, dP and delta lose less
constexpr int kStrideQk = 68;       // floats from row to row of Q and K in shared memory
constexpr int kStrideV = 68;        // floats from row to row of V and dO
constexpr int kStrideP = 72;        // floats from row to row of P and dS
constexpr int kSharedK = 0;         // where K begins in shared memory, in floats
constexpr int kSharedV = 4352;      // V
constexpr int kSharedQ = 8704;      // Q
constexpr int kSharedDout = 13056;  // dO
constexpr int kSharedDs = 17408;    // dS
constexpr int kSharersQ = 8;        // threads side by side on a row of dQ

// dQ in fp32 FMA: a CTA owns kTileM queries of a head and streams the keys and values that they see. S and dP
// are computed again, at the cost of two products of seven, so that nothing is added across CTAs.

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

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}

// Asynchronous copies from global to shared memory (PTX ISA, "cp.async"; sm_80 and later).

// Copies 16 bytes, bypassing L1. Where `wanted` is false, nothing is read and zeros are written.
__device__ __forceinline__ void cp_async_16(unsigned shared, const void* global, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(wanted ? 16 : 0)
               : "memory");
}

// Closes the group of this thread's copies since the last commit. An empty group counts too.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's latest groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Addresses of shared memory (PTX ISA, "State spaces").

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Tiles of rows from global to shared memory, 16 bytes per thread and step.

// Writes zeros where not inside. Without cp.async (before sm_80) the copy goes through registers and is done
// at once.
__device__ __forceinline__ void copy_16_bytes(float* to, const float* from, bool inside) {
  cp_async_16(shared_address(to), from, inside);
}

// Makes a group of the tiles copied since the last call, to be waited for together.
__device__ __forceinline__ void commit_tiles() {
  cp_async_commit();
}

// Waits until all but the kPending latest groups of tiles have arrived, as far as this thread copies them.
template <int kPending>
__device__ __forceinline__ void wait_for_tiles() {
  cp_async_wait<kPending>();
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

// The diagonal of a causal mask: bottom-right aligned.

// Query i sees keys 0 .. i + diagonal(params). Lengths are subtracted before anything is added to them: a row
// and seqlen_k together may be more than an int holds.
template <class Params>
__device__ __forceinline__ int diagonal(const Params& params) {
  return params.seqlen_k - params.seqlen_q;
}

// Which keys a query sees.

// The keys that query `row` sees are 0 .. visible_keys - 1.
template <class Params>
__device__ __forceinline__ int visible_keys(const Params& params, int row) {
  return max(0, min(params.seqlen_k, row + 1 + diagonal(params)));
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

// P of a tile. The difference is taken before the change of base: where a weight matters the difference is
// small, and so is its rounding error. seen(i) is the number of the tile's keys that row i sees, counted from
// the thread's first.
template <bool kMasked, class Seen>
__device__ __forceinline__ void weigh(float (&p)[kRows][kKeys], const float* q, const float* k,
                                      const Rows& rows, float scale, const Place& place, Seen seen) {
  multiply_rows<kHeadDim, kStrideQk>(p, q, k, place);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int keys = kMasked ? seen(i) : 0;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      p[i][j] = exp2_fast(fmaf(p[i][j], scale, -rows.lse[i]) * kLog2e);
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

using ShareOfQ = Share<kTileM, kHeadDim, kSharersQ, false>;

// The head's K and V, and the CTA's queries.
struct Job {
  const float* k;
  const float* v;
  int first_row;
  int end;  // of the tiles of keys that a query sees
  float* memory;
};

__device__ __forceinline__ void copy_k(const BackwardParams& params, const Job& job, int tile) {
  const int first_key = tile * kTileN;
  copy_tile<kTileN, kHeadDim, kStrideQk, true>(job.memory + kSharedK, job.k + first_key * params.k_row,
                                               params.k_row, params.seqlen_k - first_key);
}
__device__ __forceinline__ void copy_v(const BackwardParams& params, const Job& job, int tile) {
  const int first_key = tile * kTileN;
  copy_tile<kTileN, kHeadDimV, kStrideV, true>(job.memory + kSharedV, job.v + first_key * params.v_row,
                                               params.v_row, params.seqlen_k - first_key);
}

// One tile of keys. The next tile's V is on its way beside dQ's product, its K right after.
template <bool kMasked>
__device__ __forceinline__ void step(const BackwardParams& params, const Job& job, const Rows& rows,
                                     const Place& place, ShareOfQ& dq, int tile) {
  float* const shared_k = job.memory + kSharedK;
  float* const shared_v = job.memory + kSharedV;
  float* const shared_ds = job.memory + kSharedDs;
  const int first_key = tile * kTileN;
  wait_for_tiles<0>();
  __syncthreads();
  float p[kRows][kKeys];
  weigh<kMasked>(p, job.memory + kSharedQ, shared_k, rows, params.scale, place, [&](int i) {
    return visible_keys(params, job.first_row + place.row + i * kRowLanes) - first_key - place.key_lane;
  });
  float ds[kRows][kKeys];
  multiply_rows<kHeadDimV, kStrideV>(ds, job.memory + kSharedDout, shared_v, place);
  differentiate(ds, p, rows);
  store_weights(shared_ds, ds, place);
  __syncthreads();
  const bool more = tile + 1 < job.end;
  if (more) copy_v(params, job, tile + 1);
  dq += multiply<ShareOfQ, kStrideQk>(shared_ds, shared_k);
  __syncthreads();
  if (more) copy_k(params, job, tile + 1);
  commit_tiles();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashjit_backward_simt_fp32_d64_causal_deterministic_m64n64w4_queries(const __grid_constant__ BackwardParams params) {
  extern __shared__ float4 shared[];

  // Under a mask the last rows, which see most keys, come first.
  const auto [place_of_tile, pair, batch, head] =
      tile_of_block(params.tiles, params.by_tiles, params.batch * params.heads, params.by_pairs, params.heads,
                    params.by_heads);
  const int tile_m = kCausal ? params.tiles - 1 - place_of_tile : place_of_tile;
  const int head_kv = divide(head, params.by_group);

  Job job;
  job.first_row = tile_m * kTileM;
  job.k = static_cast<const float*>(params.k) + batch * params.k_batch + head_kv * params.k_head;
  job.v = static_cast<const float*>(params.v) + batch * params.v_batch + head_kv * params.v_head;
  job.memory = reinterpret_cast<float*>(shared);
  const int rows_left = params.seqlen_q - job.first_row;

  const Place place = place_of_thread();
  ShareOfQ dq;
  dq.clear();
  // Every row sees the first tiles in full; the last ones need a mask.
  const int whole_tiles = visible_keys(params, job.first_row) / kTileN;
  const int last_row = min(job.first_row + kTileM, params.seqlen_q) - 1;
  job.end = (visible_keys(params, last_row) + kTileN - 1) / kTileN;
  if (job.end > 0) {
    copy_tile<kTileM, kHeadDim, kStrideQk, true>(job.memory + kSharedQ,
                                                 static_cast<const float*>(params.q) +
                                                     batch * params.q_batch + head * params.q_head +
                                                     job.first_row * params.q_row,
                                                 params.q_row, rows_left);
    copy_tile<kTileM, kHeadDimV, kStrideV, true>(job.memory + kSharedDout,
                                                 static_cast<const float*>(params.dout) +
                                                     batch * params.dout_batch + head * params.dout_head +
                                                     job.first_row * params.dout_row,
                                                 params.dout_row, rows_left);
    copy_k(params, job, 0);
    copy_v(params, job, 0);
    commit_tiles();
    Rows rows;
    rows.load(params, pair, job.first_row + place.row);
    int tile = 0;
    for (; tile < whole_tiles; ++tile) step<false>(params, job, rows, place, dq, tile);
    for (; tile < job.end; ++tile) step<true>(params, job, rows, place, dq, tile);
  }
  dq.write(static_cast<float*>(params.dq) + batch * params.dq_batch + head * params.dq_head +
               job.first_row * params.dq_row,
           params.dq_row, rows_left, params.scale);
}

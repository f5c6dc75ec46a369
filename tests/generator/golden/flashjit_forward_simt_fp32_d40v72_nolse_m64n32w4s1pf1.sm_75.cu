// forward fp32 d40/72 full without LSE, schedule simt:m64n32w4s1pf1, for sm_75.
// Written by flashjit 0.1.0 from templates/kernels/forward_simt.cu.

constexpr int kHeadDim = 40;      // columns of Q and K
constexpr int kHeadDimV = 72;     // columns of V and O
constexpr bool kCausal = false;   // bottom-right aligned
constexpr int kTileM = 64;        // query rows per CTA
constexpr int kTileN = 32;        // keys per step
constexpr int kWarps = 4;         // per CTA
constexpr int kThreads = 128;     // per CTA
constexpr int kMinCtas = 1;       // per multiprocessor, that registers must allow
constexpr int kStages = 1;        // 1: K and V take turns in one buffer, 2: one each
constexpr int kUnroll = 1;        // steps of each product per turn of its loop
constexpr bool kPrefetch = true;  // load the next step's fragments of Q and P ahead
constexpr int kLanes = 8;         // of a warp side by side across the keys; the others go down the rows
constexpr int kRows = 4;          // of S and O per thread
constexpr int kKeys = 4;          // columns of S per thread
constexpr int kColumns = 9;       // of O per thread
constexpr int kHanded = 4;        // weights that a thread hands over side by side
constexpr bool kCareful = false;  // sums to S and O lose less
constexpr int kStrideQk = 44;     // floats from row to row of Q and K in shared memory
constexpr int kStrideP = 48;      // floats from row to row of P
constexpr int kSharedK = 2816;    // where K begins in shared memory, in floats
constexpr int kSharedV = 2816;    // V
constexpr int kSharedP = 5120;    // P

// FlashAttention-2 forward in fp32 FMA: a CTA owns kTileM queries of a head and streams its keys and values.

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

// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
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

// O += P V as outer products in registers.

// Adds P V of kLanes * kHanded keys, whose weights lie in p. `v` is the first of these keys.
__device__ __forceinline__ void add_pv(float (&o)[kRows][kColumns], const float* p, const float* v,
                                       const Place& place) {
  run_steps<kHanded, kLanes>([&](RowFragment<kHanded>& a, int t) { a.load(p + t * kHanded, kStrideP); },
                             [&](const RowFragment<kHanded>& a, int t) {
#pragma unroll
                               for (int h = 0; h < kHanded; ++h) {
                                 const float* row = v + (h * kLanes + t) * kHeadDimV;
                                 float b[kColumns];
                                 for_each_group<kColumns, kLanes>(
                                     place.key_lane, [&](auto group, int mine, int column) {
                                       load_floats<decltype(group)::kCount>(b + mine, row + column);
                                     });
#pragma unroll
                                 for (int x = 0; x < kColumns; ++x) {
#pragma unroll
                                   for (int i = 0; i < kRows; ++i) o[i][x] = fmaf(a.at[i][h], b[x], o[i][x]);
                                 }
                               }
                             });
}

// O += P V. A warp passes its own rows of P through shared memory, kHanded keys of each thread at a time.
// These lie side by side, so that each lane reads the weights of kHanded keys at once. Position kHanded * t +
// h of a row of P belongs to key (c * kHanded + h) * kLanes + t of the tile. The CTA has synchronised since
// the last tile's P was read.
__device__ __forceinline__ void multiply_pv(float (&o)[kRows][kColumns], const float (&weights)[kRows][kKeys],
                                            float* p, const float* v, const Place& place) {
  p += place.row * kStrideP;
#pragma unroll
  for (int c = 0; c < kKeys / kHanded; ++c) {
    if (c > 0) __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      store_floats<kHanded>(p + i * kRowLanes * kStrideP + place.key_lane * kHanded,
                            weights[i] + c * kHanded);
    }
    __syncwarp();
    const float* const keys = v + c * kHanded * kLanes * kHeadDimV;
    if constexpr (kCareful) {
      float block[kRows][kColumns] = {};
      add_pv(block, p, keys, place);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int x = 0; x < kColumns; ++x) o[i][x] += block[i][x];
      }
    } else {
      add_pv(o, p, keys, place);
    }
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

// The running softmax of FlashAttention-2 (Dao 2023, section 3.1) over a thread's rows.

struct Running {
  float maximum[kRows];      // of the row so far, in units of log2; -inf before it has seen a key
  float sum[kRows];          // of this thread's own weights; the lanes' sums meet only at the end
  float o[kRows][kColumns];  // weighted by exp2(s - maximum)
};

// Combines a value over the lanes that share a row.
template <class Combine>
__device__ __forceinline__ float across_keys(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(0xffffffffu, value, 1));
#pragma unroll
  for (int bit = 4; bit < 2 * kLanes; bit *= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, bit));
  return value;
}

// Turns S into weights and rescales what was summed under the old maximum.
__device__ __forceinline__ void update_softmax(Running& running, float (&s)[kRows][kKeys]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float maximum = s[i][0];
#pragma unroll
    for (int j = 1; j < kKeys; ++j) maximum = fmaxf(maximum, s[i][j]);
    maximum = across_keys(maximum, [](float a, float b) { return fmaxf(a, b); });
    maximum = fmaxf(maximum, running.maximum[i]);
    // A row that has seen no key yet: -inf - (-inf) would be NaN, -inf - 0 gives the weight 0.
    const float shift = maximum == -kInfinity ? 0.0f : maximum;
    const float rescale = exp2_fast(running.maximum[i] - shift);
    running.maximum[i] = maximum;
    float sum = running.sum[i] * rescale;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      s[i][j] = exp2_fast(s[i][j] - shift);
      sum += s[i][j];
    }
    running.sum[i] = sum;
#pragma unroll
    for (int x = 0; x < kColumns; ++x) running.o[i][x] *= rescale;
  }
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

// Copies the Q tile through registers and folds the softmax's scale into it. So S comes out in units of log2,
// and scores that equal the maximum weigh exactly 1. The rounding of Q is lost in the rounding of the sum
// over head_dim.
__device__ __forceinline__ void copy_q(float* to, const float* from, long long row_stride, int rows_left,
                                       float scale_log2) {
  constexpr unsigned kChunks = kHeadDim / 4;
  for (unsigned chunk = threadIdx.x; chunk < kTileM * kChunks; chunk += kThreads) {
    const int row = chunk / kChunks;
    const int column = chunk % kChunks * 4;
    float4 q{0, 0, 0, 0};
    if (row < rows_left) q = *reinterpret_cast<const float4*>(from + row * row_stride + column);
    *reinterpret_cast<float4*>(to + row * kStrideQk + column) =
        float4{q.x * scale_log2, q.y * scale_log2, q.z * scale_log2, q.w * scale_log2};
  }
}

// 8 or 16 dims are only one or two blocks, in which a large term rounds as often as in a single sum.
constexpr int kApart = kHeadDim <= 16 ? 2 : kBlock;

// What one CTA works on, and where its K and V come from and go to.
struct Job {
  int first_row;  // of the Q tile
  const float* k;
  const float* v;
  float* shared_q;
  float* shared_k;
  float* shared_v;
  float* shared_p;
};

// Starts the copy of K tile `tile` to shared memory.
template <bool kGuarded>
__device__ __forceinline__ void fetch_k(const ForwardParams& params, const Job& job, int tile) {
  const int key = tile * kTileN;
  copy_tile<kTileN, kHeadDim, kStrideQk, kGuarded>(job.shared_k, job.k + key * params.k_row, params.k_row,
                                                   params.seqlen_k - key);
  commit_tiles();
}

template <bool kGuarded>
__device__ __forceinline__ void fetch_v(const ForwardParams& params, const Job& job, int tile) {
  const int key = tile * kTileN;
  copy_tile<kTileN, kHeadDimV, kHeadDimV, kGuarded>(job.shared_v, job.v + key * params.v_row, params.v_row,
                                                    params.seqlen_k - key);
  commit_tiles();
}

// One tile of keys. On entry its K is in shared memory. With two buffers V is on its way, and each buffer is
// refilled as soon as all warps have read it; with one, K and V take turns in it.
template <bool kMasked>
__device__ __forceinline__ void step(const ForwardParams& params, const Job& job, const Place& place,
                                     Running& running, int tile) {
  // A warp whose rows see no key of the tile only takes part in the barriers.
  bool works = true;
  if constexpr (kMasked) {
    works = visible_keys(params, job.first_row + (place.warp + 1) * (kTileM / kWarps) - 1) > tile * kTileN;
  }
  float s[kRows][kKeys];
  if (works) multiply_rows<kHeadDim, kStrideQk, kApart>(s, job.shared_q, job.shared_k, place);
  if constexpr (kStages == 2) wait_for_tiles<0>();
  __syncthreads();
  if constexpr (kStages == 1) {
    fetch_v<kMasked>(params, job, tile);
  } else if (tile > 0) {
    fetch_k<false>(params, job, tile - 1);
  }
  if (works) {
    if constexpr (kMasked) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int keys =
            visible_keys(params, job.first_row + place.row + i * kRowLanes) - tile * kTileN - place.key_lane;
#pragma unroll
        for (int j = 0; j < kKeys; ++j) s[i][j] = j * kLanes < keys ? s[i][j] : -kInfinity;
      }
    }
    update_softmax(running, s);
  }
  if constexpr (kStages == 1) {
    wait_for_tiles<0>();
    __syncthreads();
  }
  if (works) multiply_pv(running.o, s, job.shared_p, job.shared_v, place);
  if constexpr (kStages == 1) {
    __syncthreads();
    if (tile > 0) fetch_k<false>(params, job, tile - 1);
  }
  wait_for_tiles<0>();
  __syncthreads();
  if constexpr (kStages == 2) {
    if (tile > 0) fetch_v<false>(params, job, tile - 1);
  }
}

// Divides by the sum of the weights and writes O and LSE.
__device__ __forceinline__ void finish(const ForwardParams& params, const Place& place, Running& running,
                                       int first_row,
                                       float* o) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = across_keys(running.sum[i], [](float a, float b) { return a + b; });
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a row that saw no key gives 0
    const int row = first_row + place.row + i * kRowLanes;
    if (row >= params.seqlen_q) continue;
    float* out = o + row * params.o_row;
    for_each_group<kColumns, kLanes>(place.key_lane, [&](auto group, int mine, int column) {
      constexpr int kCount = decltype(group)::kCount;
      float value[kCount];
#pragma unroll
      for (int x = 0; x < kCount; ++x) value[x] = running.o[i][mine + x] * inverse;
      store_floats<kCount>(out + column, value);
    });
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas)
    flashjit_forward_simt_fp32_d40v72_nolse_m64n32w4s1pf1(const __grid_constant__ ForwardParams params) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);

  // All (batch, head) pairs are one section. Under a mask the last rows, which see most keys, come first.
  const auto [place_of_tile, pair, batch, head] = tile_of_block(
      params.tiles_m, params.by_tiles, params.section, params.by_section, params.heads, params.by_heads);
  const int tile_m = kCausal ? params.tiles_m - 1 - place_of_tile : place_of_tile;
  const int head_kv = divide(head, params.by_group);

  const Place place = place_of_thread();
  Job job;
  job.first_row = tile_m * kTileM;
  job.k = static_cast<const float*>(params.k) + batch * params.k_batch + head_kv * params.k_head;
  job.v = static_cast<const float*>(params.v) + batch * params.v_batch + head_kv * params.v_head;
  job.shared_q = memory;
  job.shared_k = memory + kSharedK;
  job.shared_v = memory + kSharedV;
  job.shared_p = memory + kSharedP;

  Running running;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    running.maximum[i] = -kInfinity;
    running.sum[i] = 0;
#pragma unroll
    for (int x = 0; x < kColumns; ++x) running.o[i][x] = 0;
  }

  // Goes backwards over the tiles that any row sees: masked tiles come first, and only the last tile of keys
  // may be ragged.
  const int last_row = min(job.first_row + kTileM, params.seqlen_q) - 1;
  int tile = (visible_keys(params, last_row) + kTileN - 1) / kTileN - 1;
  const int whole_tiles = visible_keys(params, job.first_row) / kTileN;  // that every row sees in full
  if (tile >= 0) {
    fetch_k<true>(params, job, tile);
    if constexpr (kStages == 2) fetch_v<true>(params, job, tile);
    copy_q(job.shared_q,
           static_cast<const float*>(params.q) + batch * params.q_batch + head * params.q_head +
               job.first_row * params.q_row,
           params.q_row, params.seqlen_q - job.first_row, params.scale_log2);
    wait_for_tiles<kStages - 1>();
    __syncthreads();
    for (; tile >= whole_tiles; --tile) step<true>(params, job, place, running, tile);
    for (; tile >= 0; --tile) step<false>(params, job, place, running, tile);
  }

  finish(params, place, running, job.first_row,
         static_cast<float*>(params.o) + batch * params.o_batch + head * params.o_head);
}

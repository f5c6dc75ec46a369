// Tiles in shared memory, for the backward pass: panels of 64 columns, each row 128 bytes, swizzled as TMA
// does it over 1024 bytes. Where a head dim ends inside a panel, the rest of the panel is zero.
#pragma once
#include "parts/warpgroup.cuh"
#include "ptx/convert.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
/*%^splits%*/
#include "ptx/tma_store.cuh"
/*%/splits%*/

constexpr int kRowBytes = 128;  // 64 columns of 16 bits
constexpr int kPanelsQk = (kHeadDim + 63) / 64;
constexpr int kPanelsV = (kHeadDimV + 63) / 64;
constexpr int kBoxPanelsQk = kHeadDim % 64 == 0 ? kPanelsQk : 1;  // panels that one TMA box moves
constexpr int kBoxPanelsV = kHeadDimV % 64 == 0 ? kPanelsV : 1;

/*%#pair%*/
// Products that a gradient's columns take: with 512 threads ptxas has no instruction for 256 of them.
constexpr int kPartsQk = kHeadDim > 192 ? 2 : 1;
constexpr int kPartsV = kHeadDimV > 192 ? 2 : 1;
/*%/pair%*/
/*%^pair%*/
constexpr int kPartsQk = 1;
/*%#dv%*/
constexpr int kPartsV = 1;
/*%/dv%*/
/*%/pair%*/

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

/*%^splits%*/
template <int kPanels, int kBoxPanels, int kRows>
__device__ __forceinline__ void store_tile(const TensorMap& map, unsigned from, int row, int head,
                                           int batch) {
#pragma unroll
  for (int panel = 0; panel < kPanels; panel += kBoxPanels) {
    tma_store(map, from + panel * kRows * kRowBytes, box_at<kBoxPanels>(panel, row, head, batch));
  }
  bulk_commit();
}
/*%/splits%*/

// Bytes from the start of a tile to this lane's 16 bytes of the first 16 columns of 64 rows, for stmatrix of
// four 8x8 matrices: lanes 0-15 have the first eight columns of a warp's 16 rows, lanes 16-31 the others.
__device__ __forceinline__ unsigned fragment_offset(int first_row) {
  const int row = first_row + 16 * warp_of_warpgroup() + lane() % 16;
  return row * kRowBytes + ((lane() / 16 ^ row % 8) * 16);
}

/*%#column_steps%*/
// The same for columns 16 * step .. 16 * step + 15 of tiles of kRows rows.
template <int kRows>
__device__ __forceinline__ unsigned at_column_step(unsigned fragment, int step) {
  return (fragment ^ step % 4 * 32) + step / 4 * (kRows * kRowBytes);
}
/*%/column_steps%*/

/*%^splits%*/
// Two neighbouring accumulators as a pair, scaled; zeros where the head dim has ended.
template <int kCount>
__device__ __forceinline__ unsigned scaled_pair(const float (&d)[kCount], int i, float scale) {
  return i < kCount ? pack(d[i] * scale, d[i + 1] * scale) : 0;
}
/*%/splits%*/

// One arrival per warp: tells whoever waits that this warp is done with what the barrier guards.
__device__ __forceinline__ void arrive_once(unsigned barrier) {
  if (lane() == 0) mbarrier_arrive(barrier);
}

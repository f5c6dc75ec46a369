// Online softmax, one block after the other: what becomes of a warpgroup's scores between the product that
// makes them and the product that takes P.
#pragma once
#include "params/forward.h"
/*%^shares%*/
#include "parts/wgmma/blocks.cuh"
/*%/shares%*/
/*%#optimistic%*/
#include "parts/wgmma/recompute.cuh"
/*%/optimistic%*/
#include "parts/wgmma/rows.cuh"
/*%#shares%*/
#include "parts/wgmma/share_blocks.cuh"
/*%/shares%*/
#include "parts/wgmma/score_registers.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"

struct BlockSoftmax {
  const float scale_log2;
  SoftmaxState rows;

  __device__ __forceinline__ explicit BlockSoftmax(float scale) : scale_log2(scale) {}

  /*%^upward%*/
  // Chooses the shifts that a block's exponentials are taken against. A masked block's number is `left`
  // (block_at).
  /*%/upward%*/
  /*%#upward%*/
  // Chooses the shifts that a block's exponentials are taken against.
  /*%/upward%*/
  __device__ __forceinline__ void choose_shifts(const RowsOfThread& mine, int left, bool masked) {
    if (masked) hide_scores(mine.first_hidden(0, left), mine.first_hidden(1, left));
    /*%#optimistic%*/
    // Where nothing is hidden, every row has seen keys before and keeps its shift, with no search for a
    // maximum: the sums will tell whether some score was far above it (move_outgrown).
    if (!masked) return;
    /*%/optimistic%*/
    follow_peaks(rows, scale_log2);
  }

  /*%#short_values%*/
  // The first three quarters of the scores become exponentials, and are summed …
  __device__ __forceinline__ void begin_exponentials(float (&sum)[2]) const {
    take_first_exponentials(scale_log2, rows.shift, sum);
  }
  // … and the others.
  __device__ __forceinline__ void end_exponentials(float (&sum)[2]) const {
    take_last_exponentials(scale_log2, rows.shift, sum);
  }
  /*%#whole_block%*/
  __device__ __forceinline__ void exponentiate(float (&sum)[2]) const {
    begin_exponentials(sum);
    end_exponentials(sum);
  }
  /*%/whole_block%*/
  /*%/short_values%*/
  /*%^short_values%*/
  // The scores become exponentials, and are summed.
  __device__ __forceinline__ void exponentiate(float (&sum)[2]) const {
    take_exponentials(scale_log2, rows.shift, sum);
  }
  /*%/short_values%*/

  /*%#optimistic%*/
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
  /*%/optimistic%*/

  /*%#optimistic%*/
  /*%#short_values%*/
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
  /*%/short_values%*/
  /*%^short_values%*/
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
  /*%/short_values%*/
  /*%/optimistic%*/
  /*%^optimistic%*/
  /*%^short_values%*/
  // ptxas would sink exponentials below the wait for the values, where they would run beside nothing; it
  // sinks none below a branch on their sums.
  __device__ __forceinline__ void hold_exponentials(const float (&sum)[2]) {
    if (__any_sync(0xffffffffu, sum[0] + sum[1] < 0)) __syncwarp();  // never true: see above
  }

  /*%/short_values%*/
  // From a block's exponentials to P. No product is in flight here.
  __device__ __forceinline__ void finish(const float (&sum)[2]) {
    pack_exponentials();
    add(rows.sum, sum);
  }
  /*%/optimistic%*/
};

// What the host hands to the kernels of a backward pass. Host and device compile this one file, so the layout
// cannot drift. In the arrays of the workspace each head's rows are padded to whole tiles of the schedule, and
// from there to a multiple of kBackwardRowPadding, so that a tile of rows can be copied whole.
#pragma once

#include "params/divisor.h"

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

// What the host hands to a forward kernel. Host and device compile this one file, so the layout cannot drift.
#pragma once

#include "params/divisor.h"
#include "params/share_row.h"

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

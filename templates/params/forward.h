// What the host hands to a forward kernel. Host and device compile this one file, so the layout cannot drift.
#pragma once

#include "params/divisor.h"
#include "params/share_row.h"

// The row that is cut into even shares, and what it takes to find a cut.
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
  int* tile_counter;  // zeros, and the kernel leaves them zero: two for a dynamic tile order, or one for each
                      // warpgroup of a tile's first cluster, or CTA, where several share its keys

  long long q_batch, q_head, q_row;
  long long k_batch, k_head, k_row;
  long long v_batch, v_head, v_row;
  long long o_batch, o_head, o_row;

  int batch, heads;
  int heads_kv;  // for the host
  int seqlen_q, seqlen_k;
  int packed;         // log2 of the places that a query has in a tile, side by side; 0: heads are not packed
  int heads_of_pack;  // that share K and V and have a place each; the last places may stay empty
  int places;         // of a query in all packs
  int tiles_m;  // ceil((seqlen_q << packed) / tile_m), or / (2 * tile_m) where two CTAs load for each other
  int section;  // longest tiles first: (batch, head) pairs whose K and V share the L2; a pack is one head
  float scale_log2;  // scale * log2(e) of the logits: exp(scale * x) = exp2(scale_log2 * x)
  int last_section;  // the pair at which the last section begins, which goes on to the end
  int clusters;      // that share out a tile's keys
  int shared_tiles;  // the first so many, of whose keys all CTAs have even shares; 0 where the family deals
  ShareCuts cuts;    // of these
  int riffled_from;  // of a dynamic order: where its second wave begins,
  int riffled;       // and how many tiles of that come from its halves in turns
  float* pieces;     // where CTAs share keys through device memory: what each knows, 16-byte aligned

  // To divide by what their names say:
  Divisor by_heads;         // a sequence's packs, or heads where none are packed
  Divisor by_group;         // of these, those that share K and V
  Divisor by_tiles;         // tiles_m
  Divisor by_section;       // the pairs of each section but the last,
  Divisor by_last_section;  // and of that
  Divisor by_section_tiles;
  Divisor by_clusters;
};

/*%^splits%*/
// What runs beside the consumers, one thread each: loading K, Q and LSE; loading V, dO and delta; storing
// finished dV and dK.
/*%/splits%*/
/*%#splits%*/
// What runs beside the consumers, one thread each: loading K, Q and LSE; loading V, dO and delta; telling
// when shares of the gradients may leave and that they have left.
/*%/splits%*/
#pragma once
#include "params/backward.h"
/*%#divided%*/
#include "parts/wgmma_backward/divided_tiles.cuh"
/*%/divided%*/
#include "parts/wgmma_backward/layout.cuh"
/*%#dq_direct%*/
#include "parts/wgmma_backward/shares.cuh"
/*%/dq_direct%*/
/*%#dq_staged%*/
#include "parts/wgmma_backward/staged_shares.cuh"
/*%/dq_staged%*/
/*%#dq%*/
#include "parts/wgmma_backward/sums.cuh"
/*%/dq%*/
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/bulk.cuh"
/*%^splits%*/
#include "ptx/bulk_group.cuh"
/*%/splits%*/
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"
#include "ptx/tensor_map.cuh"

/*%#pair%*/
constexpr int kBoxPanelsK = 1;  // panels of K that one box moves: K also comes in other parts
/*%/pair%*/
/*%^pair%*/
constexpr int kBoxPanelsK = kBoxPanelsQk;
/*%/pair%*/

// What one of two threads feeds: a tile of keys, then rows of queries with a statistic each.
struct FeedKQ {
  static constexpr bool kDeals = true;  // tiles to all others
  static constexpr int kPanels = kPanelsQk, kBoxPanels = kBoxPanelsQk, kKeysBoxPanels = kBoxPanelsK;
  static constexpr int kKeys = kK, kKeysFull = kKFull;
  static constexpr int kRows = kQ, kStatistics = kLse, kRowsFull = kQFull, kRowsEmpty = kQEmpty;
};
struct FeedVDo {
  static constexpr bool kDeals = false;
  static constexpr int kPanels = kPanelsV, kBoxPanels = kBoxPanelsV, kKeysBoxPanels = kBoxPanelsV;
  static constexpr int kKeys = kV, kKeysFull = kVFull;
  static constexpr int kRows = kDo, kStatistics = kDelta, kRowsFull = kDoFull, kRowsEmpty = kDoEmpty;
};

/*%#pair%*/
// Loads the other CTA's keys: the panels of those columns of dQ that this CTA sums.
__device__ __forceinline__ void load_other_keys(const TensorMap& map, unsigned barrier, const KeyTile& tile,
                                                unsigned shared) {
  const int rank = cluster_rank();
  load_tile<kDqPanels, 1, kTileN>(shared + kOtherK, map, barrier, tile.key + (rank == 0 ? kTileN : -kTileN),
                                  tile.head_kv, tile.batch, rank * (kPanelsQk - kDqPanels));
}
/*%/pair%*/

template <class What>
__device__ __forceinline__ void feed(const TensorMap& map_keys, const TensorMap& map_rows,
                                     const float* statistics, const BackwardParams& p, unsigned shared) {
  constexpr int kKeysBytes = What::kPanels * kTileN * kRowBytes;
  constexpr int kRowsBytes = What::kPanels * kTileM * kRowBytes;
  int step = 0;  // of the CTA, over all its tiles
  /*%#waits_for_later%*/
  int before = -1;
  /*%/waits_for_later%*/
#pragma unroll 1
  for (int round = 0;; ++round) {
    /*%#waits_for_later%*/
    if (What::kDeals && may_wait_for_next(before, p)) {
      const int last = round - 1;
      mbarrier_wait(shared + kKeysEmpty + 8 * (last % kKeyStages), last / kKeyStages % 2);
    }
    /*%/waits_for_later%*/
    const int index =
        What::kDeals ? next_ticket(shared, round, tile_count(p), p) : read_ticket(shared, round);
    if (index < 0) return;
    /*%#waits_for_later%*/
    before = index;
    /*%/waits_for_later%*/
    const KeyTile tile = tile_at(index, p);
    const int stage_of_keys = round % kKeyStages;
    mbarrier_wait(shared + kKeysEmpty + 8 * stage_of_keys, round / kKeyStages % 2 ^ 1);
    const unsigned keys_full = shared + What::kKeysFull + 8 * stage_of_keys;
    /*%#pair%*/
    mbarrier_arrive_expecting(keys_full, kKeysBytes + (What::kDeals ? kOtherKBytes : 0));
    /*%/pair%*/
    /*%^pair%*/
    mbarrier_arrive_expecting(keys_full, kKeysBytes);
    /*%/pair%*/
    load_tile<What::kPanels, What::kKeysBoxPanels, kTileN>(shared + What::kKeys + stage_of_keys * kKeysBytes,
                                                           map_keys, keys_full, tile.key, tile.head_kv,
                                                           tile.batch);
    /*%#pair%*/
    if (What::kDeals) load_other_keys(map_keys, keys_full, tile, shared);
    /*%/pair%*/
    int head = tile.first_head(p) - tile.batch * p.heads;
    int m = tile.starts_at();
#pragma unroll 1
    for (int left = tile.steps(p); left > 0; --left, ++step) {
      const int stage = step & 1;
      const unsigned full = shared + What::kRowsFull + 8 * stage;
      mbarrier_wait(shared + What::kRowsEmpty + 8 * stage, (step >> 1 & 1) ^ 1);
      mbarrier_arrive_expecting(full, kRowsBytes + kRowStatistics);
      load_tile<What::kPanels, What::kBoxPanels, kTileM>(shared + What::kRows + stage * kRowsBytes, map_rows,
                                                         full, m * kTileM, head, tile.batch);
      // WorkspaceLayout refuses 2^32 rows.
      const unsigned row =
          static_cast<unsigned>(tile.batch * p.heads + head) * static_cast<unsigned>(p.padded_q) + m * kTileM;
      bulk_load(shared + What::kStatistics + stage * kRowStatistics, statistics + row, kRowStatistics, full);
      if (tile.advance(m)) ++head;
    }
    /*%#divided%*/
    if (What::kDeals) tell_part(tile.divided, round, p, shared);
    /*%/divided%*/
  }
}

/*%^splits%*/
// Where consumers have staged them: in V's place, and in K's.
__device__ __forceinline__ void store_dv(const TensorMap& map, const KeyTile& tile, int stage,
                                         unsigned shared) {
  store_tile<kPanelsV, kBoxPanelsV, kTileN>(map, shared + kV + stage * kVBytes, tile.key, tile.head_kv,
                                            tile.batch);
}
__device__ __forceinline__ void store_dk(const TensorMap& map, const KeyTile& tile, int stage,
                                         unsigned shared) {
  store_tile<kPanelsQk, kBoxPanelsQk, kTileN>(map, shared + kK + stage * kKBytes, tile.key, tile.head_kv,
                                              tile.batch);
}

// Stores dV and dK of each tile, once all consumers have staged them in the places of V and K, which are free
// again when dV and dK have left.
/*%#divided%*/
// Of a divided tile the second part alone does so, and stages dV once more when it has added the first one's.
/*%/divided%*/
__device__ __forceinline__ void send_gradients(const TensorMap& map_dk, const TensorMap& map_dv,
                                               const BackwardParams& p, unsigned shared) {
  /*%#dq%*/
  int step = 0;  // of the CTA, over all its tiles
  /*%/dq%*/
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = read_ticket(shared, round);
    if (index < 0) return;
    /*%#dq_direct%*/
    order_shares(tile_at(index, p), step, p, shared);
    /*%/dq_direct%*/
    /*%#dq_staged%*/
    send_shares(tile_at(index, p), step, p, shared);
    /*%/dq_staged%*/
    const KeyTile tile = tile_at(index, p);  // worked out again, as registers are few
    const int stage = round % kKeyStages;
    mbarrier_wait(shared + kDvStaged + 8 * stage, round / kKeyStages % 2);
    /*%^divided%*/
    store_dv(map_dv, tile, stage, shared);
    /*%/divided%*/
    /*%#divided%*/
    wait_for_part(shared, round);
    const Part part = part_of(shared, round);
    if (part.whole()) store_dv(map_dv, tile, stage, shared);
    /*%/divided%*/
    mbarrier_wait(shared + kDkStaged + 8 * stage, round / kKeyStages % 2);
    /*%^divided%*/
    store_dk(map_dk, tile, stage, shared);
    /*%/divided%*/
    /*%#divided%*/
    if (part.adds_sums()) store_dv(map_dv, tile, stage, shared);
    if (!part.leaves_sums()) store_dk(map_dk, tile, stage, shared);
    note_part(part, p);
    /*%/divided%*/
    /*%#dq%*/
    // dK was staged after the tile's last addition to dQ.
    note_tile_added(tile.batch * p.heads_kv + tile.head_kv, p);
    /*%/dq%*/
    bulk_wait_read();
    mbarrier_arrive(shared + kKeysEmpty + 8 * stage);
  }
}
/*%/splits%*/
/*%#splits%*/
// Lets shares of dQ leave, and notes when all shares of a tile, of dV and dK too, have left. With the last of
// dQ, which every tile here has, all products have read V and K.
__device__ __forceinline__ void order_all_shares(const BackwardParams& p, unsigned shared) {
  int step = 0;  // of the CTA, over all its tiles
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = read_ticket(shared, round);
    if (index < 0) return;
    /*%#dq_direct%*/
    order_shares(tile_at(index, p), step, p, shared);
    /*%/dq_direct%*/
    /*%#dq_staged%*/
    send_shares(tile_at(index, p), step, p, shared);
    /*%/dq_staged%*/
    mbarrier_arrive(shared + kKeysEmpty + 8 * (round % kKeyStages));
    mbarrier_wait(shared + kKeysAdded + 8 * (round % 2), round / 2 % 2);
    note_tile_added(tile_at(index, p).heads_met, p);
  }
}
/*%/splits%*/

// A consumer: a warpgroup that owns 64 keys of a tile, and sums their dK and dV over the tile's queries.
/*%#dq%*/
// It adds its share of dQ, too.
/*%/dq%*/
#pragma once
#include "params/backward.h"
/*%#diagonal%*/
#include "parts/diagonal.cuh"
/*%/diagonal%*/
/*%^splits%*/
#include "parts/wgmma_backward/arrive_written.cuh"
/*%/splits%*/
#include "parts/wgmma_backward/chains.cuh"
/*%#divided%*/
#include "parts/wgmma_backward/divided_tiles.cuh"
/*%/divided%*/
/*%#splits%*/
#include "parts/wgmma_backward/key_sums.cuh"
/*%/splits%*/
#include "parts/wgmma_backward/key_steps.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/panels.cuh"
#include "parts/wgmma_backward/tickets.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

struct KeyOwner : KeySteps {
  using KeySteps::KeySteps;

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    clear(dk);
    clear(dv);
    mbarrier_wait(shared + kKFull + 8 * (round % kKeyStages), round / kKeyStages % 2);
    mbarrier_wait(shared + kVFull + 8 * (round % kKeyStages), round / kKeyStages % 2);

    const int first_key = tile.key + 64 * warpgroup;
    bool first = true;
    int m = tile.starts_at(), left = tile.steps(params);
    /*%#dq_direct%*/
    place = (tile.first_row(params) + m * kTileM) * (kHeadDim / 4) +
            warpgroup * 16 * (kTileM == 128 ? kHeadDim : kTileM) + threadIdx.x % 128;
    /*%/dq_direct%*/
    /*%#diagonal%*/
    // Only a group's first head skips this step; later heads compute it in vain. Here no product is under
    // way; with a branch there, ptxas would wait for every product right away (its warning C7514).
    if (left > 0 && m * kTileM + kTileM + diagonal(params) <= first_key) {
      skip_first_step();
      first = false;
      ++step;
      --left;
      tile.advance(m);
    }
    /*%/diagonal%*/
#pragma unroll 1
    for (; left > 0; --left) {
      compute_step(first_key, m * kTileM, first);
      /*%#dq_direct%*/
      if (!first) {
        place += static_cast<unsigned>(m - tile.step_before(m)) * (kTileM * kHeadDim / 4);
        // On to the group's next head.
        if (m == tile.starts_at()) place += params.padded_q * (kHeadDim / 4);
      }
      /*%/dq_direct%*/
      first = false;
      ++step;
      tile.advance(m);
    }
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
    if (!first) release_step((step - 1) & 1);
    /*%#dq%*/
    issue_dq(step - 1);
    /*%/dq%*/
    /*%^splits%*/
    // The products that read V are complete, and a warp's rows of dV lie where its own rows of V were.
    stage_gradient<kTileN>(dv, v_tile(), fragment, 1.0f);
    arrive_written(shared + kDvStaged + 8 * (round % kKeyStages));
    /*%/splits%*/
    /*%#splits%*/
    // Worked out again, as registers are few.
    const KeyTile again = tile_at(number_of_ticket(shared, round), params);
    float* const sums = key_sums_of(again.batch * params.heads_kv + again.head_kv,
                                    again.key + 64 * warpgroup + kWarpKeys * warp_of_warpgroup(), params);
    add_share(sums, dv);
    /*%/splits%*/
    /*%#dq%*/
    wgmma_wait<0>();
    pin(dq);
    if (!first) add_dq();
    /*%/dq%*/
    /*%^splits%*/
    /*%#dq%*/
    arrive_once(shared + kKRead);
    mbarrier_wait(shared + kKRead, round % 2);
    /*%/dq%*/
    /*%#divided%*/
    join_parts();
    /*%/divided%*/
    stage_gradient<kTileN>(dk, k_tile(), fragment, params.scale);
    arrive_written(shared + kDkStaged + 8 * (round % kKeyStages));
    /*%/splits%*/
    /*%#splits%*/
    add_share(sums + kWarpKeys * kHeadDimV, dk);
    __syncwarp();
    arrive_once(shared + kKeysAdded + 8 * (round % 2));
    /*%/splits%*/
  }

  /*%#divided%*/
  // Only now, when this tile's last share of dQ is on its way: whoever is waited for may wait for that share.
  __device__ __forceinline__ void join_parts() {
    wait_for_part(shared, round);
    // All lanes agree, which ptxas has to be told.
    const Part part{__shfl_sync(0xffffffffu, part_of(shared, round).word, 0)};
    if (part.whole()) return;
    float* const sums = sums_of_part(part, warpgroup, params);
    if (part.leaves_sums()) {
      leave_sums(sums, dv);
      leave_sums(sums + kSumsOfDv, dk);
    } else {
      add_sums(sums, dv);
      add_sums(sums + kSumsOfDv, dk);
      stage_gradient<kTileN>(dv, v_tile(), fragment, 1.0f);
    }
  }

  /*%/divided%*/
  __device__ __forceinline__ void run() {
    /*%#turns%*/
    if (warpgroup == 1) pass_turn();  // warpgroup 0 goes first
      /*%/turns%*/
#pragma unroll 1
    for (;; ++round) {
      /*%^splits%*/
      const int index = read_ticket_together(shared, round);
      if (index < 0) break;
      compute(tile_at(index, params));
      /*%/splits%*/
      /*%#splits%*/
      wait_for_ticket(shared, round);
      const int index = number_of_ticket(shared, round);
      if (index < 0) break;
      compute(tile_at(index, params));
      return_ticket_together(shared, round);
      /*%/splits%*/
    }
    /*%#turns%*/
    if (warpgroup == 0) take_turn();  // and takes the last arrival
    /*%/turns%*/
  }
};

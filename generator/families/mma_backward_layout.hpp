// How family mma's backward pass works under a schedule: shared memory, how its warps share out dQ, and the
// registers of a thread.
#pragma once

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/families/mma_tile.hpp"
#include "generator/schedule.hpp"

namespace flashjit::mma_backward {

// The kernel that owns keys: shared memory of one CTA, and how its warps share out dQ.
struct KeysLayout {
  int tile_k = 0, tile_v = 0;  // bytes of a tile
  int tile_q = 0, tile_dout = 0;
  int stage = 0;   // Q, dO, LSE and delta of one step
  int tile_p = 0;  // P^T in fragments, and dS^T
  int total = 0;
  int dq_warps_m = 1;    // warps side by side down the rows of dQ
  int dq_row_tiles = 1;  // 16-row tiles of each
  int dq_columns = 16;   // columns of each
};

// The kernel that owns query rows, where dQ has a pass of its own.
struct QueriesLayout {
  int row_tiles = 1;  // 16-row tiles of a warp
  int warps = 4;
  int tile_n = 32;  // keys per step
  int stages = 2;
  int slot = 0;                 // bytes of a tile of K and of V
  int total = 0;                // bytes of shared memory
  bool copies_in_turn = false;  // as copies_in_turn() below, for K and V
  [[nodiscard]] int tile_m() const { return 16 * row_tiles * warps; }
};

// Whether the kernel that owns keys adds up dQ; otherwise dQ has a pass of its own.
bool adds_dq(const MmaBackwardSchedule& s);
// Whether dS^T goes through shared memory: for dQ, or to the warp with the same keys.
bool has_ds_tile(const MmaBackwardSchedule& s);
KeysLayout keys_layout(const Problem& problem, const MmaBackwardSchedule& s);
QueriesLayout queries_layout(const Problem& problem, const Target& target);

// Turing's copies wait in registers. Where registers are short, dO's copies start only once Q's have landed,
// if nothing but copies is under way between two steps.
bool copies_in_turn(const Problem& problem, const MmaBackwardSchedule& s, const Target& target);
// Registers of one thread of the kernel that owns keys, estimated. With more than kRoomy of them only one CTA
// fits.
constexpr int kRoomy = 224;
int registers_of(const Problem& problem, const MmaBackwardSchedule& s, const Target& target);
int register_limit(const MmaBackwardSchedule& s, const Target& target);
// Whether ptxas was seen to fit a kernel that the estimate puts beyond the limit.
bool fits_all_the_same(const Problem& problem, const MmaBackwardSchedule& s, const Target& target);
// Whether ptxas was seen to spill a kernel that the estimate puts within the limit.
bool spills_all_the_same(const Problem& problem, const MmaBackwardSchedule& s, const Target& target);

}  // namespace flashjit::mma_backward

// Schedules: how each family does the work. Plain structs, with one table of fields per family that drives
// names, parsing and printing, so that a new knob is declared once.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "flashjit/problem.hpp"

namespace flashjit {

enum class Family { simt, mma, wgmma };
const char* to_string(Family family);

// fp32 FMA on every GPU. A warp's lanes form a grid, `lanes` across the keys and 32 / lanes down the rows;
// each thread holds tile_m * lanes / (32 * warps) rows x tile_n / lanes keys of S, and as many rows x
// head_dim_v / lanes of O.
struct SimtSchedule {
  int tile_m = 128;  // query rows per CTA
  int tile_n = 64;   // keys per step
  int warps = 4;     // per CTA
  int stages =
      2;  // 2: K and V have a buffer each, refilled while the other is in use; 1: they take turns in one
  int lanes = 8;     // of a warp across the keys: 4, 8 or 16
  int min_ctas = 0;  // CTAs per multiprocessor that registers must allow; 0: one
  int unroll = 1;    // of the loops inside the two products
  int prefetch = 0;  // 1: fragments of Q and P for the next step are loaded while this one is computed
  bool operator==(const SimtSchedule&) const = default;
};

// Warp-level tensor cores, sm_75 and later. tile_m is split over the warps (split-Q): tile_m / warps is a
// multiple of 16 rows.
struct MmaSchedule {
  int tile_m = 128;
  int tile_n = 64;
  int warps = 4;
  int stages = 2;     // K/V tiles in flight
  int q_in_regs = 0;  // 1: Q fragments are loaded once and Q's shared memory is reused for K/V
  int blocks = 1;     // S is computed in this many parts of tile_n, each beside the softmax of the one before
  int optimistic =
      0;  // 1: exponentials of unmasked tiles use the shifts as they are, and are redone if that was wrong
  int kv_apart = 0;    // 1: K and V have barriers of their own, so that S starts before V has arrived
  int lazy = 8;        // exponentials may grow to 2^lazy before O is rescaled; 0 = exact textbook
  int min_ctas = 0;    // CTAs per multiprocessor that registers must allow; 0: left to ptxas
  int unroll = 1;      // of the loop over unmasked K/V tiles
  int persistent = 0;  // 1: a CTA computes one tile after another, and loads the next in a tile's last step
  bool operator==(const MmaSchedule&) const = default;
};

// Hopper's asynchronous tensor cores (sm_90a): one producer warpgroup (TMA) and tile_m / 64 consumer
// warpgroups.
struct WgmmaSchedule {
  int tile_m = 128;
  int tile_n = 128;
  int stages = 2;     // K/V tiles in flight
  int q_in_regs = 1;  // 1: Q lives in registers (RS wgmma for QK); 0: none; 2: half of its panels (fp32: the
                      // first of its three parts)
  int o_passes = 1;   // O leaves through its own shared memory in this many passes; 0: through Q's place
  int lazy = 14;      // as MmaSchedule::lazy; 15 is the most that fp16 can hold. In fp16 with optimistic = 1
                      // it is for masked blocks only: in others, sums may grow to fp16's largest number
  int optimistic =
      1;  // 1: unmasked blocks look for no maximum first; their sums tell where it has grown too far
  int ping_pong = 1;  // 1: warpgroups take turns to issue their products
  int overlap = 1;    // 1: S of one block and O of the one before are in flight together; 0: strictly in turn
  int rescale_early = 1;  // 1: O is rescaled while the next S is computed; 0, or where a mask hides part of
                          // the block: at the end of a step
  int persistent = 1;     // 0: one tile per CTA; 1: static order; 2: dynamic order, longest tiles first;
                          // 3: even shares of the keys of a last wave that is not full, and mostly of
                          // the wave before it; under a mask, of all tiles
  int section = 32;       // MB of K and V that concurrent tiles share in L2 (persistent = 2); at most 4
                          // for short sequences; 0: those of all heads
  int max_chains = 4;     // partial row maxima kept per row: 2, 4 or 8
  int min_ctas = 0;       // CTAs per multiprocessor that registers must allow; 0: one
  int unroll = 1;
  int cluster = 1;  // 2: pairs of CTAs work on neighbouring tiles, and one loads K for both, the other V
                    // (fp32: each loads and splits half of both)
  int splits = 1;   // CTAs of a cluster that share out a tile's keys (fp32: its columns)
  int ptxas = 3;    // its -O: 3; or 1, which compiles faster and keeps fewer constants in uniform registers
  bool operator==(const WgmmaSchedule&) const = default;
};

// How the backward pass adds up dQ, to whose rows every key contributes.
enum class DqWay {
  own_pass = 0,  // a second kernel owns the rows of dQ: no atomics, no sum in memory, deterministic
  atomic = 1,    // one pass over K and V adds to an fp32 sum in the workspace, in whatever order
  ordered = 2,   // the same additions, each query tile's in a fixed order: deterministic
};
constexpr bool is_deterministic(DqWay way) {
  return way == DqWay::own_pass || way == DqWay::ordered;
}

// Backward on fp32 FMA.
struct SimtBackwardSchedule {
  int tile_m = 32;  // query rows per step
  int tile_n = 32;  // keys per CTA
  int warps = 4;
  int dq = 0;  // a DqWay
  bool operator==(const SimtBackwardSchedule&) const = default;
};

// Backward on warp-level tensor cores.
struct MmaBackwardSchedule {
  int tile_m = 64;  // query rows per step
  int tile_n = 64;  // keys per CTA
  int warps = 4;
  int stages = 1;   // tiles of Q and dO in flight
  int sharers = 1;  // 2: two warps share their keys: each has half of the rows in the products that form P
                    // and dS, and half of the columns in the sums
  int dq = 0;       // a DqWay
  bool operator==(const MmaBackwardSchedule&) const = default;
};

// Backward on Hopper's asynchronous tensor cores (sm_90a).
struct WgmmaBackwardSchedule {
  int tile_m = 64;   // query rows per step
  int tile_n = 128;  // keys per CTA
  int stages = 2;    // tiles of Q and dO in flight; 1 in fp32 only
  int dq = 1;        // a DqWay
  int turns = 0;     // 1: the two warpgroups take turns at the exponentials
  int splits = 1;  // parts of a tile's queries, at the most, that CTAs take separately: heads that share the
                   // keys, then (no mask) rows. Their dK and dV are added up
  int staged = 0;  // 1: dQ of 64 queries by 128 keys leaves through shared memory, which then mostly has no
                   // room for the next K and V. Other tiles do so wherever there is room and it pays
  bool operator==(const WgmmaBackwardSchedule&) const = default;
};

// Per pass, in the order of Family.
using Schedule = std::variant<SimtSchedule, MmaSchedule, WgmmaSchedule, SimtBackwardSchedule,
                              MmaBackwardSchedule, WgmmaBackwardSchedule>;

Family family_of(const Schedule& schedule);
Pass pass_of(const Schedule& schedule);
int tile_m_of(const Schedule& schedule);
// The query rows of one tile, where the tiles that the CTAs of a cluster do side by side count as one.
int rows_of_tile(const Schedule& schedule);

// One knob: its letters in a schedule string, its name and meaning for inspect --emit schedule, and its
// range.
struct ScheduleField {
  std::string_view letters;  // "m", "n", "w", "s", "qr" …
  std::string_view name;     // "tile_m" …
  std::string_view meaning;  // one line
  int minimum;
  int maximum;
};
std::span<const ScheduleField> fields_of(Pass pass, Family family);
int get(const Schedule& schedule, std::string_view name);

// "mma:m128n64w4s2qr1", "mma-backward:m64n64w4s1": tiles, warps and stages, then what differs from the
// default, in table order. parse accepts fields in any order and defaults for those left out; it throws
// Error{invalid_argument} that quotes what it could not read.
std::string to_string(const Schedule& schedule);
Schedule parse_schedule(std::string_view text);

}  // namespace flashjit

// How a forward problem falls into tiles, their keys into blocks, and tiles into waves: what the analytic
// model (model.cpp) counts.
#pragma once

#include <cstdint>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

// Blocks of keys, each of which is a step of its tile. Where CTAs share out a tile's keys, the blocks of one
// CTA.
struct Steps {
  double total = 0;    // of the tiles of one head
  double longest = 0;  // of its longest tile
  double tiles = 0;    // of one head
};

struct Tiling {
  Problem seen;  // without its mask where that hides nothing from whole tiles
  Shape shape;   // as tiles see it: packs of heads are heads, and a query has 2^packed rows
  int packed = 0;
  int rows = 0;      // of a tile, which a cluster of CTAs may have in common
  int tile_n = 0;    // keys of a block
  int cluster = 1;   // CTAs that have a tile's rows in common
  int splits = 1;    // CTAs of a cluster that share out a tile's keys
  int clusters = 1;  // clusters that have a tile in common
  int at_once = 1;   // clusters that run side by side
  double tiles = 0;  // of all heads
  int tiles_at_once = 1;
  double waves = 0;
  Steps steps;
};

Tiling tiling_of(const Problem& problem, const Shape& shape, const Schedule& schedule, const Target& target);

// Blocks of keys that rows of a head's tile see.
std::int64_t blocks_of_tile(const Tiling& tiling, std::int64_t tile);

}  // namespace flashjit::autotune

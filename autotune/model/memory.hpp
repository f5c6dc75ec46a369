// How long device memory takes to serve a forward pass, which the analytic model (model.cpp) lays beside its
// cycles: the time for the bytes, and how much longer it takes depending on who asks for what at once.
// Figures are measured (docs/performance/wgmma/memory.md, random-problems.md).
#pragma once

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

constexpr int kLine = 128;  // bytes of a line of L2

// Milliseconds of two things that run side by side: the larger `power`, the better they hide each other.
double side_by_side(double one_ms, double other_ms, double power);

// Bytes per millisecond that kernels get from device memory.
double memory_rate(const Target& target);

// Bytes of Q, K, V and O, each once.
double bytes_of(const Problem& problem, const Shape& shape);

// The same, with the rest of the last block of `tile_n` keys: TMA fills this in, in a quarter of the time
// that reading it would take (fitted to 144 to 288 keys).
double bytes_in_blocks(const Problem& problem, const Shape& shape, int tile_n);

// Bytes of K and V that L2 does not have, where CTAs ask for `keys` in all, each somewhere else.
double missed_bytes(const Problem& problem, const Shape& shape, double keys);

// How much more of K and V comes from memory than is asked for, where a head's rows begin or end inside a
// line. L2 fetches whole lines, and has the rest of a line when the CTA that reads the neighbouring head
// comes for it, if that CTA is about as far. By then L2 has given up `apart` of these lines.
double over_fetch(const Problem& problem, const Shape& shape, double apart);

// What part of these lines is given up, at the least, where CTAs share a multiprocessor, in tiles of more
// blocks than kLongTile.
constexpr double kSeveralApart = 0.15, kLongTile = 16;

// What part of these lines is given up where `of_all` of the multiprocessors have a CTA and each reads a
// tile's keys alone. The more keys each may ask for at once, the further CTAs that share a way to memory fall
// behind; further still where some have it alone (measured, from 160 to 430 keys).
double apart_of(const WgmmaSchedule& schedule, double of_all);

// The same for two tiles per head without a mask: most where heads begin inside a sector (measured, 192 and
// 256 keys).
double apart_of_two(const Problem& problem, const WgmmaSchedule& schedule);

// Tiles of family wgmma: each reads keys of its own, or two of a head read the same keys.
struct ReadingTiles {
  int multiprocessors;
  double of_all;    // part of these that have a CTA
  int ctas;         // CTAs on each of them
  double waves;     // of tiles, one on each multiprocessor
  double blocks;    // of keys that a CTA reads of a tile
  double alone_ms;  // that a tile takes to compute
  bool even;        // tiles are of one length, and dealt
  bool half_empty;  // half of a tile's rows are empty, though there are about as many queries as keys
};

// Milliseconds until memory has served tiles with keys of their own, whose bytes alone take `bytes_ms`.
double served_ms(const Problem& problem, const Shape& shape, const WgmmaSchedule& schedule,
                 const ReadingTiles& tiles, double bytes_ms);

// Milliseconds until a CTA's blocks have come one after the other, with as many on their way as it has
// stages, laid beside the `memory_ms` in which memory could send them. This counts where few CTAs ask, or
// each asks for little (fitted to 64 tiles of head_dim 64 with 24 to 108 KB on their way), or where a tile
// has more blocks than stages, so that the next tile's blocks wait for its end (fitted to 192 and 256 keys of
// head_dim 56 to 128).
double in_turn_ms(const Problem& problem, const WgmmaSchedule& schedule, const ReadingTiles& tiles,
                  double memory_ms);

}  // namespace flashjit::autotune

#include "autotune/model/memory.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace flashjit::autotune {
namespace {

constexpr int kSector = 32;  // the fewest bytes of a line that are read

int bytes_of_key(const Problem& problem) {
  return (problem.head_dim + problem.value_dim()) * size_of(problem.dtype);
}

bool begins_on_sector(const Problem& problem) {
  return problem.head_dim * size_of(problem.dtype) % kSector == 0;
}

// Kilobytes that a CTA asks for before any of them has come.
int kilobytes_ahead(const Problem& problem, const WgmmaSchedule& s) {
  return s.stages * s.tile_n * bytes_of_key(problem) / 1024;
}

// How much longer reading takes where half of the multiprocessors or more have a CTA, but not all. Two
// multiprocessors share a way to memory: one that has it alone reads ahead, the further the more it may ask
// for at once, and the others come in late. Asking for too little is no better, except where CTAs share out a
// tile's keys.
double unevenness(const Problem& problem, const WgmmaSchedule& s, double of_all) {
  if (of_all <= 0.4 || of_all >= 0.95) return 1;
  const int kilobytes = kilobytes_ahead(problem, s);
  if (s.splits > 1) return of_all <= 0.6 ? 1 : kilobytes > 104 ? 1.12 : 1.03;
  if (of_all <= 0.5) return kilobytes > 160 ? 1.08 : 1;
  return kilobytes > 104 ? 1.08 : kilobytes < 80 ? 1.04 : 1;
}

// Milliseconds that the last CTAs still read when the first are done, where all multiprocessors have one: the
// more keys CTAs ask for at once, the longer (measured, from 190 to 430 keys of head_dim 64 and 128).
double spread_ms(const Problem& problem, const Shape& shape, const WgmmaSchedule& s,
                 const ReadingTiles& tiles, double bytes_ms) {
  if (s.splits > 1 || tiles.of_all < 0.95) return 0;
  const double keys = tiles.ctas * std::min(s.stages * s.tile_n, shape.seqlen_k);
  const double of_key = bytes_of_key(problem);
  return 0.7 * tiles.multiprocessors * std::max(0.0, keys - 192) * of_key / bytes_of(problem, shape) *
         bytes_ms;
}

// How much longer reading takes where CTAs are dealt many tiles instead of drawing them off a counter; most
// where heads begin inside a line (measured, 128 keys). It seems that CTAs fall behind each other, and that
// L2 then fetches such lines for each of two heads.
double falling_behind(const Problem& problem, const ReadingTiles& tiles) {
  constexpr double kManyRounds = 4;
  if (!tiles.even || tiles.ctas > 1 || tiles.waves <= kManyRounds) return 1;
  if (problem.head_dim * size_of(problem.dtype) % kLine == 0) return 1.025;
  return problem.value_dim() > 192 ? 1.08 : 1.05;
}

// Milliseconds of tiles that come in waves: a last wave takes as long as one tile alone, however few tiles it
// has, and a tenth more while others still read.
double in_waves(const Problem& problem, const WgmmaSchedule& s, const ReadingTiles& tiles, double memory_ms) {
  const double whole = std::floor(tiles.waves), last = tiles.waves - whole;
  // Less than a wave of tiles may keep more multiprocessors busy, where several CTAs share out each tile.
  const double of_all = whole > 0 ? last : tiles.of_all;
  const double last_ms = memory_ms * last / tiles.waves * unevenness(problem, s, of_all);
  return memory_ms * whole / tiles.waves +
         (whole > 0 && last > 0 ? std::max(last_ms, 1.1 * tiles.alone_ms) : last_ms);
}

// Milliseconds in which nothing is on its way to a multiprocessor, while one CTA ends and the next begins
// (measured, 128 and 192 keys: 0.2 to 1.7 µs).
double between_ctas(const WgmmaSchedule& s, const ReadingTiles& tiles) {
  return s.persistent == 0 && s.splits == 1 && tiles.waves > 1 ? 0.001 * tiles.waves : 0;
}

// What part of the lines that heads share L2 has given up before the other head is read, where CTAs share out
// a tile's keys: the more each CTA has on its way, the more, and little where half of the multiprocessors
// read at TMA's full speed (measured, 4 to 64 tiles of head_dim 40 to 184, 40 to 130 KB).
double apart_of_sharers(const Problem& problem, const WgmmaSchedule& s, double of_all) {
  const int kilobytes = kilobytes_ahead(problem, s);
  const double apart = of_all <= 0.5 && begins_on_sector(problem)
                           ? 0.006 * (kilobytes - 68)
                           : 0.007 * (kilobytes - (of_all < 0.95 ? 8 : 12));
  return std::clamp(apart, 0.0, 1.0);
}

// How much longer half-empty tiles of a block or two take: they have fewer bytes on their way (measured, 32
// to 64 queries and keys).
double few_bytes_ahead(const WgmmaSchedule& s, const ReadingTiles& tiles) {
  return tiles.half_empty && tiles.blocks <= 2 && s.splits == 1 && tiles.waves > 1 ? 1.2 : 1;
}

// What part of the lines that heads share is given up, at the least, where CTAs share a multiprocessor.
double apart_of_several(const Problem& problem, const ReadingTiles& tiles) {
  if (tiles.ctas == 1) return 0;
  if (tiles.blocks > kLongTile) return kSeveralApart;
  // Tiles of a block or two whose rows end inside their second sector (measured, head_dim 24).
  const int row = problem.head_dim * size_of(problem.dtype);
  const bool torn = row > kSector && row < 2 * kSector && problem.value_dim() == problem.head_dim;
  return torn && tiles.blocks <= 2 ? 0.3 : 0;
}

}  // namespace

double side_by_side(double one_ms, double other_ms, double power) {
  return std::pow(std::pow(one_ms, power) + std::pow(other_ms, power), 1 / power);
}

double memory_rate(const Target& target) {
  constexpr double kReached = 0.846;  // an H200's 4160 GB/s of 4917; an H100 has 2840 to 3000 of 3352
  constexpr double kUnknown = 250;    // for parts that share the host's memory: they have 205 to 273
  return 1e6 * kReached * (target.memory_gbps > 0 ? target.memory_gbps : kUnknown);
}

double bytes_of(const Problem& problem, const Shape& shape) {
  const double rows = 1.0 * shape.heads * shape.seqlen_q + 1.0 * shape.kv_heads() * shape.seqlen_k;
  return rows * shape.batch * bytes_of_key(problem);
}

double bytes_in_blocks(const Problem& problem, const Shape& shape, int tile_n) {
  const int left = (tile_n - shape.seqlen_k % tile_n) % tile_n;
  return bytes_of(problem, shape) + 0.25 * left * shape.kv_heads() * shape.batch * bytes_of_key(problem);
}

double missed_bytes(const Problem& problem, const Shape& shape, double keys) {
  constexpr double kKept = 30e6;  // measured; a line may be in both halves of an H200's 50 MB
  const double of_key = bytes_of_key(problem);
  const double all = of_key * shape.kv_heads() * shape.batch * shape.seqlen_k;
  return keys * of_key * std::max(0.0, 1 - kKept / all);
}

double over_fetch(const Problem& problem, const Shape& shape, double apart) {
  if (shape.kv_heads() == 1) return 1;  // a row's neighbour is the next key's
  const int row = problem.head_dim * size_of(problem.dtype);
  const double lines = 1.0 * (row + kLine - std::gcd(row, kLine)) / kLine;
  return 1 + apart * (lines * kLine / row - 1);
}

double apart_of(const WgmmaSchedule& s, double of_all) {
  const double keys = s.stages * s.tile_n;
  if (of_all > 0.5 && of_all < 0.95) return std::clamp((keys - 192) / 192, 0.0, 1.0);
  const double further = std::clamp((keys - 128) / 288, 0.0, 1.0);
  return further * further;
}

double apart_of_two(const Problem& problem, const WgmmaSchedule& s) {
  if (s.cluster > 1) return 0;  // a pair reads each key once
  if (begins_on_sector(problem)) return 0.2;
  return std::clamp(0.6 + 0.003 * (s.stages * s.tile_n - 128), 0.0, 1.0);
}

double in_turn_ms(const Problem& problem, const WgmmaSchedule& s, const ReadingTiles& tiles,
                  double memory_ms) {
  struct Fit {
    double round_trip_ms, being_read, power;
  };
  constexpr double kShortTile = 8;
  const bool waits_for_ends = s.tile_m > 64 && tiles.waves > 1 && tiles.blocks > s.stages &&
                              tiles.blocks <= kShortTile && kilobytes_ahead(problem, s) < 72;
  // CTAs that share out a tile's keys were fitted by themselves (4 to 64 tiles, 40 to 130 KB).
  const Fit fit = s.splits > 1     ? Fit{0.00105, 0.5, 6}
                  : waits_for_ends ? Fit{0.0021, 0, 4}
                                   : Fit{0.0006, 0, 3};
  const double trips = std::ceil(tiles.waves / tiles.ctas) * tiles.blocks / (s.stages - fit.being_read);
  return side_by_side(memory_ms, fit.round_trip_ms * trips, fit.power);
}

double served_ms(const Problem& problem, const Shape& shape, const WgmmaSchedule& s,
                 const ReadingTiles& tiles, double bytes_ms) {
  const double apart = s.splits > 1 ? apart_of_sharers(problem, s, tiles.of_all) : apart_of(s, tiles.of_all);
  const double fetched_ms =
      bytes_ms * over_fetch(problem, shape, std::max(apart, apart_of_several(problem, tiles)));
  const double read_ms =
      tiles.even ? fetched_ms * falling_behind(problem, tiles) * unevenness(problem, s, tiles.of_all)
                 : in_waves(problem, s, tiles, fetched_ms);
  return few_bytes_ahead(s, tiles) *
         in_turn_ms(problem, s, tiles,
                    read_ms + spread_ms(problem, shape, s, tiles, bytes_ms) + between_ctas(s, tiles));
}

}  // namespace flashjit::autotune

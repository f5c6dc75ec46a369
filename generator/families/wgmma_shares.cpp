// Family wgmma: what a launch needs, which rows of which heads fill a tile, and how a launch shares out tiles
// and their keys among CTAs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <variant>

#include "flashjit/problem.hpp"
#include "generator/families/wgmma_fp32.hpp"
#include "generator/families/wgmma_layout.hpp"
#include "generator/families/wgmma_registers.hpp"
#include "generator/recipe.hpp"
#include "generator/render.hpp"

namespace flashjit {
namespace {

// Blocks that a CTA should have, at the least, of a tile which it shares.
constexpr int kLeastBlocks = 2;
// How full a last wave may be, at most, for its keys to be shared out, and must be, at least, where tiles
// have keys of their own (measured, docs/performance/wgmma/even-shares.md).
constexpr double kMostShared = 0.9, kLeastSharedAlone = 0.2;
// Sharers of a tile: no more than a warp's byte of a counter can count, where clusters share the tile. Even
// shares keep to this, too.
constexpr int kMostSharers = 127;
// What kernels can count to, in 32 bits.
constexpr double kCountable = std::numeric_limits<int>::max();

double tiles_of_head(const Geometry& geometry, const Shape& tiled) {
  return std::ceil(1.0 * tiled.seqlen_q / geometry.tile_m);
}

double tiles_of(const Geometry& geometry, const Shape& tiled) {
  return tiles_of_head(geometry, tiled) * tiled.heads * tiled.batch;
}

// What the tiles of a head weigh, in keys, as templates/parts/wgmma/share_bounds.cuh counts: the keys that
// each sees, at least one, and a block for its beginning and end.
struct HeadUnderMask {
  long long first, past, seeing, weight;

  HeadUnderMask(const Geometry& geometry, const Shape& tiled, int packed) {
    const auto tiles = static_cast<long long>(tiles_of_head(geometry, tiled));
    const long long queries = geometry.tile_m >> packed;
    first = tiles * queries + tiled.seqlen_k - (tiled.seqlen_q >> packed);
    past = std::max(0LL, first - std::max(1, tiled.seqlen_k));
    seeing = first < 1 ? 0 : std::min(tiles, (first - 1) / queries + 1);
    weight = seeing * first - queries * (seeing * (seeing - 1) / 2) - past + (tiles - seeing) +
             tiles * geometry.tile_n;
  }
};

// The row of `heads` heads, whose weight can be counted.
void place_under_mask(const HeadUnderMask& head, int heads, EvenShares& shares) {
  const int unit = static_cast<int>(head.weight);
  shares.row = {.unit = unit,
                .all = heads * unit,
                .first = static_cast<int>(head.first),
                .past = static_cast<int>(head.past),
                .seeing = static_cast<int>(head.seeing)};
}

// Shares of all tiles: under a mask their lengths differ, and no order of dealing whole ones keeps CTAs in
// step.
EvenShares even_shares_under_mask(const Geometry& geometry, const Shape& tiled, int packed, int clusters) {
  const HeadUnderMask head(geometry, tiled, packed);
  const double weight = static_cast<double>(head.weight) * tiled.heads * tiled.batch;
  const double most = std::min(weight / geometry.least_keys,
                               (kMostSharers - 2) * weight / (1.0 * tiled.seqlen_k + geometry.tile_n));
  const int shares = static_cast<int>(std::min(most, 1.0 * clusters));
  if (shares < 1 || weight * std::max(shares, 4) >= kCountable) return {.clusters = clusters};
  EvenShares all{.clusters = shares, .tiles = static_cast<int>(tiles_of(geometry, tiled))};
  place_under_mask(head, tiled.heads * tiled.batch, all);
  return all;
}

}  // namespace

Geometry geometry_wgmma(const Problem& problem, const WgmmaSchedule& s) {
  using namespace wgmma_forward;
  if (problem.dtype == DType::fp32) return geometry_wgmma_fp32(problem, s);
  const bool dynamic = !is_static(s), split = s.splits > 1, even = has_even_shares(s);
  const int dim_v = problem.value_dim();
  Geometry geometry{.tile_m = s.tile_m * s.cluster,
                    .threads = 128 * (warpgroups_of(s) + 1),
                    .shared_bytes = shared_bytes(problem, s),
                    .cluster = s.cluster * s.splits,  // one of them is 1
                    .persistent = s.persistent > 0 && !even,
                    .dynamic = dynamic,
                    .packs = true,
                    .section_bytes = dynamic && problem.causal ? s.section << 20 : 0};
  if (split) {
    // Per thread: its rows' shifts and sums, and 16 bytes for each of its groups of eight columns.
    const int groups = (dim_v / 8 + s.splits - 1) / s.splits;
    geometry.piece_bytes = 128 * warpgroups_of(s) * 16 * (1 + groups);
    geometry.counters = s.splits * warpgroups_of(s);
    geometry.least_keys = kLeastBlocks * s.splits * s.tile_n;
    // Narrow heads have as many exponentials, and CTAs compute for as long as they read.
    geometry.idle_rows = problem.head_dim + dim_v > 192 ? 64 : 0;
  } else if (even) {
    geometry.even_shares = true;
    geometry.tile_n = s.tile_n;
    // Pieces of the tile that a CTA ends, and of the one that it begins.
    geometry.piece_bytes = 2 * 128 * warpgroups_of(s) * 16 * (1 + dim_v / 8);
    geometry.counters = s.cluster * warpgroups_of(s);
    geometry.least_keys = kLeastBlocks * s.tile_n;
  }
  return geometry;
}

// Packs as many heads as leave tiles the fewest keys to see, if that saves a hundredth of the keys: a power
// of two, or the whole group, and 64 at most, the rows of a box. Under a mask a tile sees all keys that its
// last query sees, and with heads side by side it has fewer queries. But warpgroups do not compute what none
// of their 64 rows sees, so that waiting for the last warpgroup costs two fifths of it (measured,
// docs/performance/wgmma/few-queries.md).
Pack pack_of(const Problem& problem, const Shape& shape, int tile_m) {
  constexpr double kWorthIt = 0.99, kWaiting = 0.4;
  constexpr int kRows = 64;
  const int group = shape.heads / std::max(1, shape.kv_heads());
  const double masked = problem.causal ? std::min(shape.seqlen_q, shape.seqlen_k) : 0;
  const auto keys = [&](const Pack& pack) {  // of all tiles of a sequence
    const int packs = shape.heads / pack.heads;
    const double tiles = std::ceil(std::ldexp(shape.seqlen_q, pack.packed) / tile_m) * packs;
    const double waiting = kWaiting * std::max(0, (tile_m >> pack.packed) - kRows);
    return tiles * (shape.seqlen_k - 0.5 * std::max(0.0, masked - kRows - waiting));
  };
  Pack best;
  const auto consider = [&](const Pack& pack) {
    constexpr int kLargestTile = 512;  // a cluster's, which may begin with the last row
    const bool countable = std::ldexp(shape.seqlen_q, pack.packed) <= kCountable - kLargestTile;
    if (countable && keys(pack) < keys(best)) best = pack;
  };
  for (int packed = 1; 1 << packed <= kRows && group % (1 << packed) == 0; ++packed)
    consider({.heads = 1 << packed, .packed = packed});
  // Kernels count all places, including the empty ones.
  if (group > 1 && group <= kRows && 2.0 * shape.heads <= kCountable)
    consider({.heads = group, .packed = static_cast<int>(std::bit_width(group - 1U))});
  return keys(best) <= kWorthIt * keys({}) ? best : Pack{};
}

Pack pack_of(const Problem& problem, const Shape& shape, const Schedule& schedule) {
  if (!std::holds_alternative<WgmmaSchedule>(schedule) || problem.dtype == DType::fp32) return {};
  return pack_of(problem, shape, rows_of_tile(schedule));
}

Shape as_tiled(Shape shape, const Pack& pack) {
  shape.heads /= pack.heads;
  shape.seqlen_q <<= pack.packed;
  return shape;
}

int clusters_of_tile(const Geometry& geometry, const Shape& tiled, int clusters_at_once) {
  if (geometry.piece_bytes == 0) return 1;
  const double tiles = tiles_of(geometry, tiled);
  if (tiles < 1 || tiles > clusters_at_once) return 1;
  // Half of the multiprocessors read memory faster than all do (measured,
  // docs/performance/wgmma/few-queries.md).
  const int clusters = tiled.seqlen_q <= geometry.idle_rows ? (clusters_at_once + 1) / 2 : clusters_at_once;
  return std::clamp(std::min(clusters / static_cast<int>(tiles), tiled.seqlen_k / geometry.least_keys), 1,
                    kMostSharers);
}

EvenShares even_shares(const Problem& problem, const Geometry& geometry, const Shape& tiled, int packed,
                       int clusters_at_once) {
  const double of_head = tiles_of_head(geometry, tiled), tiles = tiles_of(geometry, tiled);
  // A tile may begin and end inside a share, which makes two more sharers.
  const double of_tile = std::min(std::max(1, tiled.seqlen_k / geometry.least_keys), kMostSharers - 2);
  const int clusters = std::max(1, static_cast<int>(std::min(tiles * of_tile, 1.0 * clusters_at_once)));
  if (problem.causal && of_head > 1) return even_shares_under_mask(geometry, tiled, packed, clusters);
  // Waves are dealt, except the last one and the one before it, which are shared. The one before it is dealt,
  // too, where tiles have keys of their own, which do not meet in L2, and where few CTAs share a tile then. A
  // last wave that is nearly full is not worth sharing.
  const double last_wave = std::fmod(tiles, clusters);
  const bool alone = of_head <= 1 && last_wave >= kLeastSharedAlone * clusters;
  const double shared = last_wave == 0 || last_wave > kMostShared * clusters ? 0
                        : tiles < clusters || alone                          ? last_wave
                                                                             : last_wave + clusters;
  // Kernels count blocks, or under a mask keys, and no share has fewer than are worth it. The other sharers
  // would wait in vain for a share without a block.
  const int blocks = std::max(1, (tiled.seqlen_k - 1) / geometry.tile_n + 1);
  const double keys = shared * (1.0 * tiled.seqlen_k + geometry.tile_n);
  const bool countable = keys * clusters / (problem.causal ? 1 : geometry.tile_n) < kCountable;
  const bool enough =
      problem.causal ? keys >= 1.0 * clusters * geometry.least_keys : shared * blocks >= clusters;
  if (shared == 0 || !countable || !enough) {
    return {.clusters = static_cast<int>(even_waves(std::llround(std::min(tiles, kCountable)), clusters))};
  }
  EvenShares shares{.clusters = clusters, .tiles = static_cast<int>(shared)};
  if (problem.causal) {
    place_under_mask(HeadUnderMask(geometry, tiled, packed), shares.tiles, shares);
  } else {
    shares.row.unit = blocks;
    shares.row.all = shares.tiles * shares.row.unit;
  }
  return shares;
}

// Waves that are equally full draw the same power from first to last, and read memory at the same rate. Full
// waves and a rest take 1 to 5 % longer (measured, docs/performance/wgmma/even-waves.md).
long long even_waves(long long tiles, long long clusters_at_once) {
  const long long waves = std::max(0LL, tiles - 1) / clusters_at_once + 1;
  return (tiles + waves - 1) / waves;
}

// Longest tiles first, CTAs are done at the same time after every second wave, so that the longest tiles of
// the third wave, or of the fifth, end alone. Riffling the second wave avoids this
// (docs/performance/wgmma/few-heads.md). If the last wave is not full, fewer tiles are riffled. Fitted to the
// computed ends of 210 shapes, none of which gets later: 3 to 8 % sooner between two and three waves, 1 to 2
// % between four and five.
int riffled_tiles(double tiles, int clusters_at_once) {
  const double waves = tiles / clusters_at_once, whole = std::floor(waves);
  if (whole != 2 && whole != 4) return 0;
  return static_cast<int>(clusters_at_once * std::min(1.0, 1.1 * std::pow(waves - whole, 0.6)));
}

}  // namespace flashjit

// Family wgmma: whose rows fill a tile, and who has which keys of a launch's tiles.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "flashjit/problem.hpp"
#include "generator/render.hpp"

using namespace flashjit;

namespace {

constexpr Problem kFull{.head_dim = 128};
constexpr Problem kCausal{.head_dim = 128, .causal = true};
constexpr Geometry kTiles{.tile_m = 128, .tile_n = 128, .least_keys = 256, .even_shares = true};

// Keys that the tiles of a head see, one at least, and a block for each tile.
double weight_of_head(const Shape& shape, int packed) {
  double weight = 0;
  const int queries = kTiles.tile_m >> packed;
  for (int first = 0; first < shape.seqlen_q; first += queries) {
    const int seen = std::min(first + queries, shape.seqlen_q) + shape.seqlen_k - shape.seqlen_q;
    weight += std::clamp(seen, 1, std::max(1, shape.seqlen_k)) + kTiles.tile_n;
  }
  return weight;
}

}  // namespace

TEST_CASE("heads lie side by side where that leaves fewer keys for tiles to see") {
  const auto prompt = [](int group, int queries, int keys) {
    return Shape{.batch = 2, .heads = 3 * group, .heads_kv = 3, .seqlen_q = queries, .seqlen_k = keys};
  };
  const auto heads = [](const Problem& problem, const Shape& shape, int tile_m) {
    return pack_of(problem, shape, tile_m).heads;
  };
  // A query a head: all heads of a group, in a power of two places, or as many as a box holds.
  CHECK(pack_of(kFull, prompt(4, 1, 8192), 64) == Pack{.heads = 4, .packed = 2});
  CHECK(pack_of(kFull, prompt(7, 1, 8192), 64) == Pack{.heads = 7, .packed = 3});
  CHECK(pack_of(kCausal, prompt(12, 1, 8192), 64) == Pack{.heads = 12, .packed = 4});
  CHECK(heads(kFull, prompt(64, 1, 8192), 64) == 64);
  CHECK(heads(kFull, prompt(128, 1, 8192), 64) == 64);
  CHECK(heads(kFull, prompt(81, 1, 8192), 64) == 1);
  CHECK(heads(kFull, prompt(1, 1, 8192), 64) == 1);
  // More places than 32 bits count.
  CHECK(heads(kFull, {.heads = 3 << 29, .heads_kv = 1 << 29, .seqlen_q = 1, .seqlen_k = 9}, 64) == 1);
  CHECK(heads(kCausal, {.batch = 1, .heads = 32, .heads_kv = 1, .seqlen_q = (1 << 27) + 1, .seqlen_k = 512},
              128) <= 8);
  CHECK(heads(kCausal,
              {.batch = 1, .heads = 4, .heads_kv = 1, .seqlen_q = (1 << 30) + 1000, .seqlen_k = 1000},
              256) == 1);
  CHECK(heads(kCausal, {.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 1 << 30, .seqlen_k = 1000}, 128) ==
        1);
  // Those of a cluster's last tile, too.
  CHECK(heads(kCausal, {.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = (1 << 30) - 200, .seqlen_k = 1000},
              512) == 1);
  // As many queries as fill tiles: empty places would be more tiles.
  CHECK(heads(kFull, prompt(7, 1024, 1024), 64) == 1);
  CHECK(heads(kFull, prompt(12, 20, 8192), 64) == 12);
  // Where tiles are full anyway nothing is saved; a last one that is not may be.
  CHECK(heads(kFull, prompt(8, 1024, 1024), 128) == 1);
  CHECK(heads(kFull, prompt(8, 900, 900), 128) == 8);
  // Under a mask a tile of one head has as many queries as rows: down to 64, a block's keys, fewer are
  // better.
  CHECK(heads(kCausal, prompt(8, 1024, 1024), 64) == 1);
  CHECK(heads(kCausal, prompt(8, 1024, 1024), 128) == 2);
  CHECK(heads(kCausal, prompt(8, 1024, 1024), 256) == 4);
  CHECK(heads(kCausal, prompt(7, 1024, 1024), 256) == 1);
  // … but not where the diagonal is little of what is seen, or nothing.
  CHECK(heads(kCausal, prompt(8, 16384, 16384), 256) == 1);
  CHECK(heads(kCausal, prompt(8, 1024, 32768), 256) == 1);
  CHECK(heads(kCausal, prompt(8, 1024, 0), 256) == 1);
  CHECK(heads(kCausal, prompt(8, 0, 1024), 256) == 1);
}

TEST_CASE("even shares: of the last wave of tiles and the one before, or the last one alone") {
  struct Expected {
    Shape shape;
    int clusters, tiles;
  };
  for (const Expected& expected : std::vector<Expected>{
           {{.heads = 1, .seqlen_q = 12 * 128, .seqlen_k = 4096}, 10, 12},
           {{.heads = 1, .seqlen_q = 10 * 128, .seqlen_k = 4096}, 10, 0},  // all waves full
           {{.heads = 1, .seqlen_q = 35 * 128, .seqlen_k = 4096}, 10, 15},
           {{.heads = 1, .seqlen_q = 3 * 128, .seqlen_k = 4096}, 10, 3},  // fewer than CTAs
           {{.heads = 1, .seqlen_q = 3 * 128, .seqlen_k = 600}, 6, 3},    // of two blocks each, or more
           {{.heads = 1, .seqlen_q = 3 * 128, .seqlen_k = 100}, 3, 0},
           {{.heads = 1, .seqlen_q = 3 * 128, .seqlen_k = 0}, 3, 0},
           {{.heads = 12, .seqlen_q = 128, .seqlen_k = 4096}, 10, 2},   // keys of their own
           {{.heads = 11, .seqlen_q = 128, .seqlen_k = 4096}, 10, 11},  // ten would share one
           {{.heads = 12, .seqlen_q = 128, .seqlen_k = 640}, 10, 2},    // a block each
           {{.heads = 12, .seqlen_q = 128, .seqlen_k = 512}, 6, 0},     // not even that
           {{.heads = 12, .seqlen_q = 128, .seqlen_k = 0}, 6, 0},
           {{.heads = 1, .seqlen_q = 1, .seqlen_k = 1 << 20}, 10, 1},
           {{.batch = 0, .heads = 1, .seqlen_q = 128, .seqlen_k = 128}, 0, 0}}) {
    CAPTURE(describe(expected.shape));
    const EvenShares shares = even_shares(kFull, kTiles, expected.shape, 0, 10);
    CHECK(shares.clusters == expected.clusters);
    CHECK(shares.tiles == expected.tiles);
  }
  // A last wave that is nearly full is dealt, and the waves are even.
  const Shape dealt{.heads = 1, .seqlen_q = 195 * 128, .seqlen_k = 4096};
  CHECK(even_shares(kFull, kTiles, dealt, 0, 100).clusters == 98);
  CHECK(even_shares(kFull, kTiles, dealt, 0, 100).tiles == 0);
  // More blocks of keys than 32 bits count, times the number of shares.
  Shape most{.heads = 1, .seqlen_q = 1 << 20, .seqlen_k = 15'000'000};
  CHECK(even_shares(kFull, kTiles, most, 0, 132).tiles == 0);
  most.seqlen_k = 14'000'000;
  const EvenShares shares = even_shares(kFull, kTiles, most, 0, 132);
  CHECK(shares.tiles == 140);
  CHECK(shares.row.unit == 109'375);
  CHECK(shares.row.all == 140 * 109'375);
  // What a byte counts: the CTAs of a tile.
  CHECK(even_shares(kFull, kTiles, {.heads = 1, .seqlen_q = 1, .seqlen_k = 1 << 20}, 0, 1000).clusters ==
        125);
}

TEST_CASE("even waves: as few as deal tiles in as many waves") {
  CHECK(even_waves(0, 10) == 0);
  CHECK(even_waves(3, 10) == 3);
  CHECK(even_waves(10, 10) == 10);
  CHECK(even_waves(11, 10) == 6);
  CHECK(even_waves(29, 10) == 10);
  CHECK(even_waves(1024, 132) == 128);
  CHECK(even_waves(1LL << 40, 132) == 132);
}

TEST_CASE("even shares under a mask: of all tiles, by the keys that they see") {
  for (const int queries : {129, 300, 1000, 4096}) {
    for (const int keys : {0, 1, 100, 300, 1000, 5000}) {
      for (const int packed : {0, 2}) {
        const Shape shape{.batch = 2, .heads = 12, .heads_kv = 3, .seqlen_q = queries, .seqlen_k = keys};
        CAPTURE(describe(shape));
        CAPTURE(packed);
        const Shape tiled{
            .batch = 2, .heads = shape.heads >> packed, .seqlen_q = queries << packed, .seqlen_k = keys};
        const double weight = weight_of_head(shape, packed) * tiled.heads * tiled.batch;
        // Of two blocks or more, the longest tile's 125 at most.
        const int most = static_cast<int>(std::min(weight / 256, 125 * weight / (keys + 128)));
        const int tiles = (tiled.seqlen_q + 127) / 128 * tiled.heads * tiled.batch;
        const int of_full = tiles * std::min(125, std::max(1, keys / 256));
        const EvenShares shares = even_shares(kCausal, kTiles, tiled, packed, 132);
        CHECK(shares.clusters == std::min({most, of_full, 132}));
        CHECK(shares.tiles == tiles);
        CHECK(shares.row.unit == weight_of_head(shape, packed));
        CHECK(shares.row.all == weight);
      }
    }
  }
  // More keys than 32 bits count.
  CHECK(even_shares(kCausal, kTiles, {.heads = 4, .seqlen_q = 1 << 17, .seqlen_k = 1 << 17}, 0, 132).tiles ==
        0);
  // One tile a head, as decoding has: the last wave's, as without a mask, if shares are long enough.
  const Shape decode{.batch = 17, .heads = 8, .seqlen_q = 4, .seqlen_k = 8192};
  CHECK(even_shares(kCausal, kTiles, decode, 2, 132).tiles == 136);  // four would have too many sharers
  CHECK(even_shares(kCausal, kTiles, decode, 2, 100).tiles == 36);
  Shape brief = decode;
  brief.seqlen_k = 500;
  CHECK(even_shares(kCausal, kTiles, brief, 2, 100).tiles == 0);
}

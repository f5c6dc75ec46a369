// The analytic model ranks pairs of Hopper schedules as an H200 or H100 did.
#include <doctest/doctest.h>

#include <algorithm>

#include "autotune/tuner.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

namespace {

bool faster(const Problem& problem, const Shape& shape, const char* one, const char* other,
            const Target& target = target_of("sm_90a")) {
  return predict(problem, shape, parse_schedule(one), target) <
         predict(problem, shape, parse_schedule(other), target);
}

Problem masked(int head_dim) {
  return {.head_dim = head_dim, .causal = true};
}

Shape prompts(int batch, int heads, int seqlen) {
  return {.batch = batch, .heads = heads, .seqlen_q = seqlen, .seqlen_k = seqlen};
}

}  // namespace

TEST_CASE("tiles of one length: a counter is no slower than cards, and waves are even") {
  // bench/results/h200-forward/random-problems.jsonl, even-waves.jsonl: which took less time.
  const Shape wave{.batch = 4, .heads = 256, .heads_kv = 32, .seqlen_q = 16, .seqlen_k = 32784};
  CHECK(faster(masked(48), wave, "wgmma:m128n144s2p2", "wgmma:m128n128s4p0sp2"));
  const Shape decode{.batch = 24, .heads = 16, .heads_kv = 4, .seqlen_q = 1, .seqlen_k = 16384};
  CHECK(faster(masked(48), decode, "wgmma:m64n144s2pp0p2", "wgmma:m64n128s4pp0p0sp2"));
  const Shape waves{.batch = 89, .heads = 8, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = 8192};
  CHECK(faster(masked(64), waves, "wgmma:m64n128s3pp0", "wgmma:m64n128s4pp0p0sp2"));
}

TEST_CASE("under a mask: tiles off a counter, or even shares, as was measured") {
  // bench/results/h200-forward/few-heads.jsonl: of a few heads, which took less time.
  // Tiles that go up in whole waves end together; elsewhere shares do.
  CHECK(faster(masked(128), prompts(1, 4, 8192), "wgmma:m128n128s2p2", "wgmma:m192n64s4qr0p3"));
  CHECK(faster(masked(128), prompts(1, 8, 8192), "wgmma:m128n128s2p2", "wgmma:m192n64s4qr0p3"));
  CHECK(faster(masked(256), prompts(1, 8, 4096), "wgmma:m128n64s2qr0o2re0p2", "wgmma:m128n64s2qr0o2re0p3"));
  CHECK(faster(masked(256), prompts(1, 5, 4096), "wgmma:m128n64s2qr0o2re0p3", "wgmma:m128n64s2qr0o2re0p2"));
  CHECK(faster(masked(64), prompts(1, 6, 8192), "wgmma:m192n128s2qr0p2", "wgmma:m256n64s4qr0p3"));
  // Shares are all at other keys at once, which L2 has to hold.
  CHECK(faster(masked(256), prompts(1, 16, 8192), "wgmma:m128n64s2qr0o2re0p2", "wgmma:m128n64s2qr0o2re0p3"));
  CHECK(faster(masked(256), prompts(1, 32, 4096), "wgmma:m128n64s2qr0o2re0p2", "wgmma:m128n64s2qr0o2re0p3"));
  // Shares of many tiles are as many heads apart.
  CHECK(faster(masked(40), prompts(1, 204, 4096), "wgmma:m256n64s4qr0p2", "wgmma:m256n64s4qr0p3"));
  CHECK(faster(masked(64), prompts(1, 32, 4096), "wgmma:m256n64s4qr0p2", "wgmma:m256n64s4qr0p3"));
}

TEST_CASE("head dims between the round ones, as was measured") {
  // bench/results/h200-forward/edge-tiles.jsonl: which took less time.
  // Longer blocks, of which the diagonal hides more; and Q in registers, which shortens a tile's beginning.
  for (const int dim : {16, 24, 32, 40, 48}) {
    CHECK(faster(masked(dim), prompts(4, 2048 / dim, 4096), "wgmma:m256n64s4qr0p2", "wgmma:m256n80s3qr0p2"));
    CHECK(faster(masked(dim), prompts(16, 2048 / dim, 1024), "wgmma:m256n64s4p2", "wgmma:m256n64s4qr0p2"));
  }
  // Pairs gain little where boxes are as wide as the columns.
  CHECK(faster({.head_dim = 80}, prompts(1, 5, 4096), "wgmma:m192n96s2qr0p3", "wgmma:m192n112s2qr0cl2"));
  CHECK(faster({.head_dim = 144}, prompts(1, 5, 4096), "wgmma:m192n64s2qr0o3p3", "wgmma:m192n64s2qr0o3cl2"));
  CHECK(faster({.head_dim = 184}, prompts(16, 11, 1024), "wgmma:m128n80s2cl2", "wgmma:m128n64s2cl2"));
  CHECK(faster({.head_dim = 200}, prompts(4, 10, 4096), "wgmma:m128n64s2qr0o2re0p3cl2",
               "wgmma:m128n48s2re0cl2"));
}

TEST_CASE("few queries beside many keys, as was measured") {
  // bench/results/h100-forward/timings-11.jsonl, h200-forward/memory-picks.jsonl: which took less time.
  const auto decode = [](int batch, int heads, int heads_kv, int queries, int keys) {
    return Shape{.batch = batch, .heads = heads, .heads_kv = heads_kv, .seqlen_q = queries, .seqlen_k = keys};
  };
  // Where few CTAs read, each needs enough on its way; where all do, less is more.
  CHECK(
      faster({.head_dim = 64}, decode(8, 32, 8, 1, 2048), "wgmma:m64n128s4pp0p0sp2", "wgmma:m64n64s3pp0c3"));
  CHECK(faster({.head_dim = 128}, decode(16, 64, 8, 1, 4096), "wgmma:m64n64s4pp0", "wgmma:m64n128s3pp0"));
  // CTAs that share out a tile's keys, but not where heads begin inside of a line and all multiprocessors
  // read.
  CHECK(faster(masked(64), decode(1, 16, 2, 4, 576), "wgmma:m64n128s4pp0p0sp6", "wgmma:m64n64s3qr0pp0p2c3"));
  CHECK(faster(masked(96), decode(16, 32, 8, 4, 32768), "wgmma:m64n64s2pp0p2", "wgmma:m64n64s4pp0p0sp2"));
  // bench/results/h200-forward/shared-keys.jsonl. Heads that share lines: less on its way.
  for (const int dim : {40, 48, 56})
    CHECK(faster({.head_dim = dim}, decode(1, 8, 8, 1, 65536), "wgmma:m64n96s3pp0p0sp2",
                 "wgmma:m64n128s4pp0p0sp2"));
  for (const int dim : {72, 80, 88, 96})
    CHECK(faster({.head_dim = dim}, decode(1, 8, 8, 1, 65536), "wgmma:m64n48s3pp0p0sp2",
                 "wgmma:m64n64s4pp0p0sp2"));
  for (const int dim : {104, 112, 120, 128})
    CHECK(faster({.head_dim = dim}, decode(2, 16, 16, 16, 8192), "wgmma:m64n48s3pp0p0sp3",
                 "wgmma:m64n64s4pp0p0sp3"));
  // shared-picks.jsonl. Packs that share K and V read them apart, in even shares.
  CHECK(faster(masked(256), decode(3, 64, 8, 16, 8192), "wgmma:m128n64s2qr0re0p0sp2",
               "wgmma:m64n48s2qr0pp0re0p3"));
  // But enough where half of the multiprocessors read.
  CHECK(faster({.head_dim = 128}, decode(1, 8, 8, 1, 65536), "wgmma:m64n64s4pp0p0sp8",
               "wgmma:m64n48s3pp0p0sp8"));
  CHECK(faster({.head_dim = 160}, decode(1, 8, 8, 1, 65536), "wgmma:m64n48s3pp0p0sp8",
               "wgmma:m64n64s2pp0p0sp8"));
}

TEST_CASE("64 rows that have a multiprocessor to themselves, as was measured") {
  // bench/results/h200-tune/timings-29.jsonl, h200-forward/fitted-picks.jsonl: which took less time.
  const Shape few{.batch = 1, .heads = 8, .heads_kv = 4, .seqlen_q = 2048, .seqlen_k = 2048};
  CHECK(faster(masked(256), few, "wgmma:m64n64s2qr0pp0re0p2", "wgmma:m128n64s2qr0o2re0p3"));
  const Shape fewer{.batch = 1, .heads = 8, .heads_kv = 2, .seqlen_q = 1024, .seqlen_k = 1024};
  CHECK(faster(masked(256), fewer, "wgmma:m64n64s2qr0pp0re0p2", "wgmma:m128n64s2qr0re0p0sp2"));
  CHECK(faster({.head_dim = 192}, prompts(2, 2, 2112), "wgmma:m64n96s2pp0", "wgmma:m128n64s2p3"));
  // But where the keys are few, and every tile's own or two tiles', L2 does not keep up with them
  // (many-short.jsonl).
  CHECK(faster({.head_dim = 256}, prompts(212, 8, 77), "wgmma:m128n48s2qr2re0", "wgmma:m64n48s3qr2pp0re0"));
}

TEST_CASE("blocks longer and shorter than 64 keys, as was measured") {
  // bench/results/h200-tune/timings-21.jsonl, -29.jsonl, h200-forward/fitted-picks.jsonl: which took less
  // time.
  CHECK(faster({.head_dim = 40}, prompts(2, 8, 4096), "wgmma:m256n64s4", "wgmma:m256n80s3qr0"));
  CHECK(faster({.head_dim = 48}, prompts(4, 43, 4096), "wgmma:m256n64s4", "wgmma:m256n80s3qr0"));
  CHECK(faster(masked(216), prompts(8, 2, 1439), "wgmma:m128n64s2qr0o2re0p2cl2", "wgmma:m128n48s2re0p2cl2"));
  CHECK(faster(masked(256), prompts(16, 2, 599), "wgmma:m128n64s2qr0o2re0p2", "wgmma:m128n48s2qr2re0p2"));
}

TEST_CASE("a second wave of clusters under a mask, as was measured") {
  // bench/results/h200-forward/between-lengths.jsonl, runs 2 and 4: which took less time.
  CHECK(faster(masked(192), prompts(1, 4, 1047), "wgmma:m128n64s2p0sp3", "wgmma:m64n48s3pp0p0sp3"));
  CHECK(
      faster(masked(256), prompts(1, 8, 755), "wgmma:m128n64s2qr0re0p0sp2", "wgmma:m64n48s3qr0pp0re0p0sp2"));
}

TEST_CASE("ptxas's first level, as was measured") {
  // bench/results/h200-forward/ptxas-levels.jsonl: which took less time.
  CHECK(faster(masked(64), prompts(4, 32, 4096), "wgmma:m256n64s4qr0p2pt1", "wgmma:m256n64s4qr0p2"));
  CHECK(faster(masked(72), prompts(16, 28, 1024), "wgmma:m256n64s3qr0p2pt1", "wgmma:m256n64s3qr0p2"));
  CHECK(faster({.head_dim = 96}, prompts(1, 21, 16384), "wgmma:m192n96s2qr0p3cl2pt1",
               "wgmma:m192n96s2qr0p3cl2"));
  // The largest kernels have no other, and the space has none of those that lose by it.
  const auto in_space = [](const Problem& problem, const char* schedule) {
    const auto space = search_space(problem, target_of("sm_90a"));
    return std::any_of(space.begin(), space.end(), [&](const Candidate& candidate) {
      return candidate.schedule == parse_schedule(schedule);
    });
  };
  CHECK(in_space({.head_dim = 256}, "wgmma:m128n64s2qr0o2re0p3cl2pt1"));
  CHECK(!in_space({.head_dim = 256}, "wgmma:m128n64s2qr0o2re0p3cl2"));
  CHECK(!in_space({.head_dim = 128}, "wgmma:m128n128s2pt1"));
}

TEST_CASE("pairs of short sequences, as was measured") {
  // bench/results/h100-forward/timings-11.jsonl, h200-tune/timings-22.jsonl: which took less time.
  // Pairs read once what others read apart, where heads begin inside of a sector.
  CHECK(faster({.head_dim = 152}, prompts(64, 13, 256), "wgmma:m128n64s2cl2", "wgmma:m128n64s2"));
  CHECK(
      faster(masked(216), prompts(16, 9, 1024), "wgmma:m128n64s2qr0o2re0p2cl2", "wgmma:m128n64s2qr0o2re0p2"));
  CHECK(faster(masked(208), prompts(16, 10, 1024), "wgmma:m128n64s2qr0o2re0p2",
               "wgmma:m128n64s2qr0o2re0p2cl2"));
}

TEST_CASE("family mma's tiles of narrow heads, as was measured") {
  // bench/results/h200-forward/mma-picks.jsonl, run 2: which took less time.
  // Registers for one CTA of eight warps instead of two.
  CHECK(faster(masked(16), prompts(4, 128, 4096), "mma:m128n64w4s2op1", "mma:m256n32w8s3qr1kv1"));
  CHECK(faster(masked(32), prompts(4, 64, 4096), "mma:m128n32w4s2qr1op1", "mma:m256n32w8s2qr1"));
  // More CTAs that wait at barriers of their own.
  CHECK(faster({.head_dim = 16}, prompts(4, 128, 4096), "mma:m128n64w4s2op1", "mma:m256n32w8s2qr1kv1"));
  CHECK(faster(masked(40), prompts(4, 51, 4096), "mma:m128n32w4s2qr1op1kv1", "mma:m128n96w4s2qr1op1"));
  CHECK(faster({.head_dim = 48}, prompts(4, 42, 4096), "mma:m128n32w4s2qr1op1kv1", "mma:m128n96w4s2qr1"));
}

TEST_CASE("a tile or few a head, as was measured") {
  // bench/results/h200-forward/many-short.jsonl: which took less time.
  // Optimism and Q in registers cost what a block or two do not bring back.
  CHECK(faster({.head_dim = 80}, prompts(334, 25, 49), "mma:m64n32w4s3kv1", "mma:m64n32w4s2qr1op1kv1"));
  // Many small CTAs hide each other's waits, and leave no rows empty.
  CHECK(faster(masked(32), prompts(212, 64, 77), "mma:m32n32w2s3kv1", "mma:m128n32w4s2op1kv1"));
  CHECK(faster(masked(8), prompts(170, 256, 96), "mma:m32n32w2s3kv1", "mma:m128n32w4s2op1kv1"));
  CHECK(faster({.dtype = DType::fp16, .head_dim = 176, .causal = true}, prompts(256, 11, 64),
               "wgmma:m64n64s2pp0p2", "mma:m32n32w2s1qr1kv1"));
  CHECK(faster({.head_dim = 48}, prompts(256, 42, 64), "wgmma:m64n64s2pp0c3", "mma:m64n32w4s2qr1op1kv1"));
  // Half of a tile empty.
  CHECK(faster({.head_dim = 96}, prompts(256, 21, 64), "mma:m64n64w4s1kv1", "wgmma:m128n64s2p2"));
  // Rows of 48 bytes, of which CTAs that share a multiprocessor fetch lines twice, on an H100 (run 3).
  Target h100 = target_of("sm_90a");
  h100.memory_gbps = 3352;
  CHECK(
      faster({.head_dim = 24}, prompts(256, 85, 64), "mma:m64n32w4s2qr1op1kv1", "wgmma:m64n64s2pp0c4", h100));
}

TEST_CASE("many short sequences, as was measured") {
  // bench/results/h200-forward/short-sequences.jsonl, other-shapes.jsonl: which took less time.
  // Clusters that share out a tile's keys begin and end with each tile.
  for (const int dim : {32, 40, 48, 56}) {
    const Shape encoder = prompts(128, 2048 / dim, 256);
    CHECK(faster({.head_dim = dim}, encoder, "wgmma:m256n64s4", "wgmma:m256n64s4qr0p0sp2"));
    CHECK(faster(masked(dim), encoder, "wgmma:m256n64s4p2", "wgmma:m256n64s4qr0p0sp2"));
  }
  // Under a mask longer blocks lose more at a tile's beginning.
  CHECK(faster(masked(64), prompts(256, 32, 128), "wgmma:m128n64s4p2", "wgmma:m128n128s3p2"));
  CHECK(faster(masked(128), prompts(166, 16, 197), "wgmma:m128n64s4p2", "wgmma:m128n128s2p2"));
  CHECK(faster(masked(96), prompts(64, 21, 512), "wgmma:m128n64s4p2", "wgmma:m128n128s2p2"));
  CHECK(faster(masked(80), prompts(128, 26, 256), "wgmma:m128n64s4p2", "wgmma:m256n48s4qr0p2"));
  // A block or two of narrow heads.
  CHECK(faster({.head_dim = 32}, prompts(256, 64, 128), "mma:m128n64w4s2op1kv1", "wgmma:m128n128s2"));
  CHECK(faster(masked(32), prompts(256, 64, 128), "mma:m128n64w4s2op1kv1", "wgmma:m128n128s2p2"));
}

// How CTAs of a backward pass share out the queries of a tile of keys.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "autotune/model/makespan.hpp"
#include "generator/splits.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("a tile's queries are divided by heads first, evenly, then by rows where there is no mask") {
  const auto check = [](bool causal, int heads, int heads_kv, int seqlen_q, int splits, int of_heads,
                        int of_rows) {
    const QuerySplits made = query_splits(
        {.causal = causal}, {.heads = heads, .heads_kv = heads_kv, .seqlen_q = seqlen_q, .seqlen_k = 500},
        splits, 64);
    CHECK(made.heads == of_heads);
    CHECK(made.rows == of_rows);
  };
  check(true, 32, 4, 1000, 1, 1, 1);
  check(true, 32, 4, 1000, 16, 8, 1);
  check(false, 32, 4, 1000, 16, 8, 2);
  check(true, 7, 1, 1000, 8, 7, 1);
  check(true, 7, 1, 1000, 6, 1, 1);  // parts of as many heads each
  check(true, 12, 2, 1000, 4, 3, 1);
  check(false, 12, 2, 1000, 4, 3, 1);
  check(false, 2, 2, 1000, 5, 1, 2);  // whose sum does not depend on the order
  check(false, 4, 2, 100, 8, 2, 2);   // of a step at least
  check(false, 2, 2, 0, 5, 1, 1);
}

// The time until the last of `ctas` CTAs is done, in steps, where each tile or part costs a step and a half
// beside its own.
double time_of(const DividedTiles& made, long long tiles, int steps, int ctas) {
  constexpr double kEach = 1.5;
  std::vector<double> lengths(static_cast<std::size_t>(tiles - made.count), steps + kEach), smaller;
  for (int i = 0; i < made.count; ++i) {
    const int fewer = made.least_steps + i * made.more_steps / made.count;
    lengths.push_back(steps - fewer + kEach);
    smaller.push_back(fewer + kEach);
  }
  lengths.insert(lengths.end(), smaller.rbegin(), smaller.rend());
  return autotune::makespan(lengths, ctas);
}

TEST_CASE("the last tiles are divided where they would leave CTAs idle, and end evenly then") {
  constexpr int kSteps = 64, kCtas = 132;
  for (const int tiles : {133, 140, 160, 200, 230, 250, 264, 265, 400, 864, 1500, 2048}) {
    CAPTURE(tiles);
    const DividedTiles made = divided_tiles(tiles, 1, kSteps, kCtas);
    const double waves = 1.0 * tiles / kCtas, whole = std::ceil(waves);
    CHECK(time_of(made, tiles, kSteps, kCtas) / (kSteps + 1.5) == doctest::Approx(made.waves).epsilon(0.05));
    if (whole - waves > 0.25) {
      CHECK(made.count == 99);
      CHECK(made.waves < whole);
    }
    if (whole - waves < 0.05) CHECK(made.count == 0);
    if (made.count == 0) CHECK(made.waves == whole);
  }
  CHECK(divided_tiles(132, 1, kSteps, kCtas).count == 0);
  CHECK(divided_tiles(40, 1, kSteps, kCtas).count == 0);
  // As timed (bench/results/h200-backward/last-tiles.jsonl): short tiles pay where there are few waves of
  // them.
  CHECK(divided_tiles(2048, 1, 16, kCtas).count == 0);
  CHECK(divided_tiles(2048, 1, 32, kCtas).count == 99);
  CHECK(divided_tiles(288, 1, 16, kCtas).count == 99);
  CHECK(divided_tiles(4096, 1, 8, kCtas).count == 0);
  CHECK(divided_tiles(4096, 1, 32, kCtas).count == 99);
  CHECK(divided_tiles(160, 1, 7, kCtas).count == 0);
  CHECK(divided_tiles(160, 4, 8, kCtas).count == 99);
  // A workspace for larger sizes has room for smaller ones.
  CHECK(most_divided_tiles(1000, kCtas) == 99);
  CHECK(most_divided_tiles(40, kCtas) == 40);
}

}  // namespace
}  // namespace flashjit::test

// Which shapes share what was tuned for one of them.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "autotune/backward/backward.hpp"
#include "autotune/tune.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {
namespace {

// Few queries, or a chunk of a prompt after a long past: however many keys there are, what wins for many
// queries would leave most rows of its tiles empty (a pair of CTAs has up to 384). A backward pass has its
// tiles over the keys.
bool has_few_queries(const Problem& problem, const Shape& shape) {
  if (problem.pass == Pass::backward) return shape.seqlen_q < 64;
  return shape.seqlen_q <= 128 || (shape.seqlen_q <= 512 && shape.seqlen_k >= 4 * shape.seqlen_q);
}

// Few queries, up to the next power of two. Where fp32 gradients have too few rows for some schedules, the
// last range ends there, or what was picked for one query more would serve them.
std::string few_queries(const Problem& problem, const Shape& shape) {
  if (!has_few_queries(problem, shape)) return "";
  const int most = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.seqlen_q)));
  return fmt::format("q{}", has_few_rows(problem, shape) ? std::min(most, kFewRows - 1) : most);
}

// The number of tiles of 64 rows per head, or per pack of heads that share a tile.
std::int64_t rows_of_64(const Shape& seen) {
  return (static_cast<std::int64_t>(seen.seqlen_q) + 63) / 64;
}

// Up to four waves of tiles of 128 keys: their number in eighths. They say whether CTAs had better share out
// a tile's queries.
std::string few_key_tiles(const Problem& problem, const Shape& shape, const Target& target) {
  if (problem.dtype == DType::fp32) return "";
  const std::int64_t of_head = (static_cast<std::int64_t>(shape.seqlen_k) + 127) / 128;
  const double tiles = static_cast<double>(of_head) * shape.kv_heads() * shape.batch;
  const double waves = tiles / std::max(1, target.sm_count);
  return waves > 4 ? "" : fmt::format("w{}", std::ceil(8 * waves));
}

// The number of tiles, where it decides what wins. If each tile reads keys of its own, or if half of the
// multiprocessors or more would have no tile unless CTAs share out keys: the number of tiles of 64 rows. Up
// to four waves of tiles of 128 rows: the number of waves in eighths, and so how full the last one is.
std::string few_tiles(const Problem& problem, const Shape& shape, const Target& target) {
  if (problem.pass == Pass::backward) return few_key_tiles(problem, shape, target);
  const Shape seen = as_tiled(shape, pack_of(problem, shape, 64));
  const std::int64_t of_pack = rows_of_64(seen);
  const double tiles = static_cast<double>(of_pack) * seen.heads * seen.batch;
  if (tiles <= (of_pack == 1 ? 4 * target.sm_count : target.sm_count / 2)) {
    return tiles > 0 ? fmt::format("t{}", tiles) : "";
  }
  const double waves = tiles / (2.0 * std::max(1, target.sm_count));
  return waves > 4 ? "" : fmt::format("w{}", std::ceil(8 * waves));
}

// How high a tile with all of a short sequence's queries would be. For example, 192 queries leave a quarter
// of the rows empty in one tile of 256 rows, or in two tiles of 128.
std::string short_queries(const Problem& problem, const Shape& shape) {
  if (problem.pass == Pass::backward || has_few_queries(problem, shape)) return "";
  constexpr int kLongest = 8;
  const std::int64_t rows = rows_of_64(as_tiled(shape, pack_of(problem, shape, 64)));
  return rows > kLongest ? "" : fmt::format("r{}", rows);
}

// How many query heads share keys, in a backward pass under a mask: their tiles differ in length, so that a
// head's rows are wanted at different times, and in a fixed order multiprocessors wait.
std::string groups(const Problem& problem, const Shape& shape) {
  if (problem.pass == Pass::forward || problem.dtype == DType::fp32 || !problem.causal) return "";
  const int group = shape.heads / std::max(1, shape.kv_heads());
  return group > 1 ? fmt::format("g{}", group) : "";
}

}  // namespace

std::string bucket_of(const Problem& problem, const Shape& shape, const Target& target) {
  const double work = flops(problem, shape) / std::max(1, target.sm_count);
  return fmt::format("b{}", work < 1 ? 0 : static_cast<int>(std::log2(work))) + few_queries(problem, shape) +
         groups(problem, shape) + short_queries(problem, shape) + few_tiles(problem, shape, target);
}

}  // namespace flashjit::autotune

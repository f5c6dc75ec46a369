// Which shapes share what was tuned for one of them.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "autotune/tune.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {
namespace {

// What wins for many queries would leave most rows of its tiles empty (a pair of CTAs has up to 384), however
// long the keys are: few of them, or a chunk of a prompt beside a long past. A backward pass has its tiles
// over the keys.
bool has_few_queries(const Problem& problem, const Shape& shape) {
  if (problem.pass == Pass::backward) return shape.seqlen_q < 64;
  return shape.seqlen_q <= 128 || (shape.seqlen_q <= 512 && shape.seqlen_k >= 4 * shape.seqlen_q);
}

// How many tiles of 64 rows there are, where their very number decides what wins, else 0: where each reads
// keys of its own, and it counts how many are in the last wave, or where half of the multiprocessors or more
// are left without one, unless CTAs share out their keys.
int few_tiles(const Problem& problem, const Shape& shape, const Target& target) {
  if (problem.pass == Pass::backward) return 0;
  const int packed = packed_heads(shape, 64);
  const std::int64_t of_pack = ((static_cast<std::int64_t>(shape.seqlen_q) << packed) + 63) / 64;
  const double tiles = static_cast<double>(of_pack) * (shape.heads >> packed) * shape.batch;
  const double most = of_pack == 1 ? 4 * target.sm_count : target.sm_count / 2;
  return tiles <= most ? static_cast<int>(tiles) : 0;
}

}  // namespace

std::string bucket_of(const Problem& problem, const Shape& shape, const Target& target) {
  const double work = flops(problem, shape) / std::max(1, target.sm_count);
  std::string bucket = fmt::format("b{}", work < 1 ? 0 : static_cast<int>(std::log2(work)));
  if (has_few_queries(problem, shape))
    bucket += fmt::format("q{}", std::bit_ceil(static_cast<unsigned>(shape.seqlen_q)));
  if (const int tiles = few_tiles(problem, shape, target); tiles > 0) {
    bucket += fmt::format("t{}", tiles);
  }
  return bucket;
}

}  // namespace flashjit::autotune

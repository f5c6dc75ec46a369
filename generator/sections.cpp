#include "generator/sections.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashjit {
namespace {

// Tiles of a section begin together, each at its own end of the keys, and so ask for all of the section's K
// and V at once. For short sequences, loading these takes longer than the tiles' first blocks do. Measured:
// small sections take up to 14 % less time where there are no more keys than this, and 1 % more at twice as
// many (docs/performance/wgmma/h100.md).
constexpr int kShortSequence = 2048;
constexpr int kShortSectionBytes = 4 << 20;

// Tiles per CTA in the last section: enough to fill the gaps that the longest tiles leave at the grid's end.
constexpr double kLastTiles = 1.75;

Sections short_sections(long long pairs, double bytes_per_pair, int section_bytes, double last_pairs) {
  if (bytes_per_pair * static_cast<double>(pairs) <= section_bytes) return {.pairs = pairs};
  const long long section = std::max(1LL, std::llround(section_bytes / bytes_per_pair));
  const auto last = static_cast<long long>(std::ceil(last_pairs));
  return {.pairs = section, .last = std::max(0LL, pairs - last) / section * section};
}

// Up to this many waves there are only the longest tiles and those that fill up beside them, and the longest
// tiles of a second section would come late: measured, 17 % more time for three heads of 16k at head_dim 256.
constexpr double kFewWaves = 3;

// A number of sections that divides the pairs evenly, each of twice `section_bytes` at most. Where there is
// none, the last section takes the rest as well: a short last section would end with its longest tiles, and
// nothing would be left to fill up beside them. Measured, up to 12 % more time
// (docs/performance/wgmma/few-heads.md).
Sections long_sections(long long pairs, double bytes_per_pair, int section_bytes) {
  const double sections = static_cast<double>(pairs) * bytes_per_pair / section_bytes;
  const long long nearest = std::clamp(std::llround(sections), 1LL, pairs);
  for (long long away = 0; away <= nearest / 2; ++away) {
    for (const long long count : {nearest - away, nearest + away}) {
      if (2.0 * static_cast<double>(count) >= sections && pairs % count == 0)
        return {.pairs = pairs / count, .last = pairs - pairs / count};
    }
  }
  const long long count = std::clamp(static_cast<long long>(sections), 1LL, pairs);
  return {.pairs = pairs / count, .last = pairs / count * (count - 1)};
}

}  // namespace

Sections sections_of(const Problem& problem, const Shape& tiled, long long tiles_of_head, int section_bytes,
                     long long ctas) {
  const long long pairs = static_cast<long long>(tiled.batch) * tiled.heads;
  if (section_bytes == 0) return {.pairs = std::min<long long>(pairs, std::numeric_limits<int>::max())};
  const int sharers = tiled.heads / tiled.kv_heads();  // query heads that share a head's K and V
  const double bytes_per_pair = static_cast<double>(tiled.seqlen_k) *
                                (problem.head_dim + problem.value_dim()) * size_of(problem.dtype) / sharers;
  if (tiled.seqlen_k > kShortSequence) {
    const double tiles = static_cast<double>(pairs) * static_cast<double>(tiles_of_head);
    const bool few = tiles <= kFewWaves * static_cast<double>(ctas);
    return few ? Sections{.pairs = pairs} : long_sections(pairs, bytes_per_pair, section_bytes);
  }
  return short_sections(pairs, bytes_per_pair, std::min(section_bytes, kShortSectionBytes),
                        kLastTiles * static_cast<double>(ctas) / static_cast<double>(tiles_of_head));
}

Sections sections_at_once(long long pairs, long long tiles_of_head, int group, long long ctas) {
  // Measured: tiles of a dozen steps lose more by beginning and ending at the same times than an even end
  // gains.
  constexpr int kShort = 4;
  const long long most = std::min(ctas / tiles_of_head, tiles_of_head * group / kShort);
  const long long section = std::clamp(most, 1LL, pairs);
  return {.pairs = section, .last = (pairs - 1) / section * section};
}

}  // namespace flashjit

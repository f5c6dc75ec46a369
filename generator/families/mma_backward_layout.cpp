// Shared memory, how warps share out dQ, and registers.
#include "generator/families/mma_backward_layout.hpp"

#include <algorithm>
#include <array>

#include "generator/families/mma_generations.hpp"

namespace flashjit::mma_backward {
namespace {

// Registers of fragments, and what ptxas was seen to add to them, without those for copies under way.
int registers_without_copies(const Problem& problem, const MmaBackwardSchedule& s, const KeysLayout& layout) {
  const int keys = 2 * s.sharers * s.tile_n / s.warps;
  const int sums = keys * std::max(problem.head_dim, problem.value_dim()) / (32 * s.sharers);
  const int scores = keys * s.tile_m / (32 * s.sharers);
  const int dq = adds_dq(s) ? layout.dq_row_tiles * layout.dq_columns / 2 : 0;
  return sums + std::max(scores, dq) + 64;
}

// Where registers are short, columns that do not exist cost some, too: the padding of tiles in shared memory,
// and that of dQ, whose columns are dealt out to warps by powers of two.
int registers_for_padding(const Problem& problem, const MmaBackwardSchedule& s, const KeysLayout& layout) {
  const bool padded = problem.head_dim % 16 != 0 || problem.value_dim() % 16 != 0;
  const bool uneven = adds_dq(s) && s.warps / layout.dq_warps_m * layout.dq_columns > problem.head_dim;
  return (padded ? 8 : 0) + (uneven ? 16 : 0);
}

// Registers in which Turing's copies of a tile of tile_m rows wait.
int waiting(int head_dim, const MmaBackwardSchedule& s) {
  const int pieces = s.tile_m * pitch_of(head_dim) / 16, threads = 32 * s.warps;
  return 4 * ((pieces + threads - 1) / threads);
}

constexpr int kTuringMore = 25;  // for its copies, beside those in which they wait
constexpr int kShort = 240;      // from here on padding counts

// Kernels that the estimate puts just beyond 255 registers but that ptxas was seen to fit, on all archs of
// these generations; three in ten like them spilled. Of all that fit, these are the ones that the model
// expects within a tenth of the fastest on some arch (docs/performance/mma-backward.md).
struct Tight {
  int head_dim;
  MmaBackwardSchedule schedule;  // tile_m, tile_n, warps, stages, sharers, dq
  std::array<int, 5> full, causal;
};

constexpr Tight kTight[] = {
    {64, {32, 128, 4, 2, 1, 0}, {80, 86, 90, 100, 120}, {80, 86, 90, 100, 120}},
    {64, {32, 128, 4, 2, 1, 1}, {80, 86, 90, 120}, {80, 86, 90, 120}},
    {64, {32, 128, 4, 2, 2, 1}, {80, 86, 90, 100, 120}, {80, 86, 90, 100, 120}},
    {64, {32, 256, 8, 2, 1, 0}, {80, 86, 90, 100, 120}, {80, 86, 90, 100, 120}},
    {64, {32, 256, 8, 2, 1, 1}, {80, 86, 90, 100}, {80, 86, 90}},
    {64, {128, 128, 8, 1, 1, 0}, {80, 86, 90, 100, 120}, {86, 100, 120}},
    {64, {128, 128, 8, 2, 1, 0}, {80, 86, 90, 100}, {80, 86, 90}},
    {64, {128, 128, 8, 2, 1, 1}, {90}, {}},
    {64, {128, 128, 8, 2, 2, 0}, {100}, {90}},
    {64, {128, 128, 8, 2, 2, 1}, {90}, {90, 100}},
    {128, {64, 64, 4, 1, 1, 0}, {}, {120}},
    {128, {64, 64, 4, 1, 1, 1}, {80, 100, 120}, {86, 100, 120}},
    {128, {64, 64, 4, 1, 2, 0}, {80, 86, 100, 120}, {80, 86, 90, 100, 120}},
    {128, {64, 64, 4, 1, 2, 1}, {90, 100}, {90, 100, 120}},
    {128, {64, 64, 4, 2, 1, 0}, {}, {80, 86}},
    {128, {64, 64, 4, 2, 2, 0}, {86, 90}, {86, 90}},
    {128, {64, 64, 4, 2, 2, 1}, {86, 90, 100}, {86, 90, 100}},
    {128, {64, 128, 8, 1, 1, 0}, {80, 86}, {}},
    {128, {64, 128, 8, 1, 2, 0}, {80, 86, 90}, {80, 86, 90, 100}},
    {128, {64, 128, 8, 2, 1, 0}, {90}, {80, 86}},
    {128, {64, 128, 8, 2, 1, 1}, {90, 100}, {90, 100}},
    {128, {64, 128, 8, 2, 2, 0}, {}, {90}},
    {160, {32, 64, 4, 1, 1, 0}, {80, 86, 90}, {80, 86, 90}},
    {160, {32, 64, 4, 2, 1, 0}, {80, 86, 90}, {80, 86, 90, 100, 120}},
    {160, {32, 128, 8, 1, 1, 1}, {80, 86}, {80, 86}},
    {160, {32, 128, 8, 2, 1, 0}, {80, 86, 90, 100}, {80, 86, 100}},
    {160, {32, 128, 8, 2, 1, 1}, {100}, {80, 86, 90, 100}},
    {256, {32, 48, 6, 1, 1, 1}, {}, {80, 86, 120}},
    {256, {64, 64, 8, 1, 1, 1}, {80, 86, 90, 100}, {80, 86, 90, 100}},
    {256, {64, 64, 8, 1, 2, 1}, {80, 86, 90, 100}, {80, 86, 100}},
    {256, {64, 64, 8, 2, 1, 1}, {90, 100}, {90, 100}},
    {256, {64, 64, 8, 2, 2, 1}, {90, 100}, {90, 100}},
};

}  // namespace

bool adds_dq(const MmaBackwardSchedule& s) {
  return s.dq != static_cast<int>(DqWay::own_pass);
}

bool has_ds_tile(const MmaBackwardSchedule& s) {
  return adds_dq(s) || s.sharers == 2;
}

KeysLayout keys_layout(const Problem& problem, const MmaBackwardSchedule& s) {
  KeysLayout layout;
  layout.tile_k = s.tile_n * pitch_of(problem.head_dim);
  layout.tile_v = s.tile_n * pitch_of(problem.value_dim());
  layout.tile_q = s.tile_m * pitch_of(problem.head_dim);
  layout.tile_dout = s.tile_m * pitch_of(problem.value_dim());
  layout.stage = layout.tile_q + layout.tile_dout + 8 * s.tile_m;
  layout.tile_p = s.tile_n * s.tile_m * 2;
  const int tiles_ds = has_ds_tile(s) ? s.stages : 0;
  layout.total = layout.tile_k + layout.tile_v + s.stages * layout.stage + (1 + tiles_ds) * layout.tile_p;
  // First the least work per warp, then the fewest fragments to load for it. Columns are a power of two, so
  // that a warp's first chunk and its steps from there share no bit (templates/parts/mma/shared_tile.cuh).
  int least = 1 << 30;
  for (int warps_m = 1; warps_m <= s.warps; warps_m *= 2) {
    if (s.warps % warps_m != 0 || s.tile_m / 16 % warps_m != 0) continue;
    const int row_tiles = s.tile_m / 16 / warps_m, warps_d = s.warps / warps_m;
    int column_tiles = 1;
    while (column_tiles * warps_d * 16 < problem.head_dim) column_tiles *= 2;
    const int cost = row_tiles * column_tiles * 100 + row_tiles + column_tiles;
    if (cost >= least) continue;
    least = cost;
    layout.dq_warps_m = warps_m;
    layout.dq_row_tiles = row_tiles;
    layout.dq_columns = 16 * column_tiles;
  }
  return layout;
}

// The first layout that fits; those that are fastest where they fit come first. 32 rows per warp halve its
// reads of K and V, but beside 256 columns of dQ only 16 rows fit in registers. 64 columns spilled on Hopper
// with 64 keys per step, and with 32 keys 128 columns on Blackwell, and 112 or more beside wider values.
QueriesLayout queries_layout(const Problem& problem, const Target& target) {
  const int row_bytes = pitch_of(problem.head_dim) + pitch_of(problem.value_dim());
  const bool wide = problem.head_dim > 128;
  const bool narrow = problem.head_dim <= 64;
  const bool beside_wider = problem.value_dim() > problem.head_dim;
  const bool tight =
      problem.head_dim > (beside_wider ? 104 : 120) && (beside_wider || target.capability >= 100);
  const int keys = wide ? 64 : narrow ? 48 : tight ? 16 : 32;
  const QueriesLayout wishes[] = {
      {wide ? 1 : 2, wide ? 8 : 4, keys, 2},
      {wide ? 1 : 2, wide ? 8 : 4, 32, 1},
      {1, 4, 32, 1},
      {1, 4, 16, 1},
      {1, 2, 16, 1},
      {1, 1, 16, 1},
  };
  QueriesLayout layout;
  for (const QueriesLayout& wish : wishes) {
    if (target.capability < 80 && wish.stages > 1) continue;
    layout = wish;
    layout.slot = layout.tile_n * row_bytes;
    layout.total = layout.tile_m() * row_bytes + layout.stages * layout.slot;
    if (layout.total <= target.shared_per_cta) break;
  }
  layout.copies_in_turn = target.capability < 80 && problem.head_dim > 192;
  return layout;
}

bool copies_in_turn(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  if (target.capability >= 80 || adds_dq(s)) return false;
  const KeysLayout layout = keys_layout(problem, s);
  const int both = waiting(problem.head_dim, s) + waiting(problem.value_dim(), s);
  const int registers = registers_without_copies(problem, s, layout) + kTuringMore + both;
  return registers + registers_for_padding(problem, s, layout) > register_limit(s, target);
}

int registers_of(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  const KeysLayout layout = keys_layout(problem, s);
  int registers = registers_without_copies(problem, s, layout);
  if (target.capability < 80) {
    const int q = waiting(problem.head_dim, s), dout = waiting(problem.value_dim(), s);
    registers += kTuringMore + (copies_in_turn(problem, s, target) ? std::max(q, dout) + 4 : q + dout);
    if (adds_dq(s) && s.sharers == 1) registers += 8;  // copies beside the sum
  }
  return registers < kShort ? registers : registers + registers_for_padding(problem, s, layout);
}

int register_limit(const MmaBackwardSchedule& s, const Target& target) {
  return registers_for(32 * s.warps, target);
}

bool fits_all_the_same(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  if (problem.value_dim() != problem.head_dim) return false;
  return std::any_of(std::begin(kTight), std::end(kTight), [&](const Tight& seen) {
    if (seen.head_dim != problem.head_dim || !(seen.schedule == s)) return false;
    const std::array<int, 5>& generations = problem.causal ? seen.causal : seen.full;
    return std::find(generations.begin(), generations.end(), generation_of(target)) != generations.end();
  });
}

bool spills_all_the_same(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  return problem.head_dim == 104 && problem.value_dim() == 104 && problem.causal &&
         generation_of(target) == 100 && s == MmaBackwardSchedule{64, 128, 8, 2, 1, 1};
}

}  // namespace flashjit::mma_backward

// Family wgmma in fp32: numbers are split into three of bf16, and a product takes six.
#include <algorithm>
#include <cmath>

#include "autotune/model/families.hpp"
#include "autotune/model/units.hpp"
#include "generator/families/wgmma_fp32_products.hpp"
#include "generator/families/wgmma_panels.hpp"

namespace flashjit::autotune {
namespace {

// Fitted to 780 timings of 119 problems on H200s (docs/performance/wgmma-fp32.md).
constexpr double kProducts = 6;
constexpr double kOfShared = 0.75;    // of what shared memory could send: producers write to it meanwhile
constexpr double kSoftmax = 11.1;     // for a key and 64 rows: exponentials, and splitting them
constexpr double kExposed = 0.44;     // share of the shorter units' work that one warpgroup does not hide
constexpr double kPiece = 164;        // splitting a piece of eight numbers for each thread of a producer
constexpr double kBatch = 690;        // waiting for the up to five pieces that are under way together
constexpr double kUnevenRows = 1.08;  // where finding a piece's row takes more than a shift
constexpr double kFirstLevel = 1.2;   // ptxas's, in producers
constexpr double kOneStage = 1.15;    // a block is split no sooner than the one before was multiplied
constexpr double kHalfPanels = 1.25;  // products of so few columns: waits are more often
constexpr double kBarriers = 110;     // waits for them, in a step
constexpr double kExchange = 340;     // until another CTA has its half of a block
constexpr double kTile = 5700;        // Q, the first blocks, O
constexpr double kPair = 2000, kPairUnderMask = 4000;  // a tile of two CTAs: they wait for each other

// CTAs that share out the columns, fitted to 306 timings of 70 problems.
constexpr double kSum = 0.125;       // a score that goes to another CTA and is added there
constexpr double kSumsAlone = 200;   // until they have come, where no other warpgroup computes meanwhile
constexpr double kTwoPlaces = 1.08;  // there: a block lies elsewhere than the one before
constexpr double kSharers = 1300;    // a tile of two CTAs

// Cycles in which a producer splits a block of K or V.
double fill_cycles(int rows, int columns) {
  const int chunks = static_cast<int>(padded(columns)) / 8;
  const double pieces = std::ceil(rows * chunks / 128.0);
  const bool even = (chunks & (chunks - 1)) == 0;
  return pieces * kPiece * (even ? 1 : kUnevenRows) + std::ceil(pieces / 5) * kBatch;
}

}  // namespace

Step wgmma_fp32_step(const Problem& problem, const WgmmaSchedule& s) {
  const Problem p = wgmma_fp32::share_of(problem, s);
  const double n = s.tile_n, groups = s.tile_m / 64.0, steps = padded(p.head_dim) / 16;
  // A product of 64 rows, 16 deep, takes half a clock a column. Those of S read their part of Q from shared
  // memory each time that it is not in registers; a product of two parts of K reads it once for both.
  const double from_shared =
      (kProducts * n * 32 + wgmma_fp32::q_reads(p, s) * 2048) / (kOfShared * kSharedBytes);
  const double scores = groups * steps * std::max(kProducts * n / 2, from_shared);
  const bool half_panels = wgmma_fp32::columns_at_once(p, s) < wgmma::kPanelColumns;
  const double values = groups * n / 16 * kProducts * p.value_dim() / 2 * (half_panels ? kHalfPanels : 1);
  const double softmax = groups * kSoftmax * n;
  const int rows = s.tile_n / s.cluster;
  const double k = fill_cycles(rows, p.head_dim), v = fill_cycles(rows, p.value_dim());
  const double level = s.ptxas == 1 ? kFirstLevel : 1, exchange = s.cluster > 1 ? kExchange : 0;
  const double filling =
      (groups == 1 ? std::max(k, v) : k + v) * (s.stages == 1 ? kOneStage : 1) * level + exchange;
  Step step;
  step.cycles = combine({scores + values, softmax, filling}, kExposed / groups);
  // With one place for K, the next block is split between a block's scores and the next one's.
  if (s.stages == 1) step.cycles = std::max(step.cycles, scores + k * level + exchange);
  step.cycles += kBarriers;
  if (s.splits > 1) {
    if (groups == 1) step.cycles = step.cycles * (s.stages > 1 ? kTwoPlaces : 1) + kSumsAlone;
    step.cycles += kSum * s.tile_m * s.tile_n;
  }
  step.alone = step.own_keys = step.cycles;
  const double together = s.splits > 1 ? kSharers : s.cluster == 1 ? 0 : p.causal ? kPairUnderMask : kPair;
  step.tile_cycles = kTile + together;
  step.balanced = p.causal;
  return step;
}

}  // namespace flashjit::autotune

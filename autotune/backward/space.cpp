// The backward pass's search space, family by family.
#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "autotune/backward/backward.hpp"
#include "generator/families/mma_backward_fp32.hpp"
#include "generator/families/simt_backward_layout.hpp"
#include "generator/splits.hpp"

namespace flashjit::autotune {
namespace {

// fp32: large tiles load least, small ones fit: legal() says where. Wide heads want more threads a tile.
std::vector<Schedule> simt_space() {
  struct Tile {
    int tile_m, tile_n, warps;
  };
  constexpr auto kTiles = std::to_array<Tile>({{64, 64, 4},
                                               {64, 64, 8},
                                               {32, 64, 4},
                                               {64, 32, 4},
                                               {32, 64, 8},
                                               {32, 32, 4},
                                               {64, 128, 8},
                                               {128, 64, 8},
                                               {32, 32, 8},
                                               {16, 32, 4},
                                               {16, 16, 4},
                                               {8, 16, 2},
                                               {8, 8, 2}});
  std::vector<Schedule> space;
  for (const auto& [m, n, w] : kTiles) {
    for (const int dq : {1, 0})
      space.emplace_back(SimtBackwardSchedule{.tile_m = m, .tile_n = n, .warps = w, .dq = dq});
  }
  return space;
}

// Tiles that an H200 likes for some head_dim (docs/performance/mma-backward.md); then what fits where shared
// memory or registers are few. Warps that share keys (sharers 2) load less where heads are wide.
std::vector<Schedule> mma_space() {
  struct Tile {
    int tile_m, tile_n, warps;
  };
  constexpr auto kTiles = std::to_array<Tile>({{64, 128, 8},
                                               {32, 256, 8},
                                               {128, 128, 8},
                                               {64, 64, 8},
                                               {32, 128, 8},
                                               {64, 64, 4},
                                               {32, 128, 4},
                                               {32, 64, 8},
                                               {32, 64, 4},
                                               {32, 48, 6},
                                               {32, 32, 4},
                                               {16, 64, 8},
                                               {16, 32, 4}});
  std::vector<Schedule> space;
  for (const auto& [m, n, w] : kTiles) {
    for (const int sharers : {1, 2}) {
      for (const int stages : {2, 1}) {
        for (const int dq : {1, 0}) {
          space.emplace_back(MmaBackwardSchedule{
              .tile_m = m, .tile_n = n, .warps = w, .stages = stages, .sharers = sharers, .dq = dq});
        }
      }
    }
  }
  return space;
}

std::vector<Schedule> mma_fp32_space() {
  std::vector<Schedule> space;
  for (const MmaBackwardSchedule& schedule : schedules_mma_backward_fp32()) space.emplace_back(schedule);
  return space;
}

constexpr std::array kSplits{1, 2, 3, 4, 8, 16};

// Long tiles of queries for narrow heads, short ones for wide heads, keys shared by warpgroups and CTAs for
// the widest: legal() says where each fits. Then tiles whose queries are shared out, and those that stage dQ.
std::vector<Schedule> wgmma_space() {
  std::vector<Schedule> space;
  for (const int turns : {0, 1}) {
    for (const int dq : {1, 2, 0}) {
      for (const int tile_m : {128, 80, 64})
        space.emplace_back(WgmmaBackwardSchedule{.tile_m = tile_m, .dq = dq, .turns = turns});
    }
  }
  for (const int dq : {1, 2, 0})
    space.emplace_back(WgmmaBackwardSchedule{.tile_m = 64, .tile_n = 64, .dq = dq});
  for (const int splits : std::span(kSplits).subspan(1)) {
    for (const int turns : {0, 1}) {
      for (const int tile_m : {128, 80, 64})
        space.emplace_back(WgmmaBackwardSchedule{.tile_m = tile_m, .turns = turns, .splits = splits});
    }
  }
  for (const int splits : kSplits) {
    for (const int turns : {0, 1})
      space.emplace_back(WgmmaBackwardSchedule{.tile_m = 64, .turns = turns, .splits = splits, .staged = 1});
  }
  return space;
}

std::vector<Schedule> wgmma_fp32_space() {
  std::vector<Schedule> space;
  for (const int stages : {2, 1}) {
    for (const int dq : {1, 0})
      space.emplace_back(WgmmaBackwardSchedule{.tile_m = 64, .tile_n = 64, .stages = stages, .dq = dq});
  }
  return space;
}

}  // namespace

std::vector<Schedule> backward_space(const Problem& problem, Family family) {
  switch (family) {
    case Family::simt:
      return simt_space();
    case Family::mma:
      return problem.dtype == DType::fp32 ? mma_fp32_space() : mma_space();
    case Family::wgmma:
      return problem.dtype == DType::fp32 ? wgmma_fp32_space() : wgmma_space();
  }
  return {};
}

bool needs_rows(const Problem& problem, const Shape& shape, const Schedule& schedule) {
  if (!has_few_rows(problem, shape)) return false;
  const auto* const simt = std::get_if<SimtBackwardSchedule>(&schedule);
  return simt == nullptr || !simt_backward::careful(*simt);
}

bool splits_in_vain(const Problem& problem, const Shape& shape, const Schedule& schedule) {
  const auto* const s = std::get_if<WgmmaBackwardSchedule>(&schedule);
  if (s == nullptr || s->splits == 1) return false;
  const auto parts = [&](int splits) { return query_splits(problem, shape, splits, s->tile_m).parts(); };
  const int fewer = *std::prev(std::lower_bound(kSplits.begin(), kSplits.end(), s->splits));
  return parts(fewer) == parts(s->splits);
}

}  // namespace flashjit::autotune

#include <array>

#include "autotune/space/families.hpp"

namespace flashjit::autotune {

// fp32: a thread's tile of S is tile_m * lanes / threads rows by tile_n / lanes keys. 8x8 feeds the FMAs
// best, and wins on an H200 at head_dim 64; wide heads need fewer rows, more lanes, and fragments loaded
// ahead (bench/results/simt-h200.jsonl).
std::vector<Schedule> simt_space() {
  std::vector<Schedule> space;
  for (const auto& [m, w] :
       std::to_array<Rows>({{128, 4}, {64, 4}, {128, 8}, {64, 2}, {256, 8}, {64, 8}, {32, 2}, {16, 2}})) {
    for (const int n : {64, 32, 128, 16}) {
      for (const int lanes : {8, 16, 4}) {
        for (const int stages : {2, 1}) {
          SimtSchedule s{.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .lanes = lanes};
          add(space, s);
          s.prefetch = 1;
          if (stages == 2 || lanes == 16) add(space, s);
          s.prefetch = 0;
          s.unroll = 2;
          if (stages == 2 && lanes >= 8 && n >= 32) add(space, s);
        }
      }
    }
  }
  // More CTAs per multiprocessor than ptxas would choose.
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {64, 4}, {64, 2}})) {
    for (const int n : {64, 32}) {
      for (const int stages : {2, 1}) {
        add(space,
            SimtSchedule{.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .min_ctas = w == 2 ? 6 : 3});
      }
    }
  }
  return space;
}

}  // namespace flashjit::autotune

// The backward pass's search space, family by family.
#include "autotune/backward/backward.hpp"

namespace flashjit::autotune {
namespace {

std::vector<Schedule> simt_space() {
  std::vector<Schedule> space;
  for (const int dq : {0, 1}) {
    space.emplace_back(SimtBackwardSchedule{.dq = dq});
  }
  return space;
}

std::vector<Schedule> mma_space() {
  std::vector<Schedule> space;
  for (const int dq : {1, 0, 2}) {
    space.emplace_back(MmaBackwardSchedule{.dq = dq});
  }
  return space;
}

// Long tiles of queries for narrow heads, short ones for wide heads, keys shared by the warpgroups for the
// widest: legal() says where each fits.
std::vector<Schedule> wgmma_space() {
  std::vector<Schedule> space;
  for (const int dq : {1, 0}) {
    for (const int tile_m : {128, 64}) space.emplace_back(WgmmaBackwardSchedule{.tile_m = tile_m, .dq = dq});
  }
  space.emplace_back(WgmmaBackwardSchedule{.tile_m = 64, .tile_n = 64, .dq = 0});
  return space;
}

}  // namespace

std::vector<Schedule> backward_space(const Problem&, Family family) {
  switch (family) {
    case Family::simt:
      return simt_space();
    case Family::mma:
      return mma_space();
    case Family::wgmma:
      return wgmma_space();
  }
  return {};
}

}  // namespace flashjit::autotune

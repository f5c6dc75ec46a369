// How findings about shared memory name places, warps and lanes.
#pragma once

#include <fmt/format.h>

#include <string>

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

inline std::string where(u32 address) {
  return fmt::format("shared memory at offset {}", address - kSharedBase);
}

inline std::string who(Warp& warp, u32 agent) {
  const Warp& other = warp.cta->cluster->warp_of(agent);
  if (other.cta == warp.cta) return fmt::format("warp {}", other.index);
  return fmt::format("warp {} of CTA {} of the cluster", other.index, other.cta->rank);
}

inline std::string lane_name(u64 mark) {
  return (mark & 63) >= 32 ? std::string("another lane") : fmt::format("lane {}", mark & 63);
}

}  // namespace flashjit::emulator

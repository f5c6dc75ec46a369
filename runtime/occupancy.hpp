// How many CTAs of a kernel one multiprocessor holds, and what limits them; needs no GPU.
#pragma once

#include <string>

#include "flashjit/target.hpp"

namespace flashjit::runtime {

struct Occupancy {
  int ctas = 0;         // per multiprocessor; 0: the kernel can't be launched
  int warps = 0;        // of all these CTAs
  int most_warps = 0;   // the most that the multiprocessor can hold
  std::string limiter;  // "shared memory (next: registers, at 3)"
};

// registers: per thread; shared_bytes: static and dynamic, per CTA. Returns the same figure as the driver's
// cuOccupancyMaxActiveBlocksPerMultiprocessor.
Occupancy occupancy(const Target& target, int registers, int threads, int shared_bytes);

}  // namespace flashjit::runtime

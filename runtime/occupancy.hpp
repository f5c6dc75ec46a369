// How many CTAs of a kernel one multiprocessor holds, and what keeps it from more: without a GPU.
#pragma once

#include <string>

#include "flashjit/target.hpp"

namespace flashjit::runtime {

struct Occupancy {
  int ctas = 0;         // per multiprocessor; 0: the kernel can't be launched
  int warps = 0;        // of all of them
  int most_warps = 0;   // that the multiprocessor can hold
  std::string limiter;  // "shared memory (next: registers, at 3)"
};

// registers: per thread; shared_bytes: static and dynamic, per CTA. The same figure as the driver's
// cuOccupancyMaxActiveBlocksPerMultiprocessor.
Occupancy occupancy(const Target& target, int registers, int threads, int shared_bytes);

}  // namespace flashjit::runtime

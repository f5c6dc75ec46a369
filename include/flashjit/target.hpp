// What a kernel runs on: read from a device, or from the table of known archs where there is none.
#pragma once

#include <string>

#pragma GCC visibility push(default)

namespace flashjit {

struct Target {
  std::string arch;            // as NVRTC spells it, suffix included: "sm_80", "sm_90a"
  int capability = 0;          // 10 * major + minor: 75 … 121
  int sm_count = 0;            // multiprocessors
  int shared_per_cta = 0;      // bytes of shared memory that a CTA may have after opting in
  int shared_per_sm = 0;       // bytes of shared memory on one multiprocessor
  int shared_reserved = 1024;  // bytes that the system takes from shared_per_sm for each CTA
  int registers_per_sm = 65536;
  int threads_per_sm = 2048;
  int ctas_per_sm = 32;
  int l2_bytes = 0;
  double memory_gbps = 0;  // GB/s of device memory, from its clock and width; 0: not known

  bool operator==(const Target&) const = default;
};

// The Target of an arch by its name ("sm_86", "sm_90a"), as one well-known GPU of that arch has it. Throws
// Error: invalid_argument, whose message lists the known names.
Target target_of(const std::string& arch);

}  // namespace flashjit

#pragma GCC visibility pop

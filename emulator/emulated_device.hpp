// The other Device: runs PTX on the CPU, with checks and counts. Calls are complete on return; there are no
// streams.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulator/profile.hpp"
#include "emulator/report.hpp"
#include "runtime/device.hpp"

namespace flashjit::emulator {

struct EmulatorOptions {
  std::string arch = "sm_90a";
  std::uint64_t seed = 1;  // how warps interleave, and when asynchronous copies happen
  Checks checks = Checks::all;
  unsigned threads = 0;  // how many CTAs run at once; 0: one per core
  bool counts = false;   // keep a Profile (and bank conflicts)
  int sm_count = 0;  // multiprocessors that persistent kernels fill; 0: as many as the arch's largest chip
  // How many instructions one cluster may execute before it counts as hung: some four minutes. fp32 at
  // head_dim 256 takes half a billion for a million keys.
  std::uint64_t most_steps = 10'000'000'000;
  // Told how many of a launch's CTAs are done. Called from any thread, one call at a time.
  std::function<void(std::uint64_t done, std::uint64_t of)> on_progress;
};

class EmulatedDevice : public runtime::Device {
 public:
  // What all launches since the last clear_profile executed.
  [[nodiscard]] virtual Profile profile() const = 0;
  virtual void clear_profile() = 0;
  // The findings of the last launch. A launch with findings has thrown Error{device} with the same text.
  [[nodiscard]] virtual const std::vector<Finding>& findings() const = 0;
  virtual void set_seed(std::uint64_t seed) = 0;
  virtual void set_checks(Checks checks) = 0;
  // A launch that the Device interface does not offer: grid and block have three dimensions.
  virtual void launch_grid(const runtime::Kernel& kernel, const std::uint32_t (&grid)[3],
                           const std::uint32_t (&block)[3], std::uint32_t shared_bytes, std::uint32_t cluster,
                           std::span<void* const> params) = 0;
};

// Throws Error{invalid_argument} for an unknown arch.
std::unique_ptr<EmulatedDevice> open_emulated_device(const EmulatorOptions& options);

}  // namespace flashjit::emulator

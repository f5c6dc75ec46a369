// A launch as the arguments of cuLaunchKernelEx.
#pragma once

#include <cuda.h>

#include <array>

#include "runtime/device.hpp"

namespace flashjit::runtime {

// Holds pointers into itself, so it cannot be moved.
class LaunchConfig {
 public:
  explicit LaunchConfig(const Launch& launch, Stream stream = nullptr);
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  [[nodiscard]] const CUlaunchConfig& get() const { return config_; }
  // Without attributes, cuLaunchKernel will do.
  [[nodiscard]] bool has_attributes() const { return config_.numAttrs > 0; }

 private:
  CUlaunchAttribute& add(CUlaunchAttributeID id);

  std::array<CUlaunchAttribute, 2> attributes_{};
  CUlaunchConfig config_{};
};

}  // namespace flashjit::runtime

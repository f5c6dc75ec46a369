// A loaded kernel and all that its launches need. launch() is the hot path: no allocation, no lock, no
// string.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "api/build/kernel_builder.hpp"
#include "api/launch/tensor_maps.hpp"
#include "api/launch/tile_counters.hpp"
#include "flashjit/plan.hpp"
#include "runtime/device.hpp"

namespace flashjit::api {

class Launcher {
 public:
  Launcher(runtime::Device& device, std::shared_ptr<const LoadedKernel> kernel);

  // Checks the arguments, then enqueues one forward pass; nothing where there is nothing to compute.
  void forward(const Shape& shape, const ForwardArgs& args, Stream stream) const;

  [[nodiscard]] const LoadedKernel& kernel() const { return *kernel_; }
  [[nodiscard]] std::size_t workspace_bytes() const { return counters_ ? counters_->bytes() : 0; }
  void replenish() const;  // of what captured launches use up

 private:
  [[nodiscard]] std::uint32_t grid(long long tiles) const;

  runtime::Device& device_;
  const std::shared_ptr<const LoadedKernel> kernel_;
  const Geometry& geometry_;
  const TensorMapper mapper_;
  const std::unique_ptr<TileCounters> counters_;  // null unless the tile order is dynamic
};

}  // namespace flashjit::api

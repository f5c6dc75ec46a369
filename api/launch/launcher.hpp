// A loaded plan and all that its launches need. forward() and backward() are the hot path: no string, no
// allocation but of a workspace that the caller left to us, and no lock; what launches that count tiles need
// besides, TileCounters says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "api/build/kernel_builder.hpp"
#include "api/launch/tensor_maps.hpp"
#include "api/launch/tile_counters.hpp"
#include "flashjit/plan.hpp"
#include "runtime/device.hpp"

namespace flashjit::api {

// One kernel of a plan.
class KernelLauncher {
 public:
  KernelLauncher(runtime::Device& device, const Problem& problem, const LoadedKernel& kernel);

  [[nodiscard]] const Geometry& geometry() const { return geometry_; }

  // The tiles of each head and batch; throws Error{invalid_argument} if all of them are more than a grid
  // holds. `seen` is the shape as the tiles see it, packed or padded, `given` the caller's, for the message.
  [[nodiscard]] int tiles(const Shape& seen, const Shape& given) const;

  // Whatever may fail for want of what the call gave: the tensor maps of a launch() to come.
  template <class Params>
  void prepare(const Params& params) const;

  // Of a persistent kernel's clusters, or CTAs.
  [[nodiscard]] long long at_once() const;

  // Who has which keys of a forward pass of this shape, as tiles see it; returns how many clusters it takes.
  [[nodiscard]] long long share_out(const Problem& problem, const Shape& tiled, ForwardParams& params) const;

  // Enqueues it for so many clusters, of persistent ones for no more than are at once at work. Params is what
  // the kernel takes, filled in.
  template <class Params>
  void launch(Params& params, long long clusters, Stream stream) const;

 private:
  runtime::Device& device_;
  const LoadedKernel& kernel_;
  const Geometry& geometry_;
  const TensorMapper mapper_;
};

class Launcher {
 public:
  Launcher(runtime::Device& device, std::shared_ptr<const LoadedPlan> plan);

  // Checks the arguments, then enqueues one pass; nothing where there is nothing to compute.
  void forward(const Shape& shape, const ForwardArgs& args, Stream stream) const;
  void backward(const Shape& shape, const BackwardArgs& args, Stream stream) const;

  [[nodiscard]] const LoadedPlan& plan() const { return *plan_; }
  [[nodiscard]] std::size_t workspace_bytes(const Shape& shape) const;  // of one backward call
  [[nodiscard]] std::size_t held_bytes() const { return counters_ ? counters_->bytes() : 0; }
  void replenish() const;  // of what captured launches use up

 private:
  void check_pass(Pass pass) const;
  // Runs what takes so many bytes of device memory for its time, in stream order.
  template <class Run>
  void with_memory(std::size_t bytes, Stream stream, const Run& run) const;

  runtime::Device& device_;
  const std::shared_ptr<const LoadedPlan> plan_;
  const Workspace workspace_;
  std::vector<KernelLauncher> kernels_;           // in launch order
  const std::unique_ptr<TileCounters> counters_;  // null where no kernel counts tiles
};

}  // namespace flashjit::api

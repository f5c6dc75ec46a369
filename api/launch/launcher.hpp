// A loaded plan and all that its launches need. forward() and backward() are the hot path: they make no
// string, take no lock, and allocate only a workspace that the caller did not pass. For what launches that
// count tiles need besides, see TileCounters.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "api/build/kernel_builder.hpp"
#include "api/launch/tensor_maps.hpp"
#include "api/launch/tile_counters.hpp"
#include "flashjit/plan.hpp"
#include "generator/splits.hpp"
#include "runtime/device.hpp"

namespace flashjit::api {

// One kernel of a plan.
class KernelLauncher {
 public:
  KernelLauncher(runtime::Device& device, const Problem& problem, const LoadedKernel& kernel);

  [[nodiscard]] const Geometry& geometry() const { return geometry_; }

  // Pairs of head and batch that have tiles, times `parts`, into which the queries of a tile of keys are
  // divided.
  [[nodiscard]] long long pairs(const Shape& shape, int parts) const;

  // The tiles of each such pair. Throws Error{invalid_argument} if they are more in all than a grid
  // holds. `seen` is the shape as the tiles see it, packed or padded; `given` is the caller's, for the
  // message.
  [[nodiscard]] int tiles(const Shape& seen, const Shape& given, int parts = 1) const;

  // Does what may fail because of the call's arguments: makes the tensor maps of the launch() to come.
  template <class Params>
  void prepare(const Params& params) const;

  // How many clusters, or CTAs, of a persistent kernel are at work at once.
  [[nodiscard]] long long at_once() const;

  // Which of a backward pass's tiles of keys are divided in two; how many that may be at the most.
  [[nodiscard]] DividedTiles divided(const Shape& shape, long long tiles) const;
  [[nodiscard]] int most_divided(const Shape& shape) const;

  // Decides who gets which keys of a forward pass of this shape, as tiles see it. Returns how many clusters
  // that takes.
  [[nodiscard]] long long share_out(const Problem& problem, const Shape& tiled, ForwardParams& params) const;

  // Enqueues the kernel for so many clusters; a persistent kernel, for at most as many as are at work at
  // once. Params is what the kernel takes, filled in.
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

  // Both check the arguments, then enqueue one pass. Without anything to compute they enqueue nothing.
  void forward(const Shape& shape, const ForwardArgs& args, Stream stream) const;
  void backward(const Shape& shape, const BackwardArgs& args, Stream stream) const;

  [[nodiscard]] const LoadedPlan& plan() const { return *plan_; }
  [[nodiscard]] std::size_t workspace_bytes(const Shape& shape) const;  // of one backward call
  [[nodiscard]] std::size_t held_bytes() const { return counters_ ? counters_->bytes() : 0; }
  void replenish() const;  // the counters that captured launches use up

 private:
  void check_pass(Pass pass) const;
  [[nodiscard]] Workspace workspace_for(const Shape& shape) const;
  // Calls run with so many bytes of device memory, which are allocated and freed in stream order.
  template <class Run>
  void with_memory(std::size_t bytes, Stream stream, const Run& run) const;

  runtime::Device& device_;
  const std::shared_ptr<const LoadedPlan> plan_;
  const Workspace workspace_;
  std::vector<KernelLauncher> kernels_;           // in launch order
  const std::unique_ptr<TileCounters> counters_;  // null where no kernel counts tiles
};

}  // namespace flashjit::api

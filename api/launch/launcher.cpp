// From a checked call to one Device::launch.
#include "api/launch/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "api/launch/forward_call.hpp"
#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

constexpr long long kMaxGrid = std::numeric_limits<std::int32_t>::max();  // CTAs in x, on every arch

// (batch, head) pairs in one section of an order that takes the longest tiles first: sections are equal, and
// the K and V of one fit the L2.
int pairs_per_section(const Problem& problem, const ForwardParams& params, int section_bytes) {
  const long long pairs = static_cast<long long>(params.batch) * params.heads;
  if (section_bytes == 0) return static_cast<int>(std::min(pairs, kMaxGrid));
  const double bytes_per_pair = static_cast<double>(params.seqlen_k) *
                                (problem.head_dim + problem.value_dim()) * size_of(problem.dtype) /
                                params.group;
  const double sections = static_cast<double>(pairs) * bytes_per_pair / section_bytes;
  const long long count = std::clamp(static_cast<long long>(sections + 0.5), 1LL, pairs);
  return static_cast<int>((pairs + count - 1) / count);
}

}  // namespace

Launcher::Launcher(runtime::Device& device, std::shared_ptr<const LoadedKernel> kernel)
    : device_(device),
      kernel_(std::move(kernel)),
      geometry_(kernel_->code->source.geometry),
      mapper_(device, kernel_->code->source.maps, kernel_->problem),
      counters_(geometry_.dynamic ? std::make_unique<TileCounters>(device) : nullptr) {}

void Launcher::replenish() const {
  if (counters_ != nullptr) counters_->replenish();
}

std::uint32_t Launcher::grid(long long tiles) const {
  const long long cluster = geometry_.cluster;
  long long ctas = tiles;
  if (geometry_.persistent) {
    ctas = std::min(ctas, static_cast<long long>(device_.target().sm_count) * kernel_->ctas_per_sm);
  }
  return static_cast<std::uint32_t>((ctas + cluster - 1) / cluster * cluster);
}

void Launcher::forward(const Shape& shape, const ForwardArgs& args, Stream stream) const {
  const Problem& problem = kernel_->problem;
  ForwardParams params;
  if (!make_forward_params(problem, shape, args, params)) return;

  params.tiles_m = (params.seqlen_q - 1) / geometry_.tile_m + 1;
  const long long pairs = static_cast<long long>(params.batch) * params.heads;
  // Both factors are below 2^62 and 2^31, so that the division cannot be fooled where the product could.
  if (pairs > (kMaxGrid - geometry_.cluster) / params.tiles_m) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("shape {} has {} x {} tiles of {} query rows, may have {} in all", describe(shape),
                    params.tiles_m, pairs, geometry_.tile_m, kMaxGrid - geometry_.cluster),
        "Split the batch over several calls.");
  }
  params.section = pairs_per_section(problem, params, geometry_.section_bytes);
  if (geometry_.dynamic) {
    params.tile_counter = counters_->for_launch(stream);
  }

  std::array<void*, kMaxMaps + 1> pointers{};
  std::size_t count = 0;
  if (mapper_.size() != 0) {
    TensorMaps& maps = mapper_.maps_for(params);
    for (; count < mapper_.size(); ++count) pointers[count] = &maps[count];
  }
  pointers[count++] = &params;
  device_.launch(*kernel_->kernel,
                 {.grid = grid(params.tiles_m * pairs),
                  .threads = static_cast<std::uint32_t>(geometry_.threads),
                  .shared_bytes = static_cast<std::uint32_t>(geometry_.shared_bytes),
                  .cluster = static_cast<std::uint32_t>(geometry_.cluster)},
                 std::span(pointers).first(count), stream);
}

}  // namespace flashjit::api

// TMA descriptors of a call's tensors, encoded again only when a pointer, a size or a stride is not what it
// was.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generator/render.hpp"
#include "runtime/device.hpp"
#include "templates/params/forward.h"

namespace flashjit::api {

inline constexpr std::size_t kMaxMaps = 4;
using TensorMaps = std::array<runtime::TensorMap, kMaxMaps>;

class TensorMapper {
 public:
  TensorMapper(runtime::Device& device, std::span<const TensorMapSpec> specs, const Problem& problem);
  [[nodiscard]] std::size_t size() const { return specs_.size(); }

  // The maps of this call, in the kernel's order. They live in the calling thread and are good until its next
  // call.
  TensorMaps& maps_for(const ForwardParams& params) const;

 private:
  [[nodiscard]] runtime::TensorMap encode(const TensorMapSpec& spec, const ForwardParams& params) const;

  runtime::Device& device_;
  const std::vector<TensorMapSpec> specs_;
  const Problem problem_;
  const std::uint64_t id_;  // tells this object from an earlier one at the same address
};

}  // namespace flashjit::api

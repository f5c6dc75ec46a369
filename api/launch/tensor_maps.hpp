// TMA descriptors of a call's tensors, encoded again only when a pointer, a size or a stride has changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generator/render.hpp"
#include "runtime/device.hpp"
#include "templates/params/backward.h"
#include "templates/params/forward.h"

namespace flashjit::api {

inline constexpr std::size_t kOperands = 8;
inline constexpr std::size_t kMaxMaps = kOperands;
using TensorMaps = std::array<runtime::TensorMap, kMaxMaps>;

// Everything in a call that its maps depend on.
struct CallTensors {
  struct View {
    const void* base = nullptr;
    long long batch = 0, head = 0, row = 0;  // strides, in elements
    bool operator==(const View&) const = default;
  };
  std::array<View, kOperands> views{};  // by Operand; a forward call has no gradients
  int batch = 0, heads = 0, heads_kv = 0, seqlen_q = 0, seqlen_k = 0;
  int packed = 0, heads_of_pack = 1;  // as in ForwardParams
  bool operator==(const CallTensors&) const = default;
};
CallTensors tensors_of(const ForwardParams& params);
CallTensors tensors_of(const BackwardParams& params);

class TensorMapper {
 public:
  TensorMapper(runtime::Device& device, std::span<const TensorMapSpec> specs, const Problem& problem);
  [[nodiscard]] std::size_t size() const { return specs_.size(); }

  // The maps of this call, in the kernel's order. They belong to the calling thread, and are valid until its
  // next call.
  TensorMaps& maps_for(const CallTensors& tensors) const;

 private:
  [[nodiscard]] runtime::TensorMap encode(const TensorMapSpec& spec, const CallTensors& tensors) const;

  runtime::Device& device_;
  const std::vector<TensorMapSpec> specs_;
  const Problem problem_;
  const std::uint64_t id_;  // tells this object from an earlier one at the same address
};

}  // namespace flashjit::api

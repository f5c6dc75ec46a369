// The checks of a call's tensors that both passes share: pointers, strides, scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"

namespace flashjit::api {

// In bytes: one vector load or cp.async, and what TMA requires of a base address and a stride.
inline constexpr std::int64_t kTensorAlignment = 16;

[[noreturn]] void refuse_argument(std::string message, std::string hint = {});

// Throws Error{invalid_argument} unless the pointer is not null and aligned to `alignment` bytes.
void check_pointer(const char* name, const void* pointer, std::int64_t alignment = kTensorAlignment);

// A tensor's address, for comparison with others. Without rows it is null, since any address is allowed.
inline const void* address_of(int rows, const void* pointer) {
  return rows == 0 ? nullptr : pointer;
}

// One tensor as described by the call.
struct Tensor {
  const char* name;
  const Strides& strides;
  std::int64_t batch, heads, rows, columns;
};

// The strides that the kernel gets: packed or as given. A dimension of one element gets the length of a row
// as its stride, since a packed stride might be more than a tensor map takes. Strides of a written tensor
// must nest, so that its elements do not overlap.
enum class Access { read, written };
Strides resolve_strides(const Tensor& tensor, Access access, int element_bytes);

// The factor of the logits: 1 / sqrt(head_dim) unless it is given.
float resolve_scale(const Problem& problem, const std::optional<float>& given);

inline constexpr float kLog2E = 1.44269504088896340736F;

}  // namespace flashjit::api

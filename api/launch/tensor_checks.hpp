// The checks of a call's tensors, which both passes share: pointers, strides, scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"

namespace flashjit::api {

// Bytes: one vector load or cp.async, and what TMA asks of a base and a stride.
inline constexpr std::int64_t kTensorAlignment = 16;

[[noreturn]] void refuse_argument(std::string message, std::string hint = {});

// Throws Error{invalid_argument} unless it is a pointer to something, `alignment` bytes aligned.
void check_pointer(const char* name, const void* pointer, std::int64_t alignment = kTensorAlignment);

// What stands for a tensor's address where others are compared with it: one without rows may have any.
inline const void* address_of(int rows, const void* pointer) {
  return rows == 0 ? nullptr : pointer;
}

// One tensor as the call describes it.
struct Tensor {
  const char* name;
  const Strides& strides;
  std::int64_t batch, heads, rows, columns;
};

// The strides that the kernel gets: packed, or as given, with a row in the place of what does not matter,
// since its dimension has one element (a packed stride might be more than a tensor map takes). What is
// written has strides that nest, so that its elements do not overlap.
enum class Access { read, written };
Strides resolve_strides(const Tensor& tensor, Access access, int element_bytes);

// The factor of the logits, 1 / sqrt(head_dim) unless it is given.
float resolve_scale(const Problem& problem, const std::optional<float>& given);

inline constexpr float kLog2E = 1.44269504088896340736F;

}  // namespace flashjit::api

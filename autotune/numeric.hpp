// Exact conversions between float and the 16-bit types, and access to tensors of any dtype as raw bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "flashjit/problem.hpp"

namespace flashjit::autotune {

// IEEE binary16 and bfloat16, rounded to nearest even; overflow becomes infinity, NaN stays NaN.
std::uint16_t to_fp16(float value);
std::uint16_t to_bf16(float value);
float from_fp16(std::uint16_t bits);
float from_bf16(std::uint16_t bits);

// The value as the dtype would store it.
float round_to(DType dtype, float value);

inline float load_element(DType dtype, const void* data, std::int64_t index) {
  const auto* bytes = static_cast<const std::byte*>(data) + index * size_of(dtype);
  if (dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return dtype == DType::fp16 ? from_fp16(bits) : from_bf16(bits);
}

inline void store_element(DType dtype, void* data, std::int64_t index, float value) {
  auto* bytes = static_cast<std::byte*>(data) + index * size_of(dtype);
  if (dtype == DType::fp32) {
    std::memcpy(bytes, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::fp16 ? to_fp16(value) : to_bf16(value);
  std::memcpy(bytes, &bits, sizeof bits);
}

}  // namespace flashjit::autotune

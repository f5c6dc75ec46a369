// Conversions by integer arithmetic on the bits, so that they are the same on every host.
#include "autotune/numeric.hpp"

#include <bit>
#include <cmath>

namespace flashjit::autotune {

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value))
    return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // quiet, sign and payload kept
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x1ff));
  if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65536 and more, infinity
  if (magnitude >= 0x38800000) {                           // normal in fp16: 2^-14 and more
    const std::uint32_t rebased = magnitude - 0x38000000;  // exponent bias 127 → 15
    // A carry out of the mantissa raises the exponent, up to infinity: just what rounding wants.
    return static_cast<std::uint16_t>(sign | ((rebased + 0xfff + ((rebased >> 13) & 1)) >> 13));
  }
  if (magnitude < 0x33000000) return sign;  // under half of the smallest subnormal, 2^-24
  const std::uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  const std::uint32_t shift = 126 - (magnitude >> 23);  // of the 24-bit mantissa to units of 2^-24: 14 to 24
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  const std::uint32_t half = 1u << (shift - 1);
  const bool up = rest > half || (rest == half && (kept & 1) != 0);
  return static_cast<std::uint16_t>(sign | (kept + (up ? 1 : 0)));
}

float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1f;
  const std::uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::fp16:
      return from_fp16(to_fp16(value));
    case DType::bf16:
      return from_bf16(to_bf16(value));
    case DType::fp32:
      break;
  }
  return value;
}

}  // namespace flashjit::autotune

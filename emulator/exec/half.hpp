// f16 and bf16 to and from f32, in integer arithmetic, with every rounding mode of cvt.
#pragma once

#include <bit>
#include <cmath>

#include "emulator/program.hpp"

namespace flashjit::emulator {

enum class Rounding : u8 { nearest, zero, up, down, away };  // rn, rz, rp, rm, rna

inline float float_of_half(u32 half) {
  const u32 sign = (half & 0x8000u) << 16;
  const u32 exponent = half >> 10 & 31;
  const u32 mantissa = half & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<u32>(magnitude) | sign);
}

inline float float_of_bf16(u32 bits) {
  return std::bit_cast<float>(bits << 16);
}

// Drops the low `bits` of a magnitude; rounds by the rule for a number of this sign.
inline u32 round_off(u32 magnitude, u32 bits, bool negative, Rounding rounding) {
  if (bits == 0) return magnitude;
  if (bits > 31) {
    const bool any = magnitude != 0;
    return any && ((rounding == Rounding::up && !negative) || (rounding == Rounding::down && negative)) ? 1
                                                                                                        : 0;
  }
  const u32 kept = magnitude >> bits;
  const u32 dropped = magnitude & ((1u << bits) - 1);
  const u32 half = 1u << (bits - 1);
  bool increment = false;
  switch (rounding) {
    case Rounding::nearest:
      increment = dropped > half || (dropped == half && (kept & 1) != 0);
      break;
    case Rounding::zero:
      break;
    case Rounding::up:
      increment = dropped != 0 && !negative;
      break;
    case Rounding::down:
      increment = dropped != 0 && negative;
      break;
    case Rounding::away:
      increment = dropped >= half;
      break;
  }
  return kept + (increment ? 1 : 0);
}

inline u32 bf16_of_float(float value, Rounding rounding = Rounding::nearest) {
  const u32 bits = std::bit_cast<u32>(value);
  const u32 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;  // the canonical NaN
  return (bits >> 16 & 0x8000u) | round_off(magnitude, 16, bits >> 31 != 0, rounding);
}

inline u32 half_of_float(float value, Rounding rounding = Rounding::nearest) {
  const u32 bits = std::bit_cast<u32>(value);
  const u32 sign = bits >> 16 & 0x8000u;
  const u32 magnitude = bits & 0x7fffffffu;
  const bool negative = sign != 0;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude == 0x7f800000u) return sign | 0x7c00;
  if (magnitude >= 0x47800000u) {  // 65536 and more
    const bool to_infinity = rounding == Rounding::nearest || rounding == Rounding::away ||
                             (rounding == Rounding::up && !negative) ||
                             (rounding == Rounding::down && negative);
    return sign | (to_infinity ? 0x7c00 : 0x7bff);
  }
  const i32 exponent = static_cast<i32>(magnitude >> 23) - 112;
  if (exponent >= 1) return sign | round_off(magnitude - (112u << 23), 13, negative, rounding);
  // Subnormal in f16.
  if (magnitude < 0x00800000u) return sign | round_off(magnitude != 0 ? 1 : 0, 2, negative, rounding);
  const u32 mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  return sign | round_off(mantissa, static_cast<u32>(14 - exponent), negative, rounding);
}

// x + y, rounded to odd: if a double cannot hold the sum, the result is the neighbouring double whose last
// bit is odd. A later rounding to fewer bits takes such a number neither for a number of the narrower format
// nor for the midpoint of two (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
// Knuth's two-sum shows whether a double can hold the sum.
inline double sum_to_odd(double x, double y) {
  const double sum = x + y, part = sum - x;
  const double rest = (x - (sum - part)) + (y - part);
  if (!std::isfinite(sum) || rest == 0 || (std::bit_cast<u64>(sum) & 1) != 0) return sum;
  return std::nextafter(sum, std::copysign(std::numeric_limits<double>::infinity(), rest));
}

inline float flush(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : value;
}

}  // namespace flashjit::emulator

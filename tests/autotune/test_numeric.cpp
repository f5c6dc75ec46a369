// 16-bit conversions against the definition of round to nearest even.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "autotune/numeric.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

TEST_CASE("every 16-bit pattern survives the way to float and back") {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    if (std::isnan(from_fp16(bits))) {
      CHECK(std::isnan(from_fp16(to_fp16(from_fp16(bits)))));
    } else {
      REQUIRE(to_fp16(from_fp16(bits)) == bits);
    }
    if (std::isnan(from_bf16(bits))) {
      CHECK(std::isnan(from_bf16(to_bf16(from_bf16(bits)))));
    } else {
      REQUIRE(to_bf16(from_bf16(bits)) == bits);
    }
  }
}

TEST_CASE("values between two neighbours go to the nearer, ties to the even one") {
  for (const bool half : {true, false}) {
    const auto from = half ? from_fp16 : from_bf16;
    const auto to = half ? to_fp16 : to_bf16;
    const int finite = half ? 0x7bff : 0x7f7f;
    for (int i = 0; i < finite; ++i) {
      const auto low = static_cast<std::uint16_t>(i);
      const auto high = static_cast<std::uint16_t>(i + 1);
      const double middle = (static_cast<double>(from(low)) + from(high)) / 2;
      const auto middle_float = static_cast<float>(middle);
      if (static_cast<double>(middle_float) != middle) continue;  // bf16's subnormals have no float between
      REQUIRE(to(middle_float) == (i % 2 == 0 ? low : high));
      REQUIRE(to(std::nextafter(middle_float, 0.0f)) == low);
      REQUIRE(to(std::nextafter(middle_float, std::numeric_limits<float>::infinity())) == high);
      REQUIRE(to(-middle_float) == ((i % 2 == 0 ? low : high) | 0x8000));
    }
  }
}

TEST_CASE("the ends of the ranges") {
  CHECK(to_fp16(65504.0f) == 0x7bff);
  CHECK(to_fp16(65519.99f) == 0x7bff);
  CHECK(to_fp16(65520.0f) == 0x7c00);
  CHECK(to_fp16(1e30f) == 0x7c00);
  CHECK(to_fp16(-std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK(to_fp16(0x1p-24f) == 1);
  CHECK(to_fp16(0x1p-25f) == 0);
  CHECK(to_fp16(std::nextafter(0x1p-25f, 1.0f)) == 1);
  CHECK(to_fp16(-0.0f) == 0x8000);
  CHECK(to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(to_bf16(1.0f) == 0x3f80);
  CHECK(round_to(DType::fp32, 0.1f) == 0.1f);
  CHECK(round_to(DType::bf16, 1.00390625f) == 1.0f);  // a tie
}

// What kernels divide by, as templates/parts/divide.cuh does it.
#include "api/launch/divisor.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using flashjit::api::divisor_of;

namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

std::int64_t quotient(std::int64_t dividend, const Divisor& divisor) {
  const std::uint64_t doubled = std::uint64_t{2} * static_cast<std::uint64_t>(dividend);
  return static_cast<std::int64_t>((doubled * divisor.multiplier >> 32) >> divisor.shift);
}

// Where the quotient changes, and at the ends, it goes wrong first.
std::vector<std::int64_t> dividends_for(std::int64_t divisor, std::mt19937_64& random) {
  std::vector<std::int64_t> dividends{
      0, 1, kLargest - 1, kLargest, kLargest / divisor * divisor, kLargest / divisor * divisor - 1};
  for (int i = 0; i < 100; ++i) {
    const auto multiple = static_cast<std::int64_t>(
        random() % static_cast<std::uint64_t>(kLargest / divisor + 1) * static_cast<std::uint64_t>(divisor));
    for (const std::int64_t dividend : {multiple - 1, multiple, multiple + 1})
      dividends.push_back(std::clamp<std::int64_t>(dividend, 0, kLargest));
  }
  return dividends;
}

}  // namespace

TEST_CASE("a product divides as a division does") {
  std::mt19937_64 random(1);
  std::vector<std::int64_t> divisors;
  for (std::int64_t divisor = 1; divisor <= 1000; ++divisor) divisors.push_back(divisor);
  for (int bit = 10; bit < 31; ++bit) {
    for (const std::int64_t away : {-1, 0, 1}) divisors.push_back((std::int64_t{1} << bit) + away);
  }
  for (int i = 0; i < 1000; ++i)
    divisors.push_back(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kLargest)));
  divisors.push_back(kLargest);
  int wrong = 0;
  for (const std::int64_t divisor : divisors) {
    const Divisor prepared = divisor_of(divisor);
    for (const std::int64_t dividend : dividends_for(divisor, random))
      wrong += quotient(dividend, prepared) != dividend / divisor;
  }
  CHECK(wrong == 0);
}

#include "api/launch/divisor.hpp"

#include <bit>
#include <cstdint>

namespace flashjit::api {

Divisor divisor_of(long long divisor) {
  const auto number = static_cast<std::uint64_t>(divisor);
  const auto shift = static_cast<int>(std::bit_width(number - 1));
  const std::uint64_t power = std::uint64_t{1} << (31 + shift);
  return {.multiplier = static_cast<unsigned>((power + number - 1) / number), .shift = shift};
}

}  // namespace flashjit::api

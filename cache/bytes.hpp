// Little-endian integers in strings of bytes, for the formats on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashjit::cache {

template <class T>
void put_number(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

// From the first sizeof(T) bytes of `bytes`, which must not be shorter.
template <class T>
T get_number(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<std::uint8_t>(bytes[i])) << (8 * i));
  }
  return value;
}

}  // namespace flashjit::cache

// The structs of flashjit.h: read and written by their size, checked, and converted to those of C++.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "flashjit/flashjit.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::c {

// Both throw Error: invalid_argument.
[[noreturn]] void refuse(const std::string& message);
void require(const void* pointer, const char* name);

// Whether a struct of any version may have this size: each starts and ends where a pointer may.
inline void check_size(std::size_t size, const char* name) {
  constexpr std::size_t kMost = 1 << 16;
  if (size < sizeof(std::size_t) * 2 || size > kMost || size % sizeof(void*) != 0)
    refuse(fmt::format("{}.size is {}, may be sizeof(struct {})", name, size, name));
}

// A caller's struct, converted to this library's version. A shorter struct is of an older version: the fields
// that it lacks are zero, which means their default. A longer one is of a newer version, and is accepted if
// the fields that this library does not know are zero.
template <class Struct>
Struct read(const Struct* given, const char* name) {
  require(given, name);
  Struct known{};
  const std::size_t size = given->size;
  check_size(size, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  std::memcpy(&known, bytes, std::min(size, sizeof known));
  if (size > sizeof known &&
      std::any_of(bytes + sizeof known, bytes + size, [](unsigned char b) { return b != 0; })) {
    refuse(fmt::format(
        "{}.size is {}, and it sets a field that this version (flashjit {}, {} bytes) does not know", name,
        size, FLASHJIT_VERSION, sizeof known));
  }
  known.size = sizeof known;
  return known;
}

template <class Struct>
Struct read_or_default(const Struct* given, const char* name) {
  return given == nullptr ? Struct{} : read(given, name);
}

// Writes as much of a struct as the caller's size has room for, and zeros into the fields that only a newer
// version has.
template <class Struct>
void answer(Struct* to, Struct known, const char* name) {
  const std::size_t size = to->size;
  check_size(size, name);
  known.size = size;
  auto* const bytes = reinterpret_cast<unsigned char*>(to);
  std::memcpy(bytes, &known, std::min(size, sizeof known));
  if (size > sizeof known) std::memset(bytes + sizeof known, 0, size - sizeof known);
}

inline Stream stream_of(void* stream) {
  return static_cast<Stream>(stream);
}

EngineOptions convert(const flashjit_engine_options& from);
Problem convert(const flashjit_problem& from);
Shape convert(const flashjit_shape& from);
PlanOptions convert(const flashjit_plan_options& from);
ForwardArgs convert(const flashjit_forward_args& from);
BackwardArgs convert(const flashjit_backward_args& from);

}  // namespace flashjit::c

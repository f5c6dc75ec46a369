// The structs of flashjit.h: read and written by their size, checked, and turned into those of C++.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "flashjit/flashjit.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::c {

// Throws Error{invalid_argument}.
[[noreturn]] void refuse(const std::string& message);
void require(const void* pointer, const char* name);

// Whether a struct of some version may have such a size: all begin and end where a pointer may.
inline void check_size(std::size_t size, const char* name) {
  constexpr std::size_t kMost = 1 << 16;
  if (size < sizeof(std::size_t) * 2 || size > kMost || size % sizeof(void*) != 0)
    refuse(fmt::format("{}.size is {}, may be sizeof(struct {})", name, size, name));
}

// A caller's struct as this library knows it. A shorter one is of an older version: what it lacks is zero,
// its default. A longer one is of a newer version, and fine as long as it asks for nothing that we do not
// know.
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

// Writes as much of a struct as the caller's size has room for, and zeros into what a newer version has more.
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

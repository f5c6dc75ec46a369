// XXH3 behind a plain interface, so that xxhash.h is compiled in one place. Finds accidents, not attacks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace flashjit::cache {

using Hash128 = std::array<std::uint8_t, 16>;  // canonical, big-endian: the same bytes on every machine

std::uint64_t hash64(std::string_view bytes);
Hash128 hash128(std::string_view bytes);
std::string to_hex(const Hash128& hash);  // 32 lower-case hex digits

// hash128 of several pieces, which need not be adjacent in memory.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  void add(std::string_view bytes);
  void add_length(std::uint64_t length);  // eight little-endian bytes
  [[nodiscard]] Hash128 finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flashjit::cache

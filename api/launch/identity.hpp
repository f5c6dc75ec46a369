// Numbers that nothing else in this process has or had: a thread's tables know by them whose lines they hold,
// where an address may be somebody else's by now.
#pragma once

#include <atomic>
#include <cstdint>

namespace flashjit::api {

inline std::uint64_t next_identity() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace flashjit::api

// Numbers that are unique in this process for all time. Tables of a thread use them to identify an object,
// since an address may be another object's by now.
#pragma once

#include <atomic>
#include <cstdint>

namespace flashjit::api {

inline std::uint64_t next_identity() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace flashjit::api

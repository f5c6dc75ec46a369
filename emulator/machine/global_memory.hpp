// The emulator's device memory: a registry of allocations with their bounds, and with what was freed and
// written.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/program.hpp"

namespace flashjit::emulator {

// A global address is the host's address.
inline std::byte* at_address(u64 address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// One allocation. `written` has one bit per byte.
struct Allocation {
  u64 begin = 0;
  u64 end = 0;
  bool freed = false;
  bool track = true;  // false: everything counts as written (module variables, foreign memory)
  std::unique_ptr<std::byte[], void (*)(std::byte*)> bytes{nullptr, nullptr};
  std::vector<u64> written;

  // The bits of the `count` (1 to 64) bytes at `address`, lowest first.
  [[nodiscard]] u64 bits(u64 address, u32 count) const;
  void mark(u64 address, u64 count);  // may be called from many threads
};

class GlobalMemory {
 public:
  void* allocate(std::size_t bytes);
  void free(void* pointer);  // throws Error{invalid_argument} if it is not an allocation
  // Checks the bounds of an access by the host, and marks written bytes. Throws Error{invalid_argument} that
  // names the argument.
  void check_host(const void* pointer, std::size_t bytes, bool writes, const char* name);

  // The allocation that contains the address, freed ones included; null if there is none. Must not be called
  // while another thread allocates.
  [[nodiscard]] Allocation* find(u64 address) const;
  // "16 bytes at 0x7f… : 4 bytes past the end of an allocation of 1024 bytes".
  [[nodiscard]] std::string explain(u64 address, u64 bytes) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Allocation>> sorted_;  // by begin
  std::deque<Allocation*> freed_;                    // oldest first; kept in order to detect late uses
  std::size_t freed_bytes_ = 0;
};

}  // namespace flashjit::emulator

// Stream-ordered memory: a pool of the device's own, made at first need.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "runtime/cuda/context.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/device.hpp"

namespace flashjit::runtime {

// The driver orders the reuse of memory between streams. Freed memory stays in the pool, because its release
// threshold is unlimited: otherwise each synchronisation would return the memory, and the next call would pay
// for it.
class MemoryPool {
 public:
  explicit MemoryPool(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // The caller holds a ContextScope. Throws Error{unsupported} if the driver has no memory pools.
  void* allocate(std::size_t bytes, Stream stream);
  void free(void* pointer, Stream stream);

 private:
  void create();

  const std::shared_ptr<const Context> context_;
  std::once_flag once_;
  CUmemoryPool pool_ = nullptr;
};

}  // namespace flashjit::runtime

// Stream-ordered memory: a pool of the device's own, made on first need.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "runtime/cuda/context.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/device.hpp"

namespace flashjit::runtime {

// The driver orders the reuse of memory between streams by itself. What is freed stays in the pool (its
// release threshold has no end): else each synchronisation would hand it back, and the next call pay for it.
class MemoryPool {
 public:
  explicit MemoryPool(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // A context scope is held. Throws Error{unsupported} where the driver has no pools.
  void* allocate(std::size_t bytes, Stream stream);
  void free(void* pointer, Stream stream);

 private:
  void create();

  const std::shared_ptr<const Context> context_;
  std::once_flag once_;
  CUmemoryPool pool_ = nullptr;
};

}  // namespace flashjit::runtime

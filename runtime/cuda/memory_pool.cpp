// cuMemPool* and the stream-ordered allocator (CUDA Driver API, section 6.15).
#include "runtime/cuda/memory_pool.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "flashjit/error.hpp"

namespace flashjit::runtime {

MemoryPool::~MemoryPool() {
  if (pool_ == nullptr) return;
  // The pool goes when the last of its memory has been freed. If this fails, the driver ended before us, at
  // exit, and the pool is gone anyway.
  const RelaxedCapture relaxed(context_->driver());
  static_cast<void>(context_->driver().pool_destroy(pool_));
}

void* MemoryPool::allocate(std::size_t bytes, Stream stream) {
  // Memory for a captured stream becomes part of its graph nonetheless.
  const RelaxedCapture relaxed(context_->driver());
  std::call_once(once_, [this] { create(); });
  CUdeviceptr pointer = 0;
  const CUresult result = context_->driver().allocate_from_pool(&pointer, bytes, pool_, stream);
  if (result != CUDA_SUCCESS) {
    context_->driver().fail(
        result, fmt::format("allocating {} bytes in stream order (cuMemAllocFromPoolAsync)", bytes));
  }
  return std::bit_cast<void*>(pointer);
}

void MemoryPool::free(void* pointer, Stream stream) {
  const RelaxedCapture relaxed(context_->driver());
  context_->driver().check(context_->driver().free_ordered(reinterpret_cast<CUdeviceptr>(pointer), stream),
                           "cuMemFreeAsync");
}

void MemoryPool::create() {
  const Driver& driver = context_->driver();
  int supported = 0;
  driver.check(
      driver.device_attribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, context_->device()),
      "cuDeviceGetAttribute for memory pools");
  if (supported == 0) {
    throw Error(
        ErrorCode::unsupported, "this GPU, or its virtualisation, has no stream-ordered memory",
        "Hand over a workspace of Plan::workspace_bytes(shape) bytes with a backward call; a forward one "
        "takes such memory only in a capture, or after launches into many other streams.");
  }
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = context_->device();
  CUmemoryPool pool = nullptr;
  driver.check(driver.pool_create(&pool, &properties), "cuMemPoolCreate");
  std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  const CUresult kept = driver.pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything);
  if (kept != CUDA_SUCCESS) {
    static_cast<void>(driver.pool_destroy(pool));
    driver.fail(kept, "cuMemPoolSetAttribute for the release threshold");
  }
  pool_ = pool;
}

}  // namespace flashjit::runtime

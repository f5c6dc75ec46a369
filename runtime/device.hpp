// A Device runs kernels: a GPU through the CUDA Driver API, or the emulator. The rooms above see only this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "flashjit/error.hpp"
#include "flashjit/target.hpp"
#include "generator/render.hpp"

struct CUstream_st;

namespace flashjit::runtime {

using Stream = CUstream_st*;  // CUstream and cudaStream_t; null is the default stream

// What a kernel is loaded from. A GPU takes the cubin (or the PTX, if NVRTC is too old for the GPU); the
// emulator takes the PTX.
struct KernelImage {
  std::string_view entry;
  std::string_view ptx;
  std::string_view cubin;
  int shared_bytes = 0;  // dynamic shared memory that launches will ask for
  std::span<const LineOrigin> origins;
};

// Thrown by a GPU's Device::load if the image is at fault and another image may work: it is damaged, or made
// for another GPU or driver. Any other failure (no memory, a GPU in a bad state) is a plain Error.
class ImageRefused : public Error {
 public:
  explicit ImageRefused(Error error) : Error(std::move(error)) {}
};

// A loaded kernel. Destroying it unloads it. The Device must outlive its kernels.
class Kernel {
 public:
  virtual ~Kernel() = default;
};

struct Launch {
  std::uint32_t grid = 1;  // CTAs; kernels number their tiles in one dimension
  std::uint32_t threads = 1;
  std::uint32_t shared_bytes = 0;
  std::uint32_t cluster = 1;
  bool cooperative = false;  // all CTAs must run at once, since they wait for each other
};

// 128 bytes that only the Device that encoded them can read.
struct alignas(64) TensorMap {
  std::array<std::uint64_t, 16> opaque{};
};

// A tiled, swizzled view of a tensor for TMA: dimension 0 is contiguous, strides are in bytes.
struct TensorMapRequest {
  const void* base = nullptr;
  std::array<std::uint64_t, 5> size{};
  std::array<std::uint64_t, 4> stride{};  // of dimensions 1 to 4; multiples of 16
  std::array<std::uint32_t, 5> box{};
  int element_bytes = 2;    // 2, or 4: fp32
  bool bf16 = true;         // of 2 bytes; false: fp16
  int swizzle_bytes = 128;  // 0, 32, 64 or 128
};

// A pair of events in a stream.
class Timer {
 public:
  virtual ~Timer() = default;
  virtual void start(Stream stream) = 0;
  virtual void stop(Stream stream) = 0;
  virtual double milliseconds() = 0;  // waits for stop
};

class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual const Target& target() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;  // "cuda:0", "emulated:sm_90a"
  [[nodiscard]] virtual std::string description()
      const = 0;  // "NVIDIA H200, driver 580.159"; for people and wisdom
  [[nodiscard]] virtual bool estimates_time() const {
    return false;
  }  // has no clock: autotune::predict estimates what a GPU would take

  // The current clock rate of the multiprocessors, which heat and power change; 0 if it is not known.
  [[nodiscard]] virtual double clock_mhz() { return 0; }

  // Loading may be slow and may fail (see ImageRefused). May be called from many threads, and does not
  // disturb another thread's capture.
  virtual std::unique_ptr<Kernel> load(const KernelImage& image) = 0;
  // How many CTAs of the kernel one multiprocessor can hold at once.
  virtual int occupancy(const Kernel& kernel, int threads, int shared_bytes) = 0;
  // How many clusters of the kernel the GPU can hold at once.
  virtual int clusters_at_once(const Kernel& kernel, int cluster, int threads, int shared_bytes) {
    return target().sm_count * occupancy(kernel, threads, shared_bytes) / cluster;
  }
  // Asynchronous on a GPU; complete on return in the emulator. params points to the parameters, in order.
  virtual void launch(const Kernel& kernel, const Launch& launch, std::span<void* const> params,
                      Stream stream) = 0;

  virtual void* allocate(std::size_t bytes) = 0;
  // Frees what allocate() returned; null is allowed and does nothing. False if the pointer is not memory of
  // this device, or was freed before.
  [[nodiscard]] virtual bool release(void* pointer) = 0;
  // The same for destructors, which cannot report an error. If an earlier error broke the device, or the
  // device ended at exit, the memory is gone with it. Earlier errors are reported by the calls that wait for
  // the GPU.
  void free(void* pointer) noexcept {
    try {
      static_cast<void>(release(pointer));
    } catch (const std::exception&) {
    }
  }
  // Memory for the work that is enqueued between the two calls, from a pool that keeps freed memory. This is
  // cheap, and works in any number of streams and in a stream in capture (whose graph then owns the memory).
  virtual void* allocate_ordered(std::size_t bytes, Stream stream) = 0;
  virtual void free_ordered(void* pointer, Stream stream) = 0;
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) = 0;  // waits
  virtual void fill(void* to, std::uint8_t value, std::size_t bytes, Stream stream) = 0;
  // Sets bytes to zero, visible to every stream on return. May be called during a capture, the caller's
  // included.
  virtual void clear(void* to, std::size_t bytes) {
    fill(to, 0, bytes, nullptr);
    synchronize(nullptr);
  }
  virtual void synchronize(Stream stream) = 0;
  [[nodiscard]] virtual bool capturing(Stream stream) const = 0;

  virtual TensorMap encode(const TensorMapRequest& request) = 0;
  virtual std::unique_ptr<Timer> make_timer() = 0;
};

}  // namespace flashjit::runtime

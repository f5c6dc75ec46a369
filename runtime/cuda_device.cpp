// Device on the CUDA Driver API: loading, launching, memory, timing.
#include "runtime/cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <utility>

#include "flashjit/error.hpp"
#include "runtime/cuda/clock.hpp"
#include "runtime/cuda/context.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/launch_config.hpp"
#include "runtime/cuda/memory_pool.hpp"
#include "runtime/cuda/tensor_map.hpp"
#include "runtime/cuda/timer.hpp"

namespace flashjit::runtime {
namespace {

// Error codes of a load that another image may avoid. The driver reports a damaged image in many ways.
bool is_of_image(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_NOT_FOUND:
      return true;
    default:
      return false;
  }
}

// Also holds the context: a kernel or timer that outlives its Device by mistake must not use a dead context.
class CudaKernel final : public Kernel {
 public:
  CudaKernel(std::shared_ptr<const Context> context, const KernelImage& image);
  ~CudaKernel() override { unload(); }
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  [[nodiscard]] CUfunction function() const { return function_; }
  [[nodiscard]] const std::string& entry() const { return entry_; }

 private:
  void load(const KernelImage& image);
  void unload() noexcept;

  std::shared_ptr<const Context> context_;
  std::string entry_;
  CUlibrary library_ = nullptr;
  CUfunction function_ = nullptr;
};

CudaKernel::CudaKernel(std::shared_ptr<const Context> context, const KernelImage& image)
    : context_(std::move(context)), entry_(image.entry) {
  try {
    load(image);
  } catch (...) {
    unload();
    throw;
  }
}

void CudaKernel::load(const KernelImage& image) {
  const Driver& driver = context_->driver();
  const ContextScope scope(*context_);
  const RelaxedCapture relaxed(driver);
  const bool from_ptx = image.cubin.empty();
  const std::string ptx(from_ptx ? image.ptx : std::string_view());  // the driver needs a terminating zero
  // The driver may read the image and write the log as late as in cuKernelGetFunction, so all of them must
  // live until then.
  std::array<char, 8192> log{};
  std::array options{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array values{static_cast<void*>(log.data()),
                    std::bit_cast<void*>(log.size())};  // a number, passed as a pointer
  const auto check = [&](CUresult result, std::string_view call) {
    if (result == CUDA_SUCCESS) return;
    try {
      driver.fail(result,
                  fmt::format("loading {} from {} ({}){}{}", entry_,
                              from_ptx ? fmt::format("{} bytes of PTX, which the driver compiles", ptx.size())
                                       : fmt::format("{} bytes of cubin", image.cubin.size()),
                              call, log[0] != '\0' ? ": " : "", log.data()));
    } catch (const Error& error) {
      if (is_of_image(result)) throw ImageRefused(error);
      throw;
    }
  };
  check(driver.library_load(&library_, from_ptx ? ptx.c_str() : image.cubin.data(), options.data(),
                            values.data(), from_ptx ? static_cast<unsigned>(options.size()) : 0, nullptr,
                            nullptr, 0),
        "cuLibraryLoadData");
  CUkernel kernel = nullptr;
  check(driver.library_kernel(&kernel, library_, entry_.c_str()), "cuLibraryGetKernel");
  if (image.shared_bytes > 0) {
    check(driver.kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, image.shared_bytes,
                                      kernel, context_->device()),
          fmt::format("cuKernelSetAttribute for {} bytes of dynamic shared memory", image.shared_bytes));
  }
  // Loading is lazy since CUDA 12.2. Without these two calls the first launch would load the kernel, which
  // waits for the GPU, distorts a timing and fails inside a capture.
  check(driver.kernel_function(&function_, kernel), "cuKernelGetFunction");
  if (driver.function_load != nullptr) check(driver.function_load(function_), "cuFuncLoad");
}

void CudaKernel::unload() noexcept {
  if (library_ == nullptr) return;
  const RelaxedCapture relaxed(context_->driver());
  // If this fails, the driver ended before us, at exit, or an error broke the context: the library is gone
  // anyway.
  static_cast<void>(context_->driver().library_unload(library_));
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(std::shared_ptr<const Context> context)
      : context_(std::move(context)),
        driver_(context_->driver()),
        target_(target_of_device(driver_, context_->device())),
        description_(fmt::format("{}, driver {}", name_of_device(driver_, context_->device()),
                                 driver_version(driver_))),
        clock_(pci_bus_id_of_device(driver_, context_->device())),
        pool_(context_) {}

  [[nodiscard]] const Target& target() const override { return target_; }
  [[nodiscard]] std::string name() const override { return fmt::format("cuda:{}", context_->index()); }
  [[nodiscard]] std::string description() const override { return description_; }
  [[nodiscard]] double clock_mhz() override { return clock_.mhz(); }

  std::unique_ptr<Kernel> load(const KernelImage& image) override {
    return std::make_unique<CudaKernel>(context_, image);
  }

  int occupancy(const Kernel& kernel, int threads, int shared_bytes) override {
    const ContextScope scope(*context_);
    int ctas = 0;
    driver_.check(driver_.occupancy(&ctas, static_cast<const CudaKernel&>(kernel).function(), threads,
                                    static_cast<std::size_t>(shared_bytes)),
                  "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    return ctas;
  }

  int clusters_at_once(const Kernel& kernel, int cluster, int threads, int shared_bytes) override {
    const ContextScope scope(*context_);
    const auto ctas = static_cast<std::uint32_t>(cluster);
    const LaunchConfig config({.grid = ctas,
                               .threads = static_cast<std::uint32_t>(threads),
                               .shared_bytes = static_cast<std::uint32_t>(shared_bytes),
                               .cluster = ctas});
    int clusters = 0;
    driver_.check(
        driver_.clusters(&clusters, static_cast<const CudaKernel&>(kernel).function(), &config.get()),
        "cuOccupancyMaxActiveClusters");
    return clusters;
  }

  void launch(const Kernel& kernel, const Launch& launch, std::span<void* const> params,
              Stream stream) override;

  void* allocate(std::size_t bytes) override;
  [[nodiscard]] bool release(void* pointer) override;
  void* allocate_ordered(std::size_t bytes, Stream stream) override {
    const ContextScope scope(*context_);
    return pool_.allocate(bytes, stream);
  }
  void free_ordered(void* pointer, Stream stream) override {
    const ContextScope scope(*context_);
    pool_.free(pointer, stream);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const ContextScope scope(*context_);
    driver_.check(driver_.copy_to_device(address(to), from, bytes, stream),
                  fmt::format("copying {} bytes to the GPU (cuMemcpyHtoDAsync)", bytes));
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const ContextScope scope(*context_);
    const RelaxedCapture relaxed(driver_);
    driver_.check(driver_.copy_to_host(to, address(from), bytes, stream),
                  fmt::format("copying {} bytes from the GPU (cuMemcpyDtoHAsync)", bytes));
    driver_.check(driver_.synchronize(stream), "cuStreamSynchronize after a copy from the GPU");
  }
  void fill(void* to, std::uint8_t value, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const ContextScope scope(*context_);
    driver_.check(driver_.fill(address(to), value, bytes, stream),
                  fmt::format("filling {} bytes (cuMemsetD8Async)", bytes));
  }
  void clear(void* to, std::size_t bytes) override;
  void synchronize(Stream stream) override {
    const ContextScope scope(*context_);
    const RelaxedCapture relaxed(driver_);
    driver_.check(driver_.synchronize(stream), "cuStreamSynchronize");
  }
  [[nodiscard]] bool capturing(Stream stream) const override {
    const ContextScope scope(*context_);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver_.is_capturing(stream, &status);
    // The stream is the default one, and a stream that waits for it is being captured: neither may be used.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    driver_.check(result, "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  TensorMap encode(const TensorMapRequest& request) override {
    const ContextScope scope(*context_);
    return encode_tensor_map(driver_, request);
  }
  std::unique_ptr<Timer> make_timer() override { return std::make_unique<CudaTimer>(context_); }

 private:
  static CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

  std::shared_ptr<const Context> context_;
  const Driver& driver_;
  Target target_;
  std::string description_;
  SmClock clock_;
  MemoryPool pool_;
};

void CudaDevice::launch(const Kernel& kernel, const Launch& launch, std::span<void* const> params,
                        Stream stream) {
  const auto& loaded = static_cast<const CudaKernel&>(kernel);
  auto** const pointers = const_cast<void**>(params.data());  // the driver only reads through these pointers
  const ContextScope scope(*context_);
  const LaunchConfig config(launch, stream);
  const CUresult result = config.has_attributes()
                              ? driver_.launch_ex(&config.get(), loaded.function(), pointers, nullptr)
                              : driver_.launch(loaded.function(), launch.grid, 1, 1, launch.threads, 1, 1,
                                               launch.shared_bytes, stream, pointers, nullptr);
  if (result != CUDA_SUCCESS) {
    driver_.fail(
        result,
        fmt::format("launching {} ({} CTAs of {} threads, {} bytes of shared memory, clusters of {}{})",
                    loaded.entry(), launch.grid, launch.threads, launch.shared_bytes, launch.cluster,
                    launch.cooperative ? ", all at once" : ""));
  }
}

void* CudaDevice::allocate(std::size_t bytes) {
  const ContextScope scope(*context_);
  const RelaxedCapture relaxed(driver_);
  CUdeviceptr pointer = 0;
  const CUresult result = driver_.allocate(&pointer, std::max<std::size_t>(bytes, 1));
  if (result != CUDA_SUCCESS) {
    std::size_t available = 0;
    std::size_t total = 0;
    static_cast<void>(driver_.memory_info(&available, &total));  // for the message only
    driver_.fail(result, fmt::format("allocating {} bytes on {} ({} of {} bytes free)", bytes, name(),
                                     available, total));
  }
  return std::bit_cast<void*>(pointer);
}

bool CudaDevice::release(void* pointer) {
  if (pointer == nullptr) return true;
  const ContextScope scope(*context_);
  const RelaxedCapture relaxed(driver_);
  const CUresult result = driver_.free(address(pointer));
  if (result == CUDA_ERROR_INVALID_VALUE) return false;
  driver_.check(result, "cuMemFree");
  return true;
}

// Uses a stream of its own: the default stream would break the capture of any stream that waits for it, and
// the thread's own stream may be in capture itself.
void CudaDevice::clear(void* to, std::size_t bytes) {
  const ContextScope scope(*context_);
  const RelaxedCapture relaxed(driver_);
  CUstream stream = nullptr;
  driver_.check(driver_.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUresult result = driver_.fill(address(to), 0, bytes, stream);
  if (result == CUDA_SUCCESS) result = driver_.synchronize(stream);
  static_cast<void>(driver_.stream_destroy(stream));  // the stream is idle, or the context is broken
  if (result != CUDA_SUCCESS) driver_.fail(result, fmt::format("clearing {} bytes (cuMemsetD8Async)", bytes));
}

}  // namespace

std::unique_ptr<Device> open_cuda_device(std::string_view name) {
  return std::make_unique<CudaDevice>(Context::open(name));
}

CudaStatus cuda_status() {
  const Driver& driver = cuda_driver();
  CudaStatus status{.driver_path = driver.path,
                    .driver_version = driver_version(driver),
                    .cuda_version = driver.cuda_version,
                    .gpus = {}};
  int count = 0;
  driver.check(driver.device_count(&count), "cuDeviceGetCount");
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    driver.check(driver.device(&device, i), "cuDeviceGet");
    CudaStatus::Gpu gpu{.name = name_of_device(driver, device),
                        .arch = arch_of_capability(capability_of_device(driver, device)),
                        .memory = 0};
    driver.check(driver.device_memory(&gpu.memory, device), "cuDeviceTotalMem");
    status.gpus.push_back(std::move(gpu));
  }
  return status;
}

}  // namespace flashjit::runtime

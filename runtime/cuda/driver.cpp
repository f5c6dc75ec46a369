// Opens libcuda, finds its entry points, and explains its error codes.
#include "runtime/cuda/driver.hpp"

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <mutex>

#include "flashjit/error.hpp"
#include "runtime/dynamic_library.hpp"

namespace flashjit::runtime {
namespace {

constexpr int kOldest = 12000;  // cuLibraryLoadData, tensor maps and clusters came with CUDA 12.0

constexpr std::string_view kNoGpuNeeded =
    "rendering, compiling and inspecting need no driver; the device \"emulated:sm_90a\" runs kernels without "
    "a GPU";

// What a user can do about the error codes that occur in practice.
std::string_view hint_for(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "another process may hold the memory (nvidia-smi shows who), or the sizes are too large for "
             "this GPU";
    case CUDA_ERROR_STUB_LIBRARY:
      return "the loader found the toolkit's stub of libcuda; remove its stubs directory from "
             "LD_LIBRARY_PATH";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "CUDA does not outlive a fork: create the first Engine in the child, or start the child by exec";
    case CUDA_ERROR_NO_DEVICE:
      return "no GPU is visible: is one here, and do CUDA_VISIBLE_DEVICES or the container hide it?";
    case CUDA_ERROR_INVALID_DEVICE:
      return "the number counts the GPUs that CUDA_VISIBLE_DEVICES leaves, from 0";
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "the code is damaged, was made for another arch than this GPU's, or by an NVRTC that is newer "
             "than the driver: update the driver, or have FLASHJIT_NVRTC name an NVRTC of its CUDA release";
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "the driver is older than the NVRTC that made the PTX: update the driver, or set FLASHJIT_NVRTC "
             "to an older NVRTC";
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return "a stream belongs to the GPU it was made on, and ends with its context: is this one of the "
             "Engine's GPU?";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_LAUNCH_FAILED:
      return "a kernel that ran before this call did it, and this process can't use the GPU any more: is a "
             "tensor shorter than its shape, the host's, or another GPU's? compute-sanitizer finds the "
             "access, and so may `flashjit check`, on the emulator";
    case CUDA_ERROR_LAUNCH_TIMEOUT:
      return "a kernel ran longer than this machine's display watchdog allows";
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return "the kernel needs more registers or threads than the GPU has for one CTA";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "libcuda and the kernel's driver module are of different versions: reboot after a driver "
             "update, and keep "
             "CUDA's compat directory off LD_LIBRARY_PATH";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "the system is not ready for CUDA: on NVSwitch machines, is nvidia-fabricmanager running?";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
      return "a stream is being captured: call Engine::prepare before the capture begins";
    case CUDA_ERROR_UNKNOWN:
      return "often a driver in a bad state: nvidia-smi and the kernel's log (dmesg) may say more";
    default:
      return {};
  }
}

std::unique_ptr<Driver> load() {
  const DynamicLibrary library("libcuda.so.1");
  if (!library) {
    throw Error(ErrorCode::not_found, fmt::format("no NVIDIA driver here: {}", library.error()),
                std::string(kNoGpuNeeded));
  }
  auto driver = std::make_unique<Driver>();
  driver->path = library.path();
  const char* missing = nullptr;
  const auto need = [&](auto*& function, const char* name) {
    if (!library.resolve(function, name) && missing == nullptr) missing = name;
  };
  need(driver->init, "cuInit");
  need(driver->driver_version, "cuDriverGetVersion");
  need(driver->error_name, "cuGetErrorName");
  need(driver->error_string, "cuGetErrorString");
  need(driver->device_count, "cuDeviceGetCount");
  need(driver->device, "cuDeviceGet");
  need(driver->device_name, "cuDeviceGetName");
  need(driver->device_attribute, "cuDeviceGetAttribute");
  need(driver->device_memory, "cuDeviceTotalMem_v2");
  need(driver->device_bus_id, "cuDeviceGetPCIBusId");
  need(driver->primary_state, "cuDevicePrimaryCtxGetState");
  need(driver->primary_retain, "cuDevicePrimaryCtxRetain");
  need(driver->primary_release, "cuDevicePrimaryCtxRelease_v2");
  need(driver->current, "cuCtxGetCurrent");
  need(driver->set_current, "cuCtxSetCurrent");
  need(driver->current_device, "cuCtxGetDevice");
  need(driver->exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  need(driver->library_load, "cuLibraryLoadData");
  need(driver->library_unload, "cuLibraryUnload");
  need(driver->library_kernel, "cuLibraryGetKernel");
  need(driver->kernel_set_attribute, "cuKernelSetAttribute");
  need(driver->kernel_function, "cuKernelGetFunction");
  library.resolve(driver->function_load, "cuFuncLoad");
  need(driver->occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  need(driver->clusters, "cuOccupancyMaxActiveClusters");
  need(driver->launch, "cuLaunchKernel");
  need(driver->launch_ex, "cuLaunchKernelEx");
  need(driver->allocate, "cuMemAlloc_v2");
  need(driver->free, "cuMemFree_v2");
  need(driver->memory_info, "cuMemGetInfo_v2");
  need(driver->pool_create, "cuMemPoolCreate");
  need(driver->pool_destroy, "cuMemPoolDestroy");
  need(driver->pool_set_attribute, "cuMemPoolSetAttribute");
  need(driver->allocate_from_pool, "cuMemAllocFromPoolAsync");
  need(driver->free_ordered, "cuMemFreeAsync");
  need(driver->copy_to_device, "cuMemcpyHtoDAsync_v2");
  need(driver->copy_to_host, "cuMemcpyDtoHAsync_v2");
  need(driver->fill, "cuMemsetD8Async");
  need(driver->stream_create, "cuStreamCreate");
  need(driver->stream_destroy, "cuStreamDestroy_v2");
  need(driver->synchronize, "cuStreamSynchronize");
  need(driver->is_capturing, "cuStreamIsCapturing");
  need(driver->event_create, "cuEventCreate");
  need(driver->event_destroy, "cuEventDestroy_v2");
  need(driver->event_record, "cuEventRecord");
  need(driver->event_synchronize, "cuEventSynchronize");
  need(driver->event_elapsed, "cuEventElapsedTime");
  need(driver->encode_tiled, "cuTensorMapEncodeTiled");

  CUresult asked = CUDA_SUCCESS;
  if (driver->driver_version != nullptr) asked = driver->driver_version(&driver->cuda_version);
  if (missing == nullptr) driver->check(asked, "cuDriverGetVersion");  // the toolkit's stub refuses all calls
  if (missing != nullptr || driver->cuda_version < kOldest) {
    throw Error(ErrorCode::not_found,
                fmt::format("the NVIDIA driver at {} is too old: it knows CUDA {}.{}{}, need 12.0",
                            driver->path, driver->cuda_version / 1000, driver->cuda_version % 1000 / 10,
                            missing != nullptr ? fmt::format(" and has no {}", missing) : ""),
                "update the driver to 525 or later");
  }
  driver->check(driver->init(0), "cuInit");
  return driver;
}

}  // namespace

void Driver::fail(CUresult result, std::string_view what) const {
  const char* name = nullptr;
  const char* text = nullptr;
  error_name(result, &name);
  error_string(result, &text);
  throw Error(
      result == CUDA_ERROR_NO_DEVICE || result == CUDA_ERROR_STUB_LIBRARY ? ErrorCode::not_found
                                                                          : ErrorCode::device,
      fmt::format("{} failed: error {}, {}: {}", what, static_cast<int>(result),
                  name != nullptr ? name : "unnamed", text != nullptr ? text : "unknown to this driver"),
      std::string(hint_for(result)));
}

const Driver& cuda_driver() {
  // Kept until the process ends: libcuda can't be unloaded safely, and objects with static storage may still
  // free their device memory through it at exit.
  static auto& mutex = *new std::mutex;
  static auto& driver = *new std::unique_ptr<Driver>;
  const std::lock_guard lock(mutex);
  if (!driver) driver = load();
  return *driver;
}

std::string driver_version(const Driver& driver) {
  std::string version;
  std::ifstream("/sys/module/nvidia/version") >> version;
  if (version
          .empty()) {  // containers often show only /proc/driver: "NVRM version: NVIDIA UNIX … 580.159.04 …"
    std::ifstream file("/proc/driver/nvidia/version");
    std::string word;
    while (version.empty() && file >> word) {
      if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos)
        version = word;
    }
  }
  if (!version.empty()) return version;
  return fmt::format("for CUDA {}.{}", driver.cuda_version / 1000, driver.cuda_version % 1000 / 10);
}

}  // namespace flashjit::runtime

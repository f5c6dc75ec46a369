// The entry points of libcuda.so.1, and errors that say what to do.
#pragma once

#include <cuda.h>

#include <string>
#include <string_view>

#if CUDA_VERSION < 12000
#error "flashjit needs the headers of CUDA 12.0 or later"
#endif

namespace flashjit::runtime {

// Names are looked up with dlsym, version suffix included, so that the headers which flashjit was built with
// don't affect what is called. cuGetProcAddress would return the newest version, whose behaviour may differ.
struct Driver {
  std::string path;
  int cuda_version = 0;  // 13000: the newest CUDA that this driver knows

  decltype(cuInit)* init;
  decltype(cuDriverGetVersion)* driver_version;
  decltype(cuGetErrorName)* error_name;
  decltype(cuGetErrorString)* error_string;
  decltype(cuDeviceGetCount)* device_count;
  decltype(cuDeviceGet)* device;
  decltype(cuDeviceGetName)* device_name;
  decltype(cuDeviceGetAttribute)* device_attribute;
  decltype(cuDeviceTotalMem)* device_memory;
  decltype(cuDeviceGetPCIBusId)* device_bus_id;
  decltype(cuDevicePrimaryCtxGetState)* primary_state;
  decltype(cuDevicePrimaryCtxRetain)* primary_retain;
  decltype(cuDevicePrimaryCtxRelease)* primary_release;
  decltype(cuCtxGetCurrent)* current;
  decltype(cuCtxSetCurrent)* set_current;
  decltype(cuCtxGetDevice)* current_device;
  decltype(cuThreadExchangeStreamCaptureMode)* exchange_capture_mode;
  decltype(cuLibraryLoadData)* library_load;
  decltype(cuLibraryUnload)* library_unload;
  decltype(cuLibraryGetKernel)* library_kernel;
  decltype(cuKernelSetAttribute)* kernel_set_attribute;
  decltype(cuKernelGetFunction)* kernel_function;
  CUresult(CUDAAPI* function_load)(CUfunction);  // since CUDA 12.4; null before
  decltype(cuOccupancyMaxActiveBlocksPerMultiprocessor)* occupancy;
  decltype(cuOccupancyMaxActiveClusters)* clusters;
  decltype(cuLaunchKernel)* launch;
  decltype(cuLaunchKernelEx)* launch_ex;
  decltype(cuMemAlloc)* allocate;
  decltype(cuMemFree)* free;
  decltype(cuMemGetInfo)* memory_info;
  decltype(cuMemPoolCreate)* pool_create;
  decltype(cuMemPoolDestroy)* pool_destroy;
  decltype(cuMemPoolSetAttribute)* pool_set_attribute;
  decltype(cuMemAllocFromPoolAsync)* allocate_from_pool;
  decltype(cuMemFreeAsync)* free_ordered;
  decltype(cuMemcpyHtoDAsync)* copy_to_device;
  decltype(cuMemcpyDtoHAsync)* copy_to_host;
  decltype(cuMemsetD8Async)* fill;
  decltype(cuStreamCreate)* stream_create;
  decltype(cuStreamDestroy)* stream_destroy;
  decltype(cuStreamSynchronize)* synchronize;
  decltype(cuStreamIsCapturing)* is_capturing;
  decltype(cuEventCreate)* event_create;
  decltype(cuEventDestroy)* event_destroy;
  decltype(cuEventRecord)* event_record;
  decltype(cuEventSynchronize)* event_synchronize;
  CUresult(CUDAAPI* event_elapsed)(float*, CUevent, CUevent);
  decltype(cuTensorMapEncodeTiled)* encode_tiled;

  // Throws Error{device} with `what` (the call and its purpose), then the code, its name, its text and a
  // hint.
  void check(CUresult result, std::string_view what) const {
    if (result != CUDA_SUCCESS) fail(result, what);
  }
  [[noreturn]] void fail(CUresult result, std::string_view what) const;
};

// Loads and initialises libcuda, once per process; after a failure the next call tries again. Throws
// Error{not_found} if there is no driver, or no GPU, or if the driver is too old or the toolkit's stub;
// Error{device} if the driver does not start.
const Driver& cuda_driver();

// "580.159.04" from the kernel module, or "for CUDA 13.0" if the module does not say.
std::string driver_version(const Driver& driver);

}  // namespace flashjit::runtime

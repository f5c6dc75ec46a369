// A libcuda that finds a driver module of another version, as after an update without a reboot.
constexpr int kMismatch = 803;  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH

// cuda.h declares these with their parameters, which nothing here reads.
#define FAILS(name)       \
  extern "C" int name() { \
    return kMismatch;     \
  }

extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
FAILS(cuInit)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuDeviceGetCount)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetName)
FAILS(cuDeviceGetAttribute)
FAILS(cuDeviceTotalMem_v2)
FAILS(cuDeviceGetPCIBusId)
FAILS(cuDevicePrimaryCtxGetState)
FAILS(cuDevicePrimaryCtxRetain)
FAILS(cuDevicePrimaryCtxRelease_v2)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxSetCurrent)
FAILS(cuCtxGetDevice)
FAILS(cuThreadExchangeStreamCaptureMode)
FAILS(cuLibraryLoadData)
FAILS(cuLibraryUnload)
FAILS(cuLibraryGetKernel)
FAILS(cuKernelSetAttribute)
FAILS(cuKernelGetFunction)
FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAILS(cuOccupancyMaxActiveClusters)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuMemAlloc_v2)
FAILS(cuMemFree_v2)
FAILS(cuMemGetInfo_v2)
FAILS(cuMemPoolCreate)
FAILS(cuMemPoolDestroy)
FAILS(cuMemPoolSetAttribute)
FAILS(cuMemAllocFromPoolAsync)
FAILS(cuMemFreeAsync)
FAILS(cuMemcpyHtoDAsync_v2)
FAILS(cuMemcpyDtoHAsync_v2)
FAILS(cuMemsetD8Async)
FAILS(cuStreamCreate)
FAILS(cuStreamDestroy_v2)
FAILS(cuStreamSynchronize)
FAILS(cuStreamIsCapturing)
FAILS(cuEventCreate)
FAILS(cuEventDestroy_v2)
FAILS(cuEventRecord)
FAILS(cuEventSynchronize)
FAILS(cuEventElapsedTime)
FAILS(cuTensorMapEncodeTiled)

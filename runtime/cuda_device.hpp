// The Device that is a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device.hpp"

namespace flashjit::runtime {

// "cuda": the current context's GPU, else the first one; or "cuda:N". Uses the current context if it belongs
// to that GPU, else the GPU's primary context. Throws Error{invalid_argument} for another name or number,
// Error{not_found} without a driver, Error{unsupported} for a GPU before Turing, Error{device}.
std::unique_ptr<Device> open_cuda_device(std::string_view name);

// What a driver and its GPUs say about themselves. Makes no context. Throws as open_cuda_device does.
struct CudaStatus {
  struct Gpu {
    std::string name;        // "NVIDIA H200"
    std::string arch;        // "sm_90a"; also for a GPU before Turing
    std::size_t memory = 0;  // bytes
  };
  std::string driver_path;     // of libcuda
  std::string driver_version;  // "580.159.04"
  int cuda_version = 0;        // 13000: the newest CUDA that the driver knows
  std::vector<Gpu> gpus;
};
CudaStatus cuda_status();

}  // namespace flashjit::runtime

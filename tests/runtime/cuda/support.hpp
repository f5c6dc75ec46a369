// What the tests on a GPU share: a compiled kernel, streams and contexts. Their program skips, loudly, where
// there is no GPU.
#pragma once

#include <cuda.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/dynamic_library.hpp"
#include "tests/runtime/expect_error.hpp"
#include "tests/runtime/sources.hpp"

namespace flashjit::test {

using runtime::Compiled;
using runtime::Device;
using runtime::Kernel;
using runtime::open_cuda_device;
using runtime::Stream;

// What the tests need beyond a Device: streams, captures, graphs.
struct Cuda {
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_destroy)(CUstream);
  CUresult (*begin_capture)(CUstream, CUstreamCaptureMode);
  CUresult (*end_capture)(CUstream, CUgraph*);
  CUresult (*instantiate)(CUgraphExec*, CUgraph, unsigned long long);
  CUresult (*launch_graph)(CUgraphExec, CUstream);
  CUresult (*destroy_exec)(CUgraphExec);
  CUresult (*destroy_graph)(CUgraph);
  CUresult (*current)(CUcontext*);
  CUresult (*set_current)(CUcontext);
  CUresult (*primary_retain)(CUcontext*, CUdevice);
  CUresult (*primary_release)(CUdevice);

  Cuda() {
    const runtime::DynamicLibrary driver("libcuda.so.1");
    REQUIRE(driver.resolve(stream_create, "cuStreamCreate"));
    REQUIRE(driver.resolve(stream_destroy, "cuStreamDestroy_v2"));
    REQUIRE(driver.resolve(begin_capture, "cuStreamBeginCapture_v2"));
    REQUIRE(driver.resolve(end_capture, "cuStreamEndCapture"));
    REQUIRE(driver.resolve(instantiate, "cuGraphInstantiateWithFlags"));
    REQUIRE(driver.resolve(launch_graph, "cuGraphLaunch"));
    REQUIRE(driver.resolve(destroy_exec, "cuGraphExecDestroy"));
    REQUIRE(driver.resolve(destroy_graph, "cuGraphDestroy"));
    REQUIRE(driver.resolve(current, "cuCtxGetCurrent"));
    REQUIRE(driver.resolve(set_current, "cuCtxSetCurrent"));
    REQUIRE(driver.resolve(primary_retain, "cuDevicePrimaryCtxRetain"));
    REQUIRE(driver.resolve(primary_release, "cuDevicePrimaryCtxRelease_v2"));
  }
};

// Makes the primary context current, as a program that uses the CUDA runtime has it.
struct CurrentContext {
  Cuda cuda;
  CurrentContext() {
    CUcontext context = nullptr;
    REQUIRE(cuda.primary_retain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuda.set_current(context) == CUDA_SUCCESS);
  }
  ~CurrentContext() {
    cuda.set_current(nullptr);
    cuda.primary_release(0);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
};

inline Compiled compile(const KernelSource& source, const Target& target) {
  return runtime::load_nvrtc()->compile(source, target, std::chrono::milliseconds(0));
}

inline std::unique_ptr<Kernel> load(Device& device, const KernelSource& source, int shared_bytes = 0) {
  const Compiled compiled = compile(source, device.target());
  return device.load({.entry = source.entry,
                      .ptx = compiled.ptx,
                      .cubin = compiled.cubin,
                      .shared_bytes = shared_bytes,
                      .origins = {}});
}

// axpy on a vector of its own.
class Axpy {
 public:
  Axpy(Device& device, const Kernel& kernel, int count) : device_(device), kernel_(kernel), count_(count) {
    std::vector<float> host(static_cast<std::size_t>(count), 1.0F);
    x_ = static_cast<float*>(device.allocate(host.size() * sizeof(float)));
    y_ = static_cast<float*>(device.allocate(host.size() * sizeof(float)));
    device.copy_to_device(x_, host.data(), host.size() * sizeof(float), nullptr);
    device.copy_to_device(y_, host.data(), host.size() * sizeof(float), nullptr);
    device.synchronize(nullptr);
  }
  ~Axpy() {
    device_.free(x_);
    device_.free(y_);
  }
  Axpy(const Axpy&) = delete;
  Axpy& operator=(const Axpy&) = delete;

  void launch(Stream stream) {
    float a = 2.0F;
    void* const params[] = {&a, &x_, &y_, &count_};
    device_.launch(kernel_, {.grid = static_cast<std::uint32_t>((count_ + 255) / 256), .threads = 256},
                   params, stream);
  }
  // Every element, which must all be the same.
  float value(Stream stream) {
    std::vector<float> host(static_cast<std::size_t>(count_));
    device_.copy_to_host(host.data(), y_, host.size() * sizeof(float), stream);
    CHECK(std::all_of(host.begin(), host.end(), [&](float f) { return f == host.front(); }));
    return host.front();
  }

 private:
  Device& device_;
  const Kernel& kernel_;
  int count_;
  float* x_ = nullptr;
  float* y_ = nullptr;
};

// A kernel that takes its time.
inline KernelSource spin_source() {
  return source_of("spin",
                   "extern \"C\" __global__ void spin(long long cycles) {\n"
                   "  const long long start = clock64();\n"
                   "  while (clock64() - start < cycles) {}\n"
                   "}\n");
}

// Runs before main: a machine without a GPU has nothing to test, and ctest shows the skip.
inline const bool skipped_without_gpu = [] {
  try {
    static_cast<void>(open_cuda_device("cuda"));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) {
      std::printf("skipped: no GPU (%s)\n", error.what());
      std::fflush(stdout);
      std::_Exit(77);
    }
    throw;
  }
  return true;
}();

}  // namespace flashjit::test

// The GPU as a Device: memory, launches, capture, streams, timing, errors. Skips, loudly, where there is no
// GPU.
#include <cuda.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/dynamic_library.hpp"
#include "runtime/occupancy.hpp"
#include "tests/runtime/expect_error.hpp"
#include "tests/runtime/sources.hpp"

using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::KernelSource;
using flashjit::Target;
using flashjit::runtime::Compiled;
using flashjit::runtime::cuda_status;
using flashjit::runtime::Device;
using flashjit::runtime::Kernel;
using flashjit::runtime::KernelImage;
using flashjit::runtime::Launch;
using flashjit::runtime::load_nvrtc;
using flashjit::runtime::open_cuda_device;
using flashjit::runtime::Stream;
using flashjit::test::contains;
using flashjit::test::error_of;

namespace {

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
    const flashjit::runtime::DynamicLibrary driver("libcuda.so.1");
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

Compiled compile(const KernelSource& source, const Target& target) {
  return load_nvrtc()->compile(source, target, std::chrono::milliseconds(0));
}

std::unique_ptr<Kernel> load(Device& device, const KernelSource& source, int shared_bytes = 0) {
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
KernelSource spin_source() {
  return flashjit::test::source_of("spin",
                                   "extern \"C\" __global__ void spin(long long cycles) {\n"
                                   "  const long long start = clock64();\n"
                                   "  while (clock64() - start < cycles) {}\n"
                                   "}\n");
}

}  // namespace

TEST_CASE("the device describes itself") {
  const auto device = open_cuda_device("cuda");
  MESSAGE(device->name() << ": " << device->description() << ", " << device->target().arch);
  CHECK(device->name() == "cuda:0");
  CHECK(contains(device->description(), ", driver "));
  const Target table = flashjit::target_of(device->target().arch);
  CHECK(device->target().capability == table.capability);
  CHECK(device->target().shared_per_cta == table.shared_per_cta);
  CHECK(device->target().shared_per_sm == table.shared_per_sm);
  CHECK(device->target().shared_reserved == table.shared_reserved);
  CHECK(device->target().registers_per_sm == table.registers_per_sm);
  CHECK(device->target().threads_per_sm == table.threads_per_sm);
  CHECK(device->target().ctas_per_sm == table.ctas_per_sm);
  MESSAGE("SMs " << device->target().sm_count << ", L2 " << device->target().l2_bytes);
  const auto status = cuda_status();
  REQUIRE(!status.gpus.empty());
  CHECK(status.gpus.front().arch == device->target().arch);
  CHECK(status.cuda_version >= 12000);
  const Error error = error_of([] { return open_cuda_device("cuda:99"); });
  CHECK(error.code() == ErrorCode::invalid_argument);
  CHECK(contains(error.message(), "cuda:99"));
}

TEST_CASE("memory goes there and back, and calls leave the caller's context alone") {
  const Cuda cuda;
  const auto device = open_cuda_device("cuda:0");
  CUcontext current = nullptr;
  REQUIRE(cuda.current(&current) == CUDA_SUCCESS);
  CHECK(current == nullptr);
  std::vector<unsigned char> host(100'003);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<unsigned char>(i * 7);
  std::vector<unsigned char> back(host.size());
  void* memory = device->allocate(host.size());
  device->copy_to_device(memory, host.data(), host.size(), nullptr);
  device->copy_to_host(back.data(), memory, back.size(), nullptr);
  CHECK(back == host);
  device->fill(memory, 0xAB, host.size(), nullptr);
  device->copy_to_host(back.data(), memory, back.size(), nullptr);
  CHECK(std::all_of(back.begin(), back.end(), [](unsigned char c) { return c == 0xAB; }));
  device->free(memory);
  device->free(nullptr);
  device->free(device->allocate(0));
  REQUIRE(cuda.current(&current) == CUDA_SUCCESS);
  CHECK(current == nullptr);
}

TEST_CASE("free gives the memory back") {
  const auto device = open_cuda_device("cuda");
  const std::size_t most = cuda_status().gpus.front().memory / 3 * 2;
  for (int round = 0; round < 4; ++round) device->free(device->allocate(most));  // two at once do not fit
}

TEST_CASE("out of memory says how much was asked for, and how much there is") {
  const auto device = open_cuda_device("cuda");
  const Error error = error_of([&] { return device->allocate(std::size_t{1} << 46); });
  MESSAGE(std::string(error.what()));
  CHECK(error.code() == ErrorCode::device);
  CHECK(contains(error.message(), "allocating 70368744177664 bytes on cuda:0"));
  CHECK(contains(error.message(), "bytes free"));
  CHECK(contains(error.message(), "CUDA_ERROR_OUT_OF_MEMORY"));
  CHECK(contains(error.hint(), "nvidia-smi"));
}

TEST_CASE("a compiled kernel runs, from its cubin and from its PTX") {
  const auto device = open_cuda_device("cuda");
  const KernelSource source = flashjit::test::axpy();
  const Compiled compiled = compile(source, device->target());
  for (const std::string& cubin : {compiled.cubin, std::string()}) {
    const auto kernel = device->load(
        {.entry = source.entry, .ptx = compiled.ptx, .cubin = cubin, .shared_bytes = 0, .origins = {}});
    Axpy axpy(*device, *kernel, 10'001);
    axpy.launch(nullptr);
    CHECK(axpy.value(nullptr) == 3.0F);
  }
}

TEST_CASE("occupancy as the driver sees it is occupancy as we compute it") {
  const auto device = open_cuda_device("cuda");
  const KernelSource source = flashjit::test::source_of(
      "hungry",
      "extern \"C\" __global__ void __launch_bounds__(128) hungry(float* x) {\n"
      "  float v[100];\n"
      "  for (int i = 0; i < 100; ++i) v[i] = x[i * 128 + threadIdx.x];\n"
      "  for (int r = 0; r < 100; ++r) for (int i = 0; i < 100; ++i) v[i] = v[i] * v[(i + 7) % 100] + 1.0f;\n"
      "  for (int i = 0; i < 100; ++i) x[i * 128 + threadIdx.x] = v[i];\n"
      "}\n");
  const int most = device->target().shared_per_cta;
  const Compiled compiled = compile(source, device->target());
  const auto kernel = device->load({.entry = source.entry,
                                    .ptx = compiled.ptx,
                                    .cubin = compiled.cubin,
                                    .shared_bytes = most,
                                    .origins = {}});
  int checked = 0;
  for (const int threads : {32, 64, 96, 128}) {
    for (int shared = 0; shared <= most; shared += 500) {
      const int ours =
          flashjit::runtime::occupancy(device->target(), compiled.resources.registers, threads, shared).ctas;
      const int driver = device->occupancy(*kernel, threads, shared);
      CAPTURE(threads);
      CAPTURE(shared);
      CHECK(ours == driver);
      ++checked;
    }
  }
  MESSAGE(checked << " occupancies compared, " << compiled.resources.registers << " registers");
}

TEST_CASE("a launch is capturable, a graph replays it, and loading elsewhere does not break the capture") {
  const CurrentContext scope;
  const Cuda& cuda = scope.cuda;
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, flashjit::test::axpy());
  Axpy axpy(*device, *kernel, 5000);
  CUstream stream = nullptr;
  REQUIRE(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK_FALSE(device->capturing(stream));
  const Compiled other = compile(spin_source(), device->target());

  REQUIRE(cuda.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(device->capturing(stream));
  axpy.launch(stream);
  std::thread([&] {
    const auto loaded = device->load(
        {.entry = "spin", .ptx = other.ptx, .cubin = other.cubin, .shared_bytes = 0, .origins = {}});
    device->free(device->allocate(1000));
  }).join();
  axpy.launch(stream);
  CUgraph graph = nullptr;
  REQUIRE(cuda.end_capture(stream, &graph) == CUDA_SUCCESS);
  CHECK_FALSE(device->capturing(stream));
  CHECK(axpy.value(stream) == 1.0F);  // captured, not run

  CUgraphExec exec = nullptr;
  REQUIRE(cuda.instantiate(&exec, graph, 0) == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) REQUIRE(cuda.launch_graph(exec, stream) == CUDA_SUCCESS);
  CHECK(axpy.value(stream) == 13.0F);  // 1 + 6 * 2
  cuda.destroy_exec(exec);
  cuda.destroy_graph(graph);

  // What waits for the GPU can't be captured: the error says so.
  REQUIRE(cuda.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  const Error error = error_of([&] {
    device->synchronize(stream);
    return 0;
  });
  CHECK(contains(error.hint(), "Engine::prepare"));
  cuda.end_capture(stream, &graph);
  CHECK(cuda.stream_destroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("two streams, many threads, each with its own result") {
  const CurrentContext scope;
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, flashjit::test::axpy());
  std::vector<std::thread> threads;
  std::vector<float> results(8);
  for (float& result : results) {
    threads.emplace_back([&] {
      CUstream stream = nullptr;
      CUcontext context = nullptr;
      scope.cuda.primary_retain(&context, 0);
      scope.cuda.set_current(context);
      scope.cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING);
      scope.cuda.set_current(nullptr);
      Axpy axpy(*device, *kernel, 20'000);
      for (int i = 0; i < 100; ++i) axpy.launch(stream);
      result = axpy.value(stream);
      scope.cuda.set_current(context);
      scope.cuda.stream_destroy(stream);
      scope.cuda.set_current(nullptr);
      scope.cuda.primary_release(0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const float result : results) CHECK(result == 201.0F);
}

TEST_CASE("ordered memory serves streams at once, and a graph owns what a captured call takes") {
  const CurrentContext scope;
  const Cuda& cuda = scope.cuda;
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, flashjit::test::axpy());
  int count = 1 << 20;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  // y += 1, by way of ordered memory that holds ones while it is held and is spoilt before it goes.
  const auto add_one = [&](float* ones, float* y, Stream stream) {
    void* scratch = device->allocate_ordered(bytes, stream);
    float one = 1;
    void* const to_scratch[] = {&one, &ones, &scratch, &count};
    void* const to_y[] = {&one, &scratch, &y, &count};
    const Launch launch{.grid = static_cast<std::uint32_t>(count / 256), .threads = 256};
    device->fill(scratch, 0, bytes, stream);
    device->launch(*kernel, launch, to_scratch, stream);  // scratch = 0 + ones
    device->launch(*kernel, launch, to_y, stream);
    device->fill(scratch, 0xff, bytes, stream);
    device->free_ordered(scratch, stream);
  };
  const std::vector<float> host(static_cast<std::size_t>(count), 1.0F);
  const auto vector = [&] {
    auto* const memory = static_cast<float*>(device->allocate(bytes));
    device->copy_to_device(memory, host.data(), bytes, nullptr);
    device->synchronize(nullptr);
    return memory;
  };
  const auto all_are = [&](const float* y, float value, Stream stream) {
    std::vector<float> got(host.size());
    device->copy_to_host(got.data(), y, bytes, stream);
    return std::all_of(got.begin(), got.end(), [&](float f) { return f == value; });
  };
  float* const ones = vector();
  std::vector<CUstream> streams(3);
  std::vector<float*> sums;
  for (CUstream& stream : streams) {
    REQUIRE(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    sums.push_back(vector());
  }
  for (int i = 0; i < 50; ++i) {
    for (std::size_t s = 0; s < streams.size(); ++s) add_one(ones, sums[s], streams[s]);
  }
  for (std::size_t s = 0; s < streams.size(); ++s) CHECK(all_are(sums[s], 51.0F, streams[s]));

  REQUIRE(cuda.begin_capture(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  add_one(ones, sums[0], streams[0]);
  CUgraph graph = nullptr;
  REQUIRE(cuda.end_capture(streams[0], &graph) == CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  REQUIRE(cuda.instantiate(&exec, graph, 0) == CUDA_SUCCESS);
  for (int i = 0; i < 5; ++i) {
    REQUIRE(cuda.launch_graph(exec, streams[0]) == CUDA_SUCCESS);
    add_one(ones, sums[1], streams[1]);
  }
  CHECK(all_are(sums[0], 56.0F, streams[0]));
  CHECK(all_are(sums[1], 56.0F, streams[1]));
  cuda.destroy_exec(exec);
  cuda.destroy_graph(graph);
  for (CUstream stream : streams) CHECK(cuda.stream_destroy(stream) == CUDA_SUCCESS);
  for (float* memory : sums) device->free(memory);
  device->free(ones);
}

TEST_CASE("the timer tells a short kernel from a long one") {
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, spin_source());
  const auto timer = device->make_timer();
  const auto time = [&](long long cycles) {
    void* const params[] = {&cycles};
    device->launch(*kernel, {.grid = 1, .threads = 32}, params, nullptr);  // warm
    timer->start(nullptr);
    device->launch(*kernel, {.grid = 1, .threads = 32}, params, nullptr);
    timer->stop(nullptr);
    return timer->milliseconds();
  };
  const double brief = time(1'000);
  const double lengthy = time(20'000'000);
  MESSAGE("1e3 cycles: " << brief << " ms, 2e7 cycles: " << lengthy << " ms");
  CHECK(brief > 0);
  MESSAGE("SM clock: " << device->clock_mhz() << " MHz");
  CHECK(device->clock_mhz() > 100);
  CHECK(lengthy > 5.0);  // 20e6 cycles at 4 GHz
  CHECK(lengthy < 200.0);
}

TEST_CASE("a launch costs the host little") {
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, spin_source());
  long long cycles = 0;
  void* const params[] = {&cycles};
  const auto launch = [&] { device->launch(*kernel, {.grid = 1, .threads = 32}, params, nullptr); };
  for (int i = 0; i < 100; ++i) launch();
  device->synchronize(nullptr);
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) launch();
    best = std::min(
        best,
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 100);
    device->synchronize(nullptr);
  }
  MESSAGE("launch: " << best << " us");
}

TEST_CASE("errors name the kernel, the call and the way out") {
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, spin_source());
  long long cycles = 0;
  void* const params[] = {&cycles};
  const Error launch = error_of([&] {
    device->launch(*kernel, {.grid = 1, .threads = 4096}, params, nullptr);
    return 0;
  });
  MESSAGE(std::string(launch.what()));
  CHECK(launch.code() == ErrorCode::device);
  CHECK(contains(launch.message(), "launching spin (1 CTAs of 4096 threads"));

  const Error entry = error_of([&] {
    const Compiled compiled = compile(spin_source(), device->target());
    return device->load(
        {.entry = "missing", .ptx = compiled.ptx, .cubin = compiled.cubin, .shared_bytes = 0, .origins = {}});
  });
  MESSAGE(std::string(entry.what()));
  CHECK(contains(entry.message(), "loading missing from"));
  const Error garbage = error_of([&] {
    return device->load({.entry = "k", .ptx = "", .cubin = "not a cubin", .shared_bytes = 0, .origins = {}});
  });
  MESSAGE(std::string(garbage.what()));
  CHECK(contains(garbage.message(), "loading k from 11 bytes of cubin"));
  const Error ptx = error_of([&] {
    return device->load({.entry = "k",
                         .ptx = ".version 8.0\n.target sm_80\nnonsense\n",
                         .cubin = "",
                         .shared_bytes = 0,
                         .origins = {}});
  });
  MESSAGE(std::string(ptx.what()));
  CHECK(contains(ptx.message(), "which the driver compiles"));
  const Error shared = error_of([&] { return load(*device, spin_source(), 10 << 20); });
  MESSAGE(std::string(shared.what()));
  CHECK(contains(shared.message(), "bytes of dynamic shared memory"));
}

TEST_CASE("a tensor map is encoded, or refused with the field") {
  const auto device = open_cuda_device("cuda");
  if (device->target().capability < 90) return;
  void* memory = device->allocate(1 << 20);
  flashjit::runtime::TensorMapRequest request{.base = memory,
                                              .size = {64, 128, 2, 1, 1},
                                              .stride = {256, 128, 32768, 32768},
                                              .box = {64, 64, 2, 1, 1}};
  const auto map = device->encode(request);
  CHECK(std::any_of(map.opaque.begin(), map.opaque.end(), [](std::uint64_t word) { return word != 0; }));
  request.stride[0] = 24;
  CHECK(contains(error_of([&] { return device->encode(request); }).message(), "stride (bytes) is 24"));
  request.stride[0] = 256;
  request.box[1] = 512;
  CHECK(contains(error_of([&] { return device->encode(request); }).message(), "box is 512"));
  device->free(memory);
}

// Last, because the context is broken afterwards.
TEST_CASE("zz an illegal address is reported as what it is, and nothing crashes after it") {
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, flashjit::test::axpy());
  const auto timer = device->make_timer();
  void* memory = device->allocate(100);
  float a = 1.0F;
  float* nowhere = reinterpret_cast<float*>(0x10);
  int count = 1;
  void* const params[] = {&a, &nowhere, &nowhere, &count};
  device->launch(*kernel, {.grid = 1, .threads = 32}, params, nullptr);
  const Error error = error_of([&] {
    device->synchronize(nullptr);
    return 0;
  });
  MESSAGE(std::string(error.what()));
  CHECK(error.code() == ErrorCode::device);
  CHECK(contains(error.message(), "error 7"));
  CHECK(contains(error.hint(), "compute-sanitizer"));
  device->free(memory);
}

namespace {

// Runs before main: a machine without a GPU has nothing to test, and ctest shows the skip.
const bool skipped_without_gpu = [] {
  try {
    static_cast<void>(open_cuda_device("cuda"));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found || contains(error.message(), "NO_DEVICE")) {
      std::printf("skipped: no GPU (%s)\n", error.what());
      std::fflush(stdout);
      std::_Exit(77);
    }
    throw;
  }
  return true;
}();

}  // namespace

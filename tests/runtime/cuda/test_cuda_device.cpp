// The GPU as a Device: what it is, memory, launches, timing.
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/occupancy.hpp"
#include "tests/runtime/cuda/support.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("the device describes itself") {
  const auto device = open_cuda_device("cuda");
  MESSAGE(device->name() << ": " << device->description() << ", " << device->target().arch);
  CHECK(device->name() == "cuda:0");
  CHECK(contains(device->description(), ", driver "));
  const Target table = target_of(device->target().arch);
  CHECK(device->target().capability == table.capability);
  CHECK(device->target().shared_per_cta == table.shared_per_cta);
  CHECK(device->target().shared_per_sm == table.shared_per_sm);
  CHECK(device->target().shared_reserved == table.shared_reserved);
  CHECK(device->target().registers_per_sm == table.registers_per_sm);
  CHECK(device->target().threads_per_sm == table.threads_per_sm);
  CHECK(device->target().ctas_per_sm == table.ctas_per_sm);
  MESSAGE("SMs " << device->target().sm_count << ", L2 " << device->target().l2_bytes);
  const auto status = runtime::cuda_status();
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
  CHECK(device->release(memory));
  CHECK_FALSE(device->release(memory));
  CHECK_FALSE(device->release(host.data()));
  CHECK(device->release(nullptr));
  device->free(host.data());  // nobody to tell
  device->free(device->allocate(0));
  REQUIRE(cuda.current(&current) == CUDA_SUCCESS);
  CHECK(current == nullptr);
}

TEST_CASE("free gives the memory back") {
  const auto device = open_cuda_device("cuda");
  const std::size_t most = runtime::cuda_status().gpus.front().memory / 3 * 2;
  for (int round = 0; round < 4; ++round) device->free(device->allocate(most));  // two at once do not fit
}

TEST_CASE("a compiled kernel runs, from its cubin and from its PTX") {
  const auto device = open_cuda_device("cuda");
  const KernelSource source = axpy();
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
  const KernelSource source = source_of(
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
          runtime::occupancy(device->target(), compiled.resources.registers, threads, shared).ctas;
      const int driver = device->occupancy(*kernel, threads, shared);
      CAPTURE(threads);
      CAPTURE(shared);
      CHECK(ours == driver);
      ++checked;
    }
  }
  MESSAGE(checked << " occupancies compared, " << compiled.resources.registers << " registers");
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

}  // namespace
}  // namespace flashjit::test

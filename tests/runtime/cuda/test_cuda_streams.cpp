// Launches in streams and in graphs, and the memory that goes with them.
#include <algorithm>
#include <thread>
#include <vector>

#include "tests/runtime/cuda/support.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("a launch is capturable, a graph replays it, and loading elsewhere does not break the capture") {
  const CurrentContext scope;
  const Cuda& cuda = scope.cuda;
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, axpy());
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

TEST_CASE("the default stream counts as captured while one that waits for it is; asking spoils nothing") {
  const CurrentContext scope;
  const Cuda& cuda = scope.cuda;
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, axpy());
  Axpy axpy(*device, *kernel, 5000);
  CUstream stream = nullptr;
  REQUIRE(cuda.stream_create(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  CHECK_FALSE(device->capturing(nullptr));
  REQUIRE(cuda.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  axpy.launch(stream);
  CHECK(device->capturing(nullptr));
  CUgraph graph = nullptr;
  REQUIRE(cuda.end_capture(stream, &graph) == CUDA_SUCCESS);
  REQUIRE(graph != nullptr);
  CHECK_FALSE(device->capturing(nullptr));
  cuda.destroy_graph(graph);
  CHECK(cuda.stream_destroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("memory is cleared beside a capture of this thread's own, in whatever stream") {
  const CurrentContext scope;
  const Cuda& cuda = scope.cuda;
  const auto device = open_cuda_device("cuda");
  CUstream made = nullptr;
  REQUIRE(cuda.stream_create(&made, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  for (CUstream stream : {made, CU_STREAM_PER_THREAD}) {
    std::uint32_t zeros = 1;
    void* memory = device->allocate(sizeof zeros);
    device->fill(memory, 0xff, sizeof zeros, nullptr);
    device->synchronize(nullptr);
    REQUIRE(cuda.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    device->clear(memory, sizeof zeros);
    CUgraph graph = nullptr;
    CHECK(cuda.end_capture(stream, &graph) == CUDA_SUCCESS);
    device->copy_to_host(&zeros, memory, sizeof zeros, nullptr);
    CHECK(zeros == 0);
    device->free(memory);
    cuda.destroy_graph(graph);
  }
  CHECK(cuda.stream_destroy(made) == CUDA_SUCCESS);
}

TEST_CASE("two streams, many threads, each with its own result") {
  const CurrentContext scope;
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, axpy());
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
  const auto kernel = load(*device, axpy());
  int count = 1 << 20;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  // y += 1, by way of ordered memory that holds ones while it is held and is spoilt before it goes.
  const auto add_one = [&](float* ones, float* y, Stream stream) {
    void* scratch = device->allocate_ordered(bytes, stream);
    float one = 1;
    void* const to_scratch[] = {&one, &ones, &scratch, &count};
    void* const to_y[] = {&one, &scratch, &y, &count};
    const runtime::Launch launch{.grid = static_cast<std::uint32_t>(count / 256), .threads = 256};
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

TEST_CASE("ordered memory comes and goes beside another thread's capture, and so does the pool") {
  const CurrentContext scope;
  const Cuda& cuda = scope.cuda;
  CUstream captured = nullptr, other = nullptr;
  REQUIRE(cuda.stream_create(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuda.stream_create(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  auto device = open_cuda_device("cuda");
  REQUIRE(cuda.begin_capture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  std::thread([&] {
    device->free_ordered(device->allocate_ordered(1 << 20, other), other);
    device.reset();
  }).join();
  CUgraph graph = nullptr;
  CHECK(cuda.end_capture(captured, &graph) == CUDA_SUCCESS);
  cuda.destroy_graph(graph);
  CHECK(cuda.stream_destroy(captured) == CUDA_SUCCESS);
  CHECK(cuda.stream_destroy(other) == CUDA_SUCCESS);
}

}  // namespace
}  // namespace flashjit::test

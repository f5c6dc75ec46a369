// What a GPU refuses, in words. A program of its own: the last case leaves the context broken.
#include <algorithm>
#include <string>

#include "tests/runtime/cuda/support.hpp"

namespace flashjit::test {
namespace {

// Of a load whose image is at fault, so that another one may be built; any other error goes on.
template <typename Load>
Error refusal_of(Load&& load) {
  try {
    static_cast<void>(load());
  } catch (const runtime::ImageRefused& refused) {
    return refused;
  }
  FAIL("it was loaded");
  return {ErrorCode::internal, ""};
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

  const Error entry = refusal_of([&] {
    const Compiled compiled = compile(spin_source(), device->target());
    return device->load(
        {.entry = "missing", .ptx = compiled.ptx, .cubin = compiled.cubin, .shared_bytes = 0, .origins = {}});
  });
  MESSAGE(std::string(entry.what()));
  CHECK(contains(entry.message(), "loading missing from"));
  const Error garbage = refusal_of([&] {
    return device->load({.entry = "k", .ptx = "", .cubin = "not a cubin", .shared_bytes = 0, .origins = {}});
  });
  MESSAGE(std::string(garbage.what()));
  CHECK(contains(garbage.message(), "loading k from 11 bytes of cubin"));
  const Error ptx = refusal_of([&] {
    return device->load({.entry = "k",
                         .ptx = ".version 8.0\n.target sm_80\nnonsense\n",
                         .cubin = "",
                         .shared_bytes = 0,
                         .origins = {}});
  });
  MESSAGE(std::string(ptx.what()));
  CHECK(contains(ptx.message(), "which the driver compiles"));
  const Error shared =  // which no other image would escape
      error_of([&] { return refusal_of([&] { return load(*device, spin_source(), 10 << 20); }); });
  MESSAGE(std::string(shared.what()));
  CHECK(contains(shared.message(), "bytes of dynamic shared memory"));
}

TEST_CASE("a tensor map is encoded, or refused with the field") {
  const auto device = open_cuda_device("cuda");
  if (device->target().capability < 90) return;
  void* memory = device->allocate(1 << 20);
  runtime::TensorMapRequest request{.base = memory,
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

TEST_CASE("an illegal address is reported as what it is, and nothing crashes after it") {
  const auto device = open_cuda_device("cuda");
  const auto kernel = load(*device, axpy());
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

}  // namespace
}  // namespace flashjit::test

// A cubin's ELF against what ptxas's log said of the same kernel; and what broken files do.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "runtime/compile.hpp"
#include "runtime/cubin.hpp"
#include "tests/runtime/cubin_figures.hpp"
#include "tests/runtime/sources.hpp"

using flashjit::target_of;
using flashjit::runtime::Compiled;
using flashjit::runtime::load_nvrtc;
using flashjit::runtime::read_cubin;
using flashjit::test::CubinFigures;
using flashjit::test::figures_of;

namespace {

// Uses barriers, static shared memory and a stack.
flashjit::KernelSource busy() {
  return flashjit::test::source_of("busy",
                                   "extern \"C\" __global__ void busy(float* x, int i) {\n"
                                   "  __shared__ float s[256];\n"
                                   "  float local[40];\n"
                                   "  for (int j = 0; j < 40; ++j) local[(j * i) % 40] = x[j];\n"
                                   "  s[threadIdx.x] = local[i];\n"
                                   "  __syncthreads();\n"
                                   "  asm volatile(\"bar.sync 3, 64;\");\n"
                                   "  x[threadIdx.x] = s[255 - threadIdx.x];\n"
                                   "}\n");
}

}  // namespace

TEST_CASE("the ELF says what ptxas said, on every arch") {
  const auto compiler = load_nvrtc();
  for (const std::string& arch : compiler->archs()) {
    if (!flashjit::test::is_target(arch)) continue;
    CAPTURE(arch);
    const Compiled compiled = compiler->compile(busy(), target_of(arch), std::chrono::milliseconds(0));
    CAPTURE(compiled.log);
    const auto kernels = read_cubin(compiled.cubin);
    REQUIRE(kernels.has_value());
    REQUIRE(kernels->size() == 1);
    CHECK(kernels->front().name == "busy");
    CHECK(kernels->front().code_bytes == compiled.resources.code_bytes);
    CHECK(kernels->front().code_bytes % 128 == 0);
    const CubinFigures figures = figures_of(compiled.cubin)["busy"];
    CHECK(figures.registers == compiled.resources.registers);
    CHECK(figures.barriers == compiled.resources.barriers);
    CHECK(figures.stack == compiled.resources.stack);
    CHECK(figures.stack == 160);
    CHECK(figures.shared_bytes == compiled.resources.shared_bytes);
  }
}

TEST_CASE("a kernel with none of it has none of it") {
  for (const char* arch : {"sm_75", "sm_86", "sm_90a", "sm_120"}) {
    CAPTURE(arch);
    const Compiled compiled =
        load_nvrtc()->compile(flashjit::test::axpy(), target_of(arch), std::chrono::milliseconds(0));
    const auto kernels = figures_of(compiled.cubin);
    REQUIRE(kernels.size() == 1);
    const CubinFigures& figures = kernels.begin()->second;
    CHECK(figures.registers == compiled.resources.registers);
    CHECK(figures.barriers == 0);
    CHECK(figures.shared_bytes == 0);
    CHECK(figures.stack == 0);
  }
}

TEST_CASE("a truncated cubin is none, or says the same") {
  const Compiled compiled = load_nvrtc()->compile(busy(), target_of("sm_90a"), std::chrono::milliseconds(0));
  const std::string& whole = compiled.cubin;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);  // a copy, so that AddressSanitizer sees its end
    if (const auto kernels = read_cubin(cut)) {
      REQUIRE(kernels->size() == 1);
      CHECK(kernels->front().code_bytes == compiled.resources.code_bytes);
    }
  }
}

TEST_CASE("flipped bytes do no harm") {
  const Compiled compiled = load_nvrtc()->compile(busy(), target_of("sm_80"), std::chrono::milliseconds(0));
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = compiled.cubin;
    for (int flips = 0; flips < 4; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    static_cast<void>(read_cubin(bytes));  // any answer will do
  }
}

TEST_CASE("what is no 64-bit little-endian ELF file is none") {
  CHECK_FALSE(read_cubin("").has_value());
  CHECK_FALSE(read_cubin("\177ELF").has_value());
  CHECK_FALSE(read_cubin(std::string(4096, '\0')).has_value());
  CHECK_FALSE(read_cubin(".version 9.0\n.target sm_90a\n").has_value());
}

// Small kernels for the runtime's tests.
#pragma once

#include <fmt/format.h>

#include <string>

#include "flashjit/error.hpp"
#include "flashjit/target.hpp"
#include "generator/render.hpp"

namespace flashjit::test {

inline KernelSource source_of(std::string entry, std::string text) {
  KernelSource source;
  source.entry = std::move(entry);
  source.text = std::move(text);
  return source;
}

// Is it a target of flashjit's? An NVRTC before 13.0 makes code for older archs, too.
inline bool is_target(const std::string& arch) {
  try {
    return !target_of(arch).arch.empty();
  } catch (const Error&) {
    return false;
  }
}

// y[i] = a * x[i] + y[i]
inline KernelSource axpy() {
  return source_of("axpy",
                   "// problem: axpy\n"
                   "extern \"C\" __global__ void axpy(float a, const float* x, float* y, int n) {\n"
                   "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                   "  if (i < n) y[i] = a * x[i] + y[i];\n"
                   "}\n");
}

// Compiles for several seconds: a long chain of dependent, branching arithmetic.
inline KernelSource slow_to_compile() {
  std::string text = "extern \"C\" __global__ void slow(float* y) {\n  float a = y[0], b = y[1];\n";
  for (int i = 0; i < 20000; ++i)
    text += fmt::format("  if (a > {}.f) b = a * b + y[{}]; else a = b - y[{}];\n", i, i, i + 1);
  return source_of("slow", text + "  y[0] = a + b;\n}\n");
}

}  // namespace flashjit::test

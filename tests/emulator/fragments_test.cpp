// Layouts of matrix fragments, and products; what guards leave out.
#include <doctest/doctest.h>

#include <bit>

#include "emulator/exec/half.hpp"
#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

namespace {

// Writes 32 rows of 16 bytes: element e of row r is 8 r + e.
constexpr const char* kFill = R"(
shl.b32 %r1, %r30, 4;
add.s32 %r2, %r29, %r1;
shl.b32 %r3, %r30, 3;
mad.lo.s32 %r4, %r3, 0x10001, 0x00010000;
add.s32 %r5, %r4, 0x00020002;
add.s32 %r6, %r4, 0x00040004;
add.s32 %r7, %r4, 0x00060006;
st.shared.v4.u32 [%r2], {%r4, %r5, %r6, %r7};
bar.sync 0;
)";
constexpr const char* kStoreFour = R"(
mul.wide.u32 %d1, %r30, 16;
add.s64 %d1, %d31, %d1;
st.global.v4.u32 [%d1], {%r10, %r11, %r12, %r13};
)";

std::uint16_t half_of(const std::vector<std::uint32_t>& words, std::size_t lane, std::size_t reg,
                      std::size_t half) {
  return static_cast<std::uint16_t>(words[lane * 4 + reg] >> (16 * half));
}

}  // namespace

TEST_CASE("ldmatrix: lane 4r + c holds the c-th pair of row r; transposed, of column r") {
  for (bool transposed : {false, true}) {
    Bench bench({.shared = 512});
    const std::string body =
        fmt::format("{}ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r2];\n{}",
                    kFill, transposed ? ".trans" : "", kStoreFour);
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 128);
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t matrix = 0; matrix < 4; ++matrix) {
        for (std::size_t half = 0; half < 2; ++half) {
          const std::size_t row = lane / 4, column = 2 * (lane % 4) + half;
          const std::size_t expected =
              transposed ? 8 * (8 * matrix + column) + row : 8 * (8 * matrix + row) + column;
          CHECK(half_of(out, lane, matrix, half) == expected);
        }
      }
    }
  }
}

TEST_CASE("stmatrix undoes ldmatrix, transposed or not") {
  for (const char* kind : {"", ".trans"}) {
    Bench bench({.shared = 1024});
    const std::string body = fmt::format(
        "{}ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r2];\n"
        "stmatrix.sync.aligned.m8n8.x4{}.shared.b16 [%r2+512], {{%r10, %r11, %r12, %r13}};\nbar.sync 0;\n"
        "ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r2+512];\n{}",
        kFill, kind, kind, kStoreFour);
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 128);
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t e = 0; e < 8; ++e) CHECK(half_of(out, lane, e / 2, e % 2) == 8 * lane + e);
    }
  }
}

TEST_CASE("mma.sync against a plain product, in both shapes and types") {
  auto value = [](int seed, int r, int c) {
    return static_cast<float>((r * 5 + c * 3 + seed) % 9 - 4) * 0.5f;
  };
  for (int depth : {8, 16}) {
    for (bool half : {false, true}) {
      CAPTURE(depth);
      CAPTURE(half);
      auto narrow = [&](float x) { return half ? half_of_float(x) : bf16_of_float(x); };
      auto pair = [&](float low, float high) { return narrow(low) | narrow(high) << 16; };
      // Each lane's registers: 4 of A, 2 of B, 2 not used.
      std::vector<std::uint32_t> in(std::size_t{32} * 8);
      for (int lane = 0; lane < 32; ++lane) {
        std::uint32_t* registers = &in[static_cast<std::size_t>(lane) * 8];
        const int g = lane / 4, t = lane % 4;
        for (int reg = 0; reg < 4; ++reg) {
          const int row = g + 8 * (reg & 1), k = 2 * t + 8 * (reg >> 1);
          registers[reg] = pair(value(1, row, k), value(1, row, k + 1));
        }
        for (int reg = 0; reg < 2; ++reg) {
          const int k = 2 * t + 8 * reg;
          registers[4 + reg] = pair(value(2, k, g), value(2, k + 1, g));
        }
      }
      const char* type = half ? "f16" : "bf16";
      const std::string operands =
          depth == 16 ? "{%r10, %r11, %r12, %r13}, {%r14, %r15}" : "{%r10, %r11}, {%r14}";
      const std::string product = fmt::format(
          "mma.sync.aligned.m16n8k{0}.row.col.f32.{1}.{1}.f32 {{%f0, %f1, %f2, %f3}}, {2}, {{%f0, %f1, %f2, "
          "%f3}};\n",
          depth, type, operands);
      const std::string body = fmt::format(
          "mul.wide.u32 %d1, %r30, 32;\nadd.s64 %d1, %d30, %d1;\nld.global.v4.u32 {{%r10, %r11, %r12, "
          "%r13}}, [%d1];\n"
          "ld.global.v4.u32 {{%r14, %r15, %r16, %r17}}, [%d1+16];\nmov.f32 %f0, 0f3f800000;\nmov.f32 %f1, "
          "0f3f800000;\nmov.f32 %f2, 0f3f800000;\n"
          "mov.f32 %f3, 0f3f800000;\n{0}{0}mul.wide.u32 %d1, %r30, 16;\nadd.s64 %d1, %d31, "
          "%d1;\nst.global.v4.f32 [%d1], {{%f0, %f1, %f2, %f3}};\n",
          product);
      Bench bench;
      const std::vector<std::uint32_t> out = bench.run(kernel_text(body), in, 128);
      for (int lane = 0; lane < 32; ++lane) {
        for (int e = 0; e < 4; ++e) {
          const int row = lane / 4 + 8 * (e >> 1), column = 2 * (lane % 4) + (e & 1);
          float expected = 0;
          for (int k = 0; k < depth; ++k) expected += value(1, row, k) * value(2, k, column);
          CHECK(std::bit_cast<float>(out[static_cast<std::size_t>(lane * 4 + e)]) == 1.0f + 2.0f * expected);
        }
      }
    }
  }
}

TEST_CASE("what a false guard leaves out neither moves nor looks at its addresses") {
  Bench bench({.shared = 1024});
  const std::string body = fmt::format(
      "{}setp.ne.u32 %p1, 0, 0;\nmov.u32 %r10, 7;\nmov.u32 %r11, 8;\nmov.u32 %r12, 9;\nmov.u32 %r13, 10;\n"
      "mov.u32 %r20, 1;\n"  // nowhere, and unaligned
      "@%p1 stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r20], {{%r10, %r11, %r12, %r13}};\n"
      "@%p1 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r20];\n"
      "@%p1 movmatrix.sync.aligned.m8n8.trans.b16 %r13, %r2;\n{}",
      kFill, kStoreFour);
  const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 128);
  for (std::uint32_t k = 0; k < 128; ++k) CHECK(out[k] == 7 + k % 4);
}

TEST_CASE("mma: A is read anew after a product that did not run") {
  Bench bench;
  const std::string one =
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r10, %r10, "
      "%r10}, {%r11, %r11}, {%f4, %f4, %f4, %f4};\n";
  std::string other = one;
  for (std::size_t at = 0; (at = other.find("%r10", at)) != std::string::npos;) other.replace(at, 4, "%r12");
  const std::string body =
      "mov.u32 %r10, 0x3c003c00;\nmov.u32 %r12, 0x40004000;\nmov.u32 %r11, 0x3c003c00;\nmov.f32 %f4, "
      "0f00000000;\nsetp.ne.u32 %p1, 0, 0;\n" +
      one + "@%p1 " + other + other +
      "cvt.rzi.u32.f32 %r13, %f0;\nmul.wide.u32 %d1, %r30, 4;\nadd.s64 %d1, %d31, %d1;\n"
      "st.global.u32 [%d1], %r13;\n";
  for (const std::uint32_t sum : bench.run(kernel_text(body), {0}, 32))
    CHECK(sum == 32);  // 16 times 2 times 1
}

TEST_CASE("mma: D has C's registers in another order, and an A of constants is not the A before") {
  Bench bench;
  const std::string body = R"(
mov.b32 %r1, 0;
mov.b32 %r2, 0x3f803f80;
mov.b32 %r3, 0x40004000;
mov.f32 %f0, 0f00000000;
mov.f32 %f1, 0f3f800000;
mov.f32 %f2, 0f40000000;
mov.f32 %f3, 0f40400000;
mov.f32 %f4, 0f40800000;
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f2, %f1, %f4, %f3};
st.global.v4.f32 [%d31], {%f1, %f2, %f3, %f4};
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r2, 0, %r3, 0}, {%r2, %r2}, {%f0, %f0, %f0, %f0};
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f5, %f6, %f7, %f8}, {0, %r2, 0, %r3}, {%r2, %r2}, {%f0, %f0, %f0, %f0};
st.global.v4.f32 [%d31+16], {%f1, %f2, %f3, %f4};
st.global.v4.f32 [%d31+32], {%f5, %f6, %f7, %f8};
)";
  const float expected[] = {2, 1, 4, 3, 24, 24, 0, 0, 0, 0, 24, 24};
  const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, std::size(expected));
  for (std::size_t k = 0; k < out.size(); ++k) CHECK(std::bit_cast<float>(out[k]) == expected[k]);
}

// Layouts of matrix fragments, lanes that look at each other, divergence, calls, atomics and counts.
#include <doctest/doctest.h>

#include <bit>
#include <numeric>

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

TEST_CASE("bar.red counts the threads that arrive, not those of the CTA") {
  Bench bench({.threads = 128});
  const std::string body =
      "setp.lt.u32 %p1, %r30, 64;\n@!%p1 bra done;\nbarrier.cta.red.and.aligned.pred %p2, 1, 64, %p1;\n"
      "selp.u32 %r1, 1, 0, %p2;\nmul.wide.u32 %d1, %r30, 4;\nadd.s64 %d1, %d31, %d1;\n"
      "st.global.u32 [%d1], %r1;\ndone:\n";
  for (const std::uint32_t all : bench.run(kernel_text(body), {0}, 64)) CHECK(all == 1);
}

TEST_CASE("shuffles: every mode, segments and the predicate of what was in range") {
  struct Mode {
    const char* text;
    std::uint32_t (*expected)(std::uint32_t lane);
  };
  const Mode modes[] = {
      {"shfl.sync.bfly.b32 %r10|%p1, %r30, 3, 0x1f, 0xffffffff;",
       [](std::uint32_t l) { return (l ^ 3) | 256; }},
      {"shfl.sync.up.b32 %r10|%p1, %r30, 4, 0, 0xffffffff;",
       [](std::uint32_t l) { return l < 4 ? l : (l - 4) | 256; }},
      {"shfl.sync.down.b32 %r10|%p1, %r30, 4, 0x1f, 0xffffffff;",
       [](std::uint32_t l) { return l > 27 ? l : (l + 4) | 256; }},
      {"shfl.sync.idx.b32 %r10|%p1, %r30, 2, 0x1807, 0xffffffff;",
       [](std::uint32_t l) { return ((l & 24) + 2) | 256; }},
      {"shfl.sync.bfly.b32 %r10|%p1, %r30, 16, 0x1007, 0xffffffff;",
       [](std::uint32_t l) { return l < 16 ? l : (l ^ 16) | 256; }},
  };
  for (const Mode& mode : modes) {
    CAPTURE(mode.text);
    Bench bench;
    const std::string body = fmt::format(
        "{}\nselp.b32 %r11, 256, 0, %p1;\nor.b32 %r10, %r10, %r11;\nmul.wide.u32 %d1, %r30, 4;\nadd.s64 %d1, "
        "%d31, %d1;\n"
        "st.global.u32 [%d1], %r10;\n",
        mode.text);
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 32);
    for (std::uint32_t lane = 0; lane < 32; ++lane) CHECK(out[lane] == mode.expected(lane));
  }
}

TEST_CASE("halves of a warp, each with a member mask of its own, meet at one instruction") {
  const std::string body = R"(
setp.lt.u32 %p1, %r30, 16;
selp.b32 %r1, 0x0000ffff, 0xffff0000, %p1;
add.s32 %r2, %r30, 100;
shfl.sync.bfly.b32 %r10, %r2, 1, 0x1f, %r1;
setp.eq.u32 %p2, %r30, 5;
vote.sync.any.pred %p3, %p2, %r1;
vote.sync.ballot.b32 %r11, %p1, %r1;
redux.sync.max.u32 %r12, %r30, %r1;
bar.warp.sync %r1;
selp.b32 %r13, 1, 0, %p3;
mul.wide.u32 %d1, %r30, 16;
add.s64 %d1, %d31, %d1;
st.global.v4.u32 [%d1], {%r10, %r11, %r12, %r13};
)";
  Bench bench;
  const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 128);
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const bool low = lane < 16;
    CHECK(out[4 * lane] == (lane ^ 1) + 100);
    CHECK(out[4 * lane + 1] == (low ? 0xffff : 0));
    CHECK(out[4 * lane + 2] == (low ? 15 : 31));
    CHECK(out[4 * lane + 3] == (low ? 1 : 0));
  }
}

TEST_CASE("lanes that diverge in nested branches and loops of different length meet again") {
  // r10 = sum of 1..lane, computed by a loop of `lane` rounds with a branch inside; then a shuffle needs
  // everybody.
  const std::string body = R"(
mov.b32 %r10, 0;
mov.b32 %r11, 0;
LOOP:
setp.ge.u32 %p1, %r11, %r30;
@%p1 bra DONE;
add.s32 %r11, %r11, 1;
and.b32 %r12, %r11, 1;
setp.eq.s32 %p2, %r12, 0;
@%p2 bra EVEN;
add.s32 %r10, %r10, %r11;
bra NEXT;
EVEN:
add.s32 %r10, %r10, %r11;
NEXT:
bra LOOP;
DONE:
shfl.sync.bfly.b32 %r10, %r10, 0, 0x1f, 0xffffffff;
mul.wide.u32 %d1, %r30, 4;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r10;
)";
  Bench bench;
  const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 32);
  for (std::uint32_t lane = 0; lane < 32; ++lane) CHECK(out[lane] == lane * (lane + 1) / 2);
}

TEST_CASE("an indexed branch, and a function with parameters and a result") {
  const std::string outer = R"(
.func (.param .b32 result) twice_plus(.param .b32 a, .param .b32 b)
{
.reg .b32 %x<4>;
.reg .pred %y<2>;
ld.param.b32 %x0, [a];
ld.param.b32 %x1, [b];
setp.gt.s32 %y0, %x0, 100;
@%y0 bra BIG;
add.s32 %x2, %x0, %x0;
add.s32 %x2, %x2, %x1;
st.param.b32 [result], %x2;
ret;
BIG:
st.param.b32 [result], 7;
ret;
}
)";
  const std::string body = R"(
and.b32 %r1, %r30, 3;
TABLE: .branchtargets A, B, C, D;
brx.idx %r1, TABLE;
A: mov.b32 %r10, 10; bra MEET;
B: mov.b32 %r10, 20; bra MEET;
C: mov.b32 %r10, 30; bra MEET;
D: mov.b32 %r10, 140;
MEET:
{
.param .b32 param0;
.param .b32 param1;
.param .b32 retval0;
st.param.b32 [param0], %r10;
st.param.b32 [param1], %r30;
call.uni (retval0), twice_plus, (param0, param1);
ld.param.b32 %r10, [retval0];
}
mul.wide.u32 %d1, %r30, 4;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r10;
)";
  Bench bench;
  const std::vector<std::uint32_t> out = bench.run(kernel_text(body, "sm_90a", outer), {0}, 32);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t chosen[] = {10, 20, 30, 140};
    const std::uint32_t x = chosen[lane & 3];
    CHECK(out[lane] == (x > 100 ? 7 : 2 * x + lane));
  }
}

TEST_CASE("atomics on global and shared memory add up, over CTAs on several threads") {
  const std::string body = R"(
setp.eq.s32 %p1, %r30, 0;
@%p1 st.shared.u32 [%r29], 0;
bar.sync 0;
atom.shared.add.u32 %r10, [%r29], 1;
bar.sync 0;
@!%p1 bra DONE;
ld.shared.u32 %r11, [%r29];
red.global.add.u32 [%d30], %r11;
atom.global.max.u32 %r12, [%d30+4], %r11;
red.global.add.f32 [%d30+8], 0f3f800000;
DONE:
)";
  auto device = open_emulated_device({.arch = "sm_80", .threads = 2});
  auto kernel = device->load({.entry = "test", .ptx = kernel_text(body, "sm_80"), .cubin = {}});
  void* counters = device->allocate(16);
  void* out = device->allocate(16);
  device->fill(counters, 0, 16, nullptr);
  void* params[] = {&counters, &out};
  device->launch(*kernel, {.grid = 50, .threads = 96, .shared_bytes = 16}, params, nullptr);
  std::uint32_t got[3];
  device->copy_to_host(got, counters, sizeof got, nullptr);
  CHECK(got[0] == 50 * 96);
  CHECK(got[1] == 96);
  CHECK(std::bit_cast<float>(got[2]) == 50.0f);
}

TEST_CASE("counts: instructions by class, bytes, and bank conflicts by access") {
  const std::string body = R"(
shl.b32 %r1, %r30, 7;
add.s32 %r1, %r29, %r1;
st.shared.u32 [%r1], %r30;
shl.b32 %r2, %r30, 2;
add.s32 %r2, %r29, %r2;
st.shared.u32 [%r2], %r30;
mul.wide.u32 %d1, %r30, 4;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r30;
add.f32 %f1, %f2, %f3;
)";
  Bench bench({.grid = 3, .threads = 32, .shared = 4096, .counts = true});
  bench.run(kernel_text(body), {0}, 32);
  const Profile profile = bench.device().profile();
  CHECK(profile.ctas == 3);
  CHECK(profile.global_bytes_written == 3 * 128);
  CHECK(profile.count(OpClass::fp32) == 3);
  CHECK(profile.count(OpClass::shared) == 6);
  CHECK(profile.shared_transactions == 3 * (32 + 1));
  CHECK(profile.bank_conflicts == 3 * 31);
  CHECK(profile.table().find("bank conflicts") != std::string::npos);
  CHECK(profile.json().find("\"bank_conflicts\": 93") != std::string::npos);
  bench.device().clear_profile();
  CHECK(bench.device().profile().instructions == 0);
}

TEST_CASE("the same seed interleaves warps the same way, another seed differently") {
  // The order in which warps take tickets.
  const std::string body = R"(
and.b32 %r1, %r30, 31;
setp.ne.s32 %p1, %r1, 0;
mov.b32 %r2, 0;
SPIN: add.s32 %r2, %r2, 1;
setp.lt.s32 %p2, %r2, 300;
@%p2 bra SPIN;
@%p1 bra DONE;
atom.global.add.u32 %r3, [%d30], 1;
mul.wide.u32 %d1, %r28, 4;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r3;
DONE:
)";
  auto order = [&](std::uint64_t seed) {
    Bench bench({.threads = 512, .seed = seed});
    return bench.run(kernel_text(body), {0}, 16);
  };
  CHECK(order(1) == order(1));
  CHECK((order(1) != order(2) || order(1) != order(3)));
}

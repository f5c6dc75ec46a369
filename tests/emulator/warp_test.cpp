// What lanes, warps and CTAs do together: shuffles and votes, divergence, calls, atomics; and what is
// counted.
#include <doctest/doctest.h>

#include <bit>

#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

TEST_CASE("bar.red counts the threads that arrive, not those of the CTA") {
  Bench bench({.threads = 128});
  const std::string body =
      "setp.lt.u32 %p1, %r30, 64;\n@!%p1 bra done;\nbarrier.cta.red.and.aligned.pred %p2, 1, 64, %p1;\n"
      "selp.u32 %r1, 1, 0, %p2;\nmul.wide.u32 %d1, %r30, 4;\nadd.s64 %d1, %d31, %d1;\n"
      "st.global.u32 [%d1], %r1;\ndone:\n";
  for (const std::uint32_t all : bench.run(kernel_text(body), {0}, 64)) CHECK(all == 1);
}

TEST_CASE("bar.red gives a warp the result of its own use of the barrier, however late the warp goes on") {
  // Warps 2 and 3 use the barrier again, with no votes, as soon as warps 0 and 1 may go on.
  const std::string body = R"(
setp.ge.u32 %p3, %r28, 2;
@%p3 bra NEXT;
setp.eq.u32 %p1, %r30, %r30;
bar.red.or.pred %p2, 1, 64, %p1;
setp.eq.u32 %p4, %r28, 1;
@%p4 bar.arrive 2, 96;
bra DONE;
NEXT:
bar.sync 2, 96;
setp.ne.u32 %p1, %r30, %r30;
bar.red.or.pred %p2, 1, 64, %p1;
DONE:
selp.u32 %r4, 1, 0, %p2;
mul.wide.u32 %d1, %r30, 4;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r4;
)";
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    CAPTURE(seed);
    Bench bench({.threads = 128, .seed = seed});
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 128);
    for (std::uint32_t thread = 0; thread < 128; ++thread) CHECK(out[thread] == (thread < 64 ? 1 : 0));
  }
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

TEST_CASE("a variable of an inner block hides the outer one, and no more") {
  const std::string body = R"(
{
.local .align 4 .b8 buf[4];
st.local.u32 [buf], 1;
{
.local .align 4 .b8 buf[4];
st.local.u32 [buf], 2;
ld.local.u32 %r1, [buf];
}
ld.local.u32 %r2, [buf];
st.global.v2.u32 [%d31], {%r1, %r2};
}
)";
  Bench bench;
  CHECK(bench.run(kernel_text(body), {0}, 2) == std::vector<std::uint32_t>{2, 1});
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

TEST_CASE("an atomic's results may go to the registers of its values") {
  const std::string body = R"(
mov.f32 %f1, 0f3f800000;
mov.f32 %f2, 0f40000000;
st.global.v2.f32 [%d31], {0f41000000, 0f41000000};
atom.global.add.v2.f32 {%f2, %f1}, [%d31], {%f1, %f2};
)";
  Bench bench({.threads = 1});
  const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 2);
  CHECK(std::bit_cast<float>(out[0]) == 9);
  CHECK(std::bit_cast<float>(out[1]) == 10);
}

TEST_CASE("sums of floats have no subnormal numbers in global memory, and have them in shared memory") {
  const std::string body = R"(
ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d30];
st.global.v4.u32 [%d31], {%r1, %r1, %r1, %r3};
st.global.v4.u32 [%d31+16], {%r1, %r1, %r3, %r1};
st.shared.u32 [%r29], %r1;
mov.b32 %f1, %r2;
mov.b32 %f2, %r4;
red.global.add.f32 [%d31], %f1;
atom.add.f32 %f3, [%d31+4], %f1;
atom.global.add.f32 %f4, [%d31+12], %f2;
red.global.add.v4.f32 [%d31+16], {%f1, %f1, %f2, %f2};
atom.global.exch.b32 %r5, [%d31+8], %r2;
atom.shared.add.f32 %f5, [%r29], %f1;
ld.shared.u32 %r6, [%r29];
st.global.u32 [%d31+32], %r6;
)";
  constexpr std::uint32_t kLeast = 0x00800000, kNegative = 0x80000000;  // the smallest normal number
  Bench bench({.threads = 1, .shared = 16});
  const std::vector<std::uint32_t> got =
      bench.run(kernel_text(body), {0x00000003, 0x00000005, kLeast, kNegative | (kLeast + 1)}, 9);
  CHECK(got[0] == 0);          // both are flushed
  CHECK(got[1] == 0);          // by a generic address, too
  CHECK(got[2] == 5);          // is no sum
  CHECK(got[3] == kNegative);  // the result is flushed and keeps its sign
  CHECK(got[4] == 0);
  CHECK(got[6] == kNegative);
  CHECK(got[7] == (kNegative | (kLeast + 1)));  // one is flushed
  CHECK(got[8] == 8);
}

TEST_CASE("counts: instructions by class, bytes, and bank conflicts by access") {
  const std::string body = R"(
shl.b32 %r1, %r30, 7;
add.s32 %r1, %r29, %r1;
st.shared.u32 [%r1], %r30;
shl.b32 %r2, %r30, 2;
add.s32 %r2, %r29, %r2;
st.shared.u32 [%r2], %r30;
mov.u32 %r3, %ctaid.x;
mad.lo.u32 %r3, %r3, 32, %r30;
mul.wide.u32 %d1, %r3, 4;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r30;
add.f32 %f1, %f2, %f3;
)";
  Bench bench({.grid = 3, .threads = 32, .shared = 4096, .counts = true});
  bench.run(kernel_text(body), {0}, 3 * 32);
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

TEST_CASE("%clock_hi is the high word of %clock64") {
  const std::string body = R"(
mov.b32 %r1, 0;
LOOP: add.s32 %r1, %r1, 1;
setp.lt.s32 %p1, %r1, 2000;
@%p1 bra LOOP;
mov.u32 %r2, %clock_hi;
st.global.u32 [%d31], %r2;
)";
  Bench bench({.threads = 1});
  CHECK(bench.run(kernel_text(body), {0}, 1).front() == 0);
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

#include "tests/emulator/instruction_rows.hpp"

#include <bit>

namespace flashjit::emulator::tests {
namespace {

constexpr std::uint64_t kNan = 0x7fc00000, kInf = 0x7f800000, kOne = 0x3f800000, kTiny = 0x00000001,
                        kMinusZero = 0x80000000, kNan64 = 0x7ff8000000000000;
constexpr std::uint64_t f(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
std::uint64_t d(double x) {
  return std::bit_cast<std::uint64_t>(x);
}

// The letter of register 4.
char result_class(const std::string& text) {
  for (std::size_t k = text.find('%'); k != std::string::npos; k = text.find('%', k + 1)) {
    if (text[k + 2] == '4' && (text[k + 3] < '0' || text[k + 3] > '9')) return text[k + 1];
  }
  return 'r';
}

}  // namespace

const std::vector<InstructionRow>& instruction_rows() {
  static const std::vector<InstructionRow> table = {
      // Integers.
      {"add.s32 %r4, %r1, %r2;", 0x7fffffff, 1, 0, 0x80000000},
      {"add.s64 %d4, %d1, %d2;", ~0ull, 2, 0, 1},
      {"add.u16 %h4, %h1, %h2;", 0xffff, 2, 0, 1},
      {"add.sat.s32 %r4, %r1, %r2;", 0x7fffffff, 1, 0, 0x7fffffff},
      {"sub.s32 %r4, %r1, %r2;", 0, 1, 0, 0xffffffff},
      {"sub.s64 %d4, %d1, %d2;", 0, 1, 0, ~0ull},
      {"mul.lo.s32 %r4, %r1, %r2;", 0x10001, 0x10001, 0, 0x20001},
      {"mul.hi.s16 %h4, %h1, %h2;", 0xffff, 2, 0, 0xffff},
      {"mul.hi.u16 %h4, %h1, %h2;", 0xffff, 2, 0, 1},
      {"mul.hi.s32 %r4, %r1, %r2;", 0xffffffff, 2, 0, 0xffffffff},
      {"mul.hi.u32 %r4, %r1, %r2;", 0xffffffff, 2, 0, 1},
      {"mul.hi.u64 %d4, %d1, %d2;", ~0ull, ~0ull, 0, ~1ull},
      {"mul.wide.s32 %d4, %r1, %r2;", 0xffffffff, 5, 0, static_cast<std::uint64_t>(-5)},
      {"mul.wide.u32 %d4, %r1, %r2;", 0xffffffff, 5, 0, 0x4fffffffbull},
      {"mul.wide.u16 %r4, %h1, %h2;", 0xffff, 0xffff, 0, 0xfffe0001},
      {"mul.wide.s16 %r4, %h1, %h2;", 0xffff, 3, 0, 0xfffffffd},
      {"mad.lo.s32 %r4, %r1, %r2, %r3;", 7, 6, 1, 43},
      {"mad.hi.u16 %h4, %h1, %h2, %h3;", 0xffff, 2, 0xffff, 0},
      {"mad.hi.s16 %h4, %h1, %h2, %h3;", 0xffff, 2, 5, 4},
      {"mad.hi.u64 %d4, %d1, %d2, %d3;", ~0ull, ~0ull, 3, 1},
      {"mad.lo.s64 %d4, %d1, %d2, %d3;", 1ull << 32, 3, 1, 0x300000001ull},
      {"mad.wide.u32 %d4, %r1, %r2, %d3;", 0xffffffff, 2, 2, 0x200000000ull},
      {"div.s32 %r4, %r1, %r2;", 0xfffffff9, 2, 0, 0xfffffffd},
      {"div.s32 %r4, %r1, %r2;", 0x80000000, 0xffffffff, 0, 0x80000000},
      {"div.u32 %r4, %r1, %r2;", 7, 0, 0, 0xffffffff},
      {"rem.s32 %r4, %r1, %r2;", 0xfffffff9, 2, 0, 0xffffffff},
      {"rem.u64 %d4, %d1, %d2;", 1ull << 40, 7, 0, (1ull << 40) % 7},
      {"min.s32 %r4, %r1, %r2;", 0xffffffff, 1, 0, 0xffffffff},
      {"min.u32 %r4, %r1, %r2;", 0xffffffff, 1, 0, 1},
      {"max.s64 %d4, %d1, %d2;", ~0ull, 1, 0, 1},
      {"abs.s32 %r4, %r1;", 0x80000000, 0, 0, 0x80000000},
      {"neg.s32 %r4, %r1;", 5, 0, 0, 0xfffffffb},
      {"and.b32 %r4, %r1, %r2;", 0xff00ff00, 0x0ff00ff0, 0, 0x0f000f00},
      {"xor.b64 %d4, %d1, %d2;", ~0ull, 1, 0, ~1ull},
      {"not.b32 %r4, %r1;", 0, 0, 0, 0xffffffff},
      {"not.b16 %h4, %h1;", 0x00ff, 0, 0, 0xff00},
      {"cnot.b32 %r4, %r1;", 0, 0, 0, 1},
      {"shl.b32 %r4, %r1, %r2;", 1, 31, 0, 0x80000000},
      {"shl.b32 %r4, %r1, %r2;", 1, 32, 0, 0},
      {"shr.u32 %r4, %r1, %r2;", 0x80000000, 33, 0, 0},
      {"shr.s32 %r4, %r1, %r2;", 0x80000000, 100, 0, 0xffffffff},
      {"shr.s32 %r4, %r1, %r2;", 0x80000000, 4, 0, 0xf8000000},
      {"shl.b64 %d4, %d1, %r2;", 1, 63, 0, 1ull << 63},
      {"shl.b64 %d4, %d1, %r2;", 1, 64, 0, 0},
      {"shr.s64 %d4, %d1, %r2;", 1ull << 63, 70, 0, ~0ull},
      {"shf.l.wrap.b32 %r4, %r1, %r2, %r3;", 0x80000000, 0x1, 1, 3},
      {"shf.r.wrap.b32 %r4, %r1, %r2, %r3;", 0x80000000, 0x1, 4, 0x18000000},
      {"shf.r.clamp.b32 %r4, %r1, %r2, %r3;", 5, 9, 40, 9},
      {"popc.b32 %r4, %r1;", 0xf0f0, 0, 0, 8},
      {"popc.b64 %r4, %d1;", ~0ull, 0, 0, 64},
      {"clz.b32 %r4, %r1;", 0, 0, 0, 32},
      {"clz.b64 %r4, %d1;", 1, 0, 0, 63},
      {"bfind.u32 %r4, %r1;", 0x00010000, 0, 0, 16},
      {"bfind.s32 %r4, %r1;", 0xffffffff, 0, 0, 0xffffffff},
      {"bfind.shiftamt.u32 %r4, %r1;", 0x00010000, 0, 0, 15},
      {"brev.b32 %r4, %r1;", 1, 0, 0, 0x80000000},
      {"bfe.u32 %r4, %r1, %r2, %r3;", 0xabcd1234, 8, 8, 0x12},
      {"bfe.s32 %r4, %r1, %r2, %r3;", 0x0000f000, 12, 4, 0xffffffff},
      {"bfe.s32 %r4, %r1, %r2, %r3;", 0x80000000, 28, 16, 0xfffffff8},
      {"bfi.b32 %r4, %r1, %r2, 8, 8;", 0xff, 0, 0, 0xff00},
      {"bfi.b32 %r4, %r1, %r2, 0, 32;", 0x12345678, 0xffffffff, 0, 0x12345678},
      {"lop3.b32 %r4, %r1, %r2, %r3, 0x96;", 0xff00ff00, 0xf0f0f0f0, 0xcccccccc,
       0xff00ff00 ^ 0xf0f0f0f0 ^ 0xcccccccc},
      {"lop3.b32 %r4, %r1, %r2, %r3, 0xca;", 0xffff0000, 0x12345678, 0x9abcdef0, 0x1234def0},
      {"prmt.b32 %r4, %r1, %r2, 0x5410;", 0x33221100, 0x77665544, 0, 0x55441100},
      {"prmt.b32 %r4, %r1, %r2, 0x8888;", 0x00000080, 0, 0, 0xffffffff},
      {"selp.b32 %r4, %r1, %r2, %p1;", 1, 2, 0, 2},
      {"setp.lt.s32 %p4, %r1, %r2;", 0xffffffff, 0, 0, 1},
      {"setp.lt.u32 %p4, %r1, %r2;", 0xffffffff, 0, 0, 0},
      {"setp.hs.u32 %p4, %r1, %r2;", 5, 5, 0, 1},
      {"setp.eq.s64 %p4, %d1, %d2;", 1ull << 40, 0, 0, 0},
      {"setp.ge.s16 %p4, %h1, %h2;", 0xffff, 0, 0, 0},
      {"setp.ne.and.b32 %p4, %r1, %r2, !%p1;", 1, 2, 0, 1},
      {"set.lt.u32.s32 %r4, %r1, %r2;", 1, 2, 0, 0xffffffff},
      {"dp4a.s32.s32 %r4, %r1, %r2, %r3;", 0x01ff0203, 0x01010101, 10, 10 + 1 - 1 + 2 + 3},
      {"sad.s32 %r4, %r1, %r2, %r3;", 0xffffffff, 4, 1, 6},
      {"mov.b64 %d4, {%r1, %r2};", 1, 2, 0, 0x200000001ull},
      {"mov.b32 %r4, {%h1, %h2};", 0xaaaa, 0xbbbb, 0, 0xbbbbaaaa},
      {"mov.b32 {%h5, %h4}, %r1;", 0x12345678, 0, 0, 0x1234},
      // fp32.
      {"add.f32 %f4, %f1, %f2;", kTiny, kTiny, 0, 2},
      {"add.ftz.f32 %f4, %f1, %f2;", kTiny, kTiny, 0, 0},
      {"add.f32 %f4, %f1, 0d3FF0000018000000;", 0, 0, 0, kOne + 1},  // ptxas rounds it
      {"add.rz.f32 %f4, %f1, %f2;", kOne, f(0x1.fp-24f), 0, kOne},
      {"add.rp.f32 %f4, %f1, %f2;", kOne, kTiny, 0, kOne + 1},
      {"add.rm.f32 %f4, %f1, %f2;", kOne, 0x80000001, 0, kOne - 1},
      {"mul.f32 %f4, %f1, %f2;", f(3.0f), f(-2.0f), 0, f(-6.0f)},
      {"mul.ftz.f32 %f4, %f1, %f2;", 0x80000001, kOne, 0, kMinusZero},
      {"fma.rn.f32 %f4, %f1, %f2, %f3;", f(1.0f + 0x1p-12f), f(1.0f + 0x1p-12f), f(-1.0f),
       f(0x1p-11f + 0x1p-24f)},
      {"fma.rn.ftz.f32 %f4, %f1, %f2, %f3;", kTiny, kOne, kOne, kOne},
      {"fma.rn.sat.f32 %f4, %f1, %f2, %f3;", f(2.0f), f(2.0f), 0, kOne},
      {"max.f32 %f4, %f1, %f2;", kNan, f(-3.0f), 0, f(-3.0f)},
      {"max.f32 %f4, %f1, %f2;", f(-3.0f), kNan, 0, f(-3.0f)},
      {"max.f32 %f4, %f1, %f2;", kNan, kNan, 0, 0x7fffffff},
      {"max.f32 %f4, %f1, %f2;", kMinusZero, 0, 0, 0},
      {"min.f32 %f4, %f1, %f2;", 0, kMinusZero, 0, kMinusZero},
      {"max.NaN.f32 %f4, %f1, %f2;", kNan, kOne, 0, 0x7fffffff},
      {"neg.f32 %f4, %f1;", 0, 0, 0, kMinusZero},
      {"abs.f32 %f4, %f1;", f(-2.5f), 0, 0, f(2.5f)},
      {"copysign.f32 %f4, %f1, %f2;", kMinusZero, f(2.0f), 0, f(-2.0f)},
      {"div.rn.f32 %f4, %f1, %f2;", kOne, f(3.0f), 0, f(1.0f / 3.0f)},
      {"rcp.rn.f32 %f4, %f1;", 0, 0, 0, kInf},
      {"sqrt.rn.f32 %f4, %f1;", f(2.0f), 0, 0, f(1.41421356f)},
      {"rsqrt.approx.f32 %f4, %f1;", f(4.0f), 0, 0, f(0.5f)},
      {"ex2.approx.f32 %f4, %f1;", f(10.0f), 0, 0, f(1024.0f)},
      {"ex2.approx.f32 %f4, %f1;", f(-140.0f), 0, 0, 0x00000200},
      {"ex2.approx.ftz.f32 %f4, %f1;", f(-140.0f), 0, 0, 0},
      {"ex2.approx.f32 %f4, %f1;", 0xff800000, 0, 0, 0},
      {"ex2.approx.f32 %f4, %f1;", kInf, 0, 0, kInf},
      {"ex2.approx.f32 %f4, %f1;", kNan, 0, 0, 0x7fffffff},
      {"lg2.approx.f32 %f4, %f1;", f(1024.0f), 0, 0, f(10.0f)},
      {"lg2.approx.f32 %f4, %f1;", 0, 0, 0, 0xff800000},
      {"lg2.approx.f32 %f4, %f1;", f(-1.0f), 0, 0, 0x7fffffff},
      {"lg2.approx.f32 %f4, %f1;", 0x00000200, 0, 0, f(-140.0f)},
      {"lg2.approx.ftz.f32 %f4, %f1;", 0x00000200, 0, 0, 0xff800000},
      {"sin.approx.f32 %f4, %f1;", kTiny, 0, 0, kTiny},
      {"sin.approx.ftz.f32 %f4, %f1;", 0x80000001, 0, 0, kMinusZero},
      {"cos.approx.f32 %f4, %f1;", 0, 0, 0, kOne},
      {"cos.approx.ftz.f32 %f4, %f1;", kTiny, 0, 0, kOne},
      {"setp.eq.f32 %p4, %f1, %f2;", kNan, kNan, 0, 0},
      {"setp.ne.f32 %p4, %f1, %f2;", kNan, kOne, 0, 0},
      {"setp.neu.f32 %p4, %f1, %f2;", kNan, kOne, 0, 1},
      {"setp.equ.f32 %p4, %f1, %f2;", kNan, kOne, 0, 1},
      {"setp.ltu.f32 %p4, %f1, %f2;", f(2.0f), kOne, 0, 0},
      {"setp.nan.f32 %p4, %f1, %f2;", kOne, kNan, 0, 1},
      {"setp.num.f32 %p4, %f1, %f2;", kOne, kOne, 0, 1},
      {"setp.eq.ftz.f32 %p4, %f1, %f2;", kTiny, 0, 0, 1},
      {"testp.finite.f32 %p4, %f1;", kInf, 0, 0, 0},
      {"testp.subnormal.f32 %p4, %f1;", kTiny, 0, 0, 1},
      {"testp.normal.f32 %p4, %f1;", kTiny, 0, 0, 0},
      {"testp.normal.f32 %p4, %f1;", kOne, 0, 0, 1},
      {"testp.normal.f32 %p4, %f1;", 0, 0, 0, 1},
      {"testp.normal.f32 %p4, %f1;", kMinusZero, 0, 0, 1},
      {"add.f64 %q4, %q1, %q2;", d(1.5), d(2.25), 0, d(3.75)},
      {"fma.rn.f64 %q4, %q1, %q2, %q3;", d(3.0), d(5.0), d(1.0), d(16.0)},
      {"setp.lt.f64 %p4, %q1, %q2;", d(-1.0), d(1.0), 0, 1},
      // Halves.
      {"add.f16 %h4, %h1, %h2;", 0x3c00, 0x3c00, 0, 0x4000},
      {"add.rn.f16x2 %r4, %r1, %r2;", 0x3c007bff, 0x3c007bff, 0, 0x40007c00},
      // What an H200 gave in a run of gpu_vs_emulated: sums that no double holds, and a zero that is rounded
      // down.
      {"add.rz.f32 %f4, %f1, %f2;", 0x42bbd6c8, 0xa80df73c, 0, 0x42bbd6c7},
      {"add.rp.f32 %f4, %f1, %f2;", 0x00010001, 0x17c19123, 0, 0x17c19124},
      {"add.rm.f32 %f4, %f1, %f2;", 0xbf800000, 0x3f800000, 0, 0x80000000},
      {"fma.rn.f16x2 %r4, %r1, %r2, %r3;", 0x40003c00, 0x40003c00, 0x3c000001, 0x45003c00},
      {"fma.rn.bf16x2 %r4, %r1, %r2, %r3;", 0x40003f80, 0x40003f80, 0x3f803f80, 0x40a04000},
      {"fma.rn.bf16x2 %r4, %r1, %r2, %r3;", 0x7f0ff158, 0x91661d88, 0x422b2770, 0xd100cf65},  // an H200's
      {"max.bf16x2 %r4, %r1, %r2;", 0x7fc0bf80, 0x3f803f80, 0, 0x3f803f80},
      {"neg.f16x2 %r4, %r1;", 0x3c00bc00, 0, 0, 0xbc003c00},
      {"mul.bf16 %h4, %h1, %h2;", 0x4040, 0x4000, 0, 0x40c0},
      {"fma.rn.relu.f16 %h4, %h1, %h2, %h3;", 0xbc00, 0x3c00, 0, 0},
      {"setp.gt.f16 %p4, %h1, %h2;", 0x3c00, 0xbc00, 0, 1},
      {"add.f16 %h4, %h1, %h2;", 0x0001, 0x0001, 0, 0x0002},
      {"add.ftz.f16 %h4, %h1, %h2;", 0x0001, 0x0400, 0, 0x0400},
      {"sub.ftz.f16x2 %r4, %r1, %r2;", 0x04018401, 0x04008400, 0, 0x00008000},
      {"mul.ftz.f16x2 %r4, %r1, %r2;", 0x84000400, 0x38003c00, 0, 0x80000400},
      {"fma.rn.ftz.f16 %h4, %h1, %h2, %h3;", 0x03ff, 0x4400, 0x3c00, 0x3c00},
      {"max.ftz.f16 %h4, %h1, %h2;", 0x0001, 0x8001, 0, 0},
      {"neg.ftz.f16x2 %r4, %r1;", 0x0001fc00, 0, 0, 0x80007c00},
      {"abs.ftz.f16 %h4, %h1;", 0x8001, 0, 0, 0},
      {"setp.gt.ftz.f16 %p4, %h1, %h2;", 0x0001, 0, 0, 0},
      {"ex2.approx.ftz.bf16 %h4, %h1;", 0xc302, 0, 0, 0},
      // Conversions.
      {"cvt.rn.bf16x2.f32 %r4, %f1, %f2;", kOne, f(2.0f), 0, 0x3f804000},
      {"cvt.rn.f16x2.f32 %r4, %f1, %f2;", kOne, f(2.0f), 0, 0x3c004000},
      {"cvt.rn.bf16.f32 %h4, %f1;", 0x3f808000, 0, 0, 0x3f80},
      {"cvt.rn.bf16.f32 %h4, %f1;", 0x3f818000, 0, 0, 0x3f82},
      {"cvt.rz.bf16.f32 %h4, %f1;", 0x3f81ffff, 0, 0, 0x3f81},
      {"cvt.rn.bf16.f32 %h4, %f1;", 0x7f7fffff, 0, 0, 0x7f80},
      {"cvt.rn.bf16.f32 %h4, %f1;", kNan, 0, 0, 0x7fff},
      {"cvt.rn.f16.f32 %h4, %f1;", f(65520.0f), 0, 0, 0x7c00},
      {"cvt.rn.f16.f32 %h4, %f1;", f(65519.0f), 0, 0, 0x7bff},
      {"cvt.rz.f16.f32 %h4, %f1;", f(1e6f), 0, 0, 0x7bff},
      {"cvt.rn.f16.f32 %h4, %f1;", f(0x1p-24f), 0, 0, 1},
      {"cvt.rn.f16.f32 %h4, %f1;", f(0x1p-25f), 0, 0, 0},
      {"cvt.rn.f16.f32 %h4, %f1;", f(0x1.8p-24f), 0, 0, 2},
      {"cvt.rp.f16.f32 %h4, %f1;", kTiny, 0, 0, 1},
      {"cvt.rm.f16.f32 %h4, %f1;", 0x80000001, 0, 0, 0x8001},
      {"cvt.rp.ftz.f16.f32 %h4, %f1;", kTiny, 0, 0, 1},  // an H200's
      {"cvt.f32.f16 %f4, %h1;", 0x0001, 0, 0, f(0x1p-24f)},
      {"cvt.f32.f16 %f4, %h1;", 0xfc00, 0, 0, 0xff800000},
      {"cvt.f32.bf16 %f4, %h1;", 0xc000, 0, 0, f(-2.0f)},
      {"cvt.f32.bf16 %f4, %h1;", 0x0001, 0, 0, 0x00010000},
      {"cvt.ftz.f32.bf16 %f4, %h1;", 0x8001, 0, 0, kMinusZero},
      {"cvt.ftz.f32.f16 %f4, %h1;", 0x0001, 0, 0, f(0x1p-24f)},
      {"cvt.rzi.s32.f32 %r4, %f1;", f(-2.9f), 0, 0, 0xfffffffe},
      {"cvt.rni.s32.f32 %r4, %f1;", f(2.5f), 0, 0, 2},
      {"cvt.rpi.s32.f32 %r4, %f1;", f(2.1f), 0, 0, 3},
      {"cvt.rmi.s32.f32 %r4, %f1;", f(-2.1f), 0, 0, 0xfffffffd},
      {"cvt.rzi.s32.f32 %r4, %f1;", f(1e20f), 0, 0, 0x7fffffff},
      {"cvt.rzi.u32.f32 %r4, %f1;", f(-5.0f), 0, 0, 0},
      {"cvt.rzi.s32.f32 %r4, %f1;", kNan, 0, 0, 0},
      {"cvt.rzi.s64.f32 %d4, %f1;", f(-1e10f), 0, 0, static_cast<std::uint64_t>(-10000000000ll)},
      {"cvt.rzi.s64.f32 %d4, %f1;", 0xfffffffc, 0, 0, 0x8000000000000000u},  // an H200's
      {"cvt.rpi.s32.f32 %r4, %f1;", kTiny, 0, 0, 1},
      {"cvt.rpi.ftz.s32.f32 %r4, %f1;", kTiny, 0, 0, 0},
      {"cvt.rmi.ftz.s64.f32 %d4, %f1;", 0x80000001, 0, 0, 0},
      {"cvt.rzi.s32.f64 %r4, %q1;", d(-2.9), 0, 0, 0xfffffffe},
      {"cvt.rzi.s32.f64 %r4, %q1;", kNan64, 0, 0, 0x80000000},
      {"cvt.rni.u32.f64 %r4, %q1;", kNan64, 0, 0, 0x80000000},
      {"cvt.rzi.u16.f64 %h4, %q1;", kNan64, 0, 0, 0x8000},
      {"cvt.rzi.u64.f64 %d4, %q1;", kNan64, 0, 0, 0x8000000000000000u},
      {"cvt.rzi.u16.f32 %h4, %f1;", kNan, 0, 0, 0},
      {"cvt.rn.bf16.s32 %h4, %r1;", 0x40400000, 0, 0, 0x4e80},
      {"cvt.rn.bf16.s32 %h4, %r1;", 0x40400001, 0, 0, 0x4e81},
      {"cvt.rn.bf16.s32 %h4, %r1;", 0xbfbfffff, 0, 0, 0xce81},
      {"cvt.rn.bf16.u32 %h4, %r1;", 0x80800001, 0, 0, 0x4f01},
      {"cvt.rn.f16.s32 %h4, %r1;", 0xffff0011, 0, 0, 0xfbff},
      {"cvt.rn.f32.s32 %f4, %r1;", 0xffffffff, 0, 0, f(-1.0f)},
      {"cvt.rn.f32.u32 %f4, %r1;", 0xffffffff, 0, 0, f(4294967296.0f)},
      {"cvt.rz.f32.u32 %f4, %r1;", 0xffffffff, 0, 0, f(4294967040.0f)},
      {"cvt.rn.f32.u64 %f4, %d1;", 1ull << 40, 0, 0, f(0x1p40f)},
      {"cvt.rni.f32.f32 %f4, %f1;", f(3.5f), 0, 0, f(4.0f)},
      {"cvt.sat.f32.f32 %f4, %f1;", f(3.5f), 0, 0, kOne},
      {"cvt.s64.s32 %d4, %r1;", 0xffffffff, 0, 0, ~0ull},
      {"cvt.u64.u32 %d4, %r1;", 0xffffffff, 0, 0, 0xffffffffull},
      {"cvt.s64.s32 %d4, %d1;", 0x1234567880000001ull, 0, 0, 0xffffffff80000001ull},  // from a wider register
      {"cvt.u32.u16 %r4, %d1;", 0x123456789abcdefull, 0, 0, 0xcdef},
      {"cvt.sat.s8.s32 %r4, %d1;", 0x1234567880000001ull, 0, 0, 0xffffff80},
      {"cvt.u32.u64 %r4, %d1;", 0x123456789abcdefull, 0, 0, 0x89abcdef},
      {"cvt.u16.u32 %h4, %r1;", 0x12345678, 0, 0, 0x5678},
      {"cvt.s32.s16 %r4, %h1;", 0x8000, 0, 0, 0xffff8000},
      {"cvt.s32.s8 %r4, %r1;", 0x80, 0, 0, 0xffffff80},
      {"cvt.sat.u8.s32 %r4, %r1;", 300, 0, 0, 255},
      {"cvt.f64.f32 %q4, %f1;", f(1.5f), 0, 0, d(1.5)},
      {"cvt.rn.f32.f64 %f4, %q1;", d(1.5), 0, 0, f(1.5f)},
      {"cvt.rna.tf32.f32 %r4, %f1;", 0x3f801000, 0, 0, 0x3f802000},
      {"cvt.rna.tf32.f32 %r4, %f1;", 0xffb119c0, 0, 0, 0xffb10000},  // an H200's
      {"cvt.rn.satfinite.e4m3x2.f32 %h4, %f1, %f2;", f(1000.0f), kOne, 0, 0x7e38},
      {"cvt.rn.satfinite.e5m2x2.f32 %h4, %f1, %f2;", f(1.75f), f(-1.0f), 0, 0x3fbc},
      {"cvt.rn.f16x2.e4m3x2 %r4, %h1;", 0x7e38, 0, 0, 0x5f003c00},
      // Lanes.
      {"mov.pred %p4, -1;", 0, 0, 0, 1},
      {"mov.pred %p4, 0;", 0, 0, 0, 0},
      {"activemask.b32 %r4;", 0, 0, 0, 0xffffffff},
      {"vote.sync.ballot.b32 %r4, !%p1, 0xffffffff;", 0, 0, 0, 0xffffffff},
      {"redux.sync.add.s32 %r4, %r1, 0xffffffff;", 3, 0, 0, 96},
      {"redux.sync.max.s32 %r4, %r1, 0xffffffff;", 0xfffffff0, 0, 0, 0xfffffff0},
      {"match.any.sync.b32 %r4, %r1, 0xffffffff;", 7, 0, 0, 0xffffffff},
  };
  return table;
}

std::string instruction_body(const InstructionRow& row) {
  std::string body =
      "cvt.u32.u64 %r1, %d1;\ncvt.u32.u64 %r2, %d2;\ncvt.u32.u64 %r3, %d3;\n"
      "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\n"
      "cvt.u16.u32 %h1, %r1;\ncvt.u16.u32 %h2, %r2;\ncvt.u16.u32 %h3, %r3;\n"
      "mov.b64 %q1, %d1;\nmov.b64 %q2, %d2;\nmov.b64 %q3, %d3;\nsetp.ne.b32 %p1, 0, 0;\n";
  body += row.text;
  switch (result_class(row.text)) {
    case 'd':
      return body + "\nmov.b64 %d20, %d4;\n";
    case 'q':
      return body + "\nmov.b64 %d20, %q4;\n";
    case 'p':
      return body + "\nselp.b64 %d20, 1, 0, %p4;\n";
    case 'h':
      return body + "\ncvt.u64.u16 %d20, %h4;\n";
    case 'f':
      return body + "\nmov.b32 %r20, %f4;\ncvt.u64.u32 %d20, %r20;\n";
    default:
      return body + "\ncvt.u64.u32 %d20, %r4;\n";
  }
}

}  // namespace flashjit::emulator::tests

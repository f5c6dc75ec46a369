// f16, f16x2, bf16 and bf16x2 arithmetic: each half is computed in fp32 and rounded once.
#include "emulator/exec/common.hpp"

namespace flashjit::emulator::portable {
#define FLASHJIT_AVX2 0
#include "emulator/exec/rows.inc"
#undef FLASHJIT_AVX2
namespace {

struct Half {
  static constexpr u32 kExponent = 0x7c00;
  static u32 source(u32 bits) { return bits; }
  static float widen(u32 bits) { return float_of_half(bits); }
  static u32 narrow(float x) { return half_of_float(x); }
  static u32 narrow_fma(float a, float b, float c) {
    return half_of_float(to_odd(static_cast<double>(a) * b, c));
  }
  // A fused multiply-add rounds once. The sum is narrowed by rounding to odd, so that the last rounding is
  // right.
  static float to_odd(double product, float c) {
    const double sum = sum_to_odd(product, c);
    float near = static_cast<float>(sum);
    if (!std::isfinite(near) || static_cast<double>(near) == sum) return near;
    u32 bits = std::bit_cast<u32>(near);
    if (std::fabs(static_cast<double>(near)) > std::fabs(sum)) --bits;
    return std::bit_cast<float>(bits | 1);
  }
};
struct Brain {
  static constexpr u32 kExponent = 0x7f80;
  static u32 source(u32 bits) { return bits; }
  static float widen(u32 bits) { return float_of_bf16(bits); }
  static u32 narrow(float x) { return bf16_of_float(x); }
  static u32 narrow_fma(float a, float b, float c) {
    return bf16_of_float(Half::to_odd(static_cast<double>(a) * b, c));
  }
};
// .ftz: a subnormal source or result becomes the zero of its sign.
template <class T>
struct Flushed {
  static u32 source(u32 bits) { return (bits & T::kExponent) == 0 ? bits & 0x8000 : bits; }
  static float widen(u32 bits) { return T::widen(source(bits)); }
  static u32 narrow(float x) { return source(T::narrow(x)); }
  static u32 narrow_fma(float a, float b, float c) { return source(T::narrow_fma(a, b, c)); }
};

struct PAdd {
  float operator()(float a, float b) const { return a + b; }
};
struct PSub {
  float operator()(float a, float b) const { return a - b; }
};
struct PMul {
  float operator()(float a, float b) const { return a * b; }
};
struct PMax {
  float operator()(float a, float b) const {
    return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : std::max(a, b);
  }
};
struct PMin {
  float operator()(float a, float b) const {
    return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : std::min(a, b);
  }
};
struct PMaxNan {
  float operator()(float a, float b) const { return a != a || b != b ? std::nanf("") : PMax{}(a, b); }
};
struct PMinNan {
  float operator()(float a, float b) const { return a != a || b != b ? std::nanf("") : PMin{}(a, b); }
};
struct PExp2 {
  float operator()(float a) const { return std::exp2(a); }
};
struct PTanh {
  float operator()(float a) const { return std::tanh(a); }
};

template <class T, bool Pair, class F>
struct Packed {
  static u32 one(u32 a, u32 b) { return T::narrow(F{}(T::widen(a & 0xffff), T::widen(b & 0xffff))); }
  static u32 one(u32 a) { return T::narrow(F{}(T::widen(a & 0xffff))); }
  u32 operator()(u32 a, u32 b) const { return Pair ? one(a, b) | one(a >> 16, b >> 16) << 16 : one(a, b); }
  u32 operator()(u32 a) const { return Pair ? one(a) | one(a >> 16) << 16 : one(a); }
};
template <class T, bool Pair, bool Relu>
struct PackedFma {
  static u32 one(u32 a, u32 b, u32 c) {
    const u32 r = T::narrow_fma(T::widen(a & 0xffff), T::widen(b & 0xffff), T::widen(c & 0xffff));
    return Relu && (r & 0x8000) != 0 ? 0 : r;
  }
  u32 operator()(u32 a, u32 b, u32 c) const {
    return Pair ? one(a, b, c) | one(a >> 16, b >> 16, c >> 16) << 16 : one(a, b, c);
  }
};
struct FlipSign {
  u32 operator()(u32 a) const { return a ^ 0x8000; }
};
struct ClearSign {
  u32 operator()(u32 a) const { return a & 0x7fff; }
};
// Works on the bits alone, so that a NaN keeps its payload.
template <class T, bool Pair, class F>
struct PackedSign {
  static u32 one(u32 a) { return F{}(T::source(a & 0xffff)); }
  u32 operator()(u32 a) const { return Pair ? one(a) | one(a >> 16) << 16 : one(a); }
};

inline bool half_compare(float a, float b, u8 how) {
  const bool unordered = a != a || b != b;
  switch (how) {
    case 0:
      return a == b;
    case 1:
      return !unordered && a != b;
    case 2:
      return a < b;
    case 3:
      return a <= b;
    case 4:
      return a > b;
    case 5:
      return a >= b;
    case 6:
      return unordered || a == b;
    case 7:
      return unordered || a != b;
    case 8:
      return unordered || a < b;
    case 9:
      return unordered || a <= b;
    case 10:
      return unordered || a > b;
    case 11:
      return unordered || a >= b;
    case 12:
      return !unordered;
    default:
      return unordered;
  }
}
// setp on f16 or bf16 (one predicate), or on pairs: p gets the low halves' result, q the high halves'.
template <class T, bool Pair>
void set_half_compare(Warp& w, const Ins& i, u32 mask) {
  const u32* a = w.source<u32>(i.s[0]);
  const u32* b = w.source<u32>(i.s[1]);
  u32 low = 0, high = 0;
  for (int l = 0; l < kLanes; ++l) {
    low |= static_cast<u32>(half_compare(T::widen(a[l] & 0xffff), T::widen(b[l] & 0xffff), i.x)) << l;
    if (Pair) high |= static_cast<u32>(half_compare(T::widen(a[l] >> 16), T::widen(b[l] >> 16), i.x)) << l;
  }
  w.set_predicate(i.d, mask, low);
  if (i.pair != 0) w.set_predicate(i.pair, mask, Pair ? high : ~low);
}
// Returns pick<T, Pair>() for the opcode's type.
template <class Pick>
Handler by_type(const Decoding& decoding, Pick pick) {
  const bool pair = decoding.has("f16x2") || decoding.has("bf16x2");
  auto of = [&]<class T>(T) {
    return pair ? pick.template operator()<T, true>() : pick.template operator()<T, false>();
  };
  const bool flushes = decoding.has("ftz");
  if (decoding.has("bf16") || decoding.has("bf16x2")) return flushes ? of(Flushed<Brain>{}) : of(Brain{});
  return flushes ? of(Flushed<Half>{}) : of(Half{});
}
template <class F>
void prepare_unary(Decoding& decoding) {
  decoding.ins.run = by_type(
      decoding, []<class T, bool Pair>() -> Handler { return scalar1<u32, u32, Packed<T, Pair, F>>; });
}
template <class F>
void prepare_binary(Decoding& decoding) {
  decoding.ins.run = by_type(
      decoding, []<class T, bool Pair>() -> Handler { return scalar2<u32, u32, u32, Packed<T, Pair, F>>; });
}
template <bool Relu>
void prepare_fma(Decoding& decoding) {
  decoding.ins.run = by_type(decoding, []<class T, bool Pair>() -> Handler {
    return scalar3<u32, u32, u32, u32, PackedFma<T, Pair, Relu>>;
  });
}
template <class F>
void prepare_sign(Decoding& decoding) {
  decoding.ins.run = by_type(
      decoding, []<class T, bool Pair>() -> Handler { return scalar1<u32, u32, PackedSign<T, Pair, F>>; });
}
void prepare_half_compare(Decoding& decoding) {
  static constexpr std::string_view kNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                                "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  for (u8 k = 0; k < 14; ++k) {
    if (kNames[k] == decoding.match[1]) decoding.ins.x = k;
  }
  decoding.ins.run =
      by_type(decoding, []<class T, bool Pair>() -> Handler { return set_half_compare<T, Pair>; });
}

constexpr OpClass kPacked = OpClass::packed;
const Opcode kRows[] = {
    {"add.rn?.ftz?.(f16|f16x2|bf16|bf16x2)", "dss", kPacked, nullptr, prepare_binary<PAdd>},
    {"sub.rn?.ftz?.(f16|f16x2|bf16|bf16x2)", "dss", kPacked, nullptr, prepare_binary<PSub>},
    {"mul.rn?.ftz?.(f16|f16x2|bf16|bf16x2)", "dss", kPacked, nullptr, prepare_binary<PMul>},
    {"fma.rn.ftz?.(f16|f16x2|bf16|bf16x2)", "dsss", kPacked, nullptr, prepare_fma<false>},
    {"fma.rn.ftz?.relu.(f16|f16x2|bf16|bf16x2)", "dsss", kPacked, nullptr, prepare_fma<true>},
    {"max.ftz?.(f16|f16x2|bf16|bf16x2)", "dss", kPacked, nullptr, prepare_binary<PMax>},
    {"min.ftz?.(f16|f16x2|bf16|bf16x2)", "dss", kPacked, nullptr, prepare_binary<PMin>},
    {"max.ftz?.NaN.(f16|f16x2|bf16|bf16x2)", "dss", kPacked, nullptr, prepare_binary<PMaxNan>},
    {"min.ftz?.NaN.(f16|f16x2|bf16|bf16x2)", "dss", kPacked, nullptr, prepare_binary<PMinNan>},
    {"neg.ftz?.(f16|f16x2|bf16|bf16x2)", "ds", kPacked, nullptr, prepare_sign<FlipSign>},
    {"abs.ftz?.(f16|f16x2|bf16|bf16x2)", "ds", kPacked, nullptr, prepare_sign<ClearSign>},
    {"ex2.approx.ftz?.(f16|f16x2|bf16|bf16x2)", "ds", OpClass::special, nullptr, prepare_unary<PExp2>},
    {"tanh.approx.(f16|f16x2|bf16|bf16x2)", "ds", OpClass::special, nullptr, prepare_unary<PTanh>},
    {"setp.(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan).ftz?.(f16|f16x2|bf16|bf16x2)", "pss", kPacked,
     nullptr, prepare_half_compare},
};

}  // namespace

std::span<const Opcode> packed_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable

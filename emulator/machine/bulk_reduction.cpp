#include "emulator/machine/bulk_reduction.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "emulator/exec/half.hpp"

namespace flashjit::emulator {
namespace {

template <class T>
T combine(T a, T b, Reduction how) {
  switch (how) {
    case Reduction::add:
      return static_cast<T>(a + b);
    case Reduction::min:
      return std::min(a, b);
    case Reduction::max:
      return std::max(a, b);
    case Reduction::inc:
      return static_cast<T>(a >= b ? T{0} : a + T{1});
    case Reduction::dec:
      return static_cast<T>(a == T{0} || a > b ? b : a - T{1});
    default:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(how == Reduction::band ? a & b : how == Reduction::bor ? a | b : a ^ b);
      } else {
        return b;
      }
  }
}

// A float in global memory, where sums flush subnormal numbers (PTX ISA, cp.reduce.async.bulk).
struct FlushedFloat {
  float value;
};
FlushedFloat combine(FlushedFloat a, FlushedFloat b, Reduction how) {
  return {flush(combine(flush(a.value), flush(b.value), how))};
}

// Combines `bytes` of `from` with `to`, one element at a time, atomically enough for the threads of a launch.
template <class T, class Bits>
void reduce_as(std::byte* to, const std::byte* from, u32 bytes, Reduction how) {
  for (u32 k = 0; k + sizeof(T) <= bytes; k += sizeof(T)) {
    T value;
    std::memcpy(&value, from + k, sizeof value);
    auto* at = reinterpret_cast<Bits*>(to + k);
    Bits old = __atomic_load_n(at, __ATOMIC_RELAXED), wanted;
    do {
      T now;
      std::memcpy(&now, &old, sizeof now);
      const T next = combine(now, value, how);
      std::memcpy(&wanted, &next, sizeof wanted);
    } while (!__atomic_compare_exchange_n(at, &old, wanted, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  }
}

template <class Widen, class Narrow>
void reduce_halves(std::byte* to, const std::byte* from, u32 bytes, Reduction how, Widen widen,
                   Narrow narrow) {
  for (u32 k = 0; k + 2 <= bytes; k += 2) {
    u16 value;
    std::memcpy(&value, from + k, 2);
    auto* at = reinterpret_cast<u16*>(to + k);
    u16 old = __atomic_load_n(at, __ATOMIC_RELAXED), wanted;
    do wanted = static_cast<u16>(narrow(combine<float>(widen(old), widen(value), how)));
    while (!__atomic_compare_exchange_n(at, &old, wanted, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  }
}

}  // namespace

void write_global(const CopyJob& job, std::byte* to, const std::byte* from, u32 bytes) {
  switch (job.reduction == Reduction::none ? Element::bits32 : job.element) {
    case Element::f16:
      return reduce_halves(to, from, bytes, job.reduction, float_of_half,
                           [](float x) { return half_of_float(x); });
    case Element::bf16:
      return reduce_halves(to, from, bytes, job.reduction, float_of_bf16,
                           [](float x) { return bf16_of_float(x); });
    case Element::f32:
      if (job.reduction == Reduction::add)
        return reduce_as<FlushedFloat, u32>(to, from, bytes, job.reduction);
      return reduce_as<float, u32>(to, from, bytes, job.reduction);
    case Element::f64:
      return reduce_as<double, u64>(to, from, bytes, job.reduction);
    case Element::signed32:
      return reduce_as<i32, u32>(to, from, bytes, job.reduction);
    case Element::unsigned32:
      return reduce_as<u32, u32>(to, from, bytes, job.reduction);
    case Element::signed64:
      return reduce_as<i64, u64>(to, from, bytes, job.reduction);
    case Element::unsigned64:
    case Element::bits64:
      return reduce_as<u64, u64>(to, from, bytes, job.reduction);
    case Element::bits32:
      if (job.reduction == Reduction::none)
        std::memcpy(to, from, bytes);
      else
        reduce_as<u32, u32>(to, from, bytes, job.reduction);
  }
}

}  // namespace flashjit::emulator

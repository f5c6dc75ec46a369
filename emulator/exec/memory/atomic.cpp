// atom and red in global and shared memory. They are really atomic, since CTAs run on several threads.
#include "emulator/exec/access.hpp"

namespace flashjit::emulator::portable {
namespace {

enum class Op : u8 { add, min, max, band, bor, bxor, exchange, compare_swap, inc, dec };
enum class Type : u8 { u32_, s32_, u64_, s64_, f32_, flushed_f32_, f64_, f16_, bf16_, f16x2_, bf16x2_ };

template <class T>
T apply(Op op, T old, T b, T c) {
  switch (op) {
    case Op::add:
      return static_cast<T>(old + b);
    case Op::min:
      return std::min(old, b);
    case Op::max:
      return std::max(old, b);
    case Op::exchange:
      return b;
    case Op::compare_swap:
      return old == b ? c : old;
    case Op::inc:
      return old >= b ? T{0} : static_cast<T>(old + T{1});
    case Op::dec:
      return old == T{0} || old > b ? b : static_cast<T>(old - T{1});
    default:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(op == Op::band ? old & b : op == Op::bor ? old | b : old ^ b);
      else
        return b;
  }
}

u16 apply_half(Op op, bool brain, u16 old, u16 b) {
  const float x = brain ? float_of_bf16(old) : float_of_half(old),
              y = brain ? float_of_bf16(b) : float_of_half(b);
  const float r = apply<float>(op, x, y, 0.0f);
  return static_cast<u16>(brain ? bf16_of_float(r) : half_of_float(r));
}

// The bits of the new value for an old value of up to 8 bytes.
u64 next_bits(Op op, Type type, u64 old, u64 b, u64 c) {
  switch (type) {
    case Type::u32_:
      return apply<u32>(op, static_cast<u32>(old), static_cast<u32>(b), static_cast<u32>(c));
    case Type::s32_:
      return static_cast<u32>(
          apply<i32>(op, static_cast<i32>(old), static_cast<i32>(b), static_cast<i32>(c)));
    case Type::u64_:
      return apply<u64>(op, old, b, c);
    case Type::s64_:
      return static_cast<u64>(
          apply<i64>(op, static_cast<i64>(old), static_cast<i64>(b), static_cast<i64>(c)));
    case Type::f32_:
      return std::bit_cast<u32>(apply<float>(op, std::bit_cast<float>(static_cast<u32>(old)),
                                             std::bit_cast<float>(static_cast<u32>(b)), 0));
    case Type::flushed_f32_:
      return std::bit_cast<u32>(flush(apply<float>(op, flush(std::bit_cast<float>(static_cast<u32>(old))),
                                                   flush(std::bit_cast<float>(static_cast<u32>(b))), 0)));
    case Type::f64_:
      return std::bit_cast<u64>(apply<double>(op, std::bit_cast<double>(old), std::bit_cast<double>(b), 0));
    case Type::f16_:
    case Type::bf16_:
      return apply_half(op, type == Type::bf16_, static_cast<u16>(old), static_cast<u16>(b));
    default: {
      const bool brain = type == Type::bf16x2_;
      return apply_half(op, brain, static_cast<u16>(old), static_cast<u16>(b)) |
             u64{apply_half(op, brain, static_cast<u16>(old >> 16), static_cast<u16>(b >> 16))} << 16;
    }
  }
}

template <class Bits>
u64 exchange(std::byte* at, Op op, Type type, u64 b, u64 c) {
  auto* word = reinterpret_cast<Bits*>(at);
  Bits old = __atomic_load_n(word, __ATOMIC_RELAXED), wanted;
  do wanted = static_cast<Bits>(next_bits(op, type, old, b, c));
  while (!__atomic_compare_exchange_n(word, &old, wanted, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return old;
}

// Operations by which a thread waits for another one: a lock, or reading a word by adding 0.
bool waits(Op op) {
  return op == Op::compare_swap || op == Op::exchange || op == Op::add;
}

// Ins::x is the Op, y the Type, z the bytes of an element. The list first has the destinations of atom
// (Ins::d says how many: 0 for red), then `count` values, then the second values of compare-and-swap.
void atomic(Warp& w, const Ins& i, u32 mask) {
  const u32* rows = &w.cta->launch->program->lists[i.list];
  const u32 results = i.d;
  const u32 bytes = i.z;
  const auto op = static_cast<Op>(i.x);
  const bool adds_floats = op == Op::add && static_cast<Type>(i.y) == Type::f32_;
  const bool wide = bytes == 8;
  const u32 count = i.count;
  bool changed = false;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Place place = locate(w, i, address_of(w, i, 0, l) + static_cast<u64>(i.imm), bytes * count,
                               static_cast<u32>(l), true);
    if (checking(w)) {
      if (place.cta != nullptr) {
        // Atomics are ordered among themselves: they count as one access.
        place.cta->state.atomic_access(w, i, w.as_agent(l), place.shared, bytes * count);
      } else if (place.global) {
        check_written(w, i, reinterpret_cast<u64>(place.bytes), bytes * count, ~0u, static_cast<u32>(l));
      }
    }
    if (place.cta != nullptr) ++place.cta->matrix_epoch;
    // Sums of floats flush subnormal numbers in global memory, but not in shared memory (PTX ISA, atom).
    const Type type = adds_floats && place.global ? Type::flushed_f32_ : static_cast<Type>(i.y);
    auto value = [&](u32 row) -> u64 { return wide ? w.source<u64>(row)[l] : w.source<u32>(row)[l]; };
    u64 values[8];  // of all elements, before a result replaces one
    for (u32 k = 0; k < count; ++k) values[k] = value(rows[results + k]);
    for (u32 k = 0; k < count; ++k) {
      const u64 b = values[k];
      const u64 c = op == Op::compare_swap ? value(rows[results + count + k]) : 0;
      std::byte* at = place.bytes + std::size_t{k} * bytes;
      const u64 old = bytes == 8   ? exchange<u64>(at, op, type, b, c)
                      : bytes == 4 ? exchange<u32>(at, op, type, b, c)
                                   : exchange<u16>(at, op, type, b, c);
      if (results == 0) continue;
      changed |= !waits(op) || next_bits(op, type, old, b, c) != old;
      if (wide)
        w.destination<u64>(rows[k])[l] = old;
      else
        w.destination<u32>(rows[k])[l] = static_cast<u32>(old);
    }
  }
  // Others go first, as if a load polled.
  if (results != 0 && mask != 0 && !changed) {
    w.polling = true;
    w.yield();
  }
  if (counting(w) && w.cta->launch->program->class_of[index_of(w, i)] == OpClass::global) {
    Counters::Memory& counter = counter_of(w, i);
    const u64 moved = u64{bytes} * count * static_cast<u32>(std::popcount(mask));
    counter.global_read += moved;
    counter.global_written += moved;
  }
}

template <bool Red>
void prepare_atomic(Decoding& decoding) {
  Ins& ins = decoding.ins;
  constexpr std::size_t kMemory = Red ? 0 : 1;
  const Decoding::Address address = decoding.address(decoding.operand(kMemory));
  ins.s[0] = address.row;
  ins.wide = address.wide ? 1 : 0;
  ins.imm = address.offset;
  decoding.set_own_shared();
  if (decoding.has("shared") || decoding.has("shared::cta") || decoding.has("shared::cluster")) {
    ins.imm += static_cast<i64>(kSharedWindow);
    decoding.set_class(OpClass::shared);
  }
  static constexpr std::pair<std::string_view, Op> kOps[] = {
      {"add", Op::add}, {"min", Op::min},  {"max", Op::max},       {"and", Op::band},
      {"or", Op::bor},  {"xor", Op::bxor}, {"exch", Op::exchange}, {"cas", Op::compare_swap},
      {"inc", Op::inc}, {"dec", Op::dec}};
  for (const auto& [name, op] : kOps) {
    if (decoding.has(name)) ins.x = static_cast<u8>(op);
  }
  struct TypeName {
    std::string_view name;
    Type type;
    u8 bytes;
  };
  static constexpr TypeName kTypes[] = {
      {"u32", Type::u32_, 4},   {"b32", Type::u32_, 4},     {"s32", Type::s32_, 4},
      {"u64", Type::u64_, 8},   {"b64", Type::u64_, 8},     {"s64", Type::s64_, 8},
      {"f32", Type::f32_, 4},   {"f64", Type::f64_, 8},     {"f16", Type::f16_, 2},
      {"bf16", Type::bf16_, 2}, {"f16x2", Type::f16x2_, 4}, {"bf16x2", Type::bf16x2_, 4}};
  const std::string_view opcode = decoding.statement.opcode;
  const std::string_view type = opcode.substr(opcode.rfind('.') + 1);
  for (const TypeName& known : kTypes) {
    if (known.name != type) continue;
    ins.y = static_cast<u8>(known.type);
    ins.z = known.bytes;
  }
  const bool wide = ins.z == 8;
  ins.list = static_cast<u32>(decoding.program.lists.size());
  if (!Red) decoding.append_destination(decoding.operand(0), ins.z);
  ins.d = static_cast<u32>(decoding.program.lists.size()) - ins.list;
  decoding.append(decoding.operand(kMemory + 1), wide);
  ins.count = static_cast<u8>(decoding.program.lists.size() - ins.list - ins.d);
  if (!Red && ins.d != ins.count) decoding.fail("as many results as values are expected");
  const bool swap = static_cast<Op>(ins.x) == Op::compare_swap;
  if (swap) decoding.append(decoding.operand(kMemory + 2), wide);
  if (swap && decoding.program.lists.size() - ins.list != 3) decoding.fail("one word is swapped");
  if (ins.z * ins.count > 16) decoding.fail("more than 16 bytes in one access");
}

constexpr OpClass kMem = OpClass::global;
const Opcode kRows[] = {
    {"atom.(relaxed|acquire|release|acq_rel)?.(cta|cluster|gpu|sys)?.(global|shared|shared::cta|shared::"
     "cluster)?.(add|min|max|and|or|xor|exch|inc|dec)."
     "noftz?.L2::cache_hint?.(v2|v4)?.(b32|u32|s32|b64|u64|s64|f32|f64|f16|bf16|f16x2|bf16x2)",
     "o**S?", kMem, atomic, prepare_atomic<false>, kOpEarly},
    {"atom.(relaxed|acquire|release|acq_rel)?.(cta|cluster|gpu|sys)?.(global|shared|shared::cta|shared::"
     "cluster)?.cas.L2::cache_hint?.(b32|u32|s32|b64|u64|s64)",
     "o***", kMem, atomic, prepare_atomic<false>, kOpEarly},
    {"red.(relaxed|release)?.(cta|cluster|gpu|sys)?.(global|shared|shared::cta|shared::cluster)?.(v2|v4)?.("
     "add|min|max|and|or|xor|inc|dec).noftz?."
     "L2::cache_hint?.(v2|v4)?.(b32|u32|s32|b64|u64|s64|f32|f64|f16|bf16|f16x2|bf16x2)",
     "**S?", kMem, atomic, prepare_atomic<true>},
};

}  // namespace

std::span<const Opcode> atomic_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable

// ld and st in every state space.

#include "emulator/exec/access.hpp"

namespace flashjit::emulator::portable {
namespace {

void count_access(Warp& w, const Ins& i, u32 mask, Space space, u32 bytes, bool store) {
  if (space == Space::shared) {
    u32 addresses[kLanes];
    for (u32 m = mask; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      addresses[l] = shared_address_of(w, i, 0, l);
    }
    count_shared(w, i, addresses, mask, bytes);
  } else if (w.cta->launch->program->class_of[index_of(w, i)] == OpClass::global) {
    Counters::Memory& counter = counter_of(w, i);
    (store ? counter.global_written : counter.global_read) +=
        u64{bytes} * static_cast<u32>(std::popcount(mask));
  }
}

// ---- the common ones: whole words of global and shared memory
template <bool Shared, class T, int N, bool Check, bool Acquire = false>
void load_words(Warp& w, const Ins& i, u32 mask) {
  const Program& program = *w.cta->launch->program;
  const u32* rows = &program.lists[i.list];
  T* to[N];
  for (int k = 0; k < N; ++k) to[k] = w.destination<T>(rows[k]);
  constexpr u32 kBytes = sizeof(T) * N;
  const u64 used = i.z != 0 ? program.statement(index_of(w, i))->used_bytes : ~0u;
  u32 last = ~0u;  // the address that was checked last: lanes often read the same
  bool shared_by_lanes = false;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const std::byte* from;
    if constexpr (Shared) {
      const u32 at = shared_address_of(w, i, 0, l);
      if (at != last) {
        check_shared(w, i, *w.cta, at, kBytes, kBytes, static_cast<u32>(l));
        if constexpr (Check) {
          w.cta->state.read(w, i, w.as_agent(l), Access::generic, at, kBytes);
          w.cta->state.note_lane(w.as_agent(l), at, kBytes);
        }
        last = at;
        shared_by_lanes = false;
      } else if (Check && !shared_by_lanes) {
        w.cta->state.note_lane(w.as_agent(l), at, kBytes);
        shared_by_lanes = true;
      }
      from = w.cta->shared + at;
    } else {
      const u64 at = address_of(w, i, 0, l) + static_cast<u64>(i.imm);
      check_global(w, i, at, kBytes, kBytes, static_cast<u32>(l));
      if constexpr (Check) check_written(w, i, at, kBytes, used, static_cast<u32>(l));
      from = at_address(at);
    }
    T values[N];
    if constexpr (Acquire)
      values[0] = __atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE);
    else
      std::memcpy(values, from, kBytes);
    for (int k = 0; k < N; ++k) to[k][l] = values[k];
  }
  if (counting(w)) count_access(w, i, mask, Shared ? Space::shared : Space::global, kBytes, false);
}

template <bool Shared, class T, int N, bool Check>
void store_words(Warp& w, const Ins& i, u32 mask) {
  const u32* rows = &w.cta->launch->program->lists[i.list];
  const T* from[N];
  for (int k = 0; k < N; ++k) from[k] = w.source<T>(rows[k]);
  constexpr u32 kBytes = sizeof(T) * N;
  if constexpr (Shared) ++w.cta->matrix_epoch;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    std::byte* to;
    if constexpr (Shared) {
      const u32 at = shared_address_of(w, i, 0, l);
      check_shared(w, i, *w.cta, at, kBytes, kBytes, static_cast<u32>(l));
      if constexpr (Check) w.cta->state.write(w, i, w.as_agent(l), Access::generic, at, kBytes);
      to = w.cta->shared + at;
    } else {
      const u64 at = address_of(w, i, 0, l) + static_cast<u64>(i.imm);
      check_global(w, i, at, kBytes, kBytes, static_cast<u32>(l));
      if (w.known != nullptr) w.known->mark(at, kBytes);
      to = at_address(at);
    }
    T values[N];
    for (int k = 0; k < N; ++k) values[k] = from[k][l];
    std::memcpy(to, values, kBytes);
  }
  if (counting(w)) count_access(w, i, mask, Shared ? Space::shared : Space::global, kBytes, true);
}

// A load that waits for another thread's store. All others must run first, and must see what they stored
// before the awaited value, whatever the host CPU.
template <class T, bool Check>
void poll(Warp& w, const Ins& i, u32 mask) {
  w.polling = true;
  w.yield();
  load_words<false, T, 1, Check, true>(w, i, mask);
}
template <bool Check>
Handler poll_of(u32 element) {
  return element == 8 ? poll<u64, Check> : poll<u32, Check>;
}

// ---- everything else: any space, type and register
// Ins::x: bytes per element. Ins::y: 1 sign-extend, 2 the registers are 64 bits wide.
enum : u8 { kSigned = 1, kWide = 2 };

void load_any(Warp& w, const Ins& i, u32 mask) {
  const Program& program = *w.cta->launch->program;
  const u32* rows = &program.lists[i.list];
  const u32 bytes = u32{i.x} * i.count;
  const u64 used = i.z != 0 ? program.statement(index_of(w, i))->used_bytes : ~0u;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Place place =
        locate(w, i, address_of(w, i, 0, l) + static_cast<u64>(i.imm), bytes, static_cast<u32>(l));
    if (checking(w)) {
      if (place.cta != nullptr) {
        place.cta->state.read(w, i, w.as_agent(l), Access::generic, place.shared, bytes);
        place.cta->state.note_lane(w.as_agent(l), place.shared, bytes);
      } else if (place.global)
        check_written(w, i, reinterpret_cast<u64>(place.bytes), bytes, used, static_cast<u32>(l));
    }
    for (u32 k = 0; k < i.count; ++k) {
      u64 value = 0;
      std::memcpy(&value, place.bytes + std::size_t{k} * i.x, i.x);
      if ((i.y & kSigned) != 0)
        value = static_cast<u64>(static_cast<i64>(value << (64 - 8 * i.x)) >> (64 - 8 * i.x));
      if ((i.y & kWide) != 0)
        w.destination<u64>(rows[k])[l] = value;
      else
        w.destination<u32>(rows[k])[l] = static_cast<u32>(value);
    }
  }
  if (counting(w)) count_access(w, i, mask, Space::generic, bytes, false);
}

// As poll, at an address of any space.
void poll_any(Warp& w, const Ins& i, u32 mask) {
  w.polling = true;
  w.yield();
  load_any(w, i, mask);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

void store_any(Warp& w, const Ins& i, u32 mask) {
  const u32* rows = &w.cta->launch->program->lists[i.list];
  const u32 bytes = u32{i.x} * i.count;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Place place =
        locate(w, i, address_of(w, i, 0, l) + static_cast<u64>(i.imm), bytes, static_cast<u32>(l), true);
    if (place.cta != nullptr) {
      ++place.cta->matrix_epoch;
      if (checking(w)) place.cta->state.write(w, i, w.as_agent(l), Access::generic, place.shared, bytes);
    } else if (place.global && w.known != nullptr) {
      w.known->mark(reinterpret_cast<u64>(place.bytes), bytes);
    }
    for (u32 k = 0; k < i.count; ++k) {
      const u64 value = (i.y & kWide) != 0 ? w.source<u64>(rows[k])[l] : w.source<u32>(rows[k])[l];
      std::memcpy(place.bytes + std::size_t{k} * i.x, &value, i.x);
    }
  }
  if (counting(w)) count_access(w, i, mask, Space::generic, bytes, true);
}

template <bool Shared, bool Check>
Handler word_handler(bool store, u32 element, u32 count) {
  if (element == 4) {
    if (count == 1) return store ? store_words<Shared, u32, 1, Check> : load_words<Shared, u32, 1, Check>;
    if (count == 2) return store ? store_words<Shared, u32, 2, Check> : load_words<Shared, u32, 2, Check>;
    if (count == 4) return store ? store_words<Shared, u32, 4, Check> : load_words<Shared, u32, 4, Check>;
  }
  if (element == 8) {
    if (count == 1) return store ? store_words<Shared, u64, 1, Check> : load_words<Shared, u64, 1, Check>;
    if (count == 2) return store ? store_words<Shared, u64, 2, Check> : load_words<Shared, u64, 2, Check>;
  }
  return nullptr;
}

template <bool Store>
void prepare_access(Decoding& decoding) {
  Ins& ins = decoding.ins;
  const Operand& memory = decoding.operand(Store ? 0 : 1);
  const Operand& value = decoding.operand(Store ? 1 : 0);
  const Decoding::Address address = decoding.address(memory);
  ins.s[0] = address.row;
  ins.wide = address.wide ? 1 : 0;
  ins.imm = address.offset;
  const std::string_view opcode = decoding.statement.opcode;
  const std::string_view type = opcode.substr(opcode.rfind('.') + 1);
  const std::string_view bits = type.substr(type.find_first_of("0123456789"));
  const u32 element = bits == "64" ? 8 : bits == "32" ? 4 : bits == "16" ? 2 : 1;
  const Operand& first =
      value.kind == Operand::Kind::vector && !value.parts.empty() ? value.parts.front() : value;
  // An integer may be read from a register wider than the integer, or written to one.
  const u32 register_bytes = first.kind == Operand::Kind::reg ? decoding.bytes_of(first) : element;
  const bool wide = register_bytes == 8;
  if (register_bytes < element)
    decoding.fail(fmt::format("a register of at least {} bits is expected", 8 * element));
  ins.list = static_cast<u32>(decoding.program.lists.size());
  ins.count = static_cast<u8>(value.kind == Operand::Kind::vector ? value.parts.size() : 1);
  const int expected = decoding.has("v2") ? 2 : decoding.has("v4") ? 4 : decoding.has("v8") ? 8 : 1;
  if (expected != ins.count) decoding.fail(fmt::format("{} registers, expected {}", ins.count, expected));
  if (element * ins.count > 32) decoding.fail("more than 32 bytes in one access");
  if (Store)
    decoding.append(value, wide);
  else
    decoding.append_destination(value, std::max(register_bytes, 2u));
  ins.x = static_cast<u8>(element);
  ins.y = static_cast<u8>((type.front() == 's' ? kSigned : 0) | (wide ? kWide : 0));
  ins.z = decoding.statement.used_bytes != ~0u ? 1 : 0;

  const bool global = decoding.has("global") || decoding.has("const");
  const bool shared = decoding.has("shared") || decoding.has("shared::cta");
  const bool plain = wide == (element == 8);
  const bool elsewhere =
      shared || decoding.has("shared::cluster") || decoding.has("local") || decoding.has("param");
  const bool polls = !Store && !elsewhere &&
                     (decoding.has("acquire") || decoding.has("relaxed") || decoding.has("volatile"));
  ins.run = Store ? store_any : polls ? poll_any : load_any;
  if (plain && (global || shared) && (!polls || ins.count == 1)) {
    Handler quick = shared ? (decoding.checked ? word_handler<true, true>(Store, element, ins.count)
                                               : word_handler<true, false>(Store, element, ins.count))
                           : (decoding.checked ? word_handler<false, true>(Store, element, ins.count)
                                               : word_handler<false, false>(Store, element, ins.count));
    if (quick != nullptr) {
      ins.run = !polls ? quick : decoding.checked ? poll_of<true>(element) : poll_of<false>(element);
      if (shared) decoding.set_class(OpClass::shared);
      return;
    }
  }
  decoding.set_own_shared();
  if (shared || decoding.has("shared::cluster")) {
    ins.imm += static_cast<i64>(kSharedWindow);
    decoding.set_class(OpClass::shared);
  }
  if (decoding.has("local")) ins.imm += static_cast<i64>(kLocalWindow);
  if (decoding.has("param")) {
    decoding.set_class(OpClass::param);
    // A call's slot is in the caller's frame. The address of a kernel's parameter already contains its
    // window.
    const Operand& base = memory.parts.front();
    const Layout::Place* place =
        base.kind == Operand::Kind::symbol ? decoding.layout.find(base.name) : nullptr;
    const u64 bytes = u64{element} * ins.count;
    if (place != nullptr && (base.value > place->bytes || bytes > place->bytes - base.value)) {
      decoding.fail(fmt::format("{} bytes at offset {} of \"{}\", which has {}", bytes,
                                static_cast<i64>(base.value), base.name, place->bytes));
    }
    if (place != nullptr && place->space == Variable::Space::local)
      ins.imm += static_cast<i64>(kLocalWindow);
    else if (Store)
      decoding.fail("kernel parameters cannot be written");
  }
}

constexpr OpClass kMem = OpClass::global;
const Opcode kRows[] = {
    {"ld.(weak|volatile|relaxed|acquire)?.(cta|cluster|gpu|sys)?.(global|shared|shared::cta|shared::cluster|"
     "local|param|const)?."
     "(nc|ca|cg|cs|lu|cv)?.(L1::no_allocate|L1::evict_first|L1::evict_last|L1::evict_normal)?.(L2::64B|L2::"
     "128B|L2::256B)?."
     "L2::cache_hint?.(v2|v4|v8)?.(b8|u8|s8|b16|u16|s16|f16|b32|u32|s32|f32|b64|u64|s64|f64)",
     "o*S?", kMem, nullptr, prepare_access<false>, kOpEarly},
    {"ldu.global.(v2|v4)?.(b8|u8|s8|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64)", "o*", kMem, nullptr,
     prepare_access<false>, kOpEarly},
    {"st.(weak|volatile|relaxed|release)?.(cta|cluster|gpu|sys)?.(global|shared|shared::cta|shared::cluster|"
     "local|param)?."
     "(wb|cg|cs|wt)?.(L1::no_allocate|L1::evict_first|L1::evict_last|L1::evict_normal)?.L2::cache_hint?.(v2|"
     "v4|v8)?."
     "(b8|u8|s8|b16|u16|s16|f16|b32|u32|s32|f32|b64|u64|s64|f64)",
     "**S?", kMem, nullptr, prepare_access<true>},
};

}  // namespace

std::span<const Opcode> load_store_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable

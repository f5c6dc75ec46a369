// From a lane's address to the bytes there, with every check on the way; for loads, stores and atomics.
#pragma once

#include "emulator/exec/common.hpp"

namespace flashjit::emulator {

enum class Space : u8 { generic, global, shared };

struct Place {
  std::byte* bytes = nullptr;
  Cta* cta = nullptr;  // whose shared memory it is
  u32 shared = 0;      // address there
  bool global = false;
};

// From a generic address, whose window gives the state space. Checks bounds and alignment (to `bytes`, a
// power of two), and that what it writes may be written.
Place locate(Warp& w, const Ins& i, u64 address, u32 bytes, u32 lane, bool writes = false);

inline u64 address_of(const Warp& w, const Ins& i, int source, int lane) {
  return (i.wide >> source & 1) != 0 ? w.source<u64>(i.s[source])[lane] : w.source<u32>(i.s[source])[lane];
}
inline u32 shared_address_of(const Warp& w, const Ins& i, int source, int lane) {
  return static_cast<u32>(address_of(w, i, source, lane) + static_cast<u64>(i.imm));
}

inline u32 predicate_of(const Warp& w, const Ins& i, int source) {
  const u32 p = w.predicates[i.s[source]];
  return (i.negate >> source & 1) != 0 ? ~p : p;
}

// Counts a warp's access to shared memory of `bytes` per lane: how many transactions its bank conflicts
// cause, and how many the bytes alone would need. Lanes form groups that one transaction can serve: 32 of 4
// bytes, 16 of 8, 8 of 16.
void count_shared(Warp& w, const Ins& i, const u32* addresses, u32 mask, u32 bytes);
// The same for rows of 16 bytes that ldmatrix and stmatrix address, eight to a transaction.
void count_matrix_rows(Warp& w, const Ins& i, const u32* addresses, u32 rows);
inline Counters::Memory& counter_of(Warp& w, const Ins& i) {
  return w.cta->cluster->counters->memory[index_of(w, i)];
}

// For an instruction with a member mask: exactly those lanes must take part.
void check_members(Warp& w, const Ins& i, u32 mask, u32 members, const char* what);

}  // namespace flashjit::emulator

// Instructions by which lanes exchange values: shfl, vote, match, redux, elect.
#include "emulator/exec/access.hpp"

namespace flashjit::emulator::portable {
namespace {

// Calls visit(lanes) for each group of lanes that take part together. Lanes that reach an instruction with
// different member masks form separate groups.
template <class Visit>
void for_each_group(Warp& w, const Ins& i, int source, u32 mask, const char* what, Visit visit) {
  const u32* members = w.source<u32>(i.s[source]);
  const bool is_constant = (i.s[source] & 1) != 0;
  for (u32 rest = mask; rest != 0;) {
    const u32 named = members[std::countr_zero(rest)];
    u32 group = rest;
    for (u32 m = is_constant ? 0 : rest; m != 0; m &= m - 1) {
      if (members[std::countr_zero(m)] != named) group &= ~(1u << std::countr_zero(m));
    }
    if (checking(w)) check_members(w, i, group, named, what);
    visit(group);
    rest &= ~group;
  }
}

enum ShuffleMode : u8 { kIndex, kButterfly, kUp, kDown };

void shuffle(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  u32 peers[kLanes];  // the group of each lane
  for_each_group(w, i, 3, mask, "shfl.sync", [&](u32 group) {
    if (group == mask) std::fill_n(peers, kLanes, mask);
    for (u32 m = group == mask ? 0 : group; m != 0; m &= m - 1) peers[std::countr_zero(m)] = group;
  });
  const u32* a = w.source<u32>(i.s[0]);
  const u32* b = w.source<u32>(i.s[1]);
  const u32* c = w.source<u32>(i.s[2]);
  u32 result[kLanes];
  u32 in_range = 0;
  for (int l = 0; l < kLanes; ++l) {
    const int clamp = static_cast<int>(c[l] & 31), segment = static_cast<int>(c[l] >> 8 & 31),
              by = static_cast<int>(b[l] & 31);
    const int most = (l & segment) | (clamp & ~segment);
    const int least = l & segment;
    int from;
    bool inside = true;
    switch (i.x) {
      case kIndex:
        from = least | (by & ~segment);
        inside = from <= most;
        break;
      case kButterfly:
        from = l ^ by;
        inside = from <= most;
        break;
      case kUp:
        from = l - by;
        inside = from >= most;
        break;
      default:
        from = l + by;
        inside = from <= most;
        break;
    }
    if (!inside) from = l;
    in_range |= static_cast<u32>(inside) << l;
    result[l] = a[from & 31];
    if (checking(w) && (mask >> l & 1) != 0 && (peers[l] >> (from & 31) & 1) == 0) {
      finding(w, i, FindingKind::divergence, mask,
              fmt::format("shfl.sync: lane {} reads lane {}, which does not take part", l, from & 31));
    }
  }
  u32* d = w.destination<u32>(i.d);
  if (mask == kFull) {
    std::memcpy(d, result, sizeof result);
  } else {
    for (u32 m = mask; m != 0; m &= m - 1) d[std::countr_zero(m)] = result[std::countr_zero(m)];
  }
  if (i.pair != 0) w.set_predicate(i.pair, mask, in_range);
}
void prepare_shuffle(Decoding& decoding) {
  decoding.ins.x = decoding.has("idx")    ? kIndex
                   : decoding.has("bfly") ? kButterfly
                   : decoding.has("up")   ? kUp
                                          : kDown;
}

void vote_any(Warp& w, const Ins& i, u32 mask) {
  for_each_group(w, i, 1, mask, "vote.sync", [&](u32 group) {
    w.set_predicate(i.d, group, (predicate_of(w, i, 0) & group) != 0 ? kFull : 0);
  });
}
void vote_all(Warp& w, const Ins& i, u32 mask) {
  for_each_group(w, i, 1, mask, "vote.sync", [&](u32 group) {
    w.set_predicate(i.d, group, (predicate_of(w, i, 0) & group) == group ? kFull : 0);
  });
}
void vote_uniform(Warp& w, const Ins& i, u32 mask) {
  for_each_group(w, i, 1, mask, "vote.sync", [&](u32 group) {
    const u32 votes = predicate_of(w, i, 0) & group;
    w.set_predicate(i.d, group, votes == group || votes == 0 ? kFull : 0);
  });
}
template <class F>
void give(Warp& w, const Ins& i, u32 mask, F value) {
  u32* d = w.destination<u32>(i.d);
  for (u32 m = mask; m != 0; m &= m - 1) d[std::countr_zero(m)] = value(std::countr_zero(m));
}
void vote_ballot(Warp& w, const Ins& i, u32 mask) {
  for_each_group(w, i, 1, mask, "vote.sync", [&](u32 group) {
    const u32 votes = predicate_of(w, i, 0) & group;
    give(w, i, group, [votes](int) { return votes; });
  });
}
void active_mask(Warp& w, const Ins& i, u32 mask) {
  give(w, i, mask, [mask](int) { return mask; });
}

template <class T>
void match_any(Warp& w, const Ins& i, u32 mask) {
  const T* a = w.source<T>(i.s[0]);
  u32 same[kLanes] = {};
  for_each_group(w, i, 1, mask, "match.sync", [&](u32 group) {
    for (u32 m = group; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      for (u32 n = group; n != 0; n &= n - 1)
        same[l] |= a[std::countr_zero(n)] == a[l] ? 1u << std::countr_zero(n) : 0;
    }
  });
  give(w, i, mask, [&](int l) { return same[l]; });
}
template <class T>
void match_all(Warp& w, const Ins& i, u32 mask) {
  const T* a = w.source<T>(i.s[0]);
  for_each_group(w, i, 1, mask, "match.sync", [&](u32 group) {
    bool all = true;
    for (u32 m = group; m != 0; m &= m - 1) all &= a[std::countr_zero(m)] == a[std::countr_zero(group)];
    give(w, i, group, [&](int) { return all ? group : 0; });
    if (i.pair != 0) w.set_predicate(i.pair, group, all ? kFull : 0);
  });
}

template <class T, class F>
void reduce(Warp& w, const Ins& i, u32 mask) {
  const T* a = w.source<T>(i.s[0]);
  for_each_group(w, i, 1, mask, "redux.sync", [&](u32 group) {
    T sum = a[std::countr_zero(group)];
    for (u32 m = group & (group - 1); m != 0; m &= m - 1) sum = F{}(sum, a[std::countr_zero(m)]);
    give(w, i, group, [sum](int) { return static_cast<u32>(sum); });
  });
}
struct Least {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Most {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

void elect(Warp& w, const Ins& i, u32 mask) {
  for_each_group(w, i, 0, mask, "elect.sync", [&](u32 group) {
    const int leader = std::countr_zero(group);
    give(w, i, group, [leader](int) { return static_cast<u32>(leader); });
    w.set_predicate(i.pair, group, 1u << leader);
  });
}

void prepare_elect(Decoding& decoding) {
  if (decoding.ins.pair == 0) decoding.fail("a predicate is expected behind the destination and |");
}

void warp_barrier(Warp& w, const Ins& i, u32 mask) {
  for_each_group(w, i, 0, mask, "bar.warp.sync", [&](u32 group) {
    // A lane that is alone meets no other.
    if ((group & (group - 1)) != 0 || group == w.everyone()) w.meet();
  });
}

constexpr OpClass kShuffle = OpClass::shuffle;
const Opcode kRows[] = {
    {"shfl.sync.(idx|bfly|up|down).b32", "dssss", kShuffle, shuffle, prepare_shuffle, kOpEarly},
    {"vote.sync.any.pred", "pqs", kShuffle, vote_any},
    {"vote.sync.all.pred", "pqs", kShuffle, vote_all},
    {"vote.sync.uni.pred", "pqs", kShuffle, vote_uniform},
    {"vote.sync.ballot.b32", "dqs", kShuffle, vote_ballot, nullptr, kOpEarly},
    {"activemask.b32", "d", kShuffle, active_mask},
    {"match.any.sync.b32", "dss", kShuffle, match_any<u32>, nullptr, kOpEarly},
    {"match.any.sync.b64", "dSs", kShuffle, match_any<u64>, nullptr, kOpEarly},
    {"match.all.sync.b32", "dss", kShuffle, match_all<u32>, nullptr, kOpEarly},
    {"match.all.sync.b64", "dSs", kShuffle, match_all<u64>, nullptr, kOpEarly},
    {"redux.sync.add.(u32|s32)", "dss", kShuffle, reduce<u32, std::plus<u32>>, nullptr, kOpEarly},
    {"redux.sync.min.u32", "dss", kShuffle, reduce<u32, Least>, nullptr, kOpEarly},
    {"redux.sync.min.s32", "dss", kShuffle, reduce<i32, Least>, nullptr, kOpEarly},
    {"redux.sync.max.u32", "dss", kShuffle, reduce<u32, Most>, nullptr, kOpEarly},
    {"redux.sync.max.s32", "dss", kShuffle, reduce<i32, Most>, nullptr, kOpEarly},
    {"redux.sync.and.b32", "dss", kShuffle, reduce<u32, std::bit_and<u32>>, nullptr, kOpEarly},
    {"redux.sync.or.b32", "dss", kShuffle, reduce<u32, std::bit_or<u32>>, nullptr, kOpEarly},
    {"redux.sync.xor.b32", "dss", kShuffle, reduce<u32, std::bit_xor<u32>>, nullptr, kOpEarly},
    {"elect.sync", "ds", kShuffle, elect, prepare_elect, kOpEarly},
    {"bar.warp.sync", "s", OpClass::barrier, warp_barrier},
};

}  // namespace

std::span<const Opcode> shuffle_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable

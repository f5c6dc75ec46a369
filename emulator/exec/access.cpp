#include "emulator/exec/access.hpp"

namespace flashjit::emulator {
namespace {

// An address in local or parameter memory, after a bounds check.
std::byte* place_in(Warp& w, const Ins& i, const char* what, std::byte* base, u64 size, u64 address,
                    u32 bytes, u32 lane) {
  if (address > size || bytes > size - address) {
    stop(w, i, FindingKind::out_of_bounds, 1u << lane,
         fmt::format("{} bytes of {} at {} of {} bytes", bytes, what, address, size));
  }
  if (address % bytes != 0) {
    stop(w, i, FindingKind::misaligned, 1u << lane,
         fmt::format("{} at {}, which is no multiple of {}", what, address, bytes));
  }
  return base + address;
}

}  // namespace

Place locate(Warp& w, const Ins& i, u64 address, u32 bytes, u32 lane, bool writes) {
  const u64 window = address & kWindowMask;
  address &= ~kWindowMask;
  if (window == kSharedWindow) {
    if (address >> 32 != 0)
      stop(w, i, FindingKind::out_of_bounds, 1u << lane,
           fmt::format("the generic address 0x{:x} is beyond the window of shared memory",
                       kSharedWindow | address));
    u32 at = static_cast<u32>(address);
    Cta& cta = cta_of(w, i, at);
    check_shared(w, i, cta, at, bytes, bytes, lane);
    return {cta.shared + at, &cta, at, false};
  }
  const LaunchContext& launch = *w.cta->launch;
  if (window == kLocalWindow) {
    const u64 size = launch.program->local_bytes;
    return {place_in(w, i, "local memory", w.local.data() + size * lane, size, address, bytes, lane)};
  }
  if (window == kParamWindow) {
    if (writes) stop(w, i, FindingKind::illegal, 1u << lane, "kernel parameters cannot be written");
    return {place_in(w, i, "kernel parameters", const_cast<std::byte*>(launch.params),
                     launch.program->param_bytes, address, bytes, lane)};
  }
  check_global(w, i, address, bytes, bytes, lane);
  return {at_address(address), nullptr, 0, true};
}

void count_shared(Warp& w, const Ins& i, const u32* addresses, u32 mask, u32 bytes) {
  const u32 group = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  const u32 group_mask = group == 32 ? kFull : (1u << group) - 1;
  u64 transactions = 0, ideal = 0;
  for (u32 first = 0; first < kLanes; first += group) {
    if ((mask >> first & group_mask) == 0) continue;
    ++ideal;
    u32 words[32][32];
    u8 used[32] = {};
    u32 most = 0;
    for (u32 l = first; l < first + group; ++l) {
      if ((mask >> l & 1) == 0) continue;
      for (u32 b = 0; b < std::max(bytes, 4u); b += 4) {
        const u32 word = (addresses[l] + b) >> 2, bank = word & 31;
        const bool known = std::find(words[bank], words[bank] + used[bank], word) != words[bank] + used[bank];
        if (known) continue;
        words[bank][used[bank]++] = word;
        most = std::max<u32>(most, used[bank]);
      }
    }
    transactions += most;
  }
  Counters::Memory& counter = counter_of(w, i);
  counter.transactions += transactions;
  counter.ideal += ideal;
  counter.shared_bytes += u64{bytes} * static_cast<u32>(std::popcount(mask));
}

void count_matrix_rows(Warp& w, const Ins& i, const u32* addresses, u32 rows) {
  Counters::Memory& counter = counter_of(w, i);
  for (u32 first = 0; first < rows; first += 8) {
    u32 most = 0;
    for (u32 k = 0; k < 8; ++k) {
      u32 same = 0;
      for (u32 n = 0; n <= k; ++n) {
        const bool repeated = n < k && addresses[first + n] == addresses[first + k];
        if (repeated) {
          same = 0;
          break;
        }
        same += static_cast<u32>((addresses[first + n] >> 4 & 7) == (addresses[first + k] >> 4 & 7));
      }
      most = std::max(most, same);
    }
    counter.transactions += most;
    ++counter.ideal;
    counter.shared_bytes += 128;
  }
}

void check_members(Warp& w, const Ins& i, u32 mask, u32 members, const char* what) {
  if (mask != (members & w.everyone())) {
    finding(w, i, FindingKind::divergence, mask,
            fmt::format("{}: the member mask is 0x{:08x}, but lanes 0x{:08x} are here", what, members, mask));
  }
}

}  // namespace flashjit::emulator

// Keeps a cache directory below its size limit, and free of what killed writers left.
#include "cache/sweep.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>

#include "cache/lock.hpp"

namespace flashjit::cache {
namespace {

// All in seconds. No write takes an hour, even to a slow network disk; clocks of machines that share a
// directory differ by less than a day.
constexpr std::time_t kTemporaryLife = 3600;
constexpr std::time_t kFarAhead = std::time_t{24} * 3600;

constexpr off_t kSmallEntry = 4096;  // bytes; a kernel has more

// Of a file whose time lies far ahead nothing is known, and it must not stay until that time has come: it
// counts as the oldest.
std::time_t age_of(const DirectoryItem& item, std::time_t now) {
  const std::time_t age = now - item.identity.modified.tv_sec;
  return age < -kFarAhead ? std::numeric_limits<std::time_t>::max() : age;
}

// An item that was touched or replaced since the listing is in use, and stays. If one item cannot be removed,
// the others still are: in a shared directory with a sticky bit it may belong to another user.
bool removed(int folder, const DirectoryItem& item, SweepResult& result) {
  const int error = remove_if_same(folder, item.name, item.identity);
  if (error != 0 && error != ENOENT && result.error == 0) {
    result.stuck = item.name;
    result.error = error;
  }
  return error == 0;
}

}  // namespace

bool is_stale_temporary(const DirectoryItem& item, std::time_t now) {
  return is_temporary(item.name) && age_of(item, now) > kTemporaryLife;
}

SweepResult sweep(int folder, std::uint64_t limit) {
  SweepResult result;
  const FolderLock lock = lock_folder(folder, kSweepSlot, std::chrono::milliseconds(0));
  if (lock.state() == LockState::busy) return result;
  result.done = true;

  std::vector<DirectoryItem> entries;
  const std::time_t now = std::time(nullptr);
  for (DirectoryItem& item : list_files(folder)) {
    if (is_entry_name(item.name)) {
      result.bytes += static_cast<std::uint64_t>(item.identity.size);
      entries.push_back(std::move(item));
    } else if (is_stale_temporary(item, now)) {
      if (removed(folder, item, result)) ++result.removed_temporaries;
    }
  }
  result.entries = entries.size();
  if (result.bytes <= limit) return result;

  // Small entries go last. They are lists of the archs that a toolchain knows, without which the kernels that
  // stay would need NVRTC after all; and they free next to nothing.
  const auto large_ones_end = std::partition(entries.begin(), entries.end(), [](const DirectoryItem& item) {
    return item.identity.size >= kSmallEntry;
  });
  const auto older = [&](const DirectoryItem& a, const DirectoryItem& b) {
    const std::time_t x = age_of(a, now), y = age_of(b, now);
    return x != y ? x > y : a.identity.modified.tv_nsec < b.identity.modified.tv_nsec;
  };
  std::sort(entries.begin(), large_ones_end, older);
  std::sort(large_ones_end, entries.end(), older);
  const std::uint64_t goal = limit / 10 * 9;
  for (const DirectoryItem& item : entries) {
    if (result.bytes - result.removed_bytes <= goal) break;
    if (!removed(folder, item, result)) continue;
    ++result.removed_entries;
    result.removed_bytes += static_cast<std::uint64_t>(item.identity.size);
  }
  return result;
}

}  // namespace flashjit::cache

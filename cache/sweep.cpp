// Keeps a cache directory below its size limit, and free of what killed writers left.
#include "cache/sweep.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "cache/directory.hpp"
#include "cache/lock.hpp"

namespace flashjit::cache {
namespace {

constexpr std::time_t kTemporaryLife = 3600;  // seconds: longer than any write, even to a slow network disk

bool older(const DirectoryItem& a, const DirectoryItem& b) {
  const timespec& x = a.identity.modified;
  const timespec& y = b.identity.modified;
  return x.tv_sec != y.tv_sec ? x.tv_sec < y.tv_sec : x.tv_nsec < y.tv_nsec;
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
    } else if (is_temporary(item.name) && now - item.identity.modified.tv_sec > kTemporaryLife) {
      if (removed(folder, item, result)) ++result.removed_temporaries;
    }
  }
  result.entries = entries.size();
  if (result.bytes <= limit) return result;

  std::sort(entries.begin(), entries.end(), older);
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

// Locks single bytes of one file per folder: no lock file per key is left behind, and nothing needs repair
// after a crash.
#include "cache/lock.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace flashjit::cache {
namespace {

constexpr const char* kLockFile = ".flashjit.lock";

// One call of fcntl with open-file-description locks. Unlike POSIX locks, they also keep two threads of a
// process apart, and are not lost when other code in this process closes the file.
int set_lock(const File& file, short type, std::uint64_t slot, std::uint64_t slots) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(slot);
  range.l_len = static_cast<off_t>(slots);
  return ::fcntl(file.get(), F_OFD_SETLK, &range);
}

}  // namespace

std::uint64_t compile_slot(const std::string& digest) {
  // 60 bits of the digest, since an offset must be positive. Keys that share a slot only wait for each other.
  std::uint64_t slot = 0;
  for (const char digit : digest.substr(0, 15)) {
    slot = slot * 16 + static_cast<std::uint64_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return slot + 1;
}

// Closing the file is not enough: the open file description holds the lock, and a forked child may share it.
FolderLock::~FolderLock() {
  constexpr std::uint64_t kToTheEnd = 0;
  if (file_ && state_ == LockState::held) (void)set_lock(file_, F_UNLCK, 0, kToTheEnd);
}

FolderLock lock_folder(int folder, std::uint64_t slot, std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  File file(::openat(folder, kLockFile, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file) return {};
  share_with_group(folder, file.get());
  // Polls, because the blocking call has no deadline.
  const auto deadline = Clock::now() + patience;
  std::chrono::milliseconds pause{1};
  for (;;) {
    if (set_lock(file, F_WRLCK, slot, 1) == 0) return {std::move(file), LockState::held};
    const bool taken = errno == EAGAIN || errno == EACCES;
    if (!taken && errno != EINTR) return {};
    const auto now = Clock::now();
    if (now >= deadline) return {File(), taken ? LockState::busy : LockState::unavailable};
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
    pause = std::min(2 * pause, std::chrono::milliseconds(50));
  }
}

}  // namespace flashjit::cache

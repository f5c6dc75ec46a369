// An advisory lock between processes: it saves work, and correctness never depends on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "cache/files.hpp"

namespace flashjit::cache {

enum class LockState {
  unavailable,  // the folder or its file system has no locks: go on without one
  busy,         // another process or thread holds it, and patience ran out
  held,
};

// Holds one slot of a folder's lock file, or nothing. The destructor releases it, even if a child that was
// forked meanwhile still has the descriptor. When the process and such children die, the kernel releases it.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(File file, LockState state) : file_(std::move(file)), state_(state) {}
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(state_, other.state_);
    return *this;
  }
  ~FolderLock();
  [[nodiscard]] LockState state() const { return state_; }

 private:
  File file_;
  LockState state_ = LockState::unavailable;
};

inline constexpr std::uint64_t kSweepSlot = 0;
std::uint64_t compile_slot(const std::string& digest);  // never kSweepSlot

// Waits for at most `patience`; 0 means one try.
FolderLock lock_folder(int folder, std::uint64_t slot, std::chrono::milliseconds patience);

}  // namespace flashjit::cache

// An advisory lock between processes: it saves work and is never needed to be right.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "cache/files.hpp"

namespace flashjit::cache {

enum class LockState {
  unavailable,  // the folder or its file system has no locks: go on without
  busy,         // another process or thread has it, and patience ran out
  held,
};

// Holds one slot of a folder's lock file, or nothing. Given back by the destructor, also where a child that
// was forked meanwhile has its descriptor still, or by the kernel when the process and such children die.
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

// Waits at most `patience` (0: tries once).
FolderLock lock_folder(int folder, std::uint64_t slot, std::chrono::milliseconds patience);

}  // namespace flashjit::cache

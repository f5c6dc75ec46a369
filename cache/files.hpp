// System calls on files, with owned descriptors and errors as values: the store must tell one errno from
// another.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace flashjit::cache {

// An owned file descriptor.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File();
  [[nodiscard]] int get() const { return descriptor_; }
  void release() { descriptor_ = -1; }  // to who closes it from now on
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// What a file was when it was read, so that it is removed or touched only while it is still that.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec modified{};
  bool operator==(const Identity& other) const;
};
Identity identity_of(const struct stat& status);

struct ReadResult {
  int error = 0;  // errno; 0: bytes holds the whole file
  std::string bytes;
  Identity identity;
  File file;  // still open, for a touch
};

// Reads a regular file named `name` in `folder` (a directory's descriptor), following no symlink. EFBIG over
// `limit`.
ReadResult read_file(int folder, const std::string& name, std::size_t limit);

// Lets the group of `folder` write to `file`, one of ours in it, if it may write to the folder: whatever the
// umask says, members lock one file and renew each other's entries. A file that cannot have the folder's
// group stays as it is: it must not open to another one.
void share_with_group(int folder, int file);

// Writes all of `bytes`; returns errno, 0 when done.
int write_all(int descriptor, std::string_view bytes);

// Syncs file data, or a folder's names, where the file system has anything to sync; returns errno, 0 when
// done.
int sync(int descriptor);

// A name that no other thread, process or machine uses now: ".flashjit-KIND-PID-RANDOM.tmp".
std::string temporary_name(std::string_view kind);
bool is_temporary(std::string_view name);

// Writes `bytes` under a temporary name in `folder`, syncs, renames to `name`, and syncs the folder as well
// as it can. Readers see the old file or the new one and never a part. It is shared with the folder's group.
// Returns errno, 0 when done; leaves no temporary unless killed.
int publish(int folder, const std::string& name, std::string_view bytes);

// Removes `name` if it is still the file it was. Two calls, so a file that another process publishes between
// them is lost: that costs one rebuild and can not give a wrong answer. Returns errno, 0 when this call
// removed it; ENOENT where it is gone, or another file by now.
int remove_if_same(int folder, const std::string& name, const Identity& identity);

}  // namespace flashjit::cache

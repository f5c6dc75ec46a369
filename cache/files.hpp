// System calls on files, with owned descriptors. Errors are returned as values, since the store must tell one
// errno from another.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace flashjit::cache {

// A file descriptor that closes itself.
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
  void release() { descriptor_ = -1; }  // to whoever closes it from now on
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// What identified a file when it was read, so that it is removed or touched only while it is the same file.
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
  File file;  // still open, to be touched
};

// Reads the regular file `name` in `folder` (a directory's descriptor) and follows no symlink. EFBIG if it is
// larger than `limit`.
ReadResult read_file(int folder, const std::string& name, std::size_t limit);

// Lets the group of `folder` write to `file` if that group may write to the folder. `file` is one of ours in
// the folder. So members lock one file and renew each other's entries, whatever the umask says. A file that
// cannot get the folder's group stays as it is, since it must not open to another group.
void share_with_group(int folder, int file);

// Writes all of `bytes`. Returns errno, or 0 if all were written.
int write_all(int descriptor, std::string_view bytes);

// Syncs a file's data or a folder's names, if the file system has anything to sync. Returns errno or 0.
int sync(int descriptor);

// A name that no other thread, process or machine uses: ".flashjit-KIND-PID-RANDOM.tmp".
std::string temporary_name(std::string_view kind);
bool is_temporary(std::string_view name);

// Writes `bytes` under a temporary name in `folder`, syncs, renames to `name`, and then tries to sync the
// folder. Readers see the old file or the new one, never a part. The file is shared with the folder's group.
// Returns errno, or 0 on success; leaves no temporary file unless killed.
int publish(int folder, const std::string& name, std::string_view bytes);

// Removes `name` if it is still the same file. This takes two calls, so a file that another process publishes
// between them is lost, which costs one rebuild and never makes a result wrong. Returns errno, or 0 if this
// call removed the file; ENOENT if the file is gone or is another one by now.
int remove_if_same(int folder, const std::string& name, const Identity& identity);

}  // namespace flashjit::cache

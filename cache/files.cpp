// System calls on files: read a whole file, publish one in one step, remove only the file that was read.
#include "cache/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <random>

namespace flashjit::cache {
namespace {

constexpr std::string_view kTemporaryPrefix = ".flashjit-";
constexpr std::string_view kTemporarySuffix = ".tmp";

int open_retrying(int folder, const std::string& name, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::openat(folder, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace

File::~File() {
  // On Linux, close releases the descriptor whatever it returns. Data that must reach the disk was synced
  // before.
  if (descriptor_ >= 0) (void)::close(descriptor_);
}

bool Identity::operator==(const Identity& other) const {
  return device == other.device && inode == other.inode && size == other.size &&
         modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec;
}

Identity identity_of(const struct stat& status) {
  return {
      .device = status.st_dev, .inode = status.st_ino, .size = status.st_size, .modified = status.st_mtim};
}

ReadResult read_file(int folder, const std::string& name, std::size_t limit) {
  ReadResult result;
  // O_NONBLOCK: a fifo under an entry's name must not make open hang.
  result.file = File(open_retrying(folder, name, O_RDONLY | O_NONBLOCK));
  struct stat status {};
  if (!result.file || ::fstat(result.file.get(), &status) != 0) {
    result.error = errno;
    return result;
  }
  result.identity = identity_of(status);
  if (!S_ISREG(status.st_mode)) {
    result.error = EINVAL;
    return result;
  }
  if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) > limit) {
    result.error = EFBIG;
    return result;
  }
  result.bytes.resize(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < result.bytes.size()) {
    const ssize_t got = ::read(result.file.get(), result.bytes.data() + done, result.bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {  // the file ended too soon: somebody shortened it
      result.error = got < 0 ? errno : EIO;
      result.bytes.clear();
      return result;
    }
    done += static_cast<std::size_t>(got);
  }
  return result;
}

void share_with_group(int folder, int file) {
  struct stat place {};
  struct stat status {};
  if (::fstat(folder, &place) != 0 || (place.st_mode & S_IWGRP) == 0) return;
  if (::fstat(file, &status) != 0 || status.st_uid != ::geteuid()) return;
  if (status.st_gid != place.st_gid && ::fchown(file, static_cast<uid_t>(-1), place.st_gid) != 0) return;
  const mode_t rights = (status.st_mode & 0777) | S_IRGRP | S_IWGRP;
  if (rights != (status.st_mode & 0777)) (void)::fchmod(file, rights);
}

int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    if (put == 0) return EIO;
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return 0;
}

int sync(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINVAL || errno == EROFS) return 0;  // the file system has nothing to sync
    if (errno != EINTR) return errno;
  }
  return 0;
}

std::string temporary_name(std::string_view kind) {
  // The process id is for people. Containers share ids, so the random part makes the name unique.
  std::random_device
      random;  // reads from the kernel each time; a forked child would share a generator's state
  return fmt::format("{}{}-{}-{:08x}{:08x}{}", kTemporaryPrefix, kind, ::getpid(), random(), random(),
                     kTemporarySuffix);
}

bool is_temporary(std::string_view name) {
  // Only our own temporaries, since a directory that the user named may hold other files.
  return name.size() > kTemporaryPrefix.size() + kTemporarySuffix.size() &&
         name.substr(0, kTemporaryPrefix.size()) == kTemporaryPrefix &&
         name.substr(name.size() - kTemporarySuffix.size()) == kTemporarySuffix;
}

int publish(int folder, const std::string& name, std::string_view bytes) {
  const std::string temporary = temporary_name("put");
  const File file(open_retrying(folder, temporary, O_WRONLY | O_CREAT | O_EXCL, 0644));
  if (!file) return errno;
  share_with_group(folder, file.get());
  int error = write_all(file.get(), bytes);
  if (error == 0) error = sync(file.get());
  if (error == 0 && ::renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) error = errno;
  if (error != 0) {
    (void)::unlinkat(folder, temporary.c_str(),
                     0);  // the first error is the one to report; a sweep removes what stays
    return error;
  }
  (void)sync(folder);  // only makes the name durable; other processes see it already
  return 0;
}

int remove_if_same(int folder, const std::string& name, const Identity& identity) {
  struct stat status {};
  if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  if (!(identity_of(status) == identity)) return ENOENT;
  return ::unlinkat(folder, name.c_str(), 0) == 0 ? 0 : errno;
}

}  // namespace flashjit::cache

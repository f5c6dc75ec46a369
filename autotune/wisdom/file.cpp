// Wisdom on disk: one file that readers always see whole, and that writers change one after the other.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "autotune/wisdom.hpp"

namespace flashjit::autotune {
namespace {

constexpr std::chrono::milliseconds kPatience{10000};  // a record has cost seconds of measuring
constexpr std::size_t kLargest = 64u << 20;

// An owned file descriptor.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

struct Text {
  int error = 0;  // errno
  std::string bytes;
};

Text read_all(const std::filesystem::path& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO may have no writer
  if (!file) return {errno, {}};
  Text text;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {errno, {}};
    text.bytes.append(buffer, static_cast<std::size_t>(got));
    if (text.bytes.size() > kLargest) return {EFBIG, {}};
  }
}

// A folder that one writer at a time holds.
class Turn {
 public:
  explicit Turn(const File& folder) : folder_(folder) {}
  // Closing the folder is not enough: a child that was forked in the meantime may still hold it.
  ~Turn() { (void)::flock(folder_.get(), LOCK_UN); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Waits for the writers before us. Returns why the lock could not be had; empty: it is held. Going on
  // without the lock costs at worst another writer's record, never the file.
  [[nodiscard]] std::string wait() const {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR)
        return fmt::format("could not be locked ({})", std::strerror(errno));  // NFS locks no folder
      if (std::chrono::steady_clock::now() > end) return "is being written by another process for long";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return {};
  }

 private:
  const File& folder_;
};

// Where a file is, or is to be: behind all links, even if the last of them leads to nothing yet. Empty where
// that cannot be told.
std::filesystem::path behind_links(std::filesystem::path file) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::error_code error;
  for (int link = 0; link < kMostLinks && std::filesystem::is_symlink(file, error); ++link)
    file = file.parent_path() / std::filesystem::read_symlink(file, error);
  return std::filesystem::weakly_canonical(file, error);
}

std::string unreadable(const std::filesystem::path& file, int error) {
  return fmt::format("wisdom {} could not be read: {}", file.string(), std::strerror(error));
}

}  // namespace

Wisdom read_wisdom(const std::filesystem::path& file, const Report& report, bool* short_of) {
  const Text text = read_all(file);
  if (short_of != nullptr && (text.error == EMFILE || text.error == ENFILE || text.error == ENOMEM))
    *short_of = true;
  Wisdom wisdom;
  if (text.error == 0) {
    wisdom.add_text(text.bytes, file.string(), report);
  } else if (text.error != ENOENT && report) {
    report(unreadable(file, text.error));
  }
  return wisdom;
}

bool merge_wisdom(const std::filesystem::path& file, const Wisdom& learnt, const Versions& versions,
                  const Publish& publish, const Report& report) {
  const auto lost = [&](const std::string& why) {
    if (report) report(fmt::format("wisdom {} could not be written: {}", file.string(), why));
    return false;
  };
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) return lost("it is no regular file");
  // flock(2) holds the folder itself. So no lock file is left beside a file that --export names, and others
  // of a group that shares the folder can hold it, too.
  const std::filesystem::path place = behind_links(file);  // if empty, reading the file fails and says why
  const std::filesystem::path parent = place.has_parent_path() ? place.parent_path() : ".";
  const File folder(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return lost(std::strerror(errno));
  const Turn turn(folder);
  if (const std::string why = turn.wait(); !why.empty() && report)
    report(fmt::format("wisdom {} {}; going on without its lock", file.string(), why));
  const Text before = read_all(file);
  if (before.error != 0 && before.error != ENOENT) return lost(std::strerror(before.error));
  Wisdom wisdom;
  if (!wisdom.add_text(before.bytes, file.string(), report))
    return lost("what it holds is another version's wisdom, or none at all");
  wisdom.add(learnt, versions);
  if (const int error = publish(folder.get(), place.filename().string(), wisdom.to_text(versions));
      error != 0)
    return lost(std::strerror(error));
  return true;
}

}  // namespace flashjit::autotune

// A layer of entries in a directory, one file each, shared with every other process that uses the directory.
#include "cache/disk.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "cache/sweep.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cache {
namespace {

// An entry that is used again within this time is not touched again: four inode writes per entry and day are
// enough to know what is in use, and most reads cause no write.
constexpr std::time_t kTouchAfter = std::time_t{6} * 3600;  // seconds
constexpr std::uint64_t kSweepShare =
    16;  // a sweep for each sixteenth of the limit that this process has written

// Best effort: if the entry belongs to another user or the disk is read-only, its age does not change. A time
// that lies as far ahead is of a clock that ran ahead, and tells as little of the last use.
void touch_if_idle(const ReadResult& read) {
  if (std::abs(std::time(nullptr) - read.identity.modified.tv_sec) > kTouchAfter)
    (void)::futimens(read.file.get(), nullptr);
}

// Somebody, or the server of a network file system, removed the whole directory.
bool is_gone(int error) {
  return error == ENOENT || error == ESTALE;
}

// Errors of the moment rather than of the disk: the next entry may well be written.
bool passes(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == EINTR;
}

}  // namespace

DiskLayer::DiskLayer(Options options) : options_(std::move(options)), writable_(options_.writable) {
  open(options_.writable);
}

void DiskLayer::open(bool create) {
  Directory directory = open_directory(options_.path, options_.trust, create);
  const bool later = !directory.folder && passes(directory.error);
  if (!directory.folder && !later) stop_writing(std::strerror(directory.error));
  const std::lock_guard lock(mutex_);
  open_later_ = later;
  folder_ = directory.folder ? std::make_shared<const File>(std::move(directory.folder)) : nullptr;
}

std::shared_ptr<const File> DiskLayer::folder() {
  {
    const std::lock_guard lock(mutex_);
    if (!open_later_) return folder_;
  }
  try {
    open(options_.writable);
  } catch (const Error& refused) {
    stop_writing(refused.message());
    const std::lock_guard lock(mutex_);
    open_later_ = false;
  }
  const std::lock_guard lock(mutex_);
  return folder_;
}

void DiskLayer::stop_writing(std::string_view why) {
  const bool first = writable_.exchange(false) || !options_.writable;
  if (!first || !options_.warn) return;
  options_.warn(
      options_.writable
          ? fmt::format("the kernel cache {} can not be written to ({}): new kernels stay in this process",
                        options_.path.string(), why)
          : fmt::format("the system kernel cache {} can not be read ({}): going on without it",
                        options_.path.string(), why));
}

bool DiskLayer::is_news(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return damaged_.insert(name).second;
}

std::shared_ptr<const Entry> DiskLayer::get(const Key& key, const std::string& digest) {
  const auto folder = this->folder();
  if (!folder) return nullptr;
  const std::string name = entry_file_name(digest);
  ReadResult read = read_file(folder->get(), name, kLargestEntry);
  // An I/O error of the network or disk may pass: a file that cannot be read is not known to be bad, and
  // stays. One that is larger than any entry is bad.
  if (read.error != 0 && read.error != EFBIG) return nullptr;
  std::optional<Entry> entry = deserialize(std::as_bytes(std::span(read.bytes)));
  if (!entry) {
    const bool removed = writable_ && remove_if_same(folder->get(), name, read.identity) == 0;
    if (options_.warn && (removed || is_news(name))) {
      options_.warn(fmt::format("the cache entry {} is damaged{}", (options_.path / name).string(),
                                removed ? " and was removed; it is made again" : ": ignored"));
    }
    return nullptr;
  }
  // Another key with the same digest, forged or by a chance of 2^-128: a miss; the next put replaces it.
  if (entry->key != key) return nullptr;
  if (writable_) touch_if_idle(read);
  return std::make_shared<const Entry>(*std::move(entry));
}

void DiskLayer::put(const Entry& entry, const std::string& digest) {
  if (!writable_) return;
  const std::string bytes = serialize(entry);
  if (bytes.size() > kLargestEntry) return;
  int error = ENOENT;
  for (int attempt = 0; attempt < 2 && is_gone(error); ++attempt) {
    auto folder = this->folder();
    if (!folder) return;
    error = publish(folder->get(), entry_file_name(digest), bytes);
    if (error == 0) sweep_if_due(folder->get(), bytes.size());
    if (is_gone(error) && attempt == 0) {  // make the directory again, once
      try {
        open(true);
      } catch (const Error& refused) {
        stop_writing(refused.message());
        return;
      }
    }
  }
  // A full or read-only disk seldom recovers while we run, and a warning per kernel would help nobody.
  if (error != 0 && !passes(error)) stop_writing(std::strerror(error));
}

FolderLock DiskLayer::lock_for_compile(const std::string& digest, std::chrono::milliseconds patience) {
  const auto folder = this->folder();
  if (!folder || !writable_) return {};
  return lock_folder(folder->get(), compile_slot(digest), patience);
}

void DiskLayer::sweep_if_due(int folder, std::uint64_t written) {
  {
    const std::lock_guard lock(mutex_);
    written_since_sweep_ += written;
    if (swept_ && written_since_sweep_ < options_.size_limit / kSweepShare) return;
    swept_ = true;
    written_since_sweep_ = 0;
  }
  try {
    (void)sweep(folder, options_.size_limit);  // the figures are for the command line
  } catch (const Error& unreadable) {
    if (options_.warn) options_.warn(unreadable.message());
  }
}

}  // namespace flashjit::cache

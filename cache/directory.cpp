// Opens a cache directory if it can be trusted.
#include "cache/directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "cache/files.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cache {
namespace {

constexpr std::string_view kEntrySuffix = ".flashjit";
constexpr std::size_t kDigestLength = 32;

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view why, const std::string& hint) {
  throw Error(ErrorCode::io, fmt::format("the cache directory {} {}", path.string(), why), hint);
}

// mkdir -p. Returns errno.
int make_directories(const std::filesystem::path& path, mode_t rights) {
  if (::mkdir(path.c_str(), rights) == 0 || errno == EEXIST) return 0;
  if (errno != ENOENT || !path.has_parent_path() || path.parent_path() == path) return errno;
  if (const int error = make_directories(path.parent_path(), rights); error != 0) return error;
  return ::mkdir(path.c_str(), rights) == 0 || errno == EEXIST ? 0 : errno;
}

void check_trust(const std::filesystem::path& path, Trust trust, const struct stat& status) {
  if ((status.st_mode & S_IWOTH) != 0) {
    // Refused even with a sticky bit: that keeps others from replacing our files, but not from planting
    // theirs first.
    refuse(path, "can be written to by everybody, and a cached kernel is code",
           fmt::format("take that right away (chmod o-w {}) or name another directory", path.string()));
  }
  if (trust == Trust::as_given) return;
  if (status.st_uid != ::geteuid()) {
    refuse(path, fmt::format("belongs to user {}, not to user {} who runs this", status.st_uid, ::geteuid()),
           "set FLASHJIT_CACHE_DIR to a directory that you trust");
  }
  if ((status.st_mode & S_IWGRP) != 0) {
    refuse(
        path, "can be written to by its group, and a cached kernel is code",
        fmt::format("take that right away (chmod g-w {}), or share it on purpose with FLASHJIT_CACHE_DIR={}",
                    path.string(), path.string()));
  }
}

}  // namespace

Directory open_directory(const std::filesystem::path& path, Trust trust, bool create) {
  if (create) {
    // The XDG base directory specification asks for 0700 in the default place. A named directory may be
    // shared.
    const mode_t rights = trust == Trust::verify ? 0700 : 0755;
    if (const int error = make_directories(path, rights); error == ENOTDIR) {
      refuse(path, "can not be made: a part of its path is a file", "name another directory");
    } else if (error != 0) {
      return {.folder = {}, .error = error};
    }
  }
  struct stat status {};
  if (trust == Trust::verify && ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
    refuse(path, "is a symbolic link", "name its target with FLASHJIT_CACHE_DIR if you trust it");
  }
  const int follow = trust == Trust::verify ? O_NOFOLLOW : 0;
  File folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow));
  if (!folder) {
    if (errno == ENOTDIR || errno == ELOOP) {
      refuse(path, "is a file or a loop of links, not a directory", "remove it or name another directory");
    }
    return {.folder = {}, .error = errno};
  }
  // Checks the open descriptor, through which all later work goes, so that nothing can be swapped in after
  // the check.
  if (::fstat(folder.get(), &status) != 0) return {.folder = {}, .error = errno};
  check_trust(path, trust, status);
  return {.folder = std::move(folder), .error = 0};
}

std::string entry_file_name(const std::string& digest) {
  return digest + std::string(kEntrySuffix);
}

bool is_entry_name(std::string_view name) {
  if (name.size() != kDigestLength + kEntrySuffix.size() || name.substr(kDigestLength) != kEntrySuffix)
    return false;
  return name.substr(0, kDigestLength).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string digest_of(const std::string& entry_name) {
  return entry_name.substr(0, kDigestLength);
}

bool is_wisdom_name(std::string_view name) {
  constexpr std::string_view kStart = "wisdom";
  constexpr std::string_view kEnd = ".jsonl";
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  constexpr std::size_t kLongest = 100;
  return name.size() >= kStart.size() + kEnd.size() && name.size() <= kLongest &&
         name.substr(0, kStart.size()) == kStart && name.substr(name.size() - kEnd.size()) == kEnd &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::vector<DirectoryItem> list_files(int folder) {
  // A descriptor of its own, since listing a directory moves the descriptor's position.
  File own(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(own ? ::fdopendir(own.get()) : nullptr, &::closedir);
  if (!stream)
    throw Error(ErrorCode::io,
                fmt::format("the cache directory can not be listed: {}", std::strerror(errno)));
  own.release();  // the stream closes it

  std::vector<DirectoryItem> items;
  for (;;) {
    errno = 0;
    const dirent* item = ::readdir(stream.get());
    if (item == nullptr) {
      if (errno != 0) {
        throw Error(ErrorCode::io,
                    fmt::format("the cache directory can not be listed: {}", std::strerror(errno)));
      }
      return items;
    }
    struct stat status {};
    // Skip what is gone by now, and what is not a regular file.
    if (::fstatat(folder, item->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
      continue;
    items.push_back({.name = item->d_name, .identity = identity_of(status)});
  }
}

}  // namespace flashjit::cache

// What a user does with a cache directory: list, verify, prune, clear.
#include "cache/manage.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cache/directory.hpp"
#include "cache/disk.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cache {
namespace {

struct Checked {
  Verdict verdict = Verdict::unreadable;
  int error = 0;  // errno if it could not be read
  Entry entry;
  Identity identity;
};

Checked check(int folder, const std::string& digest) {
  ReadResult read = read_file(folder, entry_file_name(digest), kLargestEntry);
  Checked checked{.error = read.error, .identity = read.identity};
  if (read.error != 0 && read.error != EFBIG) return checked;  // nothing of it was read
  std::optional<Entry> entry = deserialize(std::as_bytes(std::span(read.bytes)));
  if (!entry) {
    checked.verdict = Verdict::damaged;
  } else {
    checked.verdict = entry->key.digest() == digest ? Verdict::good : Verdict::misfiled;
    checked.entry = *std::move(entry);
  }
  return checked;
}

bool is_bad(Verdict verdict) {
  return verdict == Verdict::damaged || verdict == Verdict::misfiled;
}

[[noreturn]] void refuse_removal(const StoreOptions& options, const std::string& name, int error) {
  throw Error(ErrorCode::io, fmt::format("{} can not be removed: {}", (options.directory / name).string(),
                                         std::strerror(error)));
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::good:
      return "good";
    case Verdict::damaged:
      return "damaged";
    case Verdict::misfiled:
      return "misfiled";
    case Verdict::unreadable:
      return "unreadable";
  }
  return "?";
}

File open_cache(const StoreOptions& options, bool create) {
  if (options.directory.empty()) throw no_directory(options);
  Directory directory = open_directory(options.directory, options.trust, create);
  if (directory.error != 0 && directory.error != ENOENT) {
    throw Error(ErrorCode::io, fmt::format("the cache directory {} can not be opened: {}",
                                           options.directory.string(), std::strerror(directory.error)));
  }
  return std::move(directory.folder);
}

std::vector<Row> list_entries(const StoreOptions& options, const Describe& describe) {
  std::vector<Row> rows;
  const File folder = open_cache(options, /*create=*/false);
  if (!folder) return rows;
  for (const DirectoryItem& item : list_files(folder.get())) {
    if (!is_entry_name(item.name)) continue;
    const std::string digest = digest_of(item.name);
    const Checked checked = check(folder.get(), digest);
    if (checked.error == ENOENT) continue;  // another process swept it meanwhile
    rows.push_back({.digest = digest,
                    .bytes = static_cast<std::uint64_t>(item.identity.size),
                    .used = item.identity.modified.tv_sec,
                    .verdict = checked.verdict,
                    .arch = std::string(checked.entry.key.field("arch")),
                    .name = describe && checked.verdict == Verdict::good ? describe(checked.entry) : ""});
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.used != b.used ? a.used > b.used : a.digest < b.digest;
  });
  return rows;
}

Entry load_entry(const StoreOptions& options, const std::string& prefix) {
  if (prefix.empty() || prefix.size() > 32 ||
      prefix.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" is no entry's name or the start of one", prefix),
                "give some of the 32 hex digits that `flashjit cache ls` shows");
  }
  const File folder = open_cache(options, /*create=*/false);
  std::vector<std::string> digests;
  for (const DirectoryItem& item : folder ? list_files(folder.get()) : std::vector<DirectoryItem>()) {
    if (is_entry_name(item.name) && item.name.compare(0, prefix.size(), prefix) == 0) {
      digests.push_back(digest_of(item.name));
    }
  }
  const Error none(ErrorCode::not_found,
                   fmt::format("no entry in {} starts with {}", options.directory.string(), prefix),
                   "`flashjit cache ls` lists them");
  if (digests.empty()) throw none;
  if (digests.size() > 1) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} entries in {} start with {}", digests.size(), options.directory.string(), prefix),
        "give more of its digits");
  }
  Checked checked = check(folder.get(), digests.front());
  if (checked.error == ENOENT) throw none;
  if (checked.verdict == Verdict::unreadable) {
    throw Error(ErrorCode::io, fmt::format("the entry {} can not be read: {}", digests.front(),
                                           std::strerror(checked.error)));
  }
  if (checked.verdict != Verdict::good) {
    throw Error(ErrorCode::io, fmt::format("the entry {} is {}", digests.front(), to_string(checked.verdict)),
                "`flashjit cache verify --remove` removes bad entries; they are built again when needed");
  }
  return std::move(checked.entry);
}

std::uint64_t remove_bad(const StoreOptions& options, const std::vector<Row>& rows) {
  const File folder = open_cache(options, /*create=*/false);
  if (!folder) return 0;
  std::uint64_t removed = 0;
  for (const Row& row : rows) {
    if (!is_bad(row.verdict)) continue;
    const Checked now = check(folder.get(), row.digest);
    if (!is_bad(now.verdict)) continue;
    const std::string name = entry_file_name(row.digest);
    const int error = remove_if_same(folder.get(), name, now.identity);
    if (error != 0 && error != ENOENT) refuse_removal(options, name, error);
    if (error == 0) ++removed;
  }
  return removed;
}

SweepResult prune(const StoreOptions& options, std::uint64_t limit) {
  const File folder = open_cache(options, /*create=*/false);
  if (!folder) return {.done = true};
  SweepResult result = sweep(folder.get(), limit);
  if (!result.done) {
    throw Error(ErrorCode::io, fmt::format("another process is pruning {}", options.directory.string()),
                "it does the same work: there is nothing to do, or try again in a moment");
  }
  if (result.error != 0) refuse_removal(options, result.stuck, result.error);
  return result;
}

Cleared clear(const StoreOptions& options, bool wisdom_too) {
  Cleared cleared;
  const File folder = open_cache(options, /*create=*/false);
  if (!folder) return cleared;
  const std::time_t now = std::time(nullptr);
  for (const DirectoryItem& item : list_files(folder.get())) {
    const bool entry = is_entry_name(item.name);
    const bool wisdom = wisdom_too && is_wisdom_name(item.name);
    if (!entry && !wisdom && !is_stale_temporary(item, now)) continue;
    if (::unlinkat(folder.get(), item.name.c_str(), 0) != 0) {
      if (errno == ENOENT) continue;
      refuse_removal(options, item.name, errno);
    }
    if (entry) {
      ++cleared.entries;
      cleared.bytes += static_cast<std::uint64_t>(item.identity.size);
    } else {
      ++(wisdom ? cleared.wisdom : cleared.temporaries);
    }
  }
  return cleared;
}

}  // namespace flashjit::cache

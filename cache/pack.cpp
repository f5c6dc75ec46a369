// A warm cache as one file.
//
// Header: magic (8 bytes), u32 schema, u32 number of records. Record: u32 length of name, u64 length of
// content, XXH3-128 of both with their lengths, name, content. Integers are little-endian; nothing follows
// the last record.
#include "cache/pack.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "cache/bytes.hpp"
#include "cache/digest.hpp"
#include "cache/directory.hpp"
#include "cache/disk.hpp"
#include "cache/manage.hpp"
#include "cache/sweep.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cache {
namespace {

constexpr std::string_view kMagic{
    "\x89"
    "FJPCK\r\n",
    8};
constexpr std::uint32_t kSchema = 1;
constexpr std::size_t kHeaderSize = 16;
constexpr std::size_t kRecordHeaderSize = 4 + 8 + 16;
constexpr std::uint32_t kLongestName = 255;

struct Record {
  std::string name;
  std::string content;
};

Hash128 hash_of(const Record& record) {
  Hasher hasher;
  hasher.add_length(record.name.size());
  hasher.add(record.name);
  hasher.add_length(record.content.size());
  hasher.add(record.content);
  return hasher.finish();
}

// nullopt if the entry is damaged or has another name.
std::optional<Entry> good_entry(const std::string& name, std::string_view content) {
  std::optional<Entry> entry = deserialize(std::as_bytes(std::span(content)));
  if (entry && entry_file_name(entry->key.digest()) != name) entry.reset();
  return entry;
}

// What replaces the directory's entry, if anything: for a list, the pack's toolchains and then those that
// only the directory's list has.
std::optional<Entry> grown(const Entry& there, Entry packed) {
  if (there.key.field("record").empty()) return std::nullopt;
  for (const auto& section : there.sections) {
    if (std::find(packed.sections.begin(), packed.sections.end(), section) == packed.sections.end())
      packed.sections.push_back(section);
  }
  if (packed.sections == there.sections) return std::nullopt;
  return packed;
}

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view doing, int error) {
  throw Error(ErrorCode::io, fmt::format("{} can not be {}: {}", path.string(), doing, std::strerror(error)));
}

// Reads a pack record by record and trusts nothing: each record is checked before it is returned.
class PackReader {
 public:
  explicit PackReader(const std::filesystem::path& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status {};
    if (!file_ || ::fstat(file_.get(), &status) != 0) fail(path_, "read", errno);
    if (!S_ISREG(status.st_mode)) bad("it is not a regular file");
    left_ = static_cast<std::uint64_t>(status.st_size);
    if (left_ < kHeaderSize) bad("it is shorter than a header");
    const std::string header = take(kHeaderSize);
    if (header.compare(0, kMagic.size(), kMagic) != 0) bad("it does not start as one");
    if (const auto schema = get_number<std::uint32_t>(std::string_view(header).substr(8));
        schema != kSchema) {
      bad(fmt::format("its format is {}, this flashjit reads {}", schema, kSchema));
    }
    records_ = get_number<std::uint32_t>(std::string_view(header).substr(12));
  }

  // False at the end.
  bool next(Record& record) {
    if (index_ == records_) {
      if (left_ != 0) bad(fmt::format("{} bytes follow its last record", left_));
      return false;
    }
    if (left_ < kRecordHeaderSize) bad(fmt::format("it ends before record {} of {}", index_ + 1, records_));
    const std::string header = take(kRecordHeaderSize);
    const auto name_size = get_number<std::uint32_t>(header);
    const auto content_size = get_number<std::uint64_t>(std::string_view(header).substr(4));
    if (name_size > kLongestName || content_size > kLargestEntry || name_size + content_size > left_) {
      bad(fmt::format("record {} of {} claims a name of {} bytes and {} more, {} are left", index_ + 1,
                      records_, name_size, content_size, left_));
    }
    record.name = take(name_size);
    record.content = take(content_size);
    const Hash128 hash = hash_of(record);
    if (std::memcmp(hash.data(), header.data() + 12, hash.size()) != 0) {
      bad(fmt::format("record {} of {} is damaged", index_ + 1, records_));
    }
    check_content(record);
    ++index_;
    return true;
  }

 private:
  // A pack may only write names that a cache directory has, and none of these can be a path.
  void check_content(const Record& record) const {
    if (is_wisdom_name(record.name)) return;
    if (!is_entry_name(record.name))
      bad(fmt::format("record {} of {} has a name that is not ours", index_ + 1, records_));
    if (!good_entry(record.name, record.content))
      bad(fmt::format("{} is no entry of that name", record.name));
  }

  std::string take(std::uint64_t size) {
    std::string bytes(size, '\0');
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got = ::read(file_.get(), bytes.data() + done, bytes.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(path_, "read", errno);
      if (got == 0) bad("it became shorter while it was read");
      done += static_cast<std::size_t>(got);
    }
    left_ -= size;
    return bytes;
  }

  [[noreturn]] void bad(const std::string& why) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is no good pack: {}", path_.string(), why),
                "make it again with `flashjit cache pack`");
  }

  const std::filesystem::path path_;
  File file_;
  std::uint64_t left_ = 0;
  std::uint32_t records_ = 0;
  std::uint32_t index_ = 0;
};

// Removes what writers that were killed left beside a pack, since nobody sweeps that folder. What cannot be
// removed stays.
void remove_stale_temporaries(const std::filesystem::path& place) {
  const File folder(::open(place.empty() ? "." : place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return;
  const std::time_t now = std::time(nullptr);
  for (const DirectoryItem& item : list_files(folder.get())) {
    if (is_stale_temporary(item, now)) (void)remove_if_same(folder.get(), item.name, item.identity);
  }
}

// Writes a pack under a temporary name in the same directory; finish() renames it. Else it is removed.
class PackWriter {
 public:
  explicit PackWriter(const std::filesystem::path& path)
      : path_(path), temporary_(path.parent_path() / temporary_name("pack")) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the pack is {}, which is no regular file; may be a new one, or one to replace",
                              path.string()));
    }
    file_ = File(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!file_) fail(path_, "written", errno);
    try {
      write(header());  // holds the place of the final header, which counts the records
    } catch (...) {     // no destructor runs after a failed constructor
      (void)::unlink(temporary_.c_str());
      throw;
    }
  }
  ~PackWriter() {
    if (!finished_) (void)::unlink(temporary_.c_str());
  }
  PackWriter(const PackWriter&) = delete;
  PackWriter& operator=(const PackWriter&) = delete;

  void add(const Record& record) {
    std::string head;
    put_number(head, static_cast<std::uint32_t>(record.name.size()));
    put_number(head, static_cast<std::uint64_t>(record.content.size()));
    const Hash128 hash = hash_of(record);
    head.append(reinterpret_cast<const char*>(hash.data()), hash.size());
    write(head + record.name);
    write(record.content);
    ++records_;
  }

  // Returns the pack's size.
  std::uint64_t finish() {
    if (::lseek(file_.get(), 0, SEEK_SET) != 0) fail(path_, "written", errno);
    write(header());
    if (const int error = sync(file_.get()); error != 0) fail(path_, "written", error);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "written", errno);
    finished_ = true;
    return written_ - kHeaderSize;  // the header was written twice
  }

 private:
  [[nodiscard]] std::string header() const {
    std::string bytes(kMagic);
    put_number(bytes, kSchema);
    put_number(bytes, records_);
    return bytes;
  }
  void write(std::string_view bytes) {
    if (const int error = write_all(file_.get(), bytes); error != 0) fail(path_, "written", error);
    written_ += bytes.size();
  }

  const std::filesystem::path path_;
  const std::filesystem::path temporary_;
  File file_;
  std::uint32_t records_ = 0;
  std::uint64_t written_ = 0;
  bool finished_ = false;
};

}  // namespace

Packed pack(const StoreOptions& options, const std::filesystem::path& pack_file) {
  const File folder = open_cache(options, /*create=*/false);
  if (!folder) {
    throw Error(ErrorCode::not_found,
                fmt::format("there is no cache directory {} to pack", options.directory.string()));
  }
  std::vector<DirectoryItem> items = list_files(folder.get());
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.name < b.name; });

  Packed packed;
  PackWriter writer(pack_file);
  remove_stale_temporaries(pack_file.parent_path());
  for (const DirectoryItem& item : items) {
    const bool wisdom = is_wisdom_name(item.name);
    if (!wisdom && !is_entry_name(item.name)) continue;
    ReadResult read = read_file(folder.get(), item.name, kLargestEntry);
    if (read.error == ENOENT) continue;  // swept since the listing
    const Record record{.name = item.name, .content = std::move(read.bytes)};
    if (read.error != 0 && wisdom) fail(options.directory / item.name, "read", read.error);
    if (!wisdom && !good_entry(record.name, record.content)) {
      ++packed.skipped;
      continue;
    }
    writer.add(record);
    ++(wisdom ? packed.wisdom : packed.entries);
  }
  packed.bytes = writer.finish();
  return packed;
}

Unpacked unpack(const std::filesystem::path& pack_file, const StoreOptions& options,
                const MergeWisdom& merge_wisdom) {
  Record record;
  for (PackReader all(pack_file); all.next(record);) continue;

  const File folder = open_cache(options, /*create=*/true);
  if (!folder) fail(options.directory, "made", ENOENT);  // a link whose target does not exist
  Unpacked unpacked;
  for (PackReader reader(pack_file); reader.next(record);) {
    if (is_wisdom_name(record.name)) {
      if (merge_wisdom(options.directory / record.name, record.content)) ++unpacked.wisdom;
      continue;
    }
    if (const std::optional<Entry> there =
            good_entry(record.name, read_file(folder.get(), record.name, kLargestEntry).bytes)) {
      const std::optional<Entry> more = grown(*there, good_entry(record.name, record.content).value());
      if (!more) {
        ++unpacked.kept;
        continue;
      }
      record.content = serialize(*more);
    }
    if (const int error = publish(folder.get(), record.name, record.content); error != 0) {
      fail(options.directory / record.name, "written", error);
    }
    ++unpacked.entries;
  }
  unpacked.removed =
      sweep(folder.get(), options.size_limit).removed_entries;  // another process's sweep will do
  return unpacked;
}

}  // namespace flashjit::cache

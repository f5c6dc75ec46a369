// The layers as one store, and the options that the environment gives.
#include "cache/store.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <system_error>

#include "cache/disk.hpp"
#include "cache/memory.hpp"

namespace flashjit::cache {
namespace {

constexpr std::size_t kMemoryLimit = std::size_t{256}
                                     << 20;  // bytes: some thousand kernels with source and PTX

class LayeredStore final : public Store {
 public:
  explicit LayeredStore(const StoreOptions& options) : memory_(kMemoryLimit) {
    if (!options.directory.empty()) {
      disk_.emplace(DiskLayer::Options{.path = options.directory,
                                       .trust = options.trust,
                                       .writable = true,
                                       .size_limit = options.size_limit,
                                       .warn = options.warn});
    }
    if (!options.system_directory.empty()) {
      system_.emplace(DiskLayer::Options{.path = options.system_directory,
                                         .trust = Trust::as_given,
                                         .writable = false,
                                         .size_limit = 0,
                                         .warn = options.warn});
    }
  }

  Hit get(const Key& key) override {
    const std::string digest = key.digest();
    if (auto entry = memory_.get(key, digest)) return {.entry = std::move(entry), .layer = "memory"};
    if (auto entry = disk_ ? disk_->get(key, digest) : nullptr)
      return remember(std::move(entry), digest, "disk");
    if (auto entry = system_ ? system_->get(key, digest) : nullptr)
      return remember(std::move(entry), digest, "system");
    return {};
  }

  std::vector<Hit> get_all(const Key& key) override {
    const std::string digest = key.digest();
    std::vector<Hit> all;
    if (auto entry = disk_ ? disk_->get(key, digest) : nullptr)
      all.push_back({.entry = std::move(entry), .layer = "disk"});
    if (auto entry = system_ ? system_->get(key, digest) : nullptr)
      all.push_back({.entry = std::move(entry), .layer = "system"});
    return all;
  }

  void put(std::shared_ptr<const Entry> entry) override {
    const std::string digest = entry->key.digest();
    memory_.put(entry, digest);
    if (disk_) disk_->put(*entry, digest);
  }

  FolderLock lock_for_compile(const Key& key, std::chrono::milliseconds patience) override {
    return disk_ ? disk_->lock_for_compile(key.digest(), patience) : FolderLock();
  }

 private:
  Hit remember(std::shared_ptr<const Entry> entry, const std::string& digest, std::string_view layer) {
    memory_.put(entry, digest);
    return {.entry = std::move(entry), .layer = layer};
  }

  MemoryLayer memory_;
  std::optional<DiskLayer> disk_;
  std::optional<DiskLayer> system_;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// A path from the environment. A relative path would name another place, perhaps with other people's files,
// after each chdir.
std::filesystem::path absolute_from(const char* name) {
  std::filesystem::path path = environment(name);
  if (!path.empty() && path.is_relative()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is \"{}\", a relative path", name, path.string()), "give an absolute one");
  }
  return path;
}

}  // namespace

std::uint64_t parse_size(std::string_view text, std::string_view name) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  const std::string_view suffix(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  const std::size_t power = suffix.empty() ? 0 : std::string_view("kmgtKMGT").find(suffix.front()) % 4 + 1;
  const bool known = suffix.size() <= 1 &&
                     (suffix.empty() || std::string_view("kmgtKMGT").find(suffix) != std::string_view::npos);
  if (parsed.ec != std::errc() || !known ||
      number > std::numeric_limits<std::uint64_t>::max() >> (10 * power)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is \"{}\", which is no size", name, text),
                "give bytes, or a number with k, M, G or T (powers of 1024), such as 500M");
  }
  return number << (10 * power);
}

std::filesystem::path default_directory() {
  if (std::filesystem::path named = absolute_from("FLASHJIT_CACHE_DIR"); !named.empty()) return named;
  // The XDG base directory specification says to ignore a relative XDG_CACHE_HOME.
  const std::filesystem::path xdg = environment("XDG_CACHE_HOME");
  if (xdg.is_absolute()) return xdg / "flashjit";
  const std::filesystem::path home = environment("HOME");
  return home.is_absolute() ? home / ".cache" / "flashjit" : std::filesystem::path();
}

std::filesystem::path absolute_directory(const std::filesystem::path& named) {
  if (named.native().find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cache_dir is \"{}\" with a zero byte, may be a path", named.c_str()));
  }
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(named, error);
  if (error) {
    throw Error(ErrorCode::io,
                fmt::format("cache_dir is \"{}\", a relative path, and there is no working directory: {}",
                            named.string(), error.message()),
                "give an absolute one");
  }
  return path;
}

StoreOptions options_from_environment(const std::filesystem::path& named) {
  StoreOptions options;
  const bool given = !named.empty() || !environment("FLASHJIT_CACHE_DIR").empty();
  options.directory = named.empty() ? default_directory() : absolute_directory(named);
  options.trust = given ? Trust::as_given : Trust::verify;
  options.system_directory = absolute_from("FLASHJIT_SYSTEM_CACHE_DIR");
  if (const std::string size = environment("FLASHJIT_CACHE_SIZE"); !size.empty()) {
    options.size_limit = parse_size(size, "FLASHJIT_CACHE_SIZE");
    if (options.size_limit == 0) options.directory.clear();
  }
  return options;
}

Error no_directory(const StoreOptions& options) {
  if (options.size_limit == 0) {
    return {ErrorCode::not_found,
            "there is no cache directory: FLASHJIT_CACHE_SIZE is 0, which means memory only",
            "unset it, or give it a size such as 1G"};
  }
  return {ErrorCode::not_found,
          "there is no cache directory: none of FLASHJIT_CACHE_DIR, XDG_CACHE_HOME and HOME names one",
          "set one of them to an absolute path"};
}

std::unique_ptr<Store> open_store(const StoreOptions& options) {
  return std::make_unique<LayeredStore>(options);
}

}  // namespace flashjit::cache

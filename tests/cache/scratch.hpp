// What the cache's tests share: a folder that goes away, entries to put into it, and a child process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache/entry.hpp"
#include "cache/store.hpp"

namespace flashjit::cache::testing {

// Under the build's own temporary place, never shared: mkdtemp makes it 0700.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "flashjit-cache-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string random_bytes(std::mt19937_64& generator, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

// Entry number n: the same bytes from every process that makes it, so that a reader can tell whether it got
// the right one.
inline Entry numbered_entry(std::uint64_t n, std::size_t cubin_size = 4096) {
  std::mt19937_64 generator(n);
  return {.key = {.fields = {{"schema", "1"}, {"source", "kernel " + std::to_string(n)}, {"arch", "sm_90a"}}},
          .sections = {{"ptx", ".version 8.0"}, {"cubin", random_bytes(generator, cubin_size)}, {"log", ""}}};
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void spill(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(folder))
    names.push_back(item.path().filename().string());
  return names;
}

inline std::filesystem::path entry_path(const std::filesystem::path& folder, const Entry& entry) {
  return folder / entry_file_name(entry.key.digest());
}

// The first entries by number, put into a directory.
inline void fill(const std::filesystem::path& folder, std::uint64_t count) {
  const auto store = open_store({.directory = folder});
  for (std::uint64_t n = 0; n < count; ++n) store->put(std::make_shared<const Entry>(numbered_entry(n)));
}

// A store on `folder` that collects its warnings.
struct WatchedStore {
  explicit WatchedStore(const std::filesystem::path& folder, Trust trust = Trust::verify)
      : store(open_store({.directory = folder, .trust = trust, .warn = [this](std::string_view line) {
                            warnings.emplace_back(line);
                          }})) {}
  std::vector<std::string> warnings;
  std::unique_ptr<Store> store;
};

// Whom root becomes in a child to have no more rights than others.
inline constexpr uid_t kNobody = 65534;

// Runs `body` in a forked child; its exit code, or 128 + the signal that ended it.
inline int in_child(const std::function<int()>& body) {
  (void)std::fflush(nullptr);  // or the child may print again what the parent has buffered
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    ::_exit(code);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace flashjit::cache::testing

// The part of `flashjit doctor` that looks at the cache: its directories, its entries, its wisdom.
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "autotune/wisdom.hpp"
#include "cache/directory.hpp"
#include "cache/manage.hpp"
#include "cache/store.hpp"
#include "cli/verbs/doctor/findings.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

// The file system's name (empty: not known), and whether several machines share it, from statfs's magic
// numbers (linux/magic.h and statfs(2)).
struct FileSystem {
  std::string name;
  bool shared = false;
};

FileSystem file_system_of(const std::filesystem::path& path) {
  struct Known {
    std::uint32_t magic;
    const char* name;
    bool shared;
  };
  constexpr std::array kKnown = std::to_array<Known>({{0xEF53, "ext4", false},
                                                      {0x58465342, "xfs", false},
                                                      {0x9123683E, "btrfs", false},
                                                      {0x2FC12FC1, "zfs", false},
                                                      {0x01021994, "tmpfs", false},
                                                      {0x794C7630, "overlay", false},
                                                      {0x6969, "NFS", true},
                                                      {0x65735546, "FUSE", true},
                                                      {0xFF534D42, "CIFS", true},
                                                      {0xFE534D42, "SMB2", true},
                                                      {0x0BD00BD0, "Lustre", true},
                                                      {0x47504653, "GPFS", true},
                                                      {0x19830326, "BeeGFS", true},
                                                      {0x00C36400, "Ceph", true},
                                                      {0x01021997, "9p", true}});
  struct statfs status {};
  if (statfs(path.c_str(), &status) != 0) return {};
  const auto magic = static_cast<std::uint32_t>(status.f_type);
  for (const Known& known : kKnown) {
    if (known.magic == magic) return {known.name, known.shared};
  }
  return {fmt::format("file system 0x{:X}", magic), false};
}

// Reports one line about the directory, opened as an Engine opens it. Returns whether its contents can be
// examined. Reports only what is known, since a part of the path may not be accessible to us.
bool check_directory(std::vector<Finding>& findings, const cache::StoreOptions& options) {
  constexpr double kGib = 1ULL << 30;
  constexpr double kLittle = 16e6;  // a few dozen kernels
  const std::filesystem::path& directory = options.directory;
  const cache::Directory opened = cache::open_directory(directory, options.trust, /*create=*/true);
  const auto refusal = [&](int rights) {
    if (opened.error != 0) return opened.error;
    return ::access(directory.c_str(), rights) == 0 ? 0 : errno;
  };
  const int unreadable = refusal(R_OK | X_OK);
  const int unwritable = refusal(R_OK | W_OK | X_OK);

  std::string words = directory.string();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(directory, error);
  const bool exists = std::filesystem::exists(status);
  if (exists) {
    words += fmt::format(", rights {:03o}", static_cast<unsigned>(status.permissions()) & 0777U);
  } else if (status.type() == std::filesystem::file_type::not_found) {
    words += ", which does not exist";
  }
  const FileSystem system = exists ? file_system_of(directory) : FileSystem();
  if (!system.name.empty()) words += ", " + system.name;
  struct statvfs space {};
  const bool known = exists && statvfs(directory.c_str(), &space) == 0;
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  if (known) words += fmt::format(", {:.1f} GiB free", free / kGib);
  words += fmt::format(", limit {:.1f} GiB", static_cast<double>(options.size_limit) / kGib);
  constexpr const char* kElsewhere =
      "kernels stay in the process that compiled them: see who may write there, or have FLASHJIT_CACHE_DIR "
      "name another directory";
  if (unwritable == 0) {
    findings.push_back({"cache", State::ok, words, ""});
  } else {
    findings.push_back({"cache", State::note,
                        fmt::format("{}: can not be {} ({})", words,
                                    unreadable != 0 ? "opened" : "written to", std::strerror(unwritable)),
                        kElsewhere});
  }
  if (unwritable == 0 && known && free < kLittle) {
    findings.push_back({"cache", State::note, fmt::format("only {:.1f} MB are free", free / 1e6),
                        "kernels that do not fit are compiled anew by each process: make room, or have "
                        "FLASHJIT_CACHE_DIR name another directory"});
  }
  if (system.shared) {
    findings.push_back(
        {"cache", State::note, fmt::format("{} may be shared between machines", system.name),
         "that is safe, but slow locks cost time: FLASHJIT_CACHE_DIR names a local directory"});
  }
  return unreadable == 0;
}

void check_entries(std::vector<Finding>& findings, const cache::StoreOptions& options) {
  const auto rows = cache::list_entries(options);
  const auto count = [&](cache::Verdict verdict) {
    return std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.verdict == verdict; });
  };
  const auto unreadable = count(cache::Verdict::unreadable);
  const auto bad = count(cache::Verdict::damaged) + count(cache::Verdict::misfiled);
  findings.push_back({"entries", bad + unreadable == 0 ? State::ok : State::note,
                      fmt::format("{}{}{}", rows.size(), bad == 0 ? "" : fmt::format(", {} of them bad", bad),
                                  unreadable == 0 ? "" : fmt::format(", {} unreadable", unreadable)),
                      bad != 0          ? "`flashjit cache verify --remove` removes the bad ones"
                      : unreadable != 0 ? "see who may read them, and the disk's log"
                                        : ""});
}

// Reports the records of a directory as `words` puts their number, and the lines that are none, for which
// there is advice.
void check_wisdom(std::vector<Finding>& findings, const std::string& what,
                  const std::filesystem::path& directory,
                  const std::function<std::string(std::size_t)>& words, const std::string& advice) {
  std::vector<std::string> complaints;
  const auto wisdom = autotune::read_wisdom(directory / "wisdom.jsonl",
                                            [&](std::string_view line) { complaints.emplace_back(line); });
  findings.push_back({what, complaints.empty() ? State::ok : State::note, words(wisdom.records().size()),
                      complaints.empty() ? "" : advice});
  for (const std::string& line : complaints) findings.push_back({what, State::note, line, ""});
}

// The directory that an administrator or an image fills; no user writes to it.
void check_system_directory(std::vector<Finding>& findings, const std::filesystem::path& directory) {
  const cache::StoreOptions options{.directory = directory, .trust = cache::Trust::as_given};
  const cache::Directory opened = cache::open_directory(directory, options.trust, /*create=*/false);
  if (opened.error != 0) {
    findings.push_back(
        {"system", State::note,
         fmt::format("{} can not be opened ({}): every process goes on without it", directory.string(),
                     std::strerror(opened.error)),
         "have FLASHJIT_SYSTEM_CACHE_DIR name a directory that everybody may read, or unset it"});
    return;
  }
  const auto words = [&](std::size_t records) {
    return fmt::format("{}, {} entries, {} records of wisdom", directory.string(),
                       cache::list_entries(options).size(), records);
  };
  check_wisdom(findings, "system", directory, words,
               "every process goes on without these lines: whoever fills the directory can export them anew");
}

}  // namespace

void check_cache(std::vector<Finding>& findings) {
  cache::StoreOptions options;
  check(findings, "cache", State::problem, [&] {
    options = cache::options_from_environment();
    if (options.directory.empty()) {
      const Error why = cache::no_directory(options);
      findings.push_back(
          {"cache", State::note, "kernels are kept in memory alone: " + why.message(), why.hint()});
    } else if (check_directory(findings, options)) {
      check_entries(findings, options);
      const auto words = [](std::size_t records) {
        return fmt::format("{} own, {} shipped", records, autotune::shipped_wisdom().records().size());
      };
      check_wisdom(findings, "wisdom", options.directory, words,
                   "`flashjit tune` writes the file anew, without lines that are no records, but with those "
                   "of other versions");
    }
  });
  if (options.system_directory.empty()) return;
  check(findings, "system", State::problem,
        [&] { check_system_directory(findings, options.system_directory); });
}

}  // namespace flashjit::cli

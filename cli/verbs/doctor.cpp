// `flashjit doctor`: one line for each thing that flashjit needs or can use, and what to do if it is missing.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/wisdom.hpp"
#include "cache/directory.hpp"
#include "cache/manage.hpp"
#include "cache/store.hpp"
#include "cli/common/json.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/disassemble.hpp"

namespace flashjit::cli {
namespace {

enum class State {
  ok,
  note,     // works, but with a reservation
  absent,   // something that flashjit can do without
  problem,  // something that flashjit needs
};

struct Finding {
  std::string what;
  State state;
  std::string words;
  std::string advice;
};

const char* to_string(State state) {
  switch (state) {
    case State::ok:
      return "ok";
    case State::note:
      return "note";
    case State::absent:
      return "absent";
    case State::problem:
      return "PROBLEM";
  }
  return "";
}

// Runs a check; an Error becomes a finding of the given state.
void check(std::vector<Finding>& findings, const std::string& what, State when_it_fails,
           const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    findings.push_back({what, when_it_fails, error.message(), error.hint()});
  } catch (const std::exception& error) {
    findings.push_back({what, when_it_fails, error.what(), ""});
  }
}

// What the GPUs require of an NVRTC.
struct Gpus {
  std::vector<std::string> archs;
  int cuda_major = 0;  // the newest CUDA that the driver knows; 0: there is no driver
};

Gpus check_gpus(std::vector<Finding>& findings) {
  Gpus gpus;
  check(findings, "driver", State::absent, [&] {
    const runtime::CudaStatus status = runtime::cuda_status();
    gpus.cuda_major = status.cuda_version / 1000;
    findings.push_back(
        {"driver", State::ok,
         fmt::format("{}, up to CUDA {}.{}, {}", status.driver_version, status.cuda_version / 1000,
                     status.cuda_version % 1000 / 10, status.driver_path),
         ""});
    if (status.gpus.empty()) {
      findings.push_back(
          {"GPU", State::absent, "the driver sees none", "do CUDA_VISIBLE_DEVICES or a container hide it?"});
    }
    for (std::size_t i = 0; i < status.gpus.size(); ++i) {
      const auto& gpu = status.gpus[i];
      const std::string what = fmt::format("cuda:{}", i);
      check(findings, what, State::problem, [&] {
        static_cast<void>(runtime::open_cuda_device(what));
        findings.push_back({what, State::ok,
                            fmt::format("{}, {}, {:.1f} GiB", gpu.name, gpu.arch,
                                        static_cast<double>(gpu.memory) / (1024.0 * 1024 * 1024)),
                            ""});
        gpus.archs.push_back(gpu.arch);
      });
    }
  });
  return gpus;
}

void check_compiler(std::vector<Finding>& findings, const Gpus& gpus) {
  check(findings, "NVRTC", State::problem, [&] {
    const auto compiler = runtime::load_nvrtc();
    findings.push_back(
        {"NVRTC", State::ok, fmt::format("{}, {}", compiler->build_id(), compiler->path()), ""});
    findings.push_back({"archs", State::ok, fmt::format("{}", fmt::join(compiler->archs(), " ")), ""});
    if (const int major = compiler->version() / 100; gpus.cuda_major != 0 && major > gpus.cuda_major) {
      findings.push_back({"NVRTC", State::note,
                          fmt::format("it is of CUDA {}, and the driver knows CUDA {}: kernels may not load",
                                      major, gpus.cuda_major),
                          fmt::format("update the driver, or have FLASHJIT_NVRTC name an NVRTC of CUDA {}",
                                      gpus.cuda_major)});
    }
    for (const std::string& arch : gpus.archs) {
      Target target;
      target.arch = arch;
      if (compiler->makes_cubin(target)) continue;
      findings.push_back(
          {"archs", State::note,
           fmt::format("this NVRTC is older than {}: it makes PTX, and the driver the code at each load",
                       arch),
           "`pip install nvidia-cuda-nvrtc` gets the newest; FLASHJIT_NVRTC names it"});
    }
    if (const std::string flags = runtime::nvrtc_append_flags(); !flags.empty()) {
      findings.push_back({"NVRTC", State::note, fmt::format("NVRTC_APPEND_FLAGS is \"{}\"", flags),
                          "it may change every kernel, and has entries of its own in the cache"});
    }
  });
  check(findings, "nvdisasm", State::absent, [&] {
    findings.push_back({"nvdisasm", State::ok, runtime::find_nvdisasm().string(), ""});
  });
}

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

void check_wisdom(std::vector<Finding>& findings, const std::filesystem::path& directory) {
  std::vector<std::string> complaints;
  const auto wisdom = autotune::read_wisdom(directory / "wisdom.jsonl",
                                            [&](std::string_view line) { complaints.emplace_back(line); });
  findings.push_back({"wisdom", complaints.empty() ? State::ok : State::note,
                      fmt::format("{} own, {} shipped", wisdom.records().size(),
                                  autotune::shipped_wisdom().records().size()),
                      complaints.empty() ? ""
                                         : "`flashjit tune` writes the file anew, without lines that are no "
                                           "records, but with those of other versions"});
  for (const std::string& line : complaints) findings.push_back({"wisdom", State::note, line, ""});
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
  findings.push_back({"system", State::ok,
                      fmt::format("{}, {} entries", directory.string(), cache::list_entries(options).size()),
                      ""});
}

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
      check_wisdom(findings, options.directory);
    }
  });
  if (options.system_directory.empty()) return;
  check(findings, "system", State::problem,
        [&] { check_system_directory(findings, options.system_directory); });
}

int run(bool as_json) {
  std::vector<Finding> findings;
  check_compiler(findings, check_gpus(findings));
  check_cache(findings);

  bool well = true;
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    well = well && finding.state != State::problem;
    if (as_json) {
      list.push_back({{"what", finding.what},
                      {"state", to_string(finding.state)},
                      {"words", finding.words},
                      {"advice", finding.advice}});
      continue;
    }
    fmt::print("{:<9} {:<8} {}\n", finding.what, to_string(finding.state), finding.words);
    if (!finding.advice.empty()) fmt::print("{:<9} {:<8} → {}\n", "", "", finding.advice);
  }
  if (as_json) fmt::print("{}\n", indented(list));
  return well ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto* verb =
      app.add_subcommand("doctor", "Check what flashjit needs, and say what to do about what is missing");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "print JSON");
  verb->callback([json, &exit_code] { exit_code = run(*json); });
}

}  // namespace flashjit::cli

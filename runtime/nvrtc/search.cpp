// The search for libnvrtc.so.N, newest N first in each place; never the unversioned name, which may be
// anybody's.
#include "runtime/nvrtc/search.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "flashjit/error.hpp"
#include "runtime/dynamic_library.hpp"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kOldestMajor = 12;  // the first that knows sm_90a

constexpr std::string_view kHowToGet =
    "get it in one of two ways: install a CUDA toolkit of version 12 or later and set CUDA_PATH to it, or "
    "`pip install nvidia-cuda-nvrtc` and set FLASHJIT_NVRTC to that wheel's nvidia/*/lib";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::vector<fs::path> list(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code ignored;  // a directory that can't be read holds nothing for us
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored))
    entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// libnvrtc.so.13 → 13; anything else, libnvrtc.so and libnvrtc.alt.so.13 included → 0.
int major_of(const std::string& name) {
  constexpr std::string_view kPrefix = "libnvrtc.so.";
  int major = 0;
  if (name.compare(0, kPrefix.size(), kPrefix) == 0) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), major);
  }
  return major;
}

// The newest libnvrtc in a directory; empty when there is none.
fs::path newest_in(const fs::path& directory) {
  fs::path best;
  int best_major = kOldestMajor - 1;
  for (const fs::path& entry : list(directory)) {
    const int major = major_of(entry.filename().string());
    if (major > best_major && fs::exists(entry)) {
      best = entry;
      best_major = major;
    }
  }
  return best;
}

fs::path newest_below(const fs::path& root) {
  for (const char* part : {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"}) {
    if (fs::path found = newest_in(root / part); !found.empty()) return found;
  }
  return {};
}

// The directories named site-packages or dist-packages below a Python prefix.
void add_site_packages(std::vector<fs::path>& to, const fs::path& prefix) {
  for (const fs::path& version : list(prefix / "lib")) {
    if (version.filename().string().rfind("python3", 0) != 0) continue;
    for (const char* name : {"site-packages", "dist-packages"}) {
      if (fs::is_directory(version / name)) to.push_back(version / name);
    }
  }
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

fs::path find_given(const std::string& given) {
  const fs::path path(given);
  if (fs::is_regular_file(path)) return path;
  if (fs::is_directory(path)) {
    fs::path found = newest_in(path);
    if (found.empty()) found = newest_below(path);
    if (!found.empty()) return found;
    throw Error(
        ErrorCode::not_found,
        fmt::format(
            "FLASHJIT_NVRTC is \"{}\": no libnvrtc.so.{} or later in this directory, its lib64 or lib", given,
            kOldestMajor),
        "set it to a libnvrtc.so.N or a directory that holds one, or unset it to search");
  }
  throw Error(ErrorCode::not_found, fmt::format("FLASHJIT_NVRTC is \"{}\": no such file or directory", given),
              "set it to a libnvrtc.so.N or a directory that holds one, or unset it to search");
}

}  // namespace

NvrtcPlaces nvrtc_places() {
  NvrtcPlaces places{
      .given = environment("FLASHJIT_NVRTC"), .toolkits = {}, .sonames = {}, .site_packages = {}};
  for (const char* name : {"CUDA_PATH", "CUDA_HOME"}) {
    if (std::string value = environment(name); !value.empty()) places.toolkits.emplace_back(value);
  }
  places.toolkits.emplace_back("/usr/local/cuda");
  places.sonames = {"libnvrtc.so.13", "libnvrtc.so.12"};

  // Python itself is not asked: starting it takes longer than a compile.
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (std::string value = environment(name); !value.empty()) add_site_packages(places.site_packages, value);
  }
  for (const std::string& path : split(environment("PYTHONPATH"), ':'))
    places.site_packages.emplace_back(path);
  for (const std::string& bin : split(environment("PATH"), ':')) {
    if (access((bin + "/python3").c_str(), X_OK) == 0) {
      add_site_packages(places.site_packages, fs::path(bin).parent_path());
    }
  }
  if (std::string home = environment("HOME"); !home.empty()) {
    add_site_packages(places.site_packages, fs::path(home) / ".local");
  }
  for (const char* prefix : {"/usr/local", "/usr"}) add_site_packages(places.site_packages, prefix);
  std::vector<fs::path> unique;
  for (const fs::path& path : places.site_packages) {
    if (std::find(unique.begin(), unique.end(), path) == unique.end()) unique.push_back(path);
  }
  places.site_packages = std::move(unique);
  return places;
}

fs::path find_nvrtc(const NvrtcPlaces& places) {
  if (!places.given.empty()) return find_given(places.given);
  std::string looked = "\n  FLASHJIT_NVRTC: not set";

  for (const fs::path& toolkit : places.toolkits) {
    if (fs::path found = newest_below(toolkit); !found.empty()) return found;
    looked +=
        fmt::format("\n  toolkit {}: {}", toolkit.string(),
                    fs::is_directory(toolkit) ? "no libnvrtc in its lib64 or lib" : "no such directory");
  }
  for (const std::string& soname : places.sonames) {
    const DynamicLibrary library(soname);
    if (library) return library.path();
    looked += fmt::format("\n  the loader's path: {}", library.error());
  }
  for (const fs::path& packages : places.site_packages) {
    for (const fs::path& package : list(packages / "nvidia")) {
      if (fs::path found = newest_in(package / "lib"); !found.empty()) return found;
    }
    looked += fmt::format("\n  Python's {}: no nvidia/*/lib/libnvrtc.so.N", packages.string());
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format("NVRTC (libnvrtc.so.{} or later) was not found; looked in:{}", kOldestMajor, looked),
      std::string(kHowToGet));
}

}  // namespace flashjit::runtime

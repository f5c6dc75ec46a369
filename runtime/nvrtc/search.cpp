// The search for libnvrtc.so.N, in each place the newest N first. Never the unversioned name, which may be
// any version.
#include "runtime/nvrtc/search.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <system_error>

#include "flashjit/error.hpp"
#include "runtime/dynamic_library.hpp"
#include "runtime/places.hpp"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kOldestMajor = 12;  // the first that knows sm_90a

constexpr std::string_view kHowToGet =
    "get it in one of two ways: install a CUDA toolkit of version 12 or later and set CUDA_PATH to it, or "
    "`pip install nvidia-cuda-nvrtc` (nvidia-cuda-nvrtc-cu12 for a driver of CUDA 12) into a Python that is "
    "searched, or set FLASHJIT_NVRTC to that wheel's libnvrtc.so.N";

// libnvrtc.so.13 → 13; anything else, libnvrtc.so and libnvrtc.alt.so.13 included → 0.
int major_of(const std::string& name) {
  constexpr std::string_view kPrefix = "libnvrtc.so.";
  int major = 0;
  if (name.compare(0, kPrefix.size(), kPrefix) == 0) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), major);
  }
  return major;
}

// A path that can't be looked at counts as absent.
bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The newest libnvrtc in a directory; empty if there is none.
fs::path newest_in(const fs::path& directory) {
  fs::path best;
  int best_major = kOldestMajor - 1;
  for (const fs::path& entry : list_directory(directory)) {
    const int major = major_of(entry.filename().string());
    if (major > best_major && present(entry)) {
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

fs::path find_given(const std::string& given) {
  fs::path path(given);
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return path;
  if (fs::is_directory(path, ignored)) {
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
  throw Error(ErrorCode::not_found,
              fmt::format("FLASHJIT_NVRTC is \"{}\": {}", given,
                          present(path) ? "neither a file nor a directory" : "no such file or directory"),
              "set it to a libnvrtc.so.N or a directory that holds one, or unset it to search");
}

}  // namespace

NvrtcPlaces nvrtc_places() {
  return {.given = environment("FLASHJIT_NVRTC"),
          .toolkits = toolkits(),
          .sonames = {"libnvrtc.so.13", "libnvrtc.so.12"},
          .site_packages = site_packages};
}

fs::path find_nvrtc(const NvrtcPlaces& places) {
  if (!places.given.empty()) return find_given(places.given);
  std::string looked = "\n  FLASHJIT_NVRTC: not set";

  for (const fs::path& toolkit : places.toolkits) {
    if (fs::path found = newest_below(toolkit); !found.empty()) return found;
    looked += fmt::format("\n  toolkit {}: {}", toolkit.string(),
                          present(toolkit)
                              ? fmt::format("no libnvrtc.so.{} or later in its lib64 or lib", kOldestMajor)
                              : "no such directory");
  }
  for (const std::string& soname : places.sonames) {
    const DynamicLibrary library(soname);
    if (library) return library.path();
    looked += fmt::format("\n  the loader's path: {}", library.error());
  }
  for (const fs::path& packages : places.site_packages()) {
    for (const fs::path& package : list_directory(packages / "nvidia")) {
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

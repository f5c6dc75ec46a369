// The environment variables and directories behind the searches for NVRTC and nvdisasm.
#include "runtime/places.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "flashjit/error.hpp"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> absolute_parts(const std::string& text) {
  std::vector<fs::path> parts;
  std::size_t start = 0;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find(':', start), text.size());
    if (const fs::path part = text.substr(start, end - start); part.is_absolute()) parts.push_back(part);
    start = end + 1;
  }
  return parts;
}

void add(std::vector<fs::path>& to, const fs::path& path) {
  if (std::find(to.begin(), to.end(), path) == to.end()) to.push_back(path);
}

// The directories named site-packages or dist-packages below a Python prefix.
void add_prefix(std::vector<fs::path>& to, const fs::path& prefix) {
  std::error_code ignored;  // a directory that can't be read counts as empty
  for (const fs::path& version : list_directory(prefix / "lib")) {
    if (version.filename().string().rfind("python3", 0) != 0) continue;
    for (const char* name : {"site-packages", "dist-packages"}) {
      // By its real name, because /lib is often a link to /usr/lib.
      if (fs::is_directory(version / name, ignored)) add(to, fs::weakly_canonical(version / name, ignored));
    }
  }
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::vector<fs::path> list_directory(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  if (error == std::errc::too_many_files_open || error == std::errc::too_many_files_open_in_system) {
    throw Error(ErrorCode::io, fmt::format("{} can't be listed: {}", directory.string(), error.message()),
                "close some files, or raise the limit (ulimit -n)");
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool runnable(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

std::vector<fs::path> path_directories() {
  return absolute_parts(environment("PATH"));
}

std::vector<fs::path> toolkits() {
  std::vector<fs::path> roots;
  for (const char* name : {"CUDA_PATH", "CUDA_HOME"}) {
    if (const std::string value = environment(name); !value.empty()) add(roots, value);
  }
  add(roots, "/usr/local/cuda");
  return roots;
}

std::vector<fs::path> site_packages() {
  std::vector<fs::path> found;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string value = environment(name); !value.empty()) add_prefix(found, value);
  }
  for (const fs::path& path : absolute_parts(environment("PYTHONPATH"))) add(found, path);
  for (const fs::path& bin : path_directories()) {
    if (access((bin / "python3").c_str(), X_OK) != 0) continue;
    add_prefix(found, bin.parent_path());
    if (bin.filename() != "shims") continue;
    // pyenv's scripts, which start a Python of their own. Only they know which, so all versions are searched.
    for (const fs::path& version : list_directory(bin.parent_path() / "versions")) add_prefix(found, version);
  }
  if (const std::string home = environment("HOME"); !home.empty())
    add_prefix(found, fs::path(home) / ".local");
  for (const char* prefix : {"/usr/local", "/usr"}) add_prefix(found, prefix);
  return found;
}

}  // namespace flashjit::runtime

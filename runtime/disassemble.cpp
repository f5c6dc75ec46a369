// Finds nvdisasm and runs it on a private temporary file.
#include "runtime/disassemble.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "flashjit/error.hpp"
#include "runtime/places.hpp"
#include "runtime/spawn.hpp"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

fs::path temporary_directory() {
  std::error_code error;
  fs::path directory = fs::temp_directory_path(error);
  if (!error) return directory;
  for (const char* name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {  // in the standard library's order
    if (const std::string value = environment(name); !value.empty()) {
      throw Error(ErrorCode::io, fmt::format("{} is \"{}\", may be a directory to make files in: {}", name,
                                             value, error.message()));
    }
  }
  throw Error(ErrorCode::io, fmt::format("there is no directory /tmp to make files in: {}", error.message()),
              "TMPDIR names another directory");
}

// A directory of our own in the temporary one, removed with all its contents.
class PrivateDirectory {
 public:
  PrivateDirectory() {
    std::string pattern = (temporary_directory() / "flashjit-sass-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw Error(ErrorCode::io, fmt::format("can't make a directory {}: {}", pattern, std::strerror(errno)),
                  "TMPDIR names the directory to make it in");
    }
    path_ = pattern;
  }
  ~PrivateDirectory() {
    std::error_code ignored;  // a leftover in the temporary directory does no harm
    fs::remove_all(path_, ignored);
  }
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// The exit status from waitpid; nullopt if this program ignores SIGCHLD or waits for all its children.
std::optional<int> run(const fs::path& program, const std::vector<std::string>& arguments,
                       const fs::path& out, const fs::path& err) {
  const std::string name = program.string();
  std::vector<std::string> called{name};
  called.insert(called.end(), arguments.begin(), arguments.end());
  Spawn spawn;
  constexpr int kNew = O_WRONLY | O_CREAT | O_TRUNC;
  spawn.open(STDIN_FILENO, "/dev/null", O_RDONLY);
  spawn.open(STDOUT_FILENO, out, kNew);
  spawn.open(STDERR_FILENO, err, kNew);
  pid_t child = 0;
  if (const int failure = spawn.start(child, name, called); failure != 0) {
    throw Error(ErrorCode::io, fmt::format("can't start {}: {}", name, std::strerror(failure)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno == ECHILD) return std::nullopt;
    if (errno != EINTR) throw Error(ErrorCode::io, fmt::format("lost {}: {}", name, std::strerror(errno)));
  }
  return status;
}

}  // namespace

fs::path find_nvdisasm() {
  if (const std::string given = environment("FLASHJIT_NVDISASM"); !given.empty()) {
    if (runnable(given)) return given;
    if (runnable(fs::path(given) / "nvdisasm")) return fs::path(given) / "nvdisasm";
    throw Error(ErrorCode::not_found,
                fmt::format("FLASHJIT_NVDISASM is \"{}\": no program nvdisasm there", given),
                "set it to nvdisasm or to the directory that holds it, or unset it to search");
  }
  for (const fs::path& directory : path_directories()) {
    if (runnable(directory / "nvdisasm")) return directory / "nvdisasm";
  }
  std::string looked = "FLASHJIT_NVDISASM (not set), PATH";
  for (const fs::path& toolkit : toolkits()) {
    if (runnable(toolkit / "bin/nvdisasm")) return toolkit / "bin/nvdisasm";
    looked += fmt::format(", {}", (toolkit / "bin").string());
  }
  for (const fs::path& packages : site_packages()) {
    fs::path triton = packages / "triton/backends/nvidia/bin/nvdisasm";
    if (runnable(triton)) return triton;
    for (const fs::path& package : list_directory(packages / "nvidia")) {
      if (runnable(package / "bin/nvdisasm")) return package / "bin/nvdisasm";
    }
    looked += fmt::format(", {} (triton, nvidia/*/bin)", packages.string());
  }
  throw Error(
      ErrorCode::not_found, fmt::format("nvdisasm was not found; looked in {}", looked),
      "`pip install nvidia-cuda-nvdisasm`, or a CUDA toolkit, has it; FLASHJIT_NVDISASM names one elsewhere");
}

std::string disassemble(std::string_view cubin, const fs::path& nvdisasm) {
  const PrivateDirectory directory;
  const fs::path input = directory.path() / "kernel.cubin";
  std::ofstream file(input, std::ios::binary);
  file.write(cubin.data(), static_cast<std::streamsize>(cubin.size()));
  file.close();
  if (!file)
    throw Error(ErrorCode::io, fmt::format("can't write {}", input.string()),
                "TMPDIR names another directory");
  const fs::path out = directory.path() / "sass";
  const fs::path err = directory.path() / "errors";
  // -c: only the code sections.
  const std::optional<int> status = run(nvdisasm, {"-c", input.string()}, out, err);
  std::string sass = read_file(out);
  // Without an exit status, empty output means failure.
  if (status ? !WIFEXITED(*status) || WEXITSTATUS(*status) != 0 : sass.empty()) {
    throw Error(ErrorCode::io, fmt::format("{} failed: {}", nvdisasm.string(), read_file(err)),
                "is it as new as the NVRTC that made the cubin?");
  }
  return sass;
}

}  // namespace flashjit::runtime

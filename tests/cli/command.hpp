// `flashjit`, run by the shell as people run it.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/contains.hpp"

namespace flashjit::test {

struct Result {
  int exit_code = -1;
  std::string out;  // stdout; stderr too, where the command line asks for it
};

// environment: more of the shell's NAME=value in front.
inline Result run_command(const std::filesystem::path& cache, const std::string& arguments,
                          const std::string& environment = {}) {
  const std::string line =
      "FLASHJIT_CACHE_DIR='" + cache.string() + "' " + environment + " '" FLASHJIT_COMMAND "' " + arguments;
  std::FILE* pipe = popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Result result;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.out.append(buffer.data(), got);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// The command with a folder of its own, which goes when the test ends, and its cache there.
class Command {
 public:
  Command() {
    std::string pattern = (std::filesystem::temp_directory_path() / "flashjit-command-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
  }
  ~Command() { std::filesystem::remove_all(folder_); }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] Result run(const std::string& arguments, const std::string& environment = {}) const {
    return run_command(folder_ / "cache", arguments, environment);
  }
  // With exit code 2, and in words that have these among them.
  void refuses(const std::string& arguments, const std::string& words,
               const std::string& environment = {}) const {
    CAPTURE(arguments);
    const Result result = run(arguments + " 2>&1", environment);
    CAPTURE(result.out);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.out, words));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace flashjit::test

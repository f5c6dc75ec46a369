// Where the tuning worker's command is looked for.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "autotune/worker.hpp"
#include "tests/autotune/worker_support.hpp"

namespace flashjit::autotune {
namespace {

using test::Environment;
using test::Folder;
using test::lack_of_worker;

// Runs the test case `name`, which ctest skips, in a process of its own, as `program` called by `by`.
bool holds_elsewhere(const char* program, const char* by, const char* name,
                     const std::filesystem::path& directory) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const Environment path("PATH", "/nonexistent");
    const Environment named("FLASHJIT_WORKER", "");
    if (::chdir(directory.c_str()) != 0) ::_exit(2);
    ::execl(program, by, "--no-skip", fmt::format("--test-case={}", name).c_str(), nullptr);
    ::_exit(3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("where a worker is looked for") {
  const auto found = [] {
    try {
      return find_worker();
    } catch (const NoWorker&) {
      return std::filesystem::path();
    }
  };
  const Folder folder;
  const auto executable = folder.path() / "flashjit";
  std::ofstream(executable) << "#!/bin/true\n";
  {
    const Environment path("PATH", "relative:" + folder.path().string());
    const Environment named("FLASHJIT_WORKER", "");
    CHECK(found() != executable);  // it may not be executed
    ::chmod(executable.c_str(), 0755);
    CHECK(found() == executable);
  }
  {
    const Environment named("FLASHJIT_WORKER", FAKE_WORKER);
    CHECK(found() == FAKE_WORKER);
  }
  {
    const Environment named("FLASHJIT_WORKER", "/nonexistent");
    CHECK(lack_of_worker([] { find_worker(); }) ==
          "FLASHJIT_WORKER is \"/nonexistent\", may be the path of a flashjit command");
  }
}

TEST_CASE("called by a bare name" * doctest::skip()) {
  CHECK_THROWS_AS(find_worker(), NoWorker);
}

TEST_CASE("a worker is not looked for in the working directory") {
  const Folder folder;
  static_cast<void>(folder.script("flashjit", "true"));
  // As the shell calls a program of PATH: what the C library knows of a static library's place is this "app".
  CHECK(holds_elsewhere("/proc/self/exe", "app", "called by a bare name", folder.path()));
}

TEST_CASE("called from lib/x86_64-linux-gnu" * doctest::skip()) {
  CHECK(std::filesystem::equivalent(find_worker(), "bin/flashjit"));
}

TEST_CASE("a worker is found in bin, from a folder of lib as Debian has it") {
  const Folder folder;
  std::filesystem::create_directories(folder.path() / "bin");
  static_cast<void>(folder.script("bin/flashjit", "true"));
  const auto lib = folder.path() / "lib/x86_64-linux-gnu";
  std::filesystem::create_directories(lib);
  std::filesystem::create_symlink(std::filesystem::read_symlink("/proc/self/exe"), lib / "app");
  const std::string app = lib / "app";
  CHECK(holds_elsewhere(app.c_str(), app.c_str(), "called from lib/x86_64-linux-gnu", folder.path()));
}

}  // namespace
}  // namespace flashjit::autotune

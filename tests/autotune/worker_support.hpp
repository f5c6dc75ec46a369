// What the tests of the tuning worker share: folders for scripts, variables, and what says that there is
// none.
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "autotune/worker.hpp"
#include "flashjit/error.hpp"

namespace flashjit::test {

// The message of a NoWorker, and of nothing else.
inline std::string lack_of_worker(const std::function<void()>& action) {
  try {
    action();
  } catch (const autotune::NoWorker& none) {
    CHECK(none.code() == ErrorCode::not_found);
    CHECK(none.hint().find("FLASHJIT_WORKER") != std::string::npos);
    return none.message();
  }
  FAIL("it should have thrown");
  return {};
}

// A folder for scripts, which goes when the test does.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "flashjit-worker-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string script(const char* name, const std::string& text) const {
    const auto file = path_ / name;
    std::ofstream(file) << "#!/bin/sh\n" << text << "\n";
    ::chmod(file.c_str(), 0755);
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

// Sets a variable for the length of a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace flashjit::test

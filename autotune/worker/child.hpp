// A worker as its parent holds it: a child process, a socket to talk to it, and its stderr.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "autotune/json.hpp"

namespace flashjit::autotune {

using SteadyTime = std::chrono::steady_clock::time_point;

// How a child ended, as far as anybody can say.
struct Ending {
  std::string words;
  bool exited = false;   // of its own accord, with an exit code
  bool garbled = false;  // it wrote what no worker writes
};

// Destroying a Child ends the process: by the end of its input if it listens, else by SIGKILL.
class Child {
 public:
  // Throws NoWorker if the file is not a program that this machine can run, and Error{io} if the machine has
  // no resources for one.
  explicit Child(const std::filesystem::path& executable);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool send(const Json& json);
  // nullopt when the child closed its end or the deadline passed; then ending() says what happened.
  std::optional<Json> receive(SteadyTime deadline);
  // Kills what is left of the child, and says how it ended.
  Ending ending();

 private:
  pid_t pid_ = -1;
  int talk_ = -1;
  int errors_ = -1;
  bool late_ = false;
  bool garbled_ = false;
  std::string buffer_, words_;
};

}  // namespace flashjit::autotune

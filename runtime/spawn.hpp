// Starts a child process with redirected descriptors.
#pragma once

#include <spawn.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace flashjit::runtime {

// The redirections of a child, in order, and its start. None of it throws: start() returns the errno of the
// first step that failed. A child does not start without a redirection that was asked for.
class Spawn {
 public:
  Spawn();
  ~Spawn();
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  void duplicate(int from, int to);                               // as dup2
  void open(int descriptor, const std::string& path, int flags);  // a new file is its owner's alone

  // `arguments` begin with the program's own name. Returns 0 if `child` runs.
  [[nodiscard]] int start(pid_t& child, const std::string& program, std::vector<std::string> arguments) const;

 private:
  // Remembers the first failure.
  void note(int failure);

  posix_spawn_file_actions_t actions_{};
  int failure_ = 0;
};

}  // namespace flashjit::runtime

// What a program does at its very end: in atexit handlers and static destructors.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>

namespace flashjit::test {

// Forks a child that calls `before`, then exit(), and `check` when the thread-local variables of its only
// thread are gone. Returns whether `check` did, or false if the child crashed.
inline bool holds_at_exit(const std::function<void()>& before, const std::function<bool()>& check) {
  static const std::function<bool()>* last = nullptr;
  last = &check;
  (void)std::fflush(nullptr);  // or the child may print again what the parent has buffered
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      before();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(2);
    }
    if (std::atexit([] { ::_exit((*last)() ? 0 : 1); }) != 0) ::_exit(3);
    std::exit(4);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace flashjit::test

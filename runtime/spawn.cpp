#include "runtime/spawn.hpp"

#include <sys/stat.h>
#include <unistd.h>

namespace flashjit::runtime {

Spawn::Spawn() {
  note(posix_spawn_file_actions_init(&actions_));
}

Spawn::~Spawn() {
  posix_spawn_file_actions_destroy(&actions_);
}

void Spawn::duplicate(int from, int to) {
  note(posix_spawn_file_actions_adddup2(&actions_, from, to));
}

void Spawn::open(int descriptor, const std::string& path, int flags) {
  note(posix_spawn_file_actions_addopen(&actions_, descriptor, path.c_str(), flags, S_IRUSR | S_IWUSR));
}

int Spawn::start(pid_t& child, const std::string& program, std::vector<std::string> arguments) const {
  if (failure_ != 0) return failure_;
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return ::posix_spawn(&child, program.c_str(), &actions_, nullptr, pointers.data(), environ);
}

void Spawn::note(int failure) {
  if (failure_ == 0) failure_ = failure;
}

}  // namespace flashjit::runtime

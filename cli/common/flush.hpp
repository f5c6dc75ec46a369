// Data on stdout, which arrives or fails the command.
#pragma once

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace flashjit::cli {

// Throws std::system_error for what stdout did not take, as fmt::print does: a full disk may say so only now.
inline void flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw std::system_error(errno != 0 ? errno : EIO, std::generic_category());
}

}  // namespace flashjit::cli

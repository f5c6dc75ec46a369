// The one exception type of flashjit, and the codes that programs branch on.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#pragma GCC visibility push(default)

namespace flashjit {

enum class ErrorCode {
  invalid_argument = 1,  // the call was wrong: the message names the argument, its value and what it may be
  unsupported,     // valid in itself, but not for this GPU, dtype or schedule, or not during a stream capture
  not_found,       // a library, device, file or entry is missing: the message says where flashjit looked
  compile_failed,  // NVRTC refused or ran out of time: the message has the log and the source's path
  device,          // a CUDA call failed, or the emulator found a bug in a kernel
  io,              // a file could not be read or written
  wrong_result,    // the tuner's, for a candidate that fails its check; no call throws it
  internal,        // a bug in flashjit
};

// what() is the message and, after a line break, the hint; message() and hint() give them apart.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message, std::string hint = {})
      : std::runtime_error(hint.empty() ? message : message + "\n" + hint),
        code_(code),
        message_(std::move(message)),
        hint_(std::move(hint)) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::string& hint() const noexcept {
    return hint_;
  }  // what to do about it; may be empty

 private:
  ErrorCode code_;
  std::string message_;
  std::string hint_;
};

}  // namespace flashjit

#pragma GCC visibility pop

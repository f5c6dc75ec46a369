// An nvrtcProgram, from its source to its results.
#pragma once

#include <nvrtc.h>

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/nvrtc/library.hpp"

namespace flashjit::runtime {

class Program {
 public:
  Program(const NvrtcLibrary& nvrtc, const std::string& text, const std::string& name) : nvrtc_(nvrtc) {
    nvrtc.check(nvrtc.create(&program_, text.c_str(), name.c_str(), 0, nullptr, nullptr),
                "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.destroy(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] nvrtcProgram get() const { return program_; }

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.compile(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  // For a program that was compiled; empty if this NVRTC makes no cubin for its target.
  std::string cubin() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.cubin_size(program_, &size), "nvrtcGetCUBINSize");
    std::string bytes(size, '\0');
    if (size != 0) nvrtc_.check(nvrtc_.cubin(program_, bytes.data()), "nvrtcGetCUBIN");
    return bytes;
  }

  // Text from a pair of entry points, also for a failed compile; empty if there is none.
  std::string fetch(decltype(nvrtcGetPTXSize)* size_of, decltype(nvrtcGetPTX)* read) const {
    std::size_t size = 0;
    if (size_of(program_, &size) != NVRTC_SUCCESS || size == 0) return {};
    std::string bytes(size, '\0');
    if (read(program_, bytes.data()) != NVRTC_SUCCESS) return {};
    return bytes;
  }

 private:
  const NvrtcLibrary& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

// NVRTC's sizes include the terminating zero of a text.
inline std::string text_of(std::string bytes) {
  while (!bytes.empty() && bytes.back() == '\0') bytes.pop_back();
  return bytes;
}

}  // namespace flashjit::runtime

// The entry points of a loaded libnvrtc.
#pragma once

#include <nvrtc.h>

#include <string>

namespace flashjit::runtime {

struct NvrtcLibrary {
  // Throws Error{not_found} if the library can't be loaded or is older than 12.0.
  explicit NvrtcLibrary(const std::string& path);

  int version = 0;  // 100 * major + minor: 1300 for 13.0

  decltype(nvrtcVersion)* get_version = nullptr;
  decltype(nvrtcGetErrorString)* error_string = nullptr;
  decltype(nvrtcGetNumSupportedArchs)* arch_count = nullptr;
  decltype(nvrtcGetSupportedArchs)* archs = nullptr;
  decltype(nvrtcCreateProgram)* create = nullptr;
  decltype(nvrtcDestroyProgram)* destroy = nullptr;
  decltype(nvrtcCompileProgram)* compile = nullptr;
  decltype(nvrtcGetPTXSize)* ptx_size = nullptr;
  decltype(nvrtcGetPTX)* ptx = nullptr;
  decltype(nvrtcGetCUBINSize)* cubin_size = nullptr;
  decltype(nvrtcGetCUBIN)* cubin = nullptr;
  decltype(nvrtcGetProgramLogSize)* log_size = nullptr;
  decltype(nvrtcGetProgramLog)* log = nullptr;
  // Since 12.8; null before. Spelled out because older headers don't declare it.
  nvrtcResult (*set_flow_callback)(nvrtcProgram, int (*)(void*, void*), void*) = nullptr;

  // Throws Error{internal} that names the call if the result is not success.
  void check(nvrtcResult result, const char* call) const;
};

}  // namespace flashjit::runtime

// A libnvrtc that behaves as FAKE_NVRTC says: "old" is version 11.8, "builtins" can't find its builtins,
// "plain" is a 12.0 (no flow callback, no cache of its own) that knows sm_80 and "compiles" by echoing its
// options.
#include <nvrtc.h>

#include <cstdlib>
#include <cstring>
#include <string>

struct _nvrtcProgram {
  std::string ptx;
  std::string log;
};

namespace {

bool is(const char* behaviour) {
  const char* value = std::getenv("FAKE_NVRTC");
  return value != nullptr && std::strcmp(value, behaviour) == 0;
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = is("old") ? 11 : 12;
  *minor = is("old") ? 8 : 0;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) {
  return "FAKE_ERROR";
}
nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int* archs) {
  archs[0] = 80;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char*, const char*, int, const char* const*,
                               const char* const*) {
  *program = new _nvrtcProgram;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  if (is("builtins")) {
    program->log = "nvrtc: error: failed to open libnvrtc-builtins.so.12.0.\n";
    return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
  }
  program->ptx = "//\n// Compiler Build ID: CL-1\n// Cuda compilation tools, release 12.0, V12.0.1\n";
  for (int i = 0; i < count; ++i) program->ptx += std::string("// ") + options[i] + "\n";
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
  *size = program->ptx.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) {
  std::memcpy(ptx, program->ptx.c_str(), program->ptx.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t* size) {
  *size = 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) {
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  *size = program->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return NVRTC_SUCCESS;
}

}  // extern "C"

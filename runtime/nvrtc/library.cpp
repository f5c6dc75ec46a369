// Opens a libnvrtc and finds its entry points.
#include "runtime/nvrtc/library.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "flashjit/error.hpp"
#include "runtime/dynamic_library.hpp"

namespace flashjit::runtime {
namespace {

constexpr int kOldest = 1200;  // 12.0, the first that knows sm_90a

// NVRTC opens its library of built-in functions by name, so it finds only what the system's loader finds or
// what is loaded already. In a wheel that library lies next to NVRTC, where the loader does not look.
void load_builtins_beside(const std::string& nvrtc, int major, int minor) {
  const std::filesystem::path folder = std::filesystem::path(nvrtc).parent_path();
  if (folder.empty()) return;
  // If there is none, NVRTC may find another one, or reports it when it compiles.
  static_cast<void>(DynamicLibrary(folder / fmt::format("libnvrtc-builtins.so.{}.{}", major, minor)));
}

}  // namespace

NvrtcLibrary::NvrtcLibrary(const std::string& path) {
  const DynamicLibrary library(path);
  if (!library) {
    throw Error(ErrorCode::not_found, fmt::format("NVRTC at {} can't be loaded: {}", path, library.error()),
                "is it of this machine's architecture, and complete? FLASHJIT_NVRTC names another one");
  }
  const char* missing = nullptr;
  const auto need = [&](auto*& function, const char* name) {
    if (!library.resolve(function, name) && missing == nullptr) missing = name;
  };
  need(get_version, "nvrtcVersion");
  need(error_string, "nvrtcGetErrorString");
  need(arch_count, "nvrtcGetNumSupportedArchs");
  need(archs, "nvrtcGetSupportedArchs");
  need(create, "nvrtcCreateProgram");
  need(destroy, "nvrtcDestroyProgram");
  need(compile, "nvrtcCompileProgram");
  need(ptx_size, "nvrtcGetPTXSize");
  need(ptx, "nvrtcGetPTX");
  need(cubin_size, "nvrtcGetCUBINSize");
  need(cubin, "nvrtcGetCUBIN");
  need(log_size, "nvrtcGetProgramLogSize");
  need(log, "nvrtcGetProgramLog");
  library.resolve(set_flow_callback, "nvrtcSetFlowCallback");

  int major = 0;
  int minor = 0;
  if (get_version != nullptr && error_string != nullptr) check(get_version(&major, &minor), "nvrtcVersion");
  version = 100 * major + minor;
  if (version < kOldest && get_version != nullptr) {
    throw Error(ErrorCode::not_found,
                fmt::format("NVRTC at {} is version {}.{}, need 12.0 or later", path, major, minor),
                "FLASHJIT_NVRTC names another one; `pip install nvidia-cuda-nvrtc` gets the newest");
  }
  if (missing != nullptr) {
    throw Error(ErrorCode::not_found,
                fmt::format("{} is no NVRTC that flashjit can use: it has no {}", path, missing),
                "FLASHJIT_NVRTC names another one; `pip install nvidia-cuda-nvrtc` gets the newest");
  }
  load_builtins_beside(path, major, minor);
}

void NvrtcLibrary::check(nvrtcResult result, const char* call) const {
  if (result != NVRTC_SUCCESS) {
    throw Error(ErrorCode::internal, fmt::format("{} failed: {}", call, error_string(result)));
  }
}

}  // namespace flashjit::runtime

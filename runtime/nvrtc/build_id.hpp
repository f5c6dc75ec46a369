// The exact build of the NVRTC that made a PTX.
#pragma once

#include <string>

#include "runtime/nvrtc/library.hpp"

namespace flashjit::runtime {

// nvrtcVersion gives only major and minor; the comment at the top of every PTX names the exact build:
// "CL-36424714 V13.0.88". `path` is the library's: if the PTX does not name the build, the GNU build id
// replaces it.
std::string build_id_in(const std::string& ptx, const std::string& path, const NvrtcLibrary& nvrtc);

}  // namespace flashjit::runtime

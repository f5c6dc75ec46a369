// Which NVRTC made a PTX, to the build.
#pragma once

#include <string>

#include "runtime/nvrtc/library.hpp"

namespace flashjit::runtime {

// nvrtcVersion gives only major and minor; the exact build stands in the comment on top of all PTX. `path` is
// the library's: of a build that does not say it the GNU build id stands in. "CL-36424714 V13.0.88".
std::string build_id_in(const std::string& ptx, const std::string& path, const NvrtcLibrary& nvrtc);

}  // namespace flashjit::runtime

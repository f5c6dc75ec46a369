// Where NVRTC may be: FLASHJIT_NVRTC, the toolkit, the loader's path, Python's wheel.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace flashjit::runtime {

struct NvrtcPlaces {
  std::string given;  // FLASHJIT_NVRTC: a file, or a directory that holds one
  std::vector<std::filesystem::path> toolkits;
  std::vector<std::string> sonames;  // names to ask the loader for
  // Called only if no place before had one, since it looks through many directories.
  std::function<std::vector<std::filesystem::path>()> site_packages;
};

NvrtcPlaces nvrtc_places();  // from the environment; see runtime/places.hpp

// The path of the library. Throws Error{not_found} that lists where it looked and how to get NVRTC.
std::filesystem::path find_nvrtc(const NvrtcPlaces& places);

}  // namespace flashjit::runtime

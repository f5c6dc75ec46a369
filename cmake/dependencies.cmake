# Everything from outside. All of it is header-only here, so a program that uses libflashjit needs none of it.
include(CheckIncludeFileCXX)

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(FLASHJIT_XXHASH_INCLUDE xxhash.h)
find_path(FLASHJIT_MUSTACHE_INCLUDE kainjow/mustache.hpp)
if(NOT FLASHJIT_XXHASH_INCLUDE OR NOT FLASHJIT_MUSTACHE_INCLUDE)
  message(FATAL_ERROR
    "Headers were not found (xxhash.h: ${FLASHJIT_XXHASH_INCLUDE}, kainjow/mustache.hpp: ${FLASHJIT_MUSTACHE_INCLUDE}).\n"
    "Debian and Ubuntu have them in libxxhash-dev and libkainjow-mustache-dev.")
endif()

# Only headers are needed: libcuda and libnvrtc are opened at run time. They come from the toolkit that is named, else from the wheels that
# ./quickstart unpacks if no toolkit will do, else from the usual place. All of these are hints, which come before /usr, because Debian's own toolkit
# is CUDA 11.8.
file(GLOB flashjit_wheel_includes ${PROJECT_SOURCE_DIR}/.deps/cuda/nvidia/*/include)
set(flashjit_cuda_hints HINTS ENV CUDA_PATH ENV CUDA_HOME ${flashjit_wheel_includes} /usr/local/cuda PATH_SUFFIXES include)
find_path(FLASHJIT_CUDA_INCLUDE NAMES cuda.h ${flashjit_cuda_hints})
find_path(FLASHJIT_NVRTC_INCLUDE NAMES nvrtc.h ${flashjit_cuda_hints})
if(NOT FLASHJIT_CUDA_INCLUDE OR NOT FLASHJIT_NVRTC_INCLUDE)
  message(FATAL_ERROR
    "CUDA's headers were not found (cuda.h: ${FLASHJIT_CUDA_INCLUDE}, nvrtc.h: ${FLASHJIT_NVRTC_INCLUDE}).\n"
    "Set CUDA_PATH to a toolkit of CUDA 12.0 or later, or run ./quickstart, which fetches the headers from PyPI.")
endif()

set(flashjit_cuda_header ${FLASHJIT_CUDA_INCLUDE}/cuda.h)
file(STRINGS ${flashjit_cuda_header} flashjit_cuda_version REGEX "^#define CUDA_VERSION ")
string(REGEX REPLACE "^#define CUDA_VERSION ([0-9]+).*" "\\1" flashjit_cuda_version "${flashjit_cuda_version}")
if(NOT "${flashjit_cuda_version}" GREATER_EQUAL 12000)
  unset(FLASHJIT_CUDA_INCLUDE CACHE)  # otherwise the next run would find the same headers again, even after a fix
  unset(FLASHJIT_NVRTC_INCLUDE CACHE)
  message(FATAL_ERROR
    "${flashjit_cuda_header}: CUDA_VERSION is \"${flashjit_cuda_version}\", must be 12000 (CUDA 12.0) or more.\n"
    "Set CUDA_PATH to a newer toolkit, or run ./quickstart, which fetches the headers from PyPI where no toolkit will do.")
endif()

# Everything from outside. All of it is header-only here, so a consumer of libflashjit needs none of it.
include(CheckIncludeFileCXX)

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(FLASHJIT_XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(FLASHJIT_MUSTACHE_INCLUDE kainjow/mustache.hpp REQUIRED)

# Headers only: libcuda and libnvrtc are opened at run time. A toolkit, else the wheels that ./quickstart unpacks.
file(GLOB flashjit_wheel_includes ${PROJECT_SOURCE_DIR}/.deps/cuda/nvidia/*/include)
find_path(FLASHJIT_CUDA_INCLUDE NAMES cuda.h
          HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda ${flashjit_wheel_includes} PATH_SUFFIXES include REQUIRED)
find_path(FLASHJIT_NVRTC_INCLUDE NAMES nvrtc.h
          HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda ${flashjit_wheel_includes} PATH_SUFFIXES include REQUIRED)

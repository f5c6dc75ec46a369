// The header of a .npy file: a Python dictionary, read without Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.hpp"

namespace flashjit::cli {

struct NpyHeader {
  DType dtype = DType::fp32;
  std::vector<std::int64_t> shape;
  std::size_t offset = 0;  // where the data begins in the file
  std::size_t bytes = 0;   // how many bytes of data there are
};

inline constexpr std::size_t kLongestNpyHeader =
    std::size_t{64} * 1024;  // NumPy itself writes some hundred bytes

// `start` is the first kLongestNpyHeader bytes of the file, or all of a shorter file. Throws
// Error{invalid_argument}.
NpyHeader parse_npy_header(std::string_view start, const std::string& name);

// Version 1.0, padded so that the data starts at a multiple of 64.
std::string make_npy_header(DType dtype, const std::vector<std::int64_t>& shape);

}  // namespace flashjit::cli

// NumPy's .npy files, versions 1 to 3, as far as attention needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "flashjit/problem.hpp"

namespace flashjit::cli {

// A packed array in C order: at most four dimensions, little-endian.
struct NpyArray {
  DType dtype = DType::fp32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

// '<f2' is fp16 and '<f4' is fp32. NumPy has no bf16: 'V2' (as which ml_dtypes.bfloat16 is saved) and '<u2'
// (its bits) are read as bf16. Throws Error that names the file and what is wrong: {not_found, io}, or
// {invalid_argument} if the file is not .npy, has another dtype, Fortran order or more dimensions, or is too
// small for its shape.
NpyArray read_npy(const std::filesystem::path& path);

// The same for the bytes of a file; `name` is for messages.
NpyArray parse_npy(std::span<const std::byte> file, const std::string& name);

// Writes version 1.0, and bf16 as '<u2', which plain NumPy can widen: (a.astype(np.uint32) <<
// 16).view(np.float32). Throws Error{not_found, io}, and leaves no truncated file behind.
void write_npy(const std::filesystem::path& path, const NpyArray& array);

}  // namespace flashjit::cli

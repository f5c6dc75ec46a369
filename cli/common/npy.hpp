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

// A packed array in C order, at most four dimensions, little-endian.
struct NpyArray {
  DType dtype = DType::fp32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

// '<f2' is fp16 and '<f4' fp32. NumPy has no bf16: 'V2' (what ml_dtypes.bfloat16 saves as) and '<u2' (its
// bits) are read as bf16. Throws Error that names the file and what is wrong: {not_found, io}, and
// {invalid_argument} for what is no .npy, another dtype, Fortran order, more dimensions, or a size that the
// file does not have.
NpyArray read_npy(const std::filesystem::path& path);

// The same, of a file's bytes; `name` is for messages.
NpyArray parse_npy(std::span<const std::byte> file, const std::string& name);

// Version 1.0; bf16 as '<u2', which plain NumPy can widen: (a.astype(np.uint32) << 16).view(np.float32).
// Throws Error{io}.
void write_npy(const std::filesystem::path& path, const NpyArray& array);

}  // namespace flashjit::cli

// SASS, the GPU's machine code as text, by NVIDIA's nvdisasm.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace flashjit::runtime {

// Searches FLASHJIT_NVDISASM, PATH, the toolkit, Triton's copy, Python's nvidia-cuda-nvdisasm wheel. Throws
// Error{not_found} that lists where it looked and how to get it.
std::filesystem::path find_nvdisasm();

// Throws Error{io} with nvdisasm's own words when it can't read the cubin.
std::string disassemble(std::string_view cubin, const std::filesystem::path& nvdisasm);

}  // namespace flashjit::runtime

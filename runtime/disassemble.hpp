// SASS, the GPU's machine code, as text from NVIDIA's nvdisasm.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace flashjit::runtime {

// Searches FLASHJIT_NVDISASM, PATH, the toolkit, Triton's copy, and Python's nvidia-cuda-nvdisasm wheel.
// Throws Error{not_found} that lists where it looked and how to get nvdisasm.
std::filesystem::path find_nvdisasm();

// Throws Error{io} with nvdisasm's message if it can't read the cubin.
std::string disassemble(std::string_view cubin, const std::filesystem::path& nvdisasm);

}  // namespace flashjit::runtime

// Where NVIDIA's tools and libraries are usually installed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flashjit::runtime {

std::string environment(const char* name);  // empty if it is not set

// The entries of a directory, sorted; none if it can't be read. Throws Error{io} where this process can open
// no more files: what lies in the directory must not count as missing then.
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory);

// A file that this process may execute.
bool runnable(const std::filesystem::path& path);

// The absolute directories of PATH, so that nothing is run just because it lies in the working directory.
std::vector<std::filesystem::path> path_directories();
std::vector<std::filesystem::path> toolkits();  // CUDA_PATH, CUDA_HOME, /usr/local/cuda

// Python's package directories: of the active environment, the absolute ones of PYTHONPATH, of each python3
// on PATH (of all pyenv's Pythons if its shims are there), of the user and of the system. Python itself is
// not asked, since starting it takes longer than a compile.
std::vector<std::filesystem::path> site_packages();

}  // namespace flashjit::runtime

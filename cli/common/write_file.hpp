// Files that the command writes for its user.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>

namespace flashjit::cli {

// Writes the parts one after the other. Returns errno, 0 when done; leaves no truncated file behind.
int write_file(const std::filesystem::path& path, std::initializer_list<std::string_view> parts);

}  // namespace flashjit::cli

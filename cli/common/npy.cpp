// Reads and writes .npy files; npy_header reads their headers.
#include "cli/common/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "cli/common/npy_header.hpp"
#include "cli/common/write_file.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

using FileHandle = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view doing, int error) {
  throw Error(error == ENOENT ? ErrorCode::not_found : ErrorCode::io,
              fmt::format("{} can not be {}: {}", path.string(), doing, std::strerror(error)));
}

void check_size(const NpyHeader& header, std::uint64_t data_bytes, const std::string& name) {
  if (data_bytes == header.bytes) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: its header promises {} bytes of data, it has {}", name, header.bytes, data_bytes),
      data_bytes < header.bytes ? "it was cut short" : "it should hold one array and nothing else");
}

}  // namespace

NpyArray parse_npy(std::span<const std::byte> file, const std::string& name) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min(file.size(), kLongestNpyHeader));
  NpyHeader header = parse_npy_header(start, name);
  check_size(header, file.size() - header.offset, name);
  const auto data = file.subspan(header.offset);
  return {.dtype = header.dtype, .shape = std::move(header.shape), .bytes = {data.begin(), data.end()}};
}

NpyArray read_npy(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(path, "read", ENOENT);
  if (error) fail(path, "read", error.value());
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is no file", path.string()), "give a .npy file");
  }
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) fail(path, "read", error.value());
  const FileHandle file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) fail(path, "read", errno);

  std::string start(std::min<std::uint64_t>(size, kLongestNpyHeader), '\0');
  if (std::fread(start.data(), 1, start.size(), file.get()) != start.size()) fail(path, "read", EIO);
  NpyHeader header = parse_npy_header(start, path.string());
  check_size(header, size - header.offset, path.string());
  // Allocates only now that the file is known to have that many bytes.
  NpyArray array{
      .dtype = header.dtype, .shape = std::move(header.shape), .bytes = std::vector<std::byte>(header.bytes)};
  if (std::fseek(file.get(), static_cast<long>(header.offset), SEEK_SET) != 0) fail(path, "read", errno);
  if (!array.bytes.empty() &&
      std::fread(array.bytes.data(), 1, array.bytes.size(), file.get()) != array.bytes.size())
    fail(path, "read", EIO);
  return array;
}

void write_npy(const std::filesystem::path& path, const NpyArray& array) {
  const std::string header = make_npy_header(array.dtype, array.shape);
  const std::string_view data(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  if (const int error = write_file(path, {header, data}); error != 0) fail(path, "written", error);
}

}  // namespace flashjit::cli

// Cache entries from hostile bytes. What is accepted must serialize to the very same bytes: one entry, one
// form.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cache/bytes.hpp"
#include "cache/digest.hpp"
#include "cache/entry.hpp"

namespace {

using namespace flashjit::cache;

void check(std::string_view file) {
  const auto entry = deserialize(std::as_bytes(std::span(file)));
  if (entry && (serialize(*entry) != file || entry->size() != file.size())) std::abort();
}

// Makes the checksums and the length right, or no mutation would ever reach the code behind them.
std::string repaired(std::string file) {
  file.resize(std::max<std::size_t>(file.size(), 64));
  const std::string fixed = serialize({});
  file.replace(0, 12, fixed, 0, 12);
  std::string length;
  put_number(length, static_cast<std::uint64_t>(file.size() - 64));
  file.replace(24, length.size(), length);
  const Hash128 body = hash128(std::string_view(file).substr(64));
  std::memcpy(file.data() + 32, body.data(), body.size());
  std::string header;
  put_number(header, hash64(std::string_view(file).substr(0, 56)));
  return file.replace(56, header.size(), header);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  check(file);
  check(repaired(file));
  return 0;
}

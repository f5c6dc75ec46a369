// One entry: a key with all its fields, and named sections of bytes. Knows nothing of attention. Most hold a
// kernel's code, which the key decides; one whose key has the field "record" says what NVRTC was used,
// one or a list, which it does not.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashjit::cache {

// Everything that decides the bytes of a kernel, as (tag, value) pairs in a fixed order. Never a path, a
// clock, a hostname or a device's serial number.
struct Key {
  std::vector<std::pair<std::string, std::string>> fields;
  // XXH3-128 over the tagged, length-prefixed fields: 32 lower-case hex digits, the entry's name on disk.
  [[nodiscard]] std::string digest() const;
  [[nodiscard]] std::string_view field(std::string_view tag) const;  // empty when there is none
  bool operator==(const Key&) const = default;
};

struct Entry {
  Key key;
  std::vector<std::pair<std::string, std::string>> sections;  // "source", "ptx", "cubin", "log", "report"
  [[nodiscard]] std::string_view section(std::string_view name) const;  // empty when there is none
  [[nodiscard]] std::size_t size() const;                               // of the serialized bytes
};

std::string serialize(const Entry& entry);
// nullopt when any check fails: magic, schema, lengths, checksums. Never throws on bad bytes.
std::optional<Entry> deserialize(std::span<const std::byte> bytes);

}  // namespace flashjit::cache

// One entry: a key with all its fields, and named sections of bytes. This room knows nothing of attention.
// Most entries hold a kernel's code, which the key decides. An entry whose key has the field "record" holds
// what NVRTC said about itself, or a list of such toolchains, which the key does not decide.
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
// time, a hostname or a device's serial number.
struct Key {
  std::vector<std::pair<std::string, std::string>> fields;
  // XXH3-128 of the fields with tags and lengths: 32 lower-case hex digits, the entry's name on disk.
  [[nodiscard]] std::string digest() const;
  [[nodiscard]] std::string_view field(std::string_view tag) const;  // empty if there is none
  bool operator==(const Key&) const = default;
};

struct Entry {
  Key key;
  std::vector<std::pair<std::string, std::string>> sections;  // "source", "ptx", "cubin", "log", "report"
  [[nodiscard]] std::string_view section(std::string_view name) const;  // empty if there is none
  [[nodiscard]] std::size_t size() const;                               // of the serialized bytes
};

std::string serialize(const Entry& entry);
// nullopt if any check fails: magic, schema, lengths, checksums. Never throws because of bad bytes.
std::optional<Entry> deserialize(std::span<const std::byte> bytes);

}  // namespace flashjit::cache

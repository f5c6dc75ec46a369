// The bytes of an entry: a 64-byte header with its own checksum, and a body whose checksum the header has.
//
//   0  magic            8 bytes
//   8  schema           u32
//  12  key fields       u32, how many
//  16  sections         u32, how many
//  20  zero             u32
//  24  body length      u64
//  32  body's XXH3-128  16 bytes
//  48  zero             8 bytes
//  56  XXH3-64 of bytes 0 to 55
//  64  body: the key's fields, then the sections, each as u32 length of name, u64 length of value, name,
//  value
//
// All integers are little-endian. Nothing may follow the body.
#include "cache/entry.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cache/bytes.hpp"
#include "cache/digest.hpp"

namespace flashjit::cache {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kMagic{
    "\x89"
    "FJENT\r\n",
    8};  // the high bit and CR LF reveal transfers in text mode, as PNG's do
constexpr std::uint32_t kSchema = 1;
constexpr std::size_t kHeaderSize = 64;
constexpr std::size_t kHashOffset = 32;
constexpr std::size_t kHeaderHashOffset = 56;
constexpr std::size_t kPairHeaderSize = 12;

std::size_t size_of(const Pairs& pairs) {
  std::size_t size = 0;
  for (const auto& [name, value] : pairs) size += kPairHeaderSize + name.size() + value.size();
  return size;
}

void put_pairs(std::string& out, const Pairs& pairs) {
  for (const auto& [name, value] : pairs) {
    put_number(out, static_cast<std::uint32_t>(name.size()));
    put_number(out, static_cast<std::uint64_t>(value.size()));
    out += name;
    out += value;
  }
}

// Takes `count` pairs off the front of `body`; false if it holds fewer. Lengths are compared and never added
// up, so that none can overflow. Nothing is reserved until the body is known to be as long as a length says.
bool take_pairs(std::string_view& body, std::uint32_t count, Pairs& pairs) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (body.size() < kPairHeaderSize) return false;
    const std::size_t name_size = get_number<std::uint32_t>(body);
    const std::uint64_t value_size = get_number<std::uint64_t>(body.substr(4));
    body.remove_prefix(kPairHeaderSize);
    if (name_size > body.size() || value_size > body.size() - name_size) return false;
    pairs.emplace_back(body.substr(0, name_size), body.substr(name_size, value_size));
    body.remove_prefix(name_size + value_size);
  }
  return true;
}

}  // namespace

std::string Key::digest() const {
  Hasher hasher;
  for (const auto& [tag, value] : fields) {
    hasher.add_length(tag.size());
    hasher.add(tag);
    hasher.add_length(value.size());
    hasher.add(value);
  }
  return to_hex(hasher.finish());
}

std::string_view Key::field(std::string_view tag) const {
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const auto& pair) { return pair.first == tag; });
  return found == fields.end() ? std::string_view() : std::string_view(found->second);
}

std::string_view Entry::section(std::string_view name) const {
  const auto found =
      std::find_if(sections.begin(), sections.end(), [&](const auto& pair) { return pair.first == name; });
  return found == sections.end() ? std::string_view() : std::string_view(found->second);
}

std::size_t Entry::size() const {
  return kHeaderSize + size_of(key.fields) + size_of(sections);
}

std::string serialize(const Entry& entry) {
  std::string out;
  out.reserve(entry.size());
  out += kMagic;
  put_number(out, kSchema);
  put_number(out, static_cast<std::uint32_t>(entry.key.fields.size()));
  put_number(out, static_cast<std::uint32_t>(entry.sections.size()));
  put_number(out, std::uint32_t{0});
  put_number(out, static_cast<std::uint64_t>(entry.size() - kHeaderSize));
  out.resize(kHeaderSize);  // leaves room for both hashes and the reserved bytes, zero for now
  put_pairs(out, entry.key.fields);
  put_pairs(out, entry.sections);

  const Hash128 body_hash = hash128(std::string_view(out).substr(kHeaderSize));
  std::memcpy(out.data() + kHashOffset, body_hash.data(), body_hash.size());
  std::string header_hash;
  put_number(header_hash, hash64(std::string_view(out).substr(0, kHeaderHashOffset)));
  out.replace(kHeaderHashOffset, header_hash.size(), header_hash);
  return out;
}

std::optional<Entry> deserialize(std::span<const std::byte> bytes) {
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (file.size() < kHeaderSize || file.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  if (get_number<std::uint64_t>(file.substr(kHeaderHashOffset)) !=
      hash64(file.substr(0, kHeaderHashOffset))) {
    return std::nullopt;
  }
  if (get_number<std::uint32_t>(file.substr(8)) != kSchema) return std::nullopt;
  if (get_number<std::uint32_t>(file.substr(20)) != 0 || get_number<std::uint64_t>(file.substr(48)) != 0) {
    return std::nullopt;  // for later schemas, which must not pass for this one
  }
  std::string_view body = file.substr(kHeaderSize);
  if (get_number<std::uint64_t>(file.substr(24)) != body.size()) return std::nullopt;
  const Hash128 body_hash = hash128(body);
  if (std::memcmp(body_hash.data(), file.data() + kHashOffset, body_hash.size()) != 0) return std::nullopt;

  // A failure from here on means a writer that is wrong or malicious: a checksum is not a signature.
  Entry entry;
  if (!take_pairs(body, get_number<std::uint32_t>(file.substr(12)), entry.key.fields)) return std::nullopt;
  if (!take_pairs(body, get_number<std::uint32_t>(file.substr(16)), entry.sections)) return std::nullopt;
  if (!body.empty()) return std::nullopt;
  return entry;
}

}  // namespace flashjit::cache

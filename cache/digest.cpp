// The only translation unit that includes xxhash, inlined so that libflashjit does not need libxxhash.
#include "cache/digest.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace flashjit::cache {
namespace {

Hash128 canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Hash128 result;
  static_assert(sizeof(bytes.digest) == sizeof(result));
  std::memcpy(result.data(), bytes.digest, result.size());
  return result;
}

}  // namespace

std::uint64_t hash64(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Hash128 hash128(std::string_view bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string to_hex(const Hash128& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * hash.size());
  for (const std::uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

struct Hasher::State {
  XXH3_state_t state;  // declares 64-byte alignment for itself, which C++17's new honours
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->state);
}
Hasher::~Hasher() = default;

void Hasher::add(std::string_view bytes) {
  // Given a null pointer, xxhash 0.8.1 calls memcpy with it even for length 0, which UBSan reports.
  if (!bytes.empty()) XXH3_128bits_update(&state_->state, bytes.data(), bytes.size());
}

void Hasher::add_length(std::uint64_t length) {
  char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  add({bytes, sizeof(bytes)});
}

Hash128 Hasher::finish() const {
  return canonical(XXH3_128bits_digest(&state_->state));
}

}  // namespace flashjit::cache

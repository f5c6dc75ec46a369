// The bytes of an entry: what goes in comes out, and what was touched does not come out at all.
#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "cache/bytes.hpp"
#include "cache/digest.hpp"
#include "cache/entry.hpp"
#include "tests/cache/scratch.hpp"

namespace flashjit::cache {
namespace {

std::optional<Entry> parse(std::string_view bytes) {
  return deserialize(std::as_bytes(std::span(bytes)));
}

constexpr std::size_t kHeaderBits = 64UL * 8;

TEST_CASE("an entry survives the round trip") {
  const Entry entry = testing::numbered_entry(1);
  const std::string bytes = serialize(entry);
  CHECK(bytes.size() == entry.size());
  const auto read = parse(bytes);
  REQUIRE(read.has_value());
  CHECK(read->key == entry.key);
  CHECK(read->sections == entry.sections);
  CHECK(read->section("cubin") == entry.section("cubin"));
  CHECK(read->section("log").empty());
  CHECK(read->section("sass").empty());
  CHECK(read->key.field("arch") == "sm_90a");
  CHECK(serialize(*read) == bytes);
}

TEST_CASE("entries with nothing in them, and with zeros and empty names, survive too") {
  const std::string zeros(3, '\0');
  for (const Entry& entry :
       {Entry{}, Entry{.key = {{{"", ""}}}, .sections = {{"", ""}}},
        Entry{.key = {{{zeros, zeros}}}, .sections = {{zeros, zeros}, {"a", std::string(100000, 'x')}}}}) {
    const auto read = parse(serialize(entry));
    REQUIRE(read.has_value());
    CHECK(read->key == entry.key);
    CHECK(read->sections == entry.sections);
  }
}

TEST_CASE("every flipped bit of the header is a miss") {
  const std::string bytes = serialize(testing::numbered_entry(2));
  for (std::size_t bit = 0; bit < kHeaderBits; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    CHECK_MESSAGE(!parse(flipped), "bit " << bit);
  }
}

TEST_CASE("every flipped bit of a small body is a miss, and random ones of a large body are") {
  const std::string small = serialize(testing::numbered_entry(3, 64));
  for (std::size_t bit = kHeaderBits; bit < small.size() * 8; ++bit) {
    std::string flipped = small;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    CHECK_MESSAGE(!parse(flipped), "bit " << bit);
  }
  std::string large = serialize(testing::numbered_entry(4, 100000));
  std::mt19937_64 generator(4);
  std::uniform_int_distribution<std::size_t> any_bit(kHeaderBits, large.size() * 8 - 1);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t bit = any_bit(generator);
    const char kept = large[bit / 8];
    large[bit / 8] = static_cast<char>(kept ^ (1 << (bit % 8)));
    CHECK_MESSAGE(!parse(large), "bit " << bit);
    large[bit / 8] = kept;
  }
  CHECK(parse(large).has_value());
}

TEST_CASE("every truncation is a miss, and so is anything appended") {
  const std::string bytes = serialize(testing::numbered_entry(5, 500));
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK_MESSAGE(!parse(bytes.substr(0, length)), length);
  CHECK(!parse(bytes + '\0'));
  CHECK(!parse(bytes + bytes));
}

// As a writer that is wrong would have it: the checksums are those of what is there.
std::string sealed(std::string bytes) {
  const Hash128 body = hash128(std::string_view(bytes).substr(64));
  std::memcpy(bytes.data() + 32, body.data(), body.size());
  std::string header;
  put_number(header, hash64(std::string_view(bytes).substr(0, 56)));
  return bytes.replace(56, header.size(), header);
}

std::string with_byte(std::string bytes, std::size_t at, int value) {
  bytes[at] = static_cast<char>(value);
  return bytes;
}

TEST_CASE("right checksums make no entry of what is none") {
  const std::string good = serialize({.key = {{{"name", "value"}}}, .sections = {{"cubin", "code"}}});
  CHECK(parse(sealed(good)).has_value());
  const std::size_t field = 64, section = field + 12 + 4 + 5;
  CHECK_FALSE(parse(sealed(with_byte(good, 8, 2))));               // another schema
  CHECK_FALSE(parse(sealed(with_byte(good, 20, 1))));              // what is reserved
  CHECK_FALSE(parse(sealed(with_byte(good, 55, 1))));              // likewise
  CHECK_FALSE(parse(sealed(with_byte(good, 24, 43))));             // the body's length
  CHECK_FALSE(parse(sealed(with_byte(good, 16, 2))));              // a section that is not there
  CHECK_FALSE(parse(sealed(with_byte(good, 16, 0))));              // one that is not counted
  CHECK_FALSE(parse(sealed(with_byte(good, section, 200))));       // a name beyond the end
  CHECK_FALSE(parse(sealed(with_byte(good, section + 4, 5))));     // a value, by one byte
  CHECK_FALSE(parse(sealed(with_byte(good, section + 11, 255))));  // or by more than can be added up
}

TEST_CASE("the digest is 32 hex digits and moves with every field, tag and boundary") {
  const Key key{.fields = {{"source", "abc"}, {"arch", "sm_80"}}};
  const std::string digest = key.digest();
  CHECK(digest.size() == 32);
  CHECK(digest.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(digest == Key{.fields = {{"source", "abc"}, {"arch", "sm_80"}}}.digest());
  const Key others[] = {{.fields = {{"source", "abd"}, {"arch", "sm_80"}}},
                        {.fields = {{"sourc", "eabc"}, {"arch", "sm_80"}}},
                        {.fields = {{"arch", "sm_80"}, {"source", "abc"}}},
                        {.fields = {{"source", "abc"}, {"arch", "sm_80"}, {"", ""}}},
                        {.fields = {{"source", "abc"}}},
                        {}};
  for (const Key& other : others) CHECK(other.digest() != digest);
}

TEST_CASE("the digest and the bytes are what they were: a change would strand every cache in the field") {
  const Entry entry{.key = {.fields = {{"source", "x"}}}, .sections = {{"cubin", "y"}}};
  CHECK(entry.key.digest() == "73b15c134c13d42371b2b60947798c35");
  const std::string bytes = serialize(entry);
  CHECK(bytes.substr(0, 8) ==
        "\x89"
        "FJENT\r\n");
  CHECK(bytes.size() == 64 + 12 + 7 + 12 + 6);
  CHECK(Key{.fields = {{"file", bytes}}}.digest() == "81f7d2b66d59dc51ca3b2f31d884ac14");
}

}  // namespace
}  // namespace flashjit::cache

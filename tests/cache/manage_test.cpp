// Looking at, checking and moving a cache directory.
#include "cache/manage.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>

#include "cache/bytes.hpp"
#include "cache/digest.hpp"
#include "cache/disk.hpp"
#include "cache/pack.hpp"
#include "flashjit/error.hpp"
#include "tests/cache/scratch.hpp"
#include "tests/support/contains.hpp"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;
using test::contains;
using testing::entry_path;
using testing::fill;
using testing::kNobody;
using testing::numbered_entry;
using testing::Scratch;

template <class Call>
std::string refusal(ErrorCode code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.message();
  }
  FAIL("nothing was thrown");
  return {};
}

const MergeWisdom kNoWisdom = [](const fs::path&, std::string_view) {
  FAIL("there is no wisdom in this pack");
  return false;
};

TEST_CASE("ls shows what is there, good and bad") {
  const Scratch scratch;
  const StoreOptions options{.directory = scratch / "cache"};
  CHECK(list_entries(options).empty());
  fill(options.directory, 3);
  Entry named = numbered_entry(7);
  named.sections.emplace_back("report", "flashjit_forward");
  open_store(options)->put(std::make_shared<const Entry>(named));
  testing::spill(entry_path(options.directory, numbered_entry(0)), "damaged");
  testing::spill(entry_path(options.directory, numbered_entry(1)), serialize(numbered_entry(2)));
  testing::spill(options.directory / "README", "not ours");
  fs::create_directory(entry_path(options.directory, numbered_entry(9)));

  const std::vector<Row> rows =
      list_entries(options, [](const Entry& entry) { return std::string(entry.section("report")); });
  REQUIRE(rows.size() == 4);
  std::map<std::string, Row> by_digest;
  for (const Row& row : rows) by_digest[row.digest] = row;
  CHECK(by_digest[numbered_entry(0).key.digest()].verdict == Verdict::damaged);
  CHECK(by_digest[numbered_entry(1).key.digest()].verdict == Verdict::misfiled);
  CHECK(by_digest[numbered_entry(2).key.digest()].verdict == Verdict::good);
  const Row& row = by_digest[named.key.digest()];
  CHECK(row.name == "flashjit_forward");
  CHECK(row.arch == "sm_90a");
  CHECK(row.bytes == named.size());

  open_store(options)->put(std::make_shared<const Entry>(numbered_entry(1)));  // good again by now
  CHECK(remove_bad(options, rows) == 1);
  CHECK(list_entries(options).size() == 3);
  CHECK(fs::exists(options.directory / "README"));
}

TEST_CASE("what is larger than any entry is none") {
  const Scratch scratch;
  const StoreOptions options{.directory = scratch.path()};
  const fs::path file = entry_path(scratch.path(), numbered_entry(0));
  testing::spill(file, "");
  fs::resize_file(file, kLargestEntry + 1);  // a hole: it takes no room
  const std::vector<Row> rows = list_entries(options);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].verdict == Verdict::damaged);
  CHECK(remove_bad(options, rows) == 1);
}

TEST_CASE("show finds an entry by the start of its digest") {
  const Scratch scratch;
  const StoreOptions options{.directory = scratch.path()};
  fill(scratch.path(), 40);
  const Entry entry = numbered_entry(3);
  CHECK(load_entry(options, entry.key.digest()).sections == entry.sections);
  CHECK(load_entry(options, entry.key.digest().substr(0, 12)).key == entry.key);
  CHECK(contains(refusal(ErrorCode::not_found, [&] { (void)load_entry(options, std::string(32, '0')); }),
                 "0000"));
  // 40 entries and 16 digits: some digit starts several.
  std::map<char, int> starts;
  for (const Row& row : list_entries(options)) ++starts[row.digest[0]];
  for (const auto& start : starts) {
    if (start.second < 2) continue;
    (void)refusal(ErrorCode::invalid_argument,
                  [&] { (void)load_entry(options, std::string(1, start.first)); });
  }
  for (const char* bad : {"", "xyz", "../../etc/passwd", "AB", "0123456789abcdef0123456789abcdef0"}) {
    (void)refusal(ErrorCode::invalid_argument, [&] { (void)load_entry(options, bad); });
  }
  testing::spill(entry_path(scratch.path(), entry), "damaged");
  CHECK(contains(refusal(ErrorCode::io, [&] { (void)load_entry(options, entry.key.digest()); }), "damaged"));
}

TEST_CASE("what can not be removed is told, with the reason") {
  if (::geteuid() != 0) {
    MESSAGE("SKIPPED: needs root to drop its rights");
    return;
  }
  const Scratch scratch;
  const StoreOptions options{.directory = scratch.path(), .trust = Trust::as_given};
  fill(scratch.path(), 2);
  testing::spill(entry_path(scratch.path(), numbered_entry(0)), "damaged");
  REQUIRE(::chmod(scratch.path().c_str(), 0555) == 0);
  const int code = testing::in_child([&] {
    if (::setuid(kNobody) != 0) return 50;
    const auto refused = [](const auto& call) {
      return contains(refusal(ErrorCode::io, call), ".flashjit can not be removed: Permission denied");
    };
    if (!refused([&] { (void)prune(options, 0); })) return 1;
    if (!refused([&] { (void)clear(options, false); })) return 2;
    return refused([&] { (void)remove_bad(options, list_entries(options)); }) ? 0 : 3;
  });
  CHECK(code == 0);
}

TEST_CASE("the management verbs refuse what the store refuses") {
  const Scratch scratch;
  testing::spill(scratch / "file", "text");
  (void)refusal(ErrorCode::io, [&] { (void)list_entries({.directory = scratch / "file"}); });
  (void)refusal(ErrorCode::not_found, [&] { (void)clear({}, true); });
  fs::create_directory(scratch / "open");
  REQUIRE(::chmod((scratch / "open").c_str(), 0777) == 0);
  (void)refusal(ErrorCode::io, [&] { (void)clear({.directory = scratch / "open"}, true); });
}

TEST_CASE("a pack moves entries and wisdom to another directory") {
  const Scratch scratch;
  const StoreOptions here{.directory = scratch / "here"};
  const StoreOptions there{.directory = scratch / "there"};
  fill(here.directory, 5);
  testing::spill(here.directory / "wisdom.jsonl", "{\"line\": 1}\n");
  testing::spill(here.directory / "README", "stays");
  testing::spill(entry_path(here.directory, numbered_entry(4)), "damaged");
  const Packed packed = pack(here, scratch / "warm.pack");
  CHECK(packed.entries == 4);
  CHECK(packed.wisdom == 1);
  CHECK(packed.skipped == 1);
  CHECK(packed.bytes == fs::file_size(scratch / "warm.pack"));
  (void)pack(here, scratch / "again.pack");
  CHECK(testing::slurp(scratch / "warm.pack") == testing::slurp(scratch / "again.pack"));

  std::string merged;
  const MergeWisdom merge = [&](const fs::path& file, std::string_view lines) {
    CHECK(file == there.directory / "wisdom.jsonl");
    merged = lines;
    return true;
  };
  Unpacked unpacked = unpack(scratch / "warm.pack", there, merge);
  CHECK(unpacked.entries == 4);
  CHECK(unpacked.wisdom == 1);
  CHECK(merged == "{\"line\": 1}\n");
  CHECK(open_store(there)->get(numbered_entry(2).key).layer == "disk");
  unpacked = unpack(scratch / "warm.pack", there, [](const fs::path&, std::string_view) { return false; });
  CHECK(unpacked.entries == 0);
  CHECK(unpacked.kept == 4);
  CHECK(unpacked.wisdom == 0);
  for (const std::string& name : testing::names_in(scratch.path())) CHECK_MESSAGE(!is_temporary(name), name);
}

TEST_CASE("a list grows by what a pack's has, and code stays as it is") {
  const Scratch scratch;
  const StoreOptions here{.directory = scratch / "here"};
  const StoreOptions there{.directory = scratch / "there"};
  const auto list_of = [](const std::vector<std::pair<std::string, std::string>>& sections) {
    return Entry{.key = {.fields = {{"record", "toolchain"}}}, .sections = sections};
  };
  const Entry code = numbered_entry(0);
  Entry same_key = code;
  same_key.sections = {{"cubin", "another's"}};
  const auto put = [](const StoreOptions& options, const Entry& entry) {
    open_store(options)->put(std::make_shared<const Entry>(entry));
  };
  put(here, list_of({{"new", "1"}, {"both", "2"}}));
  put(here, code);
  put(there, list_of({{"both", "2"}, {"old", "3"}}));
  put(there, same_key);
  (void)pack(here, scratch / "warm.pack");
  const auto sections = [&](const Key& key) { return open_store(there)->get(key).entry->sections; };
  Unpacked unpacked = unpack(scratch / "warm.pack", there, kNoWisdom);
  CHECK(unpacked.entries == 1);
  CHECK(unpacked.kept == 1);
  CHECK(sections(list_of({}).key) == list_of({{"new", "1"}, {"both", "2"}, {"old", "3"}}).sections);
  CHECK(sections(code.key) == same_key.sections);
  unpacked = unpack(scratch / "warm.pack", there, kNoWisdom);
  CHECK(unpacked.kept == 2);
}

TEST_CASE("a pack larger than the directory may be says what went again") {
  const Scratch scratch;
  const StoreOptions here{.directory = scratch / "here"};
  fill(here.directory, 5);
  (void)pack(here, scratch / "warm.pack");
  const StoreOptions small{.directory = scratch / "small",
                           .size_limit = 2 * fs::file_size(entry_path(here.directory, numbered_entry(0)))};
  const Unpacked unpacked = unpack(scratch / "warm.pack", small, kNoWisdom);
  CHECK(unpacked.entries == 5);
  CHECK(unpacked.removed >= 3);
  CHECK(list_entries(small).size() == 5 - unpacked.removed);
}

TEST_CASE("a pack takes no other's place than a file's") {
  const Scratch scratch;
  fill(scratch / "here", 1);
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  (void)refusal(ErrorCode::invalid_argument,
                [&] { (void)pack({.directory = scratch / "here"}, scratch / "pipe"); });
  CHECK(fs::is_fifo(scratch / "pipe"));
}

TEST_CASE("a pack that can not even be begun leaves no file") {
  const Scratch scratch;
  fill(scratch / "here", 1);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto on_limit = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit nothing{.rlim_cur = 0, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &nothing) == 0);
  const std::string message =
      refusal(ErrorCode::io, [&] { (void)pack({.directory = scratch / "here"}, scratch / "never.pack"); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  (void)std::signal(SIGXFSZ, on_limit);
  CHECK(contains(message, "never.pack"));
  CHECK(testing::names_in(scratch.path()) == std::vector<std::string>{"here"});
}

TEST_CASE("every bit of a pack is guarded, and a bad pack unpacks nothing") {
  const Scratch scratch;
  const auto store = open_store({.directory = scratch / "here"});
  for (std::uint64_t n = 0; n < 2; ++n) store->put(std::make_shared<const Entry>(numbered_entry(n, 32)));
  (void)pack({.directory = scratch / "here"}, scratch / "good.pack");
  const std::string good = testing::slurp(scratch / "good.pack");
  const StoreOptions there{.directory = scratch / "there"};
  const fs::path bad = scratch / "bad.pack";
  const auto refused = [&](const std::string& bytes) {
    testing::spill(bad, bytes);
    const std::string message =
        refusal(ErrorCode::invalid_argument, [&] { (void)unpack(bad, there, kNoWisdom); });
    CHECK(contains(message, bad.string()));
    CHECK(!fs::exists(there.directory));
  };
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    refused(flipped);
  }
  for (std::size_t length = 0; length < good.size(); ++length) refused(good.substr(0, length));
  refused(good + "x");
}

// A pack of one record whose checksum is right, whatever its name and content.
std::string forged_pack(const std::string& name, const std::string& content) {
  std::string bytes(
      "\x89"
      "FJPCK\r\n",
      8);
  put_number(bytes, std::uint32_t{1});
  put_number(bytes, std::uint32_t{1});
  put_number(bytes, static_cast<std::uint32_t>(name.size()));
  put_number(bytes, static_cast<std::uint64_t>(content.size()));
  Hasher hasher;
  hasher.add_length(name.size());
  hasher.add(name);
  hasher.add_length(content.size());
  hasher.add(content);
  const Hash128 hash = hasher.finish();
  bytes.append(reinterpret_cast<const char*>(hash.data()), hash.size());
  return bytes + name + content;
}

TEST_CASE("a forged pack can not name a path, another file, or an entry under a wrong digest") {
  const Scratch scratch;
  const fs::path file = scratch / "forged.pack";
  const StoreOptions there{.directory = scratch / "there"};
  const Entry entry = numbered_entry(1);
  const std::string name = entry_file_name(entry.key.digest());
  testing::spill(file, forged_pack(name, serialize(entry)));
  CHECK(unpack(file, there, kNoWisdom).entries == 1);  // the forger's tool works
  fs::remove_all(there.directory);
  const std::string bad_names[] = {"../" + name,
                                   "/etc/passwd",
                                   "sub/" + name,
                                   name + "/..",
                                   ".flashjit.lock",
                                   "",
                                   "..",
                                   std::string(300, 'a'),
                                   "wisdom/../.jsonl",
                                   entry_file_name(numbered_entry(2).key.digest()),
                                   name + std::string(1, '\0'),
                                   ".flashjit-put-1-0.tmp"};
  for (const std::string& bad : bad_names) {
    testing::spill(file, forged_pack(bad, serialize(entry)));
    (void)refusal(ErrorCode::invalid_argument, [&] { (void)unpack(file, there, kNoWisdom); });
    CHECK(!fs::exists(there.directory));
  }
  testing::spill(file, forged_pack(name, "no entry"));
  (void)refusal(ErrorCode::invalid_argument, [&] { (void)unpack(file, there, kNoWisdom); });
  (void)refusal(ErrorCode::io, [&] { (void)unpack(scratch / "none", there, kNoWisdom); });
  (void)refusal(ErrorCode::invalid_argument, [&] { (void)unpack(scratch.path(), there, kNoWisdom); });
  CHECK(!fs::exists(there.directory));
}

}  // namespace
}  // namespace flashjit::cache

// `flashjit cache …`, run as people run it: what it prints, what it exits with.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/cache/scratch.hpp"
#include "tests/cli/command.hpp"

namespace flashjit::cli {
namespace {

namespace fs = std::filesystem;
using cache::testing::numbered_entry;
using cache::testing::Scratch;
using nlohmann::json;
using test::contains;
using test::Result;

// Both streams, or stdout alone where JSON is expected.
Result run(const fs::path& cache_dir, const std::string& arguments, bool json_only = false) {
  return test::run_command(cache_dir, "cache " + arguments + (json_only ? " --json 2>/dev/null" : " 2>&1"));
}

std::string fill(const fs::path& folder, std::uint64_t count) {
  const auto store = cache::open_store({.directory = folder});
  for (std::uint64_t n = 0; n < count; ++n)
    store->put(std::make_shared<const cache::Entry>(numbered_entry(n)));
  return numbered_entry(0).key.digest();
}

TEST_CASE("ls and show") {
  const Scratch scratch;
  CHECK(run(scratch / "none", "ls").exit_code == 0);
  CHECK(json::parse(run(scratch / "no UTF-8: \xff", "ls", true).out)["entries"].empty());
  const std::string digest = fill(scratch.path(), 3);
  const Result text = run(scratch.path(), "ls");
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, digest.substr(0, 12)));
  CHECK(contains(text.out, "3 entries"));
  const json listed = json::parse(run(scratch.path(), "ls", true).out);
  CHECK(listed["entries"].size() == 3);
  CHECK(listed["entries"][0]["state"] == "good");
  CHECK(listed["entries"][0]["arch"] == "sm_90a");

  CHECK(contains(run(scratch.path(), "show " + digest).out, "kernel 0"));
  CHECK(json::parse(run(scratch.path(), "show " + digest, true).out)["sections"]["cubin"] == 4096);
  CHECK(run(scratch.path(), "show " + digest + " --section cubin").out == numbered_entry(0).section("cubin"));
  const Result wrong = run(scratch.path(), "show " + digest + " --section sass");
  CHECK(wrong.exit_code == 2);
  CHECK(contains(wrong.out, "ptx, cubin, log"));
  const Result both = run(scratch.path(), "show " + digest + " --section report --json");
  CHECK(both.exit_code == 2);
  CHECK(contains(both.out, "--json does nothing beside --section: "));
  CHECK(run(scratch.path(), "show nonsense").exit_code == 2);
  CHECK(run(scratch.path(), "show").exit_code == 2);
}

TEST_CASE("verify, prune, clear") {
  const Scratch scratch;
  const std::string digest = fill(scratch.path(), 4);
  CHECK(run(scratch.path(), "verify").exit_code == 0);
  cache::testing::spill(scratch / cache::entry_file_name(digest), "damaged");
  const Result bad = run(scratch.path(), "verify");
  CHECK(bad.exit_code == 1);
  CHECK(contains(bad.out, digest + "  damaged"));
  CHECK(json::parse(run(scratch.path(), "verify", true).out)["bad"][0]["entry"] == digest);
  CHECK(run(scratch.path(), "verify --remove").exit_code == 0);
  CHECK(json::parse(run(scratch.path(), "prune --size 5k", true).out)["removed_entries"] == 2);
  CHECK(run(scratch.path(), "prune --size 5GB").exit_code == 2);
  CHECK(json::parse(run(scratch.path(), "clear", true).out)["entries"] == 1);
  CHECK(run(scratch.path(), "").exit_code == 2);
  CHECK(run(scratch.path(), "burn").exit_code == 2);
}

TEST_CASE("pack and unpack, with wisdom merged") {
  const Scratch scratch;
  fill(scratch / "here", 2);
  fs::copy_file(fs::path(FLASHJIT_ROOT) / "tests/fuzz/corpus/wisdom/one_record",
                scratch / "here" / "wisdom.jsonl");
  const std::string pack = (scratch / "warm.pack").string();
  const json packed = json::parse(run(scratch / "here", "pack " + pack, true).out);
  CHECK(packed["entries"] == 2);
  CHECK(packed["wisdom"] == 1);
  const json unpacked = json::parse(run(scratch / "there", "unpack " + pack, true).out);
  CHECK(unpacked["entries"] == 2);
  CHECK(unpacked["wisdom"] == 1);
  CHECK(cache::testing::slurp(scratch / "there" / "wisdom.jsonl").find("NVIDIA H200") != std::string::npos);
  CHECK(json::parse(run(scratch / "there", "unpack " + pack, true).out)["kept"] == 2);
  cache::testing::spill(pack, "no pack at all, but long enough for a header");
  const Result bad = run(scratch / "there", "unpack " + pack);
  CHECK(bad.exit_code == 2);
  CHECK(contains(bad.out, pack));
  CHECK(run(scratch / "none", "pack " + pack).exit_code == 2);
  CHECK(run(scratch / "here", "pack /nonexistent/x").exit_code == 2);
}

TEST_CASE("wisdom that only another version can read comes along") {
  const Scratch scratch;
  fill(scratch / "here", 1);
  const fs::path lines = fs::path(FLASHJIT_ROOT) / "tests/fuzz/corpus/wisdom/one_record";
  const std::string later = R"({"schedule":"tcgen05:m128n64","gpu":"NVIDIA B300"})";
  cache::testing::spill(scratch / "here" / "wisdom.jsonl", cache::testing::slurp(lines) + later + "\n");
  const std::string pack = (scratch / "warm.pack").string();
  CHECK(run(scratch / "here", "pack " + pack).exit_code == 0);
  CHECK(run(scratch / "there", "unpack " + pack).exit_code == 0);
  const std::string unpacked = cache::testing::slurp(scratch / "there" / "wisdom.jsonl");
  CHECK(contains(unpacked, "NVIDIA H200"));
  CHECK(contains(unpacked, later));
}

TEST_CASE("words that nobody takes end no work") {
  const Scratch scratch;
  fill(scratch.path(), 2);
  for (const char* nowhere : {"2>/dev/full", "2>&-", "2>&- 0<&-"}) {
    CAPTURE(nowhere);
    CHECK(test::run_command(scratch.path(), std::string("cache verify ") + nowhere).exit_code == 0);
  }
}

TEST_CASE("where there is no cache directory, the way to have one is told") {
  const Scratch scratch;
  const Result off = test::run_command(scratch.path(), "cache ls 2>&1", "FLASHJIT_CACHE_SIZE=0");
  CHECK(off.exit_code == 2);
  CHECK(contains(off.out, "FLASHJIT_CACHE_SIZE is 0, which means memory only\nunset it"));
  const Result homeless = test::run_command("", "cache ls 2>&1", "HOME= XDG_CACHE_HOME=");
  CHECK(homeless.exit_code == 2);
  CHECK(contains(homeless.out, "none of FLASHJIT_CACHE_DIR, XDG_CACHE_HOME and HOME names one"));
  CHECK(contains(test::run_command(scratch.path(), "doctor", "FLASHJIT_CACHE_SIZE=0").out, "unset it"));
}

TEST_CASE("a cache directory that is none is an error with exit code 2") {
  const Scratch scratch;
  cache::testing::spill(scratch / "file", "text");
  const Result ran = run(scratch / "file", "ls");
  CHECK(ran.exit_code == 2);
  CHECK(contains(ran.out, (scratch / "file").string()));
  CHECK(run("relative", "ls").exit_code == 2);
}

}  // namespace
}  // namespace flashjit::cli

// `flashjit cache …`, run as people run it: what it prints, what it exits with.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/cache/scratch.hpp"

namespace flashjit::cli {
namespace {

namespace fs = std::filesystem;
using cache::testing::numbered_entry;
using cache::testing::Scratch;
using nlohmann::json;

struct Ran {
  int code = -1;
  std::string out;
};

// Both streams, or stdout alone where JSON is expected.
Ran run(const fs::path& cache_dir, const std::string& arguments, bool json_only = false) {
  const std::string line =
      fmt::format("FLASHJIT_CACHE_DIR='{}' '{}' cache {} {}", cache_dir.string(), FLASHJIT_COMMAND, arguments,
                  json_only ? "--json 2>/dev/null" : "2>&1");
  std::FILE* pipe = ::popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ran ran;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    ran.out.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ran;
}

bool says(const Ran& ran, const std::string& part) {
  return ran.out.find(part) != std::string::npos;
}

std::string fill(const fs::path& folder, std::uint64_t count) {
  const auto store = cache::open_store({.directory = folder});
  for (std::uint64_t n = 0; n < count; ++n)
    store->put(std::make_shared<const cache::Entry>(numbered_entry(n)));
  return numbered_entry(0).key.digest();
}

TEST_CASE("ls and show") {
  const Scratch scratch;
  CHECK(run(scratch / "none", "ls").code == 0);
  const std::string digest = fill(scratch.path(), 3);
  const Ran text = run(scratch.path(), "ls");
  CHECK(text.code == 0);
  CHECK(says(text, digest.substr(0, 12)));
  CHECK(says(text, "3 entries"));
  const json listed = json::parse(run(scratch.path(), "ls", true).out);
  CHECK(listed["entries"].size() == 3);
  CHECK(listed["entries"][0]["state"] == "good");
  CHECK(listed["entries"][0]["arch"] == "sm_90a");

  CHECK(says(run(scratch.path(), "show " + digest), "kernel 0"));
  CHECK(json::parse(run(scratch.path(), "show " + digest, true).out)["sections"]["cubin"] == 4096);
  CHECK(run(scratch.path(), "show " + digest + " --section cubin").out == numbered_entry(0).section("cubin"));
  const Ran wrong = run(scratch.path(), "show " + digest + " --section sass");
  CHECK(wrong.code == 2);
  CHECK(says(wrong, "ptx, cubin, log"));
  CHECK(run(scratch.path(), "show nonsense").code == 2);
  CHECK(run(scratch.path(), "show").code == 2);
}

TEST_CASE("verify, prune, clear") {
  const Scratch scratch;
  const std::string digest = fill(scratch.path(), 4);
  CHECK(run(scratch.path(), "verify").code == 0);
  cache::testing::spill(scratch / cache::entry_file_name(digest), "damaged");
  const Ran bad = run(scratch.path(), "verify");
  CHECK(bad.code == 1);
  CHECK(says(bad, digest + "  damaged"));
  CHECK(json::parse(run(scratch.path(), "verify", true).out)["bad"][0]["entry"] == digest);
  CHECK(run(scratch.path(), "verify --remove").code == 0);
  CHECK(json::parse(run(scratch.path(), "prune --size 5k", true).out)["removed_entries"] == 2);
  CHECK(run(scratch.path(), "prune --size 5GB").code == 2);
  CHECK(json::parse(run(scratch.path(), "clear", true).out)["entries"] == 1);
  CHECK(run(scratch.path(), "").code == 2);
  CHECK(run(scratch.path(), "burn").code == 2);
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
  const Ran bad = run(scratch / "there", "unpack " + pack);
  CHECK(bad.code == 2);
  CHECK(says(bad, pack));
  CHECK(run(scratch / "none", "pack " + pack).code == 2);
  CHECK(run(scratch / "here", "pack /nonexistent/x").code == 2);
}

TEST_CASE("a cache directory that is none is an error with exit code 2") {
  const Scratch scratch;
  cache::testing::spill(scratch / "file", "text");
  const Ran ran = run(scratch / "file", "ls");
  CHECK(ran.code == 2);
  CHECK(says(ran, (scratch / "file").string()));
  CHECK(run("relative", "ls").code == 2);
}

}  // namespace
}  // namespace flashjit::cli

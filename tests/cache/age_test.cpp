// What the age of a file decides: what is touched, what is swept, what is cleared.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <utime.h>

#include <algorithm>
#include <ctime>

#include "cache/manage.hpp"
#include "cache/pack.hpp"
#include "cache/store.hpp"
#include "cache/sweep.hpp"
#include "flashjit/error.hpp"
#include "tests/cache/scratch.hpp"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;
using testing::entry_path;
using testing::fill;
using testing::numbered_entry;
using testing::Scratch;

void set_age(const fs::path& path, std::time_t seconds) {
  const std::time_t then = std::time(nullptr) - seconds;
  const utimbuf times{.actime = then, .modtime = then};
  REQUIRE(::utime(path.c_str(), &times) == 0);
}

std::time_t age_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return std::time(nullptr) - status.st_mtime;
}

TEST_CASE("an old entry is touched when used, a young one is not") {
  const Scratch scratch;
  fill(scratch.path(), 1);
  const fs::path file = entry_path(scratch.path(), numbered_entry(0));
  const auto look_up = [&] {
    CHECK(open_store({.directory = scratch.path()})->get(numbered_entry(0).key).layer == "disk");
  };
  set_age(file, 3600);
  look_up();
  CHECK(age_of(file) >= 3600);
  set_age(file, 7L * 3600);
  look_up();
  CHECK(age_of(file) < 60);
  set_age(file, -7L * 3600);  // a clock ran ahead
  look_up();
  CHECK(age_of(file) >= 0);
}

TEST_CASE("over its limit the least recently used entries go") {
  const Scratch scratch;
  const std::size_t size = numbered_entry(1).size();
  const auto store = open_store({.directory = scratch.path(), .size_limit = 10 * size + 100});
  for (std::uint64_t n = 0; n < 10; ++n) {
    store->put(std::make_shared<const Entry>(numbered_entry(n)));
    set_age(entry_path(scratch.path(), numbered_entry(n)), static_cast<std::time_t>(1000 - n));
  }
  CHECK(fs::exists(entry_path(scratch.path(), numbered_entry(0))));
  store->put(std::make_shared<const Entry>(numbered_entry(10)));
  // Eleven entries are over the limit of ten; what is left fits into nine tenths of it.
  CHECK(!fs::exists(entry_path(scratch.path(), numbered_entry(0))));
  CHECK(!fs::exists(entry_path(scratch.path(), numbered_entry(1))));
  for (std::uint64_t n = 2; n <= 10; ++n) CHECK(fs::exists(entry_path(scratch.path(), numbered_entry(n))));
}

TEST_CASE("lists of a few bytes outlive kernels that were used later") {
  const Scratch scratch;
  Entry list = numbered_entry(0);
  list.sections = {{"source", "sm_80"}};
  open_store({.directory = scratch.path()})->put(std::make_shared<const Entry>(list));
  set_age(entry_path(scratch.path(), list), 2000);
  Entry kernel = numbered_entry(1);
  kernel.sections = {{"cubin", std::string(10'000, '*')}};
  open_store({.directory = scratch.path()})->put(std::make_shared<const Entry>(kernel));
  const Directory directory = open_directory(scratch.path(), Trust::verify, false);
  CHECK(sweep(directory.folder.get(), list.size() * 2).removed_entries == 1);
  CHECK(fs::exists(entry_path(scratch.path(), list)));
  CHECK(sweep(directory.folder.get(), 0).removed_entries == 1);
}

TEST_CASE("of entries of one second the one that was written first goes") {
  const Scratch scratch;
  fill(scratch.path(), 3);
  const std::time_t then = std::time(nullptr) - 1000;
  const std::uint64_t order[] = {1, 2, 0};
  for (long i = 0; i < 3; ++i) {
    const timespec times[2] = {{then, i}, {then, i}};
    const fs::path file = entry_path(scratch.path(), numbered_entry(order[i]));
    REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
  }
  const StoreOptions options{.directory = scratch.path()};
  for (const std::uint64_t first : {1u, 2u}) {
    CHECK(prune(options, list_entries(options).size() * numbered_entry(0).size() - 1).removed_entries == 1);
    CHECK(!fs::exists(entry_path(scratch.path(), numbered_entry(first))));
  }
}

TEST_CASE("a process sweeps at its first write, and then for each sixteenth of the limit that it writes") {
  const Scratch scratch;
  const fs::path stale = scratch / ".flashjit-put-1-00.tmp";
  const auto store = open_store({.directory = scratch.path(), .size_limit = 64 * numbered_entry(0).size()});
  std::string swept;
  for (std::uint64_t n = 0; n < 10; ++n) {
    testing::spill(stale, "stale");
    set_age(stale, 2L * 3600);
    store->put(std::make_shared<const Entry>(numbered_entry(n)));
    swept += fs::exists(stale) ? '-' : 's';
  }
  CHECK(swept == "s---s---s-");
}

TEST_CASE("ls shows what was used last first") {
  const Scratch scratch;
  fill(scratch.path(), 3);
  const std::uint64_t order[] = {1, 0, 2};
  for (long i = 0; i < 3; ++i) set_age(entry_path(scratch.path(), numbered_entry(order[i])), 100 * i);
  const std::vector<Row> rows = list_entries({.directory = scratch.path()});
  REQUIRE(rows.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(rows[i].digest == numbered_entry(order[i]).key.digest());
}

TEST_CASE("an entry of a clock that ran ahead goes first") {
  const Scratch scratch;
  fill(scratch.path(), 3);
  set_age(entry_path(scratch.path(), numbered_entry(0)), 1000);
  set_age(entry_path(scratch.path(), numbered_entry(1)), -48L * 3600);
  set_age(entry_path(scratch.path(), numbered_entry(2)), -3600);  // only another machine's clock
  const StoreOptions options{.directory = scratch.path()};
  for (const std::uint64_t first : {1u, 0u}) {
    CHECK(prune(options, list_entries(options).size() * numbered_entry(0).size() - 1).removed_entries == 1);
    CHECK(!fs::exists(entry_path(scratch.path(), numbered_entry(first))));
  }
}

TEST_CASE("a sweep takes stale temporaries, leaves young ones, and works alone") {
  const Scratch scratch;
  testing::spill(scratch / ".flashjit-put-1-00.tmp", "stale");
  testing::spill(scratch / ".flashjit-put-2-00.tmp", "young");
  set_age(scratch / ".flashjit-put-2-00.tmp", 3000);
  testing::spill(scratch / ".flashjit-put-3-00.tmp", "stale, of a clock that ran ahead");
  testing::spill(scratch / "wisdom.jsonl", "{}");
  set_age(scratch / ".flashjit-put-3-00.tmp", -48L * 3600);
  set_age(scratch / ".flashjit-put-1-00.tmp", 2L * 3600);
  set_age(scratch / "wisdom.jsonl", 1000L * 3600);
  const Directory directory = open_directory(scratch.path(), Trust::verify, false);
  {
    const FolderLock lock = lock_folder(directory.folder.get(), kSweepSlot, std::chrono::milliseconds(0));
    CHECK(lock.state() == LockState::held);
    CHECK(!sweep(directory.folder.get(), 0).done);
    CHECK_THROWS_WITH_AS(prune({.directory = scratch.path()}, 0),
                         doctest::Contains("another process is pruning"), Error);
  }
  const SweepResult result = sweep(directory.folder.get(), 0);
  CHECK(result.done);
  CHECK(result.removed_temporaries == 2);
  CHECK(!fs::exists(scratch / ".flashjit-put-1-00.tmp"));
  CHECK(fs::exists(scratch / ".flashjit-put-2-00.tmp"));
  CHECK(fs::exists(scratch / "wisdom.jsonl"));
}

TEST_CASE("prune and clear remove entries and nothing else") {
  const Scratch scratch;
  const StoreOptions options{.directory = scratch.path()};
  fill(scratch.path(), 10);
  CHECK(prune(options, 10 * numbered_entry(0).size()).removed_entries == 0);
  const SweepResult pruned = prune(options, 5 * numbered_entry(0).size());
  CHECK(pruned.entries == 10);
  CHECK(pruned.removed_entries == 6);  // nine tenths of five entries hold four
  testing::spill(scratch / "wisdom.jsonl", "{}\n");
  testing::spill(scratch / "README", "not ours");
  testing::spill(scratch / ".flashjit-put-1-0.tmp", "half");
  set_age(scratch / ".flashjit-put-1-0.tmp", 2L * 3600);
  testing::spill(scratch / ".flashjit-put-2-0.tmp", "being written");
  testing::spill(scratch / ".others-1-0.tmp", "not ours");
  Cleared cleared = clear(options, false);
  CHECK(cleared.entries == 4);
  CHECK(cleared.temporaries == 1);
  CHECK(cleared.wisdom == 0);
  CHECK(fs::exists(scratch / "wisdom.jsonl"));
  cleared = clear(options, true);
  CHECK(cleared.wisdom == 1);
  CHECK(!fs::exists(scratch / "wisdom.jsonl"));
  CHECK(fs::exists(scratch / ".flashjit-put-2-0.tmp"));
  CHECK(fs::exists(scratch / "README"));
  CHECK(fs::exists(scratch / ".others-1-0.tmp"));
}

TEST_CASE("a pack removes what a killed one left beside it") {
  const Scratch scratch;
  fill(scratch / "cache", 1);
  for (const char* name : {".flashjit-pack-1-0.tmp", ".flashjit-pack-2-0.tmp", "old.pack"})
    testing::spill(scratch / name, "half");
  set_age(scratch / ".flashjit-pack-1-0.tmp", 2L * 3600);
  set_age(scratch / "old.pack", 2L * 3600);
  (void)pack({.directory = scratch / "cache"}, scratch / "warm.pack");
  std::vector<std::string> left = testing::names_in(scratch.path());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{".flashjit-pack-2-0.tmp", "cache", "old.pack", "warm.pack"});
}

}  // namespace
}  // namespace flashjit::cache

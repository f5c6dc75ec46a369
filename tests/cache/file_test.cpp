// Files below the store: which one is removed, and which byte is whose lock.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "cache/files.hpp"
#include "cache/lock.hpp"
#include "tests/cache/scratch.hpp"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;
using testing::Scratch;

TEST_CASE("a file that took the place of the one that was read stays") {
  const Scratch scratch;
  const Directory directory = open_directory(scratch.path(), Trust::verify, false);
  const int folder = directory.folder.get();
  const fs::path file = scratch / "file";
  const auto date = [&](long nanoseconds) {
    const timespec times[2] = {{1000, nanoseconds}, {1000, nanoseconds}};
    REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
  };
  testing::spill(file, "four");
  date(1);
  const ReadResult read = read_file(folder, "file", 4);
  REQUIRE(read.error == 0);
  CHECK(read_file(folder, "file", 3).error == EFBIG);
  SUBCASE("another file") {
    testing::spill(scratch / "new", "five");
    fs::rename(scratch / "new", file);
    date(1);
  }
  SUBCASE("longer by now") {
    testing::spill(file, "longer");
    date(1);
  }
  SUBCASE("written again within a second") {
    date(2);
  }
  CHECK(remove_if_same(folder, "file", read.identity) == ENOENT);
  CHECK(fs::exists(file));
  CHECK(remove_if_same(folder, "file", read_file(folder, "file", 9).identity) == 0);
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("a lock is the key's own byte, and no key's is the sweep's") {
  CHECK(compile_slot("00000000000000000000000000000000") != kSweepSlot);
  CHECK(compile_slot("0000000000000000000000000000000f") == compile_slot("00000000000000000000000000000000"));
  CHECK(compile_slot("00000000000000a00000000000000000") != compile_slot("00000000000000000000000000000000"));
}

}  // namespace
}  // namespace flashjit::cache

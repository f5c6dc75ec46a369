// The store on a real directory: layers, damage, collisions, locks, threads.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "cache/store.hpp"
#include "cache/sweep.hpp"
#include "tests/cache/scratch.hpp"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;
using testing::entry_path;
using testing::numbered_entry;
using testing::Scratch;
using testing::WatchedStore;

std::shared_ptr<const Entry> shared(const Entry& entry) {
  return std::make_shared<const Entry>(entry);
}

std::string layer_of(Store& store, const Entry& entry) {
  const Hit hit = store.get(entry.key);
  if (!hit.entry) return "miss";
  CHECK(hit.entry->sections == entry.sections);
  return std::string(hit.layer);
}

TEST_CASE("an entry is found in memory, by another store on disk, and in a system directory") {
  const Scratch scratch;
  const Entry entry = numbered_entry(1);
  WatchedStore first(scratch / "user");
  CHECK(layer_of(*first.store, entry) == "miss");
  first.store->put(shared(entry));
  CHECK(layer_of(*first.store, entry) == "memory");

  WatchedStore second(scratch / "user");
  CHECK(layer_of(*second.store, entry) == "disk");
  CHECK(layer_of(*second.store, entry) == "memory");

  const auto layered = open_store({.directory = scratch / "other", .system_directory = scratch / "user"});
  CHECK(layer_of(*layered, entry) == "system");
  CHECK(first.warnings.empty());
  CHECK(fs::is_empty(scratch / "other"));
  struct stat status {};
  REQUIRE(::stat((scratch / "user").c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0700);
}

TEST_CASE("a directory that was named is made for all, as far as the umask lets") {
  const Scratch scratch;
  const mode_t before = ::umask(022);
  const auto store = open_store({.directory = scratch / "usr/share", .trust = Trust::as_given});
  ::umask(before);
  for (const auto* folder : {"usr", "usr/share"}) {
    struct stat status {};
    REQUIRE(::stat((scratch / folder).c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0755);
  }
}

TEST_CASE("with no directory the store lives in memory alone") {
  const auto store = open_store({});
  store->put(shared(numbered_entry(1)));
  CHECK(layer_of(*store, numbered_entry(1)) == "memory");
  CHECK(layer_of(*store, numbered_entry(2)) == "miss");
  CHECK(store->lock_for_compile(numbered_entry(1).key, std::chrono::seconds(1)).state() ==
        LockState::unavailable);
}

TEST_CASE("a damaged entry is a miss, is removed, and can be built again") {
  const Scratch scratch;
  const Entry entry = numbered_entry(1);
  WatchedStore(scratch.path()).store->put(shared(entry));
  const fs::path file = entry_path(scratch.path(), entry);
  const std::string good = testing::slurp(file);
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  for (const std::string& bad :
       {std::string(), flipped, good.substr(0, good.size() - 1), std::string("not an entry")}) {
    testing::spill(file, bad);
    WatchedStore reader(scratch.path());
    CHECK(layer_of(*reader.store, entry) == "miss");
    CHECK(!fs::exists(file));
    REQUIRE(reader.warnings.size() == 1);
    CHECK(reader.warnings[0].find(file.string()) != std::string::npos);
    reader.store->put(shared(entry));
    CHECK(testing::slurp(file) == good);
  }
}

TEST_CASE("a file larger than any entry is damaged, too") {
  const Scratch scratch;
  const fs::path file = entry_path(scratch.path(), numbered_entry(1));
  testing::spill(file, "");
  fs::resize_file(file, std::uintmax_t{1} << 40);
  WatchedStore reader(scratch.path());
  CHECK(layer_of(*reader.store, numbered_entry(1)) == "miss");
  CHECK(!fs::exists(file));
  CHECK(reader.warnings.size() == 1);
}

TEST_CASE("a damaged entry of the system directory is a miss and stays") {
  const Scratch scratch;
  const Entry entry = numbered_entry(1);
  testing::spill(entry_path(scratch.path(), entry), "damaged");
  std::vector<std::string> warnings;
  const auto store = open_store({.system_directory = scratch.path(),
                                 .warn = [&](std::string_view line) { warnings.emplace_back(line); }});
  for (int look = 0; look < 2; ++look) CHECK(layer_of(*store, entry) == "miss");
  CHECK(warnings.size() == 1);
  CHECK(fs::exists(entry_path(scratch.path(), entry)));
}

TEST_CASE("what can not be read is a miss and is not removed") {
  const Scratch scratch;
  const Entry entry = numbered_entry(1);
  const fs::path file = entry_path(scratch.path(), entry);
  WatchedStore store(scratch.path());
  SUBCASE("a directory") {
    fs::create_directory(file);
  }
  SUBCASE("a symbolic link") {
    fs::create_symlink("/etc/passwd", file);
  }
  SUBCASE("a fifo, without waiting for its writer") {
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  }
  CHECK(layer_of(*store.store, entry) == "miss");
  CHECK(fs::symlink_status(file).type() != fs::file_type::not_found);
}

TEST_CASE("a forged digest is a miss, and the right entry takes its place") {
  const Scratch scratch;
  const Entry wanted = numbered_entry(1);
  const Entry other = numbered_entry(2);
  const fs::path file = entry_path(scratch.path(), wanted);
  testing::spill(file, serialize(other));  // a valid entry, filed under another's digest
  WatchedStore store(scratch.path());
  CHECK(layer_of(*store.store, wanted) == "miss");
  CHECK(fs::exists(file));
  store.store->put(shared(wanted));
  CHECK(layer_of(*WatchedStore(scratch.path()).store, wanted) == "disk");
}

TEST_CASE("a directory that is removed while in use is made again") {
  const Scratch scratch;
  WatchedStore store(scratch / "cache");
  fs::remove_all(scratch / "cache");
  store.store->put(shared(numbered_entry(1)));
  CHECK(layer_of(*WatchedStore(scratch / "cache").store, numbered_entry(1)) == "disk");
  CHECK(store.warnings.empty());
}

TEST_CASE("a full disk: one warning, and on in memory") {
  const Scratch scratch;
  // A file size limit stands in for the full disk: write comes back short, then fails (EFBIG instead of
  // ENOSPC).
  const int code = testing::in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 2000, .rlim_max = 2000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 77;
    WatchedStore store(scratch.path());
    for (std::uint64_t n = 0; n < 5; ++n) store.store->put(shared(numbered_entry(n)));
    for (std::uint64_t n = 0; n < 5; ++n) {
      if (store.store->get(numbered_entry(n).key).layer != "memory") return 1;
    }
    return store.warnings.size() == 1 ? 0 : 2;
  });
  CHECK(code == 0);
  CHECK(fs::is_empty(scratch.path()));  // the half-written temporary went too
}

TEST_CASE("a process short of file descriptors for a moment writes again afterwards") {
  const Scratch scratch;
  const int code = testing::in_child([&] {
    WatchedStore store(scratch.path());
    const int next = ::dup(0);
    if (next < 0) return 77;
    ::close(next);
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 77;
    const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &none) != 0) return 77;
    store.store->put(shared(numbered_entry(1)));
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 77;
    store.store->put(shared(numbered_entry(2)));
    return store.warnings.empty() ? 0 : 1;
  });
  CHECK(code == 0);
  CHECK(!fs::exists(entry_path(scratch.path(), numbered_entry(1))));
  CHECK(fs::exists(entry_path(scratch.path(), numbered_entry(2))));
}

TEST_CASE("a store that was opened when no descriptor was free reads and writes once there is one") {
  const Scratch scratch;
  WatchedStore(scratch / "user").store->put(shared(numbered_entry(1)));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  WatchedStore store(scratch / "user");
  const Hit hit = store.store->get(numbered_entry(1).key);
  store.store->put(shared(numbered_entry(2)));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(hit.entry == nullptr);
  CHECK(layer_of(*store.store, numbered_entry(1)) == "disk");
  store.store->put(shared(numbered_entry(3)));
  WatchedStore other(scratch / "user");
  CHECK(layer_of(*other.store, numbered_entry(3)) == "disk");
  CHECK(store.warnings.empty());
}

TEST_CASE("the compile lock: one at a time per key, bounded waits, gone with its owner") {
  const Scratch scratch;
  const Key key = numbered_entry(1).key;
  WatchedStore one(scratch.path());
  WatchedStore two(scratch.path());
  {
    const FolderLock held = one.store->lock_for_compile(key, std::chrono::milliseconds(0));
    CHECK(held.state() == LockState::held);
    const auto start = std::chrono::steady_clock::now();
    CHECK(two.store->lock_for_compile(key, std::chrono::milliseconds(30)).state() == LockState::busy);
    CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(30));
    CHECK(two.store->lock_for_compile(numbered_entry(2).key, std::chrono::milliseconds(0)).state() ==
          LockState::held);
  }
  CHECK(two.store->lock_for_compile(key, std::chrono::milliseconds(0)).state() == LockState::held);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock held = one.store->lock_for_compile(key, std::chrono::milliseconds(0));
    const char word = held.state() == LockState::held ? 'y' : 'n';
    if (::write(ready[1], &word, 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(1);
  }
  char word = 0;
  REQUIRE(::read(ready[0], &word, 1) == 1);
  CHECK(word == 'y');
  CHECK(two.store->lock_for_compile(key, std::chrono::milliseconds(5)).state() == LockState::busy);
  REQUIRE(::kill(child, SIGKILL) == 0);
  const FolderLock freed = two.store->lock_for_compile(key, std::chrono::seconds(20));
  CHECK(freed.state() == LockState::held);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  (void)::close(ready[0]);
  (void)::close(ready[1]);
}

TEST_CASE("a lock is given back where a child that was forked meanwhile lives on") {
  const Scratch scratch;
  const Key key = numbered_entry(1).key;
  WatchedStore store(scratch.path());
  const Directory directory = open_directory(scratch.path(), Trust::verify, false);
  pid_t child = -1;
  {
    const FolderLock compile = store.store->lock_for_compile(key, std::chrono::milliseconds(0));
    const FolderLock sweeping = lock_folder(directory.folder.get(), kSweepSlot, std::chrono::milliseconds(0));
    CHECK(compile.state() == LockState::held);
    CHECK(sweeping.state() == LockState::held);
    child = ::fork();
    if (child == 0) {  // has both descriptors, and does nothing with them
      ::pause();
      ::_exit(1);
    }
  }
  CHECK(store.store->lock_for_compile(key, std::chrono::milliseconds(0)).state() == LockState::held);
  CHECK(sweep(directory.folder.get(), 0).done);
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
}

TEST_CASE("many threads on one store and on several stores of one directory") {
  const Scratch scratch;
  WatchedStore mine(scratch.path());
  WatchedStore yours(scratch.path());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Store& store = t % 2 == 0 ? *mine.store : *yours.store;
      std::mt19937_64 generator(static_cast<std::uint64_t>(t));
      for (int round = 0; round < 100; ++round) {
        const Entry entry = numbered_entry(generator() % 12);
        const Hit hit = store.get(entry.key);
        if (!hit.entry) {
          store.put(shared(entry));
        } else if (hit.entry->sections != entry.sections) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(mine.warnings.empty());
  CHECK(yours.warnings.empty());
}

}  // namespace
}  // namespace flashjit::cache

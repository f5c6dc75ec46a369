// Which directories the cache works in, which it refuses, and what the environment may say.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>

#include <optional>

#include "cache/directory.hpp"
#include "cache/lock.hpp"
#include "cache/store.hpp"
#include "flashjit/error.hpp"
#include "tests/cache/scratch.hpp"
#include "tests/support/contains.hpp"

namespace flashjit::cache {
namespace {

namespace fs = std::filesystem;
using test::contains;
using testing::kNobody;
using testing::numbered_entry;
using testing::Scratch;
using testing::WatchedStore;

// The message of the Error{code} that `call` throws, empty when it throws none.
template <class Call>
std::string refusal(const Call& call, ErrorCode code = ErrorCode::io) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK(!error.hint().empty());
    return error.message();
  }
  return {};
}

std::string refusal_of(const fs::path& directory, Trust trust) {
  return refusal([&] { (void)open_store({.directory = directory, .trust = trust}); });
}

void set_mode(const fs::path& path, mode_t mode) {
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

TEST_CASE("a directory is refused when others can write to it") {
  const Scratch scratch;
  set_mode(scratch.path(), 0777);
  CHECK(contains(refusal_of(scratch.path(), Trust::verify), "everybody"));
  CHECK(contains(refusal_of(scratch.path(), Trust::as_given), scratch.path().string()));
  CHECK(contains(refusal([&] { (void)open_store({.system_directory = scratch.path()}); }), "everybody"));
  set_mode(scratch.path(), 01777);  // like /tmp: others may still plant an entry that is not there yet
  CHECK(contains(refusal_of(scratch.path(), Trust::as_given), "everybody"));
  set_mode(scratch.path(), 0770);
  CHECK(contains(refusal_of(scratch.path(), Trust::verify), "group"));
  CHECK(refusal_of(scratch.path(), Trust::as_given).empty());
  set_mode(scratch.path(), 0755);
  CHECK(refusal_of(scratch.path(), Trust::verify).empty());
}

TEST_CASE("a default directory may not be a symbolic link, a named one may") {
  const Scratch scratch;
  fs::create_directory(scratch / "target");
  set_mode(scratch / "target", 0700);
  fs::create_directory_symlink(scratch / "target", scratch / "link");
  CHECK(contains(refusal_of(scratch / "link", Trust::verify), "symbolic link"));
  CHECK(refusal_of(scratch / "link", Trust::as_given).empty());
  fs::create_directory_symlink("loop", scratch / "loop");
  CHECK(contains(refusal_of(scratch / "loop", Trust::as_given), "loop"));
}

TEST_CASE("a file is no directory, and nothing can be made below one") {
  const Scratch scratch;
  testing::spill(scratch / "file", "text");
  for (const Trust trust : {Trust::verify, Trust::as_given}) {
    CHECK(contains(refusal_of(scratch / "file", trust), "file"));
    CHECK(contains(refusal_of(scratch / "file" / "below", trust), "file"));
  }
  CHECK(testing::slurp(scratch / "file") == "text");
}

TEST_CASE("a default directory of somebody else's is refused, a named one is read") {
  if (::geteuid() != 0) {
    MESSAGE("SKIPPED: needs root to give a directory away");
    return;
  }
  const Scratch scratch;
  WatchedStore(scratch.path()).store->put(std::make_shared<const Entry>(numbered_entry(1)));
  set_mode(scratch.path(), 0755);
  // A child without root's rights, whose cache is root's directory: it can read it and not write to it.
  const int code = testing::in_child([&] {
    if (::setuid(kNobody) != 0) return 50;
    if (!contains(refusal_of(scratch.path(), Trust::verify), "belongs to user 0")) return 1;
    WatchedStore store(scratch.path(), Trust::as_given);
    if (store.store->get(numbered_entry(1).key).layer != "disk") return 2;
    for (std::uint64_t n = 2; n < 6; ++n) store.store->put(std::make_shared<const Entry>(numbered_entry(n)));
    if (store.store->get(numbered_entry(2).key).layer != "memory") return 3;
    return store.warnings.size() == 1 && contains(store.warnings[0], "Permission denied") ? 0 : 4;
  });
  CHECK(code == 0);
  // And root does not take its entries from a directory of nobody's.
  REQUIRE(::chown(scratch.path().c_str(), kNobody, kNobody) == 0);
  CHECK(contains(refusal_of(scratch.path(), Trust::verify), "belongs to user 65534"));
}

// Becomes somebody of one group, with a umask that gives nobody anything.
bool become(uid_t user, gid_t group) {
  ::umask(077);
  return ::setgroups(1, &group) == 0 && ::setgid(group) == 0 && ::setuid(user) == 0;
}

TEST_CASE("the members of a group that shares a directory share locks and entries") {
  if (::geteuid() != 0) {
    MESSAGE("SKIPPED: needs root to be several users");
    return;
  }
  constexpr gid_t kGroup = 4242;
  constexpr gid_t kElsewhere = 4243;
  const Scratch scratch;
  REQUIRE(::chown(scratch.path().c_str(), 0, kGroup) == 0);
  const Entry entry = numbered_entry(1);
  const fs::path path = testing::entry_path(scratch.path(), entry);
  const fs::path lock = scratch / ".flashjit.lock";
  const auto put = [&] {
    WatchedStore(scratch.path(), Trust::as_given).store->put(std::make_shared<const Entry>(entry));
    const Directory directory = open_directory(scratch.path(), Trust::as_given, false);
    return lock_folder(directory.folder.get(), 1, {}).state() == LockState::held ? 0 : 1;
  };
  const auto rights = [](const fs::path& file) {
    struct stat status {};
    REQUIRE(::stat(file.c_str(), &status) == 0);
    return status.st_mode & 0777;
  };
  SUBCASE("with the setgid bit") {
    set_mode(scratch.path(), 02770);
    CHECK(testing::in_child([&] { return become(1001, kGroup) ? put() : 50; }) == 0);
  }
  SUBCASE("without it, for who has another group of their own") {
    set_mode(scratch.path(), 0770);
    const int code = testing::in_child([&] {
      const gid_t groups[] = {kElsewhere, kGroup};
      ::umask(077);
      if (::setgroups(2, groups) != 0 || ::setgid(kElsewhere) != 0 || ::setuid(1001) != 0) return 50;
      return put();
    });
    CHECK(code == 0);
  }
  bool shared = true;  // doctest finds no SUBCASE behind a return
  SUBCASE("but no other group does, where the owner of the directory is not a member") {
    REQUIRE(::chown(scratch.path().c_str(), 1001, kGroup) == 0);
    set_mode(scratch.path(), 0775);
    CHECK(testing::in_child([&] { return become(1001, kElsewhere) ? put() : 50; }) == 0);
    CHECK(rights(path) == 0600);
    CHECK(rights(lock) == 0600);
    shared = false;
  }
  SUBCASE("nor the group of a directory that it may not write to") {
    set_mode(scratch.path(), 0750);
    CHECK(put() == 0);
    CHECK((rights(path) & 0020) == 0);
    CHECK((rights(lock) & 0020) == 0);
    shared = false;
  }
  if (!shared) return;
  CHECK(rights(path) == 0660);
  CHECK(rights(lock) == 0660);
  const timespec long_ago[2] = {{.tv_sec = 1000000, .tv_nsec = 0}, {.tv_sec = 1000000, .tv_nsec = 0}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), long_ago, 0) == 0);
  const int code = testing::in_child([&] {
    if (!become(1002, kGroup)) return 50;
    WatchedStore store(scratch.path(), Trust::as_given);
    if (store.store->get(entry.key).layer != "disk") return 1;
    const Directory directory = open_directory(scratch.path(), Trust::as_given, false);
    return lock_folder(directory.folder.get(), 1, {}).state() == LockState::held ? 0 : 2;
  });
  CHECK(code == 0);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK(status.st_mtim.tv_sec != 1000000);  // in use
}

TEST_CASE("a directory that can not be made is a warning, and the store works in memory") {
  if (::geteuid() != 0) {
    MESSAGE("SKIPPED: needs root to drop its rights");
    return;
  }
  const Scratch scratch;
  set_mode(scratch.path(), 0755);
  const int code = testing::in_child([&] {
    if (::setuid(kNobody) != 0) return 50;
    WatchedStore store(scratch / "cache");
    store.store->put(std::make_shared<const Entry>(numbered_entry(1)));
    if (store.store->get(numbered_entry(1).key).layer != "memory") return 1;
    return store.warnings.size() == 1 ? 0 : 2;
  });
  CHECK(code == 0);
}

TEST_CASE("a system directory that is not there is a warning") {
  std::vector<std::string> warnings;
  const auto store = open_store({.system_directory = "/nonexistent/flashjit",
                                 .warn = [&](std::string_view line) { warnings.emplace_back(line); }});
  CHECK(!store->get(numbered_entry(1).key).entry);
  CHECK(warnings.size() == 1);
}

// Sets a variable for its lifetime; nullopt unsets it.
class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      (void)::setenv(name_, value->c_str(), 1);
    } else {
      (void)::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

TEST_CASE("which names in a directory are ours") {
  const std::string digest = "0123456789abcdef0123456789abcdef";
  CHECK(is_entry_name(digest + ".flashjit"));
  for (const std::string& other :
       {digest + ".flashjat", digest + ".flashjit2", digest, "G" + digest.substr(1) + ".flashjit"})
    CHECK_MESSAGE(!is_entry_name(other), other);
  for (const std::string& wisdom : {std::string("wisdom.jsonl"), std::string("wisdom-H100_2.jsonl"),
                                    "wisdom" + std::string(88, 'x') + ".jsonl"})
    CHECK_MESSAGE(is_wisdom_name(wisdom), wisdom);
  for (const std::string& other :
       {std::string("wisdom.json"), std::string("my-wisdom.jsonl"), std::string("wisdom/x.jsonl"),
        std::string("wisdom\x1b.jsonl"), "wisdom" + std::string(89, 'x') + ".jsonl"})
    CHECK_MESSAGE(!is_wisdom_name(other), other);
}

TEST_CASE("where the cache is: the variable, then XDG, then home, else nowhere") {
  const Variable dir("FLASHJIT_CACHE_DIR", std::nullopt);
  const Variable xdg("XDG_CACHE_HOME", std::nullopt);
  const Variable home("HOME", "/home/ada");
  CHECK(default_directory() == "/home/ada/.cache/flashjit");
  CHECK(options_from_environment().trust == Trust::verify);
  {
    const Variable set("XDG_CACHE_HOME", "/var/ada");
    CHECK(default_directory() == "/var/ada/flashjit");
    const Variable relative("XDG_CACHE_HOME", "ada");
    CHECK(default_directory() == "/home/ada/.cache/flashjit");
  }
  {
    const Variable set("FLASHJIT_CACHE_DIR", "/shared");
    CHECK(options_from_environment().directory == "/shared");
    CHECK(options_from_environment().trust == Trust::as_given);
    CHECK(options_from_environment("/flag").directory == "/flag");
  }
  {
    const Variable relative("FLASHJIT_CACHE_DIR", "here");
    CHECK(contains(refusal([] { (void)default_directory(); }, ErrorCode::invalid_argument),
                   "FLASHJIT_CACHE_DIR"));
  }
  const Variable homeless("HOME", std::nullopt);
  CHECK(default_directory().empty());
  const Variable relative_home("HOME", "ada");
  CHECK(default_directory().empty());
}

TEST_CASE("how large the cache may be") {
  CHECK(parse_size("0", "size") == 0);
  CHECK(parse_size("1048576", "size") == 1048576);
  CHECK(parse_size("2k", "size") == 2048);
  CHECK(parse_size("500M", "size") == 500ull << 20);
  CHECK(parse_size("3G", "size") == 3ull << 30);
  CHECK(parse_size("1T", "size") == 1ull << 40);
  for (const char* bad :
       {"", "M", "-1", "1.5G", "1GB", "1 G", "99999999999999999999", "17179869184G", "0x10", "1GT"}) {
    CHECK_MESSAGE(
        contains(refusal([&] { (void)parse_size(bad, "--size"); }, ErrorCode::invalid_argument), "--size"),
        bad);
  }
  const Variable home("HOME", "/home/ada");
  const Variable dir("FLASHJIT_CACHE_DIR", std::nullopt);
  const Variable size("FLASHJIT_CACHE_SIZE", "10M");
  CHECK(options_from_environment().size_limit == 10u << 20);
  const Variable none("FLASHJIT_CACHE_SIZE", "0");
  CHECK(options_from_environment().directory.empty());
}

}  // namespace
}  // namespace flashjit::cache

// Sixteen processes on one cache directory while some are killed: no reader may ever see a bad entry, and
// nothing may be left behind but entries. `cache_hammer [--seconds N]`.
#include <fmt/format.h>
#include <sys/mman.h>
#include <utime.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <ctime>
#include <new>
#include <thread>

#include "cache/manage.hpp"
#include "cache/store.hpp"
#include "tests/cache/scratch.hpp"

namespace flashjit::cache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kProcesses = 16;
constexpr std::uint64_t kKernels = 48;
constexpr std::uint64_t kLimit = 3u << 20;  // all kernels together have 8 MiB: sweeps have work

// In memory that all processes share.
struct Counters {
  std::atomic<std::uint64_t> hits, misses, puts, locks, bad, warnings;
};

Entry entry_number(std::uint64_t n) {
  return testing::numbered_entry(n, std::size_t{1} << (9 + n % 12));  // cubins of 512 bytes to 1 MiB
}

// Looks up and publishes until the deadline, with a new store now and then, as if it were another process.
[[noreturn]] void work(const std::filesystem::path& folder, Counters& counters, std::uint64_t seed,
                       Clock::time_point end) {
  std::mt19937_64 generator(seed);
  while (Clock::now() < end) {
    const auto store =
        open_store({.directory = folder, .size_limit = kLimit, .warn = [&](std::string_view line) {
                      ++counters.warnings;
                      fmt::print(stderr, "warning: {}\n", line);
                    }});
    for (int round = 0; round < 20 && Clock::now() < end; ++round) {
      const Entry wanted = entry_number(generator() % kKernels);
      Hit hit = store->get(wanted.key);
      FolderLock lock;
      if (!hit.entry) {
        lock = store->lock_for_compile(wanted.key, std::chrono::milliseconds(generator() % 20));
        counters.locks += lock.state() == LockState::held ? 1 : 0;
        if (lock.state() != LockState::unavailable) hit = store->get(wanted.key);
      }
      if (!hit.entry) {
        ++counters.misses;
        store->put(std::make_shared<const Entry>(wanted));
        ++counters.puts;
      } else {
        ++counters.hits;
        counters.bad += hit.entry->key == wanted.key && hit.entry->sections == wanted.sections ? 0 : 1;
        if (generator() % 4 == 0)
          store->put(std::make_shared<const Entry>(wanted));  // replaces what others read
      }
    }
  }
  ::_exit(0);
}

pid_t start(const std::filesystem::path& folder, Counters& counters, std::uint64_t seed,
            Clock::time_point end) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work(folder, counters, seed, end);
    } catch (const std::exception& error) {
      fmt::print(stderr, "worker: {}\n", error.what());
    }
    ::_exit(1);
  }
  return child;
}

// What a sweep an hour later leaves, other than good entries and the lock file.
std::uint64_t left_behind(const std::filesystem::path& folder) {
  const std::time_t then = std::time(nullptr) - 2 * 3600;
  const utimbuf times{.actime = then, .modtime = then};
  for (const std::string& name : testing::names_in(folder)) {
    if (is_temporary(name) && ::utime((folder / name).c_str(), &times) != 0) return 1;
  }
  const StoreOptions options{.directory = folder};
  (void)prune(options, kLimit);
  std::uint64_t others = 0;
  for (const std::string& name : testing::names_in(folder)) {
    if (is_entry_name(name) || name == ".flashjit.lock") continue;
    ++others;
    fmt::print(stderr, "left behind: {}\n", name);
  }
  for (const Row& row : list_entries(options)) {
    if (row.verdict == Verdict::good) continue;
    ++others;
    fmt::print(stderr, "{}: {}\n", to_string(row.verdict), row.digest);
  }
  return others;
}

int hammer(int seconds) {
  const testing::Scratch scratch;
  void* const shared =
      ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  Counters& counters = *new (shared) Counters{};

  const auto end = Clock::now() + std::chrono::seconds(seconds);
  std::mt19937_64 generator(1);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) children.push_back(start(scratch.path(), counters, generator(), end));
  std::uint64_t kills = 0;
  std::uint64_t failures = 0;
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(generator() % 40));
    pid_t& victim = children[generator() % children.size()];
    int status = 0;
    if (::kill(victim, SIGKILL) != 0 || ::waitpid(victim, &status, 0) != victim) return 1;
    failures += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                    ? 0
                    : (WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1);
    ++kills;
    victim = start(scratch.path(), counters, generator(), end);
  }
  for (const pid_t child : children) {
    int status = 0;
    if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures;
  }
  const std::uint64_t left = left_behind(scratch.path());
  fmt::print(
      "{} s, {} processes, {} killed: {} hits, {} misses, {} puts, {} locks; bad {}, warnings {}, failures "
      "{}, left behind {}\n",
      seconds, kProcesses, kills, counters.hits.load(), counters.misses.load(), counters.puts.load(),
      counters.locks.load(), counters.bad.load(), counters.warnings.load(), failures, left);
  const bool idle = counters.hits == 0 || counters.misses == 0 || kills == 0;
  return counters.bad == 0 && counters.warnings == 0 && failures == 0 && left == 0 && !idle ? 0 : 1;
}

}  // namespace
}  // namespace flashjit::cache

int main(int argc, char** argv) {
  int seconds = 5;
  if (argc == 3 && std::string_view(argv[1]) == "--seconds") {
    const std::string_view text = argv[2];
    if (std::from_chars(text.data(), text.data() + text.size(), seconds).ec != std::errc() || seconds < 1)
      argc = 0;
  }
  if (argc != 1 && argc != 3) {
    fmt::print(stderr, "usage: cache_hammer [--seconds N]\n");
    return 2;
  }
  return flashjit::cache::hammer(seconds);
}

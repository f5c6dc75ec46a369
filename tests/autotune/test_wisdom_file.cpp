// Wisdom's file: what is read of it, merged in one step, by many writers, for all who share the folder.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "cache/files.hpp"
#include "tests/autotune/wisdom_records.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace flashjit::test;

namespace {

bool merge(const std::filesystem::path& file, const WisdomRecord& record, const Report& report) {
  return merge_wisdom(file, with({record}), kNow, cache::publish, report);
}

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("flashjit-wisdom-" + std::to_string(::getpid()));
  std::filesystem::path file = path / "wisdom.jsonl";
  std::vector<std::string> reports;
  Report report = [this](std::string_view line) { reports.emplace_back(line); };
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() {
    ::chmod(path.c_str(), 0700);
    std::filesystem::remove_all(path);
  }
};

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Of a file that a merge writes.
mode_t permissions_under(mode_t mask, const Folder& folder) {
  const mode_t before = ::umask(mask);
  CHECK(merge(folder.file, record("mma:m128n64w4s2"), folder.report));
  ::umask(before);
  struct stat status {};
  REQUIRE(::stat(folder.file.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

}  // namespace

TEST_CASE("what could not be read is not written over") {
  Folder folder;
  std::ofstream(folder.file) << "somebody's";
  std::filesystem::resize_file(folder.file, (64u << 20) + 1);  // a hole; no wisdom is as large
  CHECK_FALSE(merge(folder.file, record("mma:m128n64w4s2"), folder.report));
  REQUIRE(folder.reports.size() == 1);
  CHECK(folder.reports[0].ends_with("could not be written: File too large"));
  CHECK(std::filesystem::file_size(folder.file) == (64u << 20) + 1);
  CHECK(read_wisdom(folder.file, folder.report).records().empty());
  CHECK(folder.reports.back().ends_with("could not be read: File too large"));
}

TEST_CASE("a file that cannot be read for want of a descriptor may be read later") {
  Folder folder;
  REQUIRE(merge(folder.file, record("mma:m128n64w4s2"), folder.report));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  bool short_of = false;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const Wisdom wisdom = read_wisdom(folder.file, folder.report, &short_of);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(wisdom.records().empty());
  CHECK(short_of);
  REQUIRE(folder.reports.size() == 1);
  CHECK(folder.reports[0].ends_with("could not be read: Too many open files"));

  short_of = false;
  CHECK(read_wisdom(folder.file, folder.report, &short_of).records().size() == 1);
  CHECK(read_wisdom(folder.path / "missing.jsonl", folder.report, &short_of).records().empty());
  CHECK_FALSE(short_of);
}

TEST_CASE("a bad line is skipped and reported, and costs nothing else") {
  Folder folder;
  const std::string text = with({record("mma:m128n64w4s2")}).to_text(kNow);
  const auto header_end = text.find('\n') + 1;
  const std::string line = text.substr(header_end);
  const auto check = [&](const std::string& changed, std::size_t records, std::size_t reports) {
    Wisdom wisdom;
    folder.reports.clear();
    wisdom.add_text(changed, "w", folder.report);
    CHECK(wisdom.records().size() == records);
    CHECK_MESSAGE(folder.reports.size() == reports, changed);
  };
  const std::string header = text.substr(0, header_end);
  check(header + "\n\n" + line, 1, 0);
  check(header + line.substr(0, line.size() / 2), 0, 1);  // cut in half
  check(header + line.substr(0, line.size() / 2) + "\n" + line, 1, 1);
  check(header + "[1,2,3]\n" + line, 1, 1);
  check(header + "{\"problem\":1e999}\n" + line, 1, 1);
  check(line, 1, 1);                                // no header
  check("{\"flashjit_wisdom\":1", 0, 1);            // half a header
  check("{\"flashjit_wisdom\":2}\n" + line, 0, 1);  // another format
  check("", 0, 0);
  check(header + "1\n2\n3\n" + line, 1, 3);
  check(header + "1\n2\n3\n4\n5\n" + line, 1, 4);
  CHECK(folder.reports.front() == "wisdom w, line 2: no object to find \"problem\" in; it is skipped");
  CHECK(folder.reports.back() == "wisdom w: 2 more such lines");
  check(line, 1, 1);
  CHECK(folder.reports.front() == "wisdom w, line 1: the header is missing (records are read all the same)");
  const auto with_change = [&](const std::string& from, const std::string& to) {
    std::string changed = line;
    const auto at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return header + changed.replace(at, from.size(), to);
  };
  check(with_change("\"head_dim\":128", "\"head_dim\":1e300"), 0, 1);
  check(with_change("\"head_dim\":128", "\"head_dim\":12"), 0, 1);
  check(with_change("\"batch\":4", "\"batch\":99999999999999999999"), 0, 1);
  check(with_change("mma:m128n64w4s2", "mma:m128n64w4s9"), 0, 1);
  check(with_change("\"quick\"", "\"lazy\""), 0, 1);
  check(with_change("\"milliseconds\":", "\"milliseconds\":-"), 0, 1);
  check(with_change("\"timings\":{", "\"timings\":{\"mma:m64n64w4s2\":-1,"), 0, 1);
  check(with_change("\"timings\":{", "\"timings\":[{"), 0, 1);
  check(with_change("\"schedule\":\"mma:", "\"schedule\":\"mma:zz1") + line, 1, 1);
  // What another version adds costs nothing: a member, or the timing of a schedule that is not known here.
  check(with_change("\"gpu\":", "\"later\":{\"a\":[1]},\"gpu\":"), 1, 0);
  check(with_change("\"timings\":{", "\"timings\":{\"mma:m128zz1\":1.5,"), 1, 0);
  for (std::size_t end = 0; end < text.size(); ++end) {
    Wisdom wisdom;
    wisdom.add_text(text.substr(0, end), "w", {});  // every way to be cut short
    CHECK(wisdom.records().size() == (end + 1 >= text.size() ? 1 : 0));
  }
}

TEST_CASE("the file: merged in one step, and kept when it is another format's") {
  Folder folder;
  CHECK(read_wisdom(folder.file, folder.report).records().empty());
  CHECK(folder.reports.empty());  // a missing file is no news
  merge(folder.file, record("mma:m128n64w4s2"), folder.report);
  WisdomRecord other = record("mma:m64n64w4s2");
  other.gpu = "NVIDIA A100";
  merge(folder.file, other, folder.report);
  CHECK(read_wisdom(folder.file, folder.report).records().size() == 2);
  CHECK(folder.reports.empty());
  const std::string later = R"({"schedule":"tcgen05:m256n128","gpu":"NVIDIA B300"})";  // another version's
  std::ofstream(folder.file, std::ios::app) << later << "\n{\"cut in ha";
  CHECK(merge(folder.file, other, folder.report));
  std::ifstream merged(folder.file);
  std::string line, last;
  int lines = 0;
  for (; std::getline(merged, line); ++lines) last = line;
  CHECK(lines == 4);  // header, two records
  CHECK(last == later);
  CHECK(folder.reports.size() == 2);
  folder.reports.clear();
  // Such lines of what is merged come along, once.
  const std::filesystem::path copy = folder.path / "copy.jsonl";
  for (int i = 0; i < 2; ++i)
    CHECK(merge_wisdom(copy, read_wisdom(folder.file, {}), kNow, cache::publish, {}));
  CHECK(text_of(copy) == text_of(folder.file));

  std::ofstream(folder.file) << "{\"flashjit_wisdom\":7,\"new\":true}\n";
  CHECK_FALSE(merge(folder.file, other, folder.report));
  CHECK(folder.reports.size() == 2);
  std::string kept;
  std::getline(std::ifstream(folder.file), kept);
  CHECK(kept == "{\"flashjit_wisdom\":7,\"new\":true}");
}

TEST_CASE("what is no wisdom is not overwritten") {
  Folder folder;
  for (const std::string text : {"# Notes\n\nby hand\n", "{\"another\":\"tool's lines\"}\n"}) {
    std::ofstream(folder.file) << text;
    CHECK_FALSE(merge_wisdom(folder.file, {}, kNow, cache::publish, folder.report));
    CHECK_FALSE(merge(folder.file, record("mma:m128n64w4s2"), folder.report));
    CHECK(folder.reports.back().find("none at all") != std::string::npos);
    CHECK(text_of(folder.file) == text);
  }
  for (const std::string text : {"", "\n", "{\"flashjit_wisdom\":1}\nbad\n"}) {
    std::ofstream(folder.file) << text;
    CHECK(merge(folder.file, record("mma:m128n64w4s2"), {}));
    CHECK(read_wisdom(folder.file, {}).records().size() == 1);
  }
}

TEST_CASE("a folder that cannot be written, or a file that is a folder, is reported and nothing worse") {
  Folder folder;
  std::filesystem::create_directories(folder.file);
  CHECK(read_wisdom(folder.file, folder.report).records().empty());
  merge(folder.file, record("mma:m128n64w4s2"), folder.report);
  CHECK(folder.reports.size() == 2);
  folder.reports.clear();
  merge(folder.path / "missing" / "wisdom.jsonl", record("mma:m128n64w4s2"), folder.report);
  REQUIRE(folder.reports.size() == 1);
  CHECK(folder.reports.front().find("could not be written") != std::string::npos);
}

TEST_CASE("many writers lose nothing, and readers always see a whole file") {
  Folder folder;
  constexpr int kWriters = 8, kEach = 12;
  std::atomic<bool> done{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    while (!done) read_wisdom(folder.file, [&](std::string_view) { ++torn; });
  });
  std::vector<std::thread> writers;
  writers.reserve(kWriters);
  std::mutex mutex;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < kEach; ++i) {
        WisdomRecord one = record("mma:m128n64w4s2");
        one.gpu = "gpu " + std::to_string(w) + "." + std::to_string(i);
        merge(folder.file, one, [&](std::string_view line) {
          const std::lock_guard lock(mutex);
          folder.reports.emplace_back(line);
        });
      }
    });
  }
  for (auto& writer : writers) writer.join();
  done = true;
  reader.join();
  CHECK(torn == 0);
  CHECK(folder.reports.empty());
  CHECK(read_wisdom(folder.file, folder.report).records().size() == kWriters * kEach);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    CHECK(entry.path() == folder.file);  // and nothing beside it
  }
}

TEST_CASE("a child that was forked during a merge does not hold up the next one") {
  Folder folder;
  pid_t child = -1;
  const auto forking = [&](int directory, const std::string& name, std::string_view bytes) {
    child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(1);
    }
    return cache::publish(directory, name, bytes);
  };
  CHECK(merge_wisdom(folder.file, with({record("mma:m128n64w4s2")}), kNow, forking, folder.report));
  CHECK(merge(folder.file, record("mma:m64n64w4s2"), folder.report));
  CHECK(folder.reports.empty());  // a merge that waits in vain says so
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
}

TEST_CASE("wisdom in the folder that we are in") {
  Folder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path);
  CHECK(merge("here.jsonl", record("mma:m128n64w4s2"), folder.report));
  CHECK(read_wisdom("here.jsonl", folder.report).records().size() == 1);
  std::filesystem::current_path(before);
  CHECK(folder.reports.empty());
}

TEST_CASE("a link stays a link, also one that leads to nothing yet, and one in a loop is reported") {
  Folder folder;
  const std::filesystem::path target = folder.path / "shared" / "target.jsonl";
  std::filesystem::create_directories(target.parent_path());
  std::filesystem::create_symlink("shared/next.jsonl", folder.file);
  std::filesystem::create_symlink(target, folder.path / "shared" / "next.jsonl");
  for (const char* schedule : {"mma:m128n64w4s2", "mma:m64n64w4s2"}) {
    CHECK(merge(folder.file, record(schedule), folder.report));
    CHECK(std::filesystem::is_symlink(folder.file));
    CHECK(std::filesystem::is_symlink(folder.path / "shared" / "next.jsonl"));
    CHECK(to_string(read_wisdom(target, folder.report).records().front().schedule) == schedule);
  }
  CHECK(folder.reports.empty());
  std::filesystem::create_symlink("loop.jsonl", folder.path / "loop.jsonl");
  CHECK_FALSE(merge(folder.path / "loop.jsonl", record("mma:m128n64w4s2"), folder.report));
  CHECK(folder.reports.size() == 1);
}

TEST_CASE("wisdom takes no other's place than a file's, and waits for no writer of a FIFO") {
  Folder folder;
  REQUIRE(::mkfifo(folder.file.c_str(), 0600) == 0);
  CHECK(read_wisdom(folder.file, folder.report).records().empty());
  CHECK_FALSE(merge(folder.file, record("mma:m128n64w4s2"), folder.report));
  REQUIRE(folder.reports.size() == 1);
  CHECK(folder.reports.front().find("no regular file") != std::string::npos);
  CHECK(std::filesystem::is_fifo(folder.file));
}

TEST_CASE("wisdom is for all who share the folder, whatever the umask") {
  Folder folder;
  REQUIRE(::chmod(folder.path.c_str(), 0770) == 0);
  CHECK(permissions_under(077, folder) == 0660);
}

TEST_CASE("wisdom is for all who may read the folder") {
  Folder folder;
  CHECK(permissions_under(022, folder) == 0644);
}

// Wisdom: what is kept, which record wins, how the ladder goes down, and many writers on one file.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "autotune/tuner.hpp"
#include "autotune/wisdom.hpp"
#include "autotune/wisdom/shipped.hpp"
#include "cache/files.hpp"
#include "generator/legality.hpp"
#include "generator/render.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

namespace {

const Versions kNow{.flashjit = "0.1.0", .templates = "t1"};
const Problem kProblem{.dtype = DType::bf16, .head_dim = 128, .causal = true};
const Shape kShape{.batch = 4, .heads = 16, .seqlen_q = 4096, .seqlen_k = 4096};
const std::string kGpu = "NVIDIA H200";

WisdomRecord record(const std::string& schedule, double milliseconds = 1, Tuning effort = Tuning::quick) {
  TuneResult result;
  result.best = parse_schedule(schedule);
  result.best_ms = milliseconds;
  Candidate timed;
  timed.schedule = result.best;
  timed.measured_ms = timed.in_final_ms = milliseconds;
  timed.clock_mhz = 1700;
  result.candidates = {timed};
  return record_of(kProblem, kShape, target_of("sm_90a"), kGpu, result, effort, kNow, {{"driver", "580.1"}});
}

std::optional<WisdomChoice> ask(const Wisdom& own, const Wisdom& shipped = {}, Shape shape = kShape,
                                Problem problem = kProblem, const std::string& gpu = kGpu) {
  return choose(own, shipped, problem, shape, target_of("sm_90a"), gpu, kNow);
}

Wisdom with(std::initializer_list<WisdomRecord> records) {
  Wisdom wisdom;
  for (const auto& one : records) wisdom.add(one, kNow);
  return wisdom;
}

Shape with_rows(int rows) {
  Shape shape = kShape;
  shape.seqlen_q = shape.seqlen_k = rows;
  return shape;
}

// What the model likes best.
std::string favourite(const Problem& problem, const Shape& shape) {
  return to_string(ranked_space(problem, shape, target_of("sm_90a"), "wgmma").front().schedule);
}

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

}  // namespace

TEST_CASE("a record survives the way to text and back") {
  const Wisdom wisdom = with({record("wgmma:m128n128s2p2", 0.1937, Tuning::full)});
  Wisdom again;
  CHECK(again.add_text(wisdom.to_text(kNow), "text", [](std::string_view line) { FAIL(line); }));
  REQUIRE(again.records().size() == 1);
  const WisdomRecord& one = again.records().front();
  CHECK(one.problem == kProblem);
  CHECK(one.shape.heads == 16);
  CHECK(one.schedule == parse_schedule("wgmma:m128n128s2p2"));
  CHECK(one.milliseconds == 0.1937);
  CHECK(one.effort == Tuning::full);
  CHECK(one.versions == kNow);
  CHECK(one.timings.size() == 1);
  CHECK(one.environment.at("driver") == "580.1");
  CHECK(one.environment.at("clock_mhz") == "1700");
  CHECK(again.to_text(kNow) == wisdom.to_text(kNow));
}

TEST_CASE("the versions in hand win, then higher effort, then the newer") {
  Wisdom wisdom =
      with({record("mma:m128n64w4s2", 2, Tuning::full), record("mma:m64n64w4s2", 1, Tuning::quick)});
  CHECK(wisdom.records().size() == 1);
  CHECK(to_string(wisdom.records().front().schedule) == "mma:m128n64w4s2");
  wisdom.add(record("mma:m64n64w4s2", 1, Tuning::full), kNow);
  CHECK(to_string(wisdom.records().front().schedule) == "mma:m64n64w4s2");
  WisdomRecord newer = record("mma:m128n32w4s2", 1, Tuning::quick);
  newer.versions.templates = "t2";
  wisdom.add(newer, kNow);  // of another version than ours
  CHECK(to_string(wisdom.records().front().schedule) == "mma:m64n64w4s2");
  wisdom.add(newer, newer.versions);  // of ours
  CHECK(to_string(wisdom.records().front().schedule) == "mma:m128n32w4s2");
}

TEST_CASE("the ladder, rung by rung") {
  const WisdomRecord here = record(favourite(kProblem, with_rows(8192)));
  CHECK(ask(with({here}))->words == "wisdom (this GPU)");
  CHECK(ask(with({here}))->exact);

  WisdomRecord cousin = record("wgmma:m128n96s2p2");
  cousin.gpu = "NVIDIA H100";
  CHECK(ask(with({cousin}))->words == "wisdom (NVIDIA H100, same arch)");
  CHECK_FALSE(ask(with({cousin}))->exact);
  CHECK(ask(with({cousin, here}))->record.gpu == kGpu);

  Shape longer = with_rows(8192);
  const std::string words = ask(with({here}), {}, longer)->words;
  CHECK(words == "wisdom (this GPU, nearest bucket " + here.bucket + ")");
  WisdomRecord there = record("wgmma:m128n96s2p2");
  there.bucket = bucket_of(kProblem, longer, target_of("sm_90a"));
  CHECK(ask(with({here}), with({there}), longer)->words == "shipped wisdom (sm_90a)");
  longer.seqlen_q = longer.seqlen_k = 65536;  // 256 times the work: that far wisdom does not reach …
  CHECK_FALSE(ask(with({here}), {}, longer).has_value());
  CHECK(ask({}, with({here}), longer)->words ==
        "shipped wisdom (sm_90a, nearest bucket " + here.bucket + ")");  // … a table does
  CHECK(ask({}, with({here}))->words == "shipped wisdom (sm_90a)");
  CHECK_FALSE(ask({}, with({here}))->exact);
  CHECK(ask(with({cousin}), with({here}))->words == "wisdom (NVIDIA H100, same arch)");
  Shape decode = kShape;
  decode.seqlen_q = 1;
  CHECK_FALSE(ask(with({here}), with({here}), decode).has_value());
  CHECK_FALSE(ask({}).has_value());
}

TEST_CASE("other shapes: what the model predicts, times what it was off by where a schedule was timed") {
  const Target target = target_of("sm_90a");
  const Problem full{.dtype = DType::bf16, .head_dim = 128};
  const std::vector<std::string> names{"wgmma:m128n128s2cl2", "wgmma:m128n128s2p3", "wgmma:m128n128s2"};
  const auto predicted = [&](std::size_t i, const Shape& shape) {
    return predict(full, shape, parse_schedule(names.at(i)), target);
  };
  // Pairs of CTAs won; each took so many times what the model predicted.
  const auto timed = [&](std::array<double, 3> off_by, const Shape& shape = kShape) {
    WisdomRecord pair = record(names[0], off_by[0] * predicted(0, shape));
    pair.problem = full;
    pair.shape = shape;
    pair.bucket = bucket_of(full, shape, target);
    pair.timings = {{"mma:m128n128w8s1kv1", 1e-3}, {"of another version", 1e-3}};  // they count for nothing
    for (std::size_t i = 0; i < names.size(); ++i)
      pair.timings.emplace_back(names[i], off_by.at(i) * predicted(i, shape));
    return pair;
  };
  const auto asked = [&](const WisdomRecord& pair, int rows) {
    return ask({}, with({pair}), with_rows(rows), full);
  };
  const auto name = [](const std::optional<WisdomChoice>& choice) { return to_string(choice->schedule); };

  const WisdomRecord even = timed({0.9, 1, 0.92});
  CHECK(name(asked(even, 4096)) == names[0]);
  CHECK(asked(even, 4096)->words == "shipped wisdom (sm_90a)");
  CHECK(name(asked(even, 4097)) == names[2]);  // 4,224 rows instead of 4,352
  CHECK(asked(even, 4097)->words == "shipped wisdom (sm_90a, carried over by the model)");
  CHECK(name(ask(with({even}), {}, with_rows(4097), full)) == names[2]);
  // What was slower than predicted is so elsewhere, too.
  CHECK(name(asked(timed({0.9, 1, 0.99}), 4097)) == names[0]);
  CHECK(name(asked(timed({0.9, 0.8, 0.99}), 4097)) == names[1]);
  // Timed where it is asked for the winner has won, whatever one timing says; and elsewhere counts as no
  // slower there than the others.
  CHECK(name(asked(timed({0.9, 1, 0.8}, with_rows(4097)), 4097)) == names[0]);
  CHECK(name(asked(timed({0.9, 1, 0.8}), 4096)) == names[0]);
  // Of another bucket what the model likes best counts, too: off by as much as the one in the middle.
  const std::string likes = favourite(full, with_rows(2100));
  REQUIRE(std::find(names.begin(), names.end(), likes) == names.end());
  CHECK(name(asked(timed({0.9, 0.9, 0.9}), 2100)) == likes);
  CHECK(name(asked(timed({0.5, 0.9, 0.9}), 2100)) == names[0]);
}

TEST_CASE(
    "under a mask other shapes take schedules in the winner's order that pack heads as where they were "
    "timed") {
  Shape many = with_rows(1024);  // of one head of K and V 192 rows pack eight
  many.batch = 16;
  Shape group = many;
  group.heads_kv = 1;
  REQUIRE(packed_heads(group, 192) == 3);
  WisdomRecord timed = record("wgmma:m128n64s4p2", 0.13);
  timed.shape = many;
  timed.bucket = bucket_of(kProblem, many, target_of("sm_90a"));
  timed.timings = {
      {"wgmma:m128n64s4p2", 0.13}, {"wgmma:m192n64s4qr0p2", 0.13}, {"wgmma:m192n64s4qr0p3", 0.13}};
  CHECK(to_string(ask(with({timed}), {}, group)->schedule) == "wgmma:m128n64s4p2");
  Shape longer = many;
  longer.seqlen_q = longer.seqlen_k = 1152;  // six tiles of 192 rows
  CHECK(to_string(ask(with({timed}), {}, longer)->schedule) == "wgmma:m192n64s4qr0p2");
}

TEST_CASE("an emulator's estimates guide nobody else") {
  WisdomRecord estimate = record("wgmma:m128n96s2p2");
  estimate.gpu = "emulator of sm_90a";
  CHECK_FALSE(ask(with({estimate})).has_value());
  CHECK(ask(with({estimate}), with({record("wgmma:m128n128s2p2")}))->words == "shipped wisdom (sm_90a)");
  CHECK(choose(with({estimate}), {}, kProblem, kShape, target_of("sm_90a"), estimate.gpu, kNow)->exact);
}

TEST_CASE("alike problems guide each other; others do not") {
  const Wisdom own = with({record("wgmma:m128n128s2p2")});
  Problem half = kProblem;
  half.dtype = DType::fp16;
  CHECK(ask(own, {}, kShape, half)->words == "wisdom (this GPU, for forward bf16 d128 causal)");
  CHECK_FALSE(ask(own, {}, kShape, half)->exact);
  Problem without = kProblem;
  without.lse = false;
  CHECK(ask(own, {}, kShape, without).has_value());
  Problem spelled = kProblem;
  spelled.head_dim_v = 128;
  CHECK(ask(own, {}, kShape, spelled)->exact);
  spelled.deterministic = true;  // a forward pass is so anyway
  CHECK(ask(own, {}, kShape, spelled)->exact);
  Problem full = kProblem;
  full.causal = false;
  CHECK_FALSE(ask(own, {}, kShape, full).has_value());
  CHECK_FALSE(choose(own, {}, kProblem, kShape, target_of("sm_90"), kGpu, kNow).has_value());
  CHECK_FALSE(choose(own, {}, kProblem, kShape, target_of("sm_90a"), kGpu, kNow, "mma").has_value());
  // The best of one family answers for that family, and for no other question.
  WisdomRecord narrow = record("mma:m128n64w4s2", 0.5, Tuning::full);
  narrow.family = "mma";
  const Wisdom both = with({narrow, record("wgmma:m128n128s2p2")});
  CHECK(both.records().size() == 2);
  CHECK(to_string(ask(both)->schedule) == "wgmma:m128n128s2p2");
  CHECK_FALSE(ask(with({narrow})).has_value());
  CHECK(choose(both, {}, kProblem, kShape, target_of("sm_90a"), kGpu, kNow, "mma")->exact);
  WisdomRecord old = record("wgmma:m128n128s2p2");
  old.versions.templates = "t0";
  CHECK(ask(with({old}))->words == "wisdom (this GPU, by other templates)");
  CHECK_FALSE(ask(with({old}))->exact);
  CHECK_FALSE(ask(with({record("mma:m256n256w4s4")})).has_value());  // not legal: not enough shared memory
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
  const auto text_of = [](const std::filesystem::path& file) {
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  CHECK(text_of(copy) == text_of(folder.file));

  std::ofstream(folder.file) << "{\"flashjit_wisdom\":7,\"new\":true}\n";
  CHECK_FALSE(merge(folder.file, other, folder.report));
  CHECK(folder.reports.size() == 2);
  std::string kept;
  std::getline(std::ifstream(folder.file), kept);
  CHECK(kept == "{\"flashjit_wisdom\":7,\"new\":true}");
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

TEST_CASE("wisdom in the folder that we are in") {
  Folder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path);
  CHECK(merge("here.jsonl", record("mma:m128n64w4s2"), folder.report));
  CHECK(read_wisdom("here.jsonl", folder.report).records().size() == 1);
  std::filesystem::current_path(before);
  CHECK(folder.reports.empty());
}

TEST_CASE("what is shipped for a problem is all that the tables have of its pass and head dims") {
  const auto& all = shipped_wisdom().records();
  for (const WisdomRecord& one : all) {
    const auto same = [&](const WisdomRecord& other) {
      return other.problem.pass == one.problem.pass && other.problem.head_dim == one.problem.head_dim &&
             other.problem.value_dim() == one.problem.value_dim();
    };
    const Wisdom few = shipped_wisdom_for(one.problem);
    CHECK(std::count_if(few.records().begin(), few.records().end(), same) ==
          std::count_if(all.begin(), all.end(), same));
    CHECK(few.records().size() < all.size());
  }
  CHECK(shipped_wisdom_for({.head_dim = 24}).records().empty());
}

TEST_CASE("the shipped tables parse, and a GPU's name leaves the driver out") {
  for (const WisdomRecord& one : shipped_wisdom().records()) CHECK_FALSE(one.timings.empty());
  CHECK(gpu_of("NVIDIA H200, driver 580.159") == "NVIDIA H200");
  CHECK(gpu_of("fake") == "fake");
}

TEST_CASE("each line of the shipped tables is read, names a legal schedule, and is filed where one looks") {
  for (const ShippedTable& table : shipped_tables()) {
    CAPTURE(std::string(table.path));
    Wisdom wisdom;
    CHECK(wisdom.add_text(table.text, table.path,
                          [](std::string_view line) { FAIL_CHECK(std::string(line)); }));
    const auto lines = std::count(table.text.begin(), table.text.end(), '\n');
    CHECK(static_cast<std::ptrdiff_t>(wisdom.records().size()) == lines - 1);
    for (const WisdomRecord& record : wisdom.records()) {
      CAPTURE(to_string(record.schedule));
      CAPTURE(describe(record.problem));
      CHECK(legal(record.problem, record.schedule, target_of(record.arch)).reason == "");
      CHECK(record.bucket == bucket_of(record.problem, record.shape, target_of(record.arch)));
    }
  }
}

TEST_CASE("who asks for no family gets what was the fastest of all, from the shipped table") {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const int head_dim : {64, 128}) {
      for (const bool causal : {false, true}) {
        for (const int seqlen : {1024, 4096, 16384}) {
          const Problem problem{.pass = pass, .head_dim = head_dim, .causal = causal};
          const Shape shape{.batch = 16384 / seqlen,
                            .heads = 2048 / head_dim,
                            .heads_kv = 2048 / head_dim,
                            .seqlen_q = seqlen,
                            .seqlen_k = seqlen};
          CAPTURE(describe(problem));
          CAPTURE(describe(shape));
          const auto choice = choose({}, shipped_wisdom(), problem, shape, target_of("sm_90a"), kGpu, kNow);
          REQUIRE(choice.has_value());
          CHECK(family_of(choice->schedule) == Family::wgmma);
        }
      }
    }
  }
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
  const mode_t before = ::umask(077);
  CHECK(merge(folder.file, record("mma:m128n64w4s2"), folder.report));
  ::umask(before);
  struct stat status {};
  REQUIRE(::stat(folder.file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0660);
}

TEST_CASE("wisdom is for all who may read the folder") {
  Folder folder;
  const mode_t before = ::umask(022);
  CHECK(merge(folder.file, record("mma:m128n64w4s2"), folder.report));
  ::umask(before);
  struct stat status {};
  REQUIRE(::stat(folder.file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0644);
}

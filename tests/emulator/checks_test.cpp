// Every kind of bug that the emulator finds: a small kernel that has it, and the same kernel mended.
//
// kernels/*.ptx are bodies for support.hpp's kernel_text. Lines that begin with '-' are only in the kernel
// with the bug, lines that begin with '+' only in the mended one. The first line says which kind is to be
// found, the second the launch.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <pthread.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

namespace {

struct Case {
  std::string name;
  std::string kind;
  RunOptions options;
  std::string directives;
  std::size_t in_words = 1, out_words = 1;
  std::string wrong, mended;
};

Case read_case(const std::filesystem::path& path) {
  Case made;
  made.name = path.stem().string();
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  made.kind = line.substr(3, line.find(':') - 3);
  std::getline(file, line);
  std::istringstream words(line.substr(3));
  std::string key;
  std::uint32_t value = 0;
  while (words >> key >> value) {
    if (key == "threads")
      made.options.threads = value;
    else if (key == "shared")
      made.options.shared = value;
    else if (key == "grid")
      made.options.grid = value;
    else if (key == "cluster")
      made.options.cluster = value;
    else if (key == "ctas")
      made.directives = fmt::format(".minnctapersm {}", value);
    else if (key == "in")
      made.in_words = value;
    else if (key == "out")
      made.out_words = value;
    else
      FAIL("unknown key ", key, " in ", path.string());
  }
  while (std::getline(file, line)) {
    const char mark = line.empty() ? ' ' : line.front();
    const std::string text = (mark == '-' || mark == '+' ? line.substr(1) : line) + "\n";
    if (mark != '+') made.wrong += text;
    if (mark != '-') made.mended += text;
  }
  return made;
}

// The kinds of findings of one run; empty if it was clean.
std::set<std::string> findings_of(const Case& c, const std::string& body, std::uint64_t seed,
                                  std::string* text = nullptr) {
  RunOptions options = c.options;
  options.seed = seed;
  Bench bench(options);
  try {
    bench.run(kernel_text(body, "sm_90a", "", c.directives), std::vector<std::uint32_t>(c.in_words, 1),
              c.out_words);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::device) throw;
    if (text != nullptr) *text = error.what();
  }
  std::set<std::string> kinds;
  for (const Finding& finding : bench.device().findings()) kinds.insert(to_string(finding.kind));
  return kinds;
}

constexpr std::uint64_t kSeeds = 12;

}  // namespace

TEST_CASE("each kernel's bug is found, and its mended form is clean under every seed") {
  int cases = 0;
  std::set<std::string> kinds;
  for (const auto& entry : std::filesystem::directory_iterator(FLASHJIT_KERNELS)) {
    if (entry.path().extension() != ".ptx") continue;
    const Case c = read_case(entry.path());
    CAPTURE(c.name);
    ++cases;
    kinds.insert(c.kind);
    bool found = false;
    std::string text;
    std::set<std::string> seen;
    for (std::uint64_t seed = 1; seed <= kSeeds && !found; ++seed) {
      seen = findings_of(c, c.wrong, seed, &text);
      found = seen.contains(c.kind);
    }
    CHECK_MESSAGE(found, "expected ", c.kind, ", got: ", text);
    CHECK(text.find("PTX line") != std::string::npos);
    CHECK(text.find("seed") != std::string::npos);
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      text.clear();
      const bool clean = findings_of(c, c.mended, seed, &text).empty();
      CHECK_MESSAGE(clean, "the mended kernel, seed ", seed, ": ", text);
    }
  }
  CHECK(cases >= 35);
  for (int k = 0; k <= static_cast<int>(FindingKind::illegal); ++k) {
    const char* kind = to_string(static_cast<FindingKind>(k));
    CHECK_MESSAGE(kinds.contains(kind), "no kernel shows the kind ", kind);
  }
}

TEST_CASE("freed global memory, and memory that a copy wrote, are told apart") {
  Bench bench;
  EmulatedDevice& device = bench.device();
  auto kernel = device.load({.entry = "test",
                             .ptx = kernel_text("ld.global.u32 %r1, [%d30];\nst.global.u32 [%d31], %r1;"),
                             .cubin = {}});
  void* from = device.allocate(64);
  void* to = device.allocate(64);
  device.fill(from, 0, 64, nullptr);
  void* params[] = {&from, &to};
  CHECK_NOTHROW(device.launch(*kernel, {.grid = 1, .threads = 1}, params, nullptr));
  device.free(from);
  CHECK_THROWS_AS(device.launch(*kernel, {.grid = 1, .threads = 1}, params, nullptr), Error);
  REQUIRE(device.findings().size() == 1);
  CHECK(device.findings()[0].kind == FindingKind::freed_memory);
  device.free(to);
}

TEST_CASE("a finding names the CUDA source's line and the template it came from") {
  const std::string text = kernel_text(
      ".loc 1 2 1\n.loc 1 1 5, function_name $L__info, inlined_at 1 2 1\nst.global.u32 [%d31+64], %r30;\n");
  const std::vector<LineOrigin> origins = {{"ptx/store.cuh", 12}, {"kernels/forward.cu", 40}};
  Bench bench;
  EmulatedDevice& device = bench.device();
  auto kernel =
      device.load({.entry = "test", .ptx = text, .cubin = {}, .shared_bytes = 0, .origins = origins});
  void* to = device.allocate(64);
  void* params[] = {&to, &to};
  CHECK_THROWS_AS(device.launch(*kernel, {.grid = 1, .threads = 1}, params, nullptr), Error);
  REQUIRE(device.findings().size() == 1);
  const Finding& finding = device.findings()[0];
  CHECK(finding.source_lines == std::vector<int>{1, 2});
  CHECK(finding.origins ==
        std::vector<std::string>{"templates/ptx/store.cuh:12", "templates/kernels/forward.cu:40"});
  CHECK(finding.ptx_text == "st.global.u32 [%d31+64], %r30;");
  device.free(to);
}

TEST_CASE("a rule that decoding finds broken is reported of who runs the instruction, and of nobody else") {
  Case c = read_case(std::filesystem::path(FLASHJIT_KERNELS) / "wgmma_no_fence.ptx");
  c.options.threads = 256;
  c.options.shared = 16384;
  // By warps from `first` on.
  const auto run_by = [&](int first) {
    std::string body = c.wrong + "END:\n";
    body.insert(body.find("wgmma.mma_async"),
                fmt::format("setp.ge.s32 %p9, %r28, {};\n@!%p9 bra END;\n", first));
    return body;
  };
  CHECK(findings_of(c, run_by(8), 1).empty());
  Bench bench(c.options);
  CHECK_THROWS_AS(bench.run(kernel_text(run_by(4)), {0}, 1), Error);
  REQUIRE(bench.device().findings().size() == 1);
  CHECK(bench.device().findings()[0].warp >= 4);
}

TEST_CASE("an arrival that comes before the wait names the mbarrier, the phase and the thread") {
  const Case c = read_case(std::filesystem::path(FLASHJIT_KERNELS) / "barrier_missing_wait_remote.ptx");
  std::string text;
  CHECK(findings_of(c, c.wrong, 1, &text) == std::set<std::string>{"barrier"});
  const std::string message =
      "arrives in phase 1 of the mbarrier at offset 0 of CTA 1, but no wait has seen phase 0 end\n"
      "  at CTA (0, 0, 0), warp 0, lanes 0x00000001";
  CHECK_MESSAGE(text.find(message) != std::string::npos, text);
}

TEST_CASE("what lanes did stays ordered, however many barriers of the warp follow") {
  const std::string body = R"(
setp.eq.s32 %p1, %r27, 1;
st.shared.u32 [%r29], 5;
bar.warp.sync -1;
@!%p1 ld.shared.u32 %r1, [%r29];
mov.b32 %r2, 0;
LOOP: bar.warp.sync -1;
add.s32 %r2, %r2, 1;
setp.lt.s32 %p2, %r2, 131100;
@%p2 bra LOOP;
@%p1 ld.shared.u32 %r1, [%r29];
@%p1 st.shared.u32 [%r29], %r1;
)";
  Bench bench({.shared = 16});
  CHECK_NOTHROW(bench.run(kernel_text(body), {0}, 1));
}

TEST_CASE("a loop without end is ended after the steps that a cluster may take") {
  auto device = open_emulated_device({.arch = "sm_90a", .threads = 1, .most_steps = 100000});
  auto kernel = device->load({.entry = "test", .ptx = kernel_text("LOOP: bra LOOP;"), .cubin = {}});
  void* nothing = nullptr;
  void* params[] = {&nothing, &nothing};
  CHECK_THROWS_WITH_AS(device->launch(*kernel, {.grid = 1, .threads = 32}, params, nullptr),
                       doctest::Contains("the CTA runs without end"), Error);
}

TEST_CASE("checks can be turned down: no races, or nothing but what keeps the host alive") {
  const Case race = read_case(std::filesystem::path(FLASHJIT_KERNELS) / "race_write_write.ptx");
  Bench bench(race.options);
  bench.device().set_checks(Checks::memory);
  CHECK_NOTHROW(bench.run(kernel_text(race.wrong), {1}, 1));
  bench.device().set_checks(Checks::off);
  CHECK_NOTHROW(bench.run(kernel_text(race.wrong), {1}, 1));
}

TEST_CASE("a cluster of more warps than the search for races can tell apart is refused") {
  Bench bench({.grid = 16, .threads = 1024, .cluster = 16});
  const std::string text = kernel_text("");
  CHECK_THROWS_WITH_AS(bench.run(text, {0}, 1), doctest::Contains("512 warps a cluster"), Error);
  bench.device().set_checks(Checks::memory);
  CHECK_NOTHROW(bench.run(text, {0}, 1));
}

TEST_CASE("a thread that cannot be started is an error, and no more") {
  Bench bench({.grid = 2});
  const std::string text = kernel_text("");
  pthread_attr_t usual, huge;
  REQUIRE(pthread_getattr_default_np(&usual) == 0);
  REQUIRE(pthread_attr_init(&huge) == 0);
  REQUIRE(pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  CHECK_THROWS_WITH_AS(bench.run(text, {0}, 1), doctest::Contains("can't start thread 2 of 2"), Error);
  REQUIRE(pthread_setattr_default_np(&usual) == 0);
  CHECK_NOTHROW(bench.run(text, {0}, 1));
}

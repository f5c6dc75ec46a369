// Where a tuning run lives, and what a plan is made of when it fails: a fake device, and workers that are
// shell scripts.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <future>
#include <new>
#include <set>

#include "api/tuning.hpp"
#include "tests/api/support.hpp"
#include "tests/runtime/scratch.hpp"
#include "tests/support/contains.hpp"

namespace flashjit::test {
namespace {

const PlanOptions kTuned{.tuning = Tuning::quick};
constexpr Shape kFew{.batch = 1, .heads = 1, .seqlen_q = 16, .seqlen_k = 32};

std::string script(const Folder& folder, const std::string& text) {
  const auto file = folder.path() / "worker";
  std::ofstream(file) << "#!/bin/sh\n" << text << "\n";
  ::chmod(file.c_str(), 0755);
  return file.string();
}

// Of a plan that was tuned in vain, without a launch in this process.
Origin origin_without_launch(const std::string& worker) {
  const EnvironmentChange named("FLASHJIT_WORKER", worker.c_str());
  CompilerScript compiler;
  FakeEngine fake(compiler);
  Origin origin = fake.engine->plan(kProblem, kFew, kTuned).origin();
  CHECK(fake.device->launches().empty());
  CHECK(origin.choice == "model");
  return origin;
}

TEST_CASE("candidates that kill the worker are not tried in this process when it starts no more") {
  const Folder folder;
  const std::string began = (folder.path() / "began").string();
  const Origin origin = origin_without_launch(script(folder, "mkdir '" + began + R"(' 2>/dev/null || exit 3
while read -r line; do
  case "$line" in
    *'"op":"open"'*) echo '{"op":"opened"}' ;;
    *'"op":"build"'*) echo '{"op":"done"}' ;;
    *) kill -SEGV $$ ;;
  esac
done)"));
  CHECK(contains(origin.note, "tuning failed: the tuning worker did not start again"));
}

TEST_CASE("a worker that is killed while it starts is not replaced by this process") {
  const Folder folder;
  CHECK(contains(origin_without_launch(script(folder, "read -r line; kill -9 $$")).note, "signal 9"));
}

TEST_CASE("a worker short of memory costs the tuned schedule and not the plan") {
  const Folder folder;
  const Origin origin = origin_without_launch(script(
      folder, R"(echo '{"op":"error","code":5,"message":"the host is too small","hint":""}'; read -r line)"));
  CHECK(origin.note == "tuning failed: the host is too small");
}

TEST_CASE("tuning that failed is not tried again for sizes of the bucket that get another schedule") {
  const Folder folder;
  const EnvironmentChange named(
      "FLASHJIT_WORKER",
      script(folder,
             R"(echo '{"op":"error","code":5,"message":"the host is too small","hint":""}'; read -r line)")
          .c_str());
  CompilerScript compiler;
  FakeEngine fake(compiler, {}, "sm_90a");
  const Problem problem{.dtype = DType::bf16, .head_dim = 88, .head_dim_v = 80};
  std::set<std::string> buckets, schedules;
  for (int rows = 3000; rows < 6000; rows += 100) {
    const Shape shape{.batch = 4, .heads = 23, .seqlen_q = rows, .seqlen_k = rows};
    const Origin origin = fake.engine->plan(problem, shape, kTuned).origin();
    CHECK(contains(origin.note, "tuning failed: the host is too small"));
    buckets.insert(autotune::bucket_of(problem, shape, fake.device->target()));
    schedules.insert(origin.schedule);
  }
  CHECK(schedules.size() > buckets.size());
  CHECK(std::ranges::count(*fake.messages, "tuning failed: the host is too small") ==
        static_cast<std::ptrdiff_t>(buckets.size()));
}

TEST_CASE("a worker that does not understand its parent costs the tuned schedule and not the plan") {
  const Folder folder;
  const Origin origin = origin_without_launch(script(
      folder, R"(echo '{"op":"error","code":1,"message":"\"cl\" is no knob","hint":""}'; read -r line)"));
  CHECK(origin.note == "tuning failed: the tuning worker refused a request: \"cl\" is no knob");
}

TEST_CASE("a parent and its worker have the same templates, or the worker is none") {
  TemplateSet changed = embedded_templates();
  changed.begin()->second += "\n";
  CHECK(api::worker_version(changed) != api::worker_version(embedded_templates()));
  const Folder folder;
  const EnvironmentChange named(
      "FLASHJIT_WORKER",
      script(
          folder,
          "read -r line; case \"$line\" in *'" + api::worker_version(changed) +
              R"('*) echo '{"op":"opened"}' ;; *) echo '{"op":"other_version","version":"older"}' ;; esac; read -r line)")
          .c_str());
  CompilerScript compiler;
  FakeEngine fake(compiler);
  static_cast<void>(fake.engine->plan(kProblem, kFew, kTuned));
  const std::string why = "is flashjit older, its parent " + api::worker_version(embedded_templates());
  CHECK(std::ranges::any_of(*fake.messages, [&](const std::string& line) { return contains(line, why); }));
  CHECK_FALSE(fake.device->launches().empty());  // in this process
}

TEST_CASE("without a worker candidates are tried in this process, and a message says why") {
  const EnvironmentChange named("FLASHJIT_WORKER", "/typo");
  CompilerScript compiler;
  FakeEngine fake(compiler);
  SUBCASE("they run") {
    static_cast<void>(fake.engine->plan(kProblem, kFew, kTuned));
    CHECK_FALSE(fake.device->launches().empty());
  }
  SUBCASE("where memory is short, the plan is made all the same") {
    fake.device->execute = [](const std::string&, const runtime::Launch&, std::span<void* const>) {
      throw std::bad_alloc();
    };
    const Plan plan = fake.engine->plan(kProblem, kFew, kTuned);
    CHECK(contains(plan.origin().note, "tuning failed: the host's memory is too small"));
  }
  SUBCASE("what on_message throws is not taken for the tuner's failure") {
    *fake.on_line = [] { throw Error(ErrorCode::unsupported, "enough"); };
    CHECK_THROWS_WITH_AS(static_cast<void>(fake.engine->plan(kProblem, kFew, kTuned)), "enough", Error);
  }
  SUBCASE("nothing is tried for sizes that launch nothing") {
    for (const Shape& none : {Shape{.batch = 0, .heads = 1, .seqlen_q = 16, .seqlen_k = 32},
                              Shape{.batch = 1, .heads = 1, .seqlen_q = 0, .seqlen_k = 32}})
      static_cast<void>(fake.engine->plan(kProblem, none, kTuned));
    CHECK(fake.messages->empty());
    return;
  }
  CHECK(fake.messages->front() ==
        "tuning in this process: FLASHJIT_WORKER is \"/typo\", may be the path of a flashjit command");
}

TEST_CASE("what wisdom knows is the incumbent of a tuning run") {
  const EnvironmentChange named("FLASHJIT_WORKER", "/typo");
  CompilerScript compiler;
  FakeEngine fake(compiler);
  const Target& target = fake.device->target();
  const auto ranked = autotune::ranked_space(kProblem, kFew, target);
  const auto worst = std::find_if(ranked.rbegin(), ranked.rend(),
                                  [](const auto& candidate) { return candidate.pruned.empty(); });
  REQUIRE(worst != ranked.rend());
  fake.state->chooser().learn(kProblem, kFew, Tuning::quick, {.best = worst->schedule});
  // The fake device computes nothing, so that each candidate is launched once and is wrong.
  CHECK_THROWS_AS(static_cast<void>(api::tune(*fake.state, kProblem, kFew, {})), Error);
  REQUIRE_FALSE(fake.device->launches().empty());
  const std::string name = to_string(worst->schedule);  // "mma:m128n64w4s2": entries end in what follows ':'
  CHECK(contains(fake.device->launches().front().entry, name.substr(name.find(':') + 1)));
}

TEST_CASE("who is told of bad wisdom may be waiting for who asks for the same") {
  const Folder folder;
  std::ofstream(folder.path() / "wisdom.jsonl") << "no JSON\n";
  const Target target = target_of("sm_80");
  std::function<bool()> ask;
  std::future<bool> other;
  int lines = 0;
  api::Chooser chooser(target, "a GPU", {}, folder.path() / "wisdom.jsonl", {}, [&](std::string_view) {
    ++lines;
    other = std::async(std::launch::async, ask);
    CHECK(other.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  });
  ask = [&] { return chooser.knows(kProblem, kShape, {}, Tuning::quick); };
  CHECK_FALSE(ask());
  CHECK(lines == 1);
}

TEST_CASE("what was learnt is said to be kept only where a file has it") {
  const Folder folder;
  const Target target = target_of("sm_80");
  const autotune::TuneResult tuned{.best = parse_schedule("mma:m64n32w4s2")};
  const std::filesystem::path good = folder.path() / "wisdom.jsonl";
  for (const std::filesystem::path& file : {good, folder.path() / "none" / "wisdom.jsonl", {}}) {
    CAPTURE(file.string());
    api::Chooser chooser(target, "a GPU", {}, file, {}, [](std::string_view) {});
    CHECK(chooser.learn(kProblem, kShape, Tuning::quick, tuned) == (file == good));
    CHECK(chooser.knows(kProblem, kShape, {}, Tuning::quick));
    CHECK(std::filesystem::exists(file) == (file == good));
  }
}

TEST_CASE("what nobody timed is no wisdom") {
  const Folder folder;
  const Target target = target_of("sm_80");
  autotune::TuneResult untimed;
  untimed.best = parse_schedule("mma:m64n64w4s2");
  untimed.out_of_time = true;
  std::string said;
  api::Chooser chooser(target, "a GPU", {}, folder.path() / "wisdom.jsonl", {},
                       [&](std::string_view line) { said = line; });
  CHECK_FALSE(chooser.learn(kProblem, kShape, Tuning::quick, untimed));
  CHECK_FALSE(chooser.knows(kProblem, kShape, {}, Tuning::quick));
  CHECK_FALSE(std::filesystem::exists(folder.path() / "wisdom.jsonl"));
  CHECK(said == api::kLearntNothing);
}

TEST_CASE("what tuning builds is what a plan runs, however the problem is spelled") {
  CompilerScript compiler;
  FakeEngine fake(compiler);
  const std::string schedule = fake.engine->plan(kProblem, kShape).origin().schedule;
  Problem spelled = kProblem;
  spelled.deterministic = true;
  static_cast<void>(
      api::build_with(*fake.state, spelled)(parse_schedule(schedule), std::chrono::milliseconds(0)));
  CHECK(compiler.compiles == 1);
}

}  // namespace
}  // namespace flashjit::test

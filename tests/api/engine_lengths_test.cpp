// Which plan a shape gets: those of a bucket share one, but where another schedule is to be faster.
#include <doctest/doctest.h>

#include <optional>

#include "api/remembered.hpp"
#include "autotune/tune.hpp"
#include "autotune/tuner.hpp"
#include "autotune/wisdom.hpp"
#include "cache/files.hpp"
#include "tests/api/support.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("by wisdom: another schedule that was timed, where it computes fewer rows past the end") {
  CompilerScript script;
  const Folder folder;
  const Problem problem{.dtype = DType::bf16, .head_dim = 256};
  const auto with_rows = [](int rows) {
    return Shape{.batch = 4, .heads = 8, .heads_kv = 8, .seqlen_q = rows, .seqlen_k = rows};
  };
  autotune::TuneResult tuned;
  tuned.best = parse_schedule("wgmma:m128n64s2qr0o2re0p3cl2");  // pairs of CTAs, 256 rows
  tuned.best_ms = 1;
  for (const char* name : {"wgmma:m128n64s2qr0o2re0p3cl2", "wgmma:m128n64s2qr0o2re0"}) {
    autotune::Candidate candidate;
    candidate.schedule = parse_schedule(name);
    candidate.measured_ms = candidate.in_final_ms = 1;
    tuned.candidates.push_back(candidate);
  }
  {
    FakeEngine fake(script, folder.path(), "sm_90a");
    const auto versions = api::versions_of(embedded_templates());
    autotune::Wisdom wisdom;
    wisdom.add(
        autotune::record_of(problem, with_rows(4096), fake.device->target(),
                            autotune::gpu_of(fake.device->description()), tuned, Tuning::quick, versions),
        versions);
    REQUIRE(
        autotune::merge_wisdom(folder.path() / "system-wisdom.jsonl", wisdom, versions, cache::publish, {}));
  }
  for (const auto& [first, second] : {std::pair(4096, 4097), std::pair(4097, 4096)}) {
    FakeEngine fake(script, folder.path(), "sm_90a");
    const auto pick = [&](int rows) { return fake.engine->plan(problem, with_rows(rows)).origin(); };
    fake.engine->prepare(problem, with_rows(first));
    // A capture takes what was prepared for sizes like its own.
    int stream = 0;
    fake.device->captures = true;
    const Plan captured =
        fake.engine->plan(problem, with_rows(second), {.stream = reinterpret_cast<Stream>(&stream)});
    fake.device->captures = false;
    CHECK(captured.origin().schedule == pick(first).schedule);
    CHECK(pick(4096).schedule == "wgmma:m128n64s2qr0o2re0p3cl2");
    CHECK(pick(4097).schedule == "wgmma:m128n64s2qr0o2re0");
    CHECK(pick(4097).choice == "wisdom (this GPU, carried over by the model)");
    CHECK(pick(4300).schedule == "wgmma:m128n64s2qr0o2re0p3cl2");
    CHECK(fake.device->loads() == 2);
  }
}

TEST_CASE("by the model: another of those that it likes, where that is to take much less time") {
  CompilerScript script;
  const Folder folder;
  const Problem problem{.dtype = DType::bf16, .head_dim = 88, .head_dim_v = 80};
  const auto with_rows = [](int rows) {
    return Shape{.batch = 4, .heads = 23, .heads_kv = 23, .seqlen_q = rows, .seqlen_k = rows};
  };
  REQUIRE(autotune::shipped_wisdom_for(problem).records().empty());
  FakeEngine fake(script, folder.path(), "sm_90a");
  const Target& target = fake.device->target();
  const auto favourite = [&](int rows) {
    return autotune::ranked_space(problem, with_rows(rows), target, "").front().schedule;
  };
  const auto pick = [&](int rows) { return fake.engine->plan(problem, with_rows(rows)).origin(); };
  const Schedule first = favourite(4096);
  int worse = 0, alike = 0;
  for (int rows = 3000; rows < 6000 && (worse == 0 || alike == 0); rows += 7) {
    const Shape shape = with_rows(rows);
    if (autotune::bucket_of(problem, shape, target) != autotune::bucket_of(problem, with_rows(4096), target))
      continue;
    const Schedule likes = favourite(rows);
    const double gain =
        autotune::predict(problem, shape, first, target) / autotune::predict(problem, shape, likes, target);
    if (gain > 1.05) worse = rows;
    if (gain < 1.01 && likes != first) alike = rows;
  }
  REQUIRE(worse > 0);
  REQUIRE(alike > 0);
  CHECK(pick(4096).schedule == to_string(first));
  CHECK(pick(alike).schedule == to_string(first));
  CHECK(fake.device->loads() == 1);
  for (int i = 0; i < 2; ++i) {
    CHECK(pick(worse).schedule == to_string(favourite(worse)));
    CHECK(pick(worse).choice == "model");
    CHECK(pick(4096).schedule == to_string(first));
    CHECK(fake.device->loads() == 2);
  }
}

TEST_CASE("answers are remembered, as many as there is room for") {
  struct Hash {
    std::size_t operator()(int key) const { return static_cast<std::size_t>(key); }
  };
  api::Remembered<int, std::optional<int>, Hash> remembered(3);
  for (int key = 0; key < 3; ++key) remembered.keep(key, 10 * key);
  CHECK(remembered.find(1) == 10);
  CHECK(remembered.find(7) == std::nullopt);
  remembered.keep(3, 30);
  CHECK(remembered.find(3) == 30);
  CHECK(remembered.find(1) == std::nullopt);
}

}  // namespace
}  // namespace flashjit::test

// Wisdom: what is kept, which record wins, how the ladder goes down, and what is shipped.
#include <doctest/doctest.h>

#include <algorithm>

#include "autotune/wisdom/shipped.hpp"
#include "generator/legality.hpp"
#include "tests/autotune/wisdom_records.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace flashjit::test;

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

TEST_CASE("a run that timed much less does not replace one of the same effort") {
  WisdomRecord whole = record("mma:m128n64w4s2"), cut = record("mma:m64n64w4s2");
  for (int i = 0; i < 17; ++i) whole.timings.emplace_back("mma:m64n32w4s2", 2);
  CHECK(to_string(with({whole, cut}).records().front().schedule) == "mma:m128n64w4s2");
  for (int i = 0; i < 8; ++i) cut.timings.emplace_back("mma:m64n32w4s2", 2);
  CHECK(to_string(with({whole, cut}).records().front().schedule) == "mma:m64n64w4s2");
}

TEST_CASE("a record has the times of what was timed, as they count in the final") {
  TuneResult result;
  result.best = parse_schedule("mma:m128n64w4s2");
  result.candidates.resize(3);
  result.candidates[0] = {.schedule = result.best, .measured_ms = 1, .in_final_ms = 1};
  result.candidates[1] = {.schedule = parse_schedule("mma:m64n64w4s2"), .measured_ms = 3, .in_final_ms = 2};
  result.candidates[2] = {.schedule = parse_schedule("mma:m64n32w4s2"), .measured_ms = 3};  // failed later
  const WisdomRecord made =
      record_of(kProblem, kShape, target_of("sm_90a"), kGpu, result, Tuning::full, kNow, {});
  CHECK(made.timings ==
        std::vector<std::pair<std::string, double>>{{"mma:m128n64w4s2", 1}, {"mma:m64n64w4s2", 2}});
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
  CHECK(ask(with({here})).value().words == "wisdom (this GPU)");
  CHECK(ask(with({here})).value().exact);

  WisdomRecord cousin = record("wgmma:m128n96s2p2");
  cousin.gpu = "NVIDIA H100";
  CHECK(ask(with({cousin})).value().words == "wisdom (NVIDIA H100, same arch)");
  CHECK_FALSE(ask(with({cousin})).value().exact);
  CHECK(ask(with({cousin, here})).value().record.gpu == kGpu);

  Shape longer = with_rows(8192);
  const std::string words = ask(with({here}), {}, longer).value().words;
  CHECK(words == "wisdom (this GPU, nearest bucket " + here.bucket + ")");
  WisdomRecord there = record("wgmma:m128n96s2p2");
  there.bucket = bucket_of(kProblem, longer, target_of("sm_90a"));
  CHECK(ask(with({here}), with({there}), longer).value().words == "shipped wisdom (sm_90a)");
  longer.seqlen_q = longer.seqlen_k = 65536;  // 256 times the work: that far wisdom does not reach …
  CHECK_FALSE(ask(with({here}), {}, longer).has_value());
  CHECK(ask({}, with({here}), longer).value().words ==
        "shipped wisdom (sm_90a, nearest bucket " + here.bucket + ")");  // … a table does
  CHECK(ask({}, with({here})).value().words == "shipped wisdom (sm_90a)");
  CHECK_FALSE(ask({}, with({here})).value().exact);
  CHECK(ask(with({cousin}), with({here})).value().words == "wisdom (NVIDIA H100, same arch)");
  // Short sequences know of each other, but not as they know of themselves.
  Shape brief{.batch = 64, .heads = 32, .seqlen_q = 256, .seqlen_k = 256};
  WisdomRecord high = record("wgmma:m128n96s2p2");
  high.bucket = bucket_of(kProblem, brief, target_of("sm_90a"));
  CHECK(ask(with({high}), {}, brief).value().words == "wisdom (this GPU)");
  brief.seqlen_q = brief.seqlen_k = 192;
  CHECK(ask(with({high}), {}, brief)
            .value()
            .words.starts_with("wisdom (this GPU, nearest bucket " + high.bucket));
  Shape decode = kShape;
  decode.seqlen_q = 1;
  CHECK_FALSE(ask(with({here}), with({here}), decode).has_value());
  CHECK_FALSE(ask({}).has_value());
}

TEST_CASE("what won for 16 queries of fp32 gradients is no answer for 15, whose errors it does not average") {
  const Problem gradients{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 64};
  Shape shape{.batch = 1, .heads = 8, .seqlen_q = 16, .seqlen_k = 4096};
  WisdomRecord sixteen = record("mma-backward:m16n32w4s1dq1");
  sixteen.problem = gradients;
  sixteen.shape = shape;
  sixteen.bucket = bucket_of(gradients, shape, target_of("sm_90a"));
  CHECK(ask(with({sixteen}), {}, shape, gradients).value().exact);
  for (shape.seqlen_q = 1; shape.seqlen_q < 16; ++shape.seqlen_q) {
    CHECK_FALSE(ask(with({sixteen}), {}, shape, gradients).has_value());
    CHECK_FALSE(ask({}, with({sixteen}), shape, gradients).has_value());
  }
}

TEST_CASE("an emulator's estimates guide nobody else") {
  WisdomRecord estimate = record("wgmma:m128n96s2p2");
  estimate.gpu = "emulator of sm_90a";
  CHECK_FALSE(ask(with({estimate})).has_value());
  CHECK(ask(with({estimate}), with({record("wgmma:m128n128s2p2")})).value().words ==
        "shipped wisdom (sm_90a)");
  CHECK(
      choose(with({estimate}), {}, kProblem, kShape, target_of("sm_90a"), estimate.gpu, kNow).value().exact);
}

TEST_CASE("alike problems guide each other; others do not") {
  const Wisdom own = with({record("wgmma:m128n128s2p2")});
  Problem half = kProblem;
  half.dtype = DType::fp16;
  CHECK(ask(own, {}, kShape, half).value().words == "wisdom (this GPU, for forward bf16 d128 causal)");
  CHECK_FALSE(ask(own, {}, kShape, half).value().exact);
  Problem without = kProblem;
  without.lse = false;
  CHECK(ask(own, {}, kShape, without).has_value());
  Problem spelled = kProblem;
  spelled.head_dim_v = 128;
  CHECK(ask(own, {}, kShape, spelled).value().exact);
  spelled.deterministic = true;  // a forward pass is so anyway
  CHECK(ask(own, {}, kShape, spelled).value().exact);
  Problem gradients = kProblem;
  gradients.pass = Pass::backward;
  WisdomRecord back = record("wgmma-backward:m80n128s2");
  back.problem = gradients;
  back.bucket = bucket_of(gradients, kShape, target_of("sm_90a"));
  gradients.lse = false;  // a backward pass writes none
  CHECK(ask(with({back}), {}, kShape, gradients).value().exact);
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
  CHECK(to_string(ask(both).value().schedule) == "wgmma:m128n128s2p2");
  CHECK_FALSE(ask(with({narrow})).has_value());
  CHECK(choose(both, {}, kProblem, kShape, target_of("sm_90a"), kGpu, kNow, "mma").value().exact);
  WisdomRecord ampere = record("mma:m128n64w8s2");
  ampere.arch = "sm_80";
  CHECK_FALSE(ask(with({ampere})).has_value());
  WisdomRecord nowhere = record("wgmma:m128n128s2p2");
  nowhere.bucket = "b2000";
  CHECK_FALSE(ask({}, with({nowhere})).has_value());
  WisdomRecord old = record("wgmma:m128n128s2p2");
  old.versions.templates = "t0";
  CHECK(ask(with({old})).value().words == "wisdom (this GPU, by other templates)");
  CHECK_FALSE(ask(with({old})).value().exact);
  CHECK_FALSE(ask(with({record("mma:m256n256w4s4")})).has_value());  // not legal: not enough shared memory
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
  CHECK(shipped_wisdom_for({.head_dim = 8}).records().empty());
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

// The search space and the analytic model: wide but finite, sane in its order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "autotune/model/makespan.hpp"
#include "autotune/tuner.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

namespace {

const char* const kArchs[] = {"sm_75",  "sm_80",  "sm_86",  "sm_87",  "sm_88",  "sm_89", "sm_90",
                              "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"};

int place_of(const std::vector<Candidate>& ranked, std::string_view prefix) {
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    if (to_string(ranked[i].schedule).starts_with(prefix) && ranked[i].pruned.empty())
      return static_cast<int>(i);
  }
  return 10'000;
}

Shape cell(int seqlen, int head_dim) {
  return {.batch = 16384 / seqlen, .heads = 2048 / head_dim, .seqlen_q = seqlen, .seqlen_k = seqlen};
}

}  // namespace

TEST_CASE("the space is wide and finite, without duplicates, and each entry is legal or says why not") {
  for (const char* arch : kArchs) {
    for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
      for (const int head_dim : {8, 64, 96, 128, 256}) {
        const Problem problem{.dtype = dtype, .head_dim = head_dim, .causal = head_dim != 64};
        const Target target = target_of(arch);
        const auto space = search_space(problem, target);
        if (dtype == DType::bf16 && target.capability < 80) {
          CHECK(space.empty());
          continue;
        }
        std::set<std::string> names;
        std::map<Family, int> legal_ones, all;
        for (const Candidate& candidate : space) {
          CHECK(names.insert(to_string(candidate.schedule)).second);
          CHECK(parse_schedule(to_string(candidate.schedule)) == candidate.schedule);
          ++all[family_of(candidate.schedule)];
          if (candidate.pruned.empty()) ++legal_ones[family_of(candidate.schedule)];
        }
        for (const auto& counted : all)
          CHECK_MESSAGE(counted.second <= 480, arch, " ", to_string(counted.first), " ", counted.second);
        const Family family = dtype == DType::fp32 ? Family::simt : Family::mma;
        CHECK_MESSAGE(legal_ones[family] >= 2, arch, " ", describe(problem));
      }
    }
  }
}

TEST_CASE("predictions are positive, finite and above what the machine can do at best") {
  for (const char* arch : kArchs) {
    for (const DType dtype : {DType::fp16, DType::fp32}) {
      for (const int seqlen : {1, 100, 4096}) {
        const Problem problem{.dtype = dtype, .head_dim = 64, .causal = seqlen == 100};
        for (const Candidate& candidate : ranked_space(problem, cell(seqlen, 64), target_of(arch))) {
          if (!candidate.pruned.empty()) continue;
          CHECK(std::isfinite(candidate.predicted_ms));
          CHECK(candidate.predicted_ms > 0.004);
          CHECK(flops(problem, cell(seqlen, 64)) / candidate.predicted_ms / 1e9 < 1000);
        }
      }
    }
  }
}

TEST_CASE("on Hopper what won in the prototype is predicted among the best, and wgmma before mma") {
  const Target target = target_of("sm_90a");
  for (const bool causal : {false, true}) {
    CHECK(place_of(ranked_space({.head_dim = 64, .causal = causal}, cell(4096, 64), target),
                   "wgmma:m256n64") < 5);
    CHECK(place_of(ranked_space({.head_dim = 64, .causal = causal}, cell(16384, 64), target),
                   "wgmma:m192n128") < 20);
    CHECK(place_of(ranked_space({.head_dim = 128, .causal = causal}, cell(4096, 128), target),
                   "wgmma:m128n128s2") < 10);
    CHECK(place_of(ranked_space({.head_dim = 256, .causal = causal}, cell(4096, 256), target),
                   "wgmma:m128n64s2qr0o2") < 5);
    for (const int head_dim : {64, 128, 256}) {
      const auto ranked =
          ranked_space({.head_dim = head_dim, .causal = causal}, cell(4096, head_dim), target);
      CHECK(place_of(ranked, "wgmma:") == 0);
      const auto& best = ranked.front();
      const auto& mma = ranked.at(place_of(ranked, "mma:"));
      CHECK(mma.predicted_ms > 1.4 * best.predicted_ms);
    }
  }
  // Of family mma, a CTA that has the multiprocessor to itself keeps it.
  const auto wide = ranked_space({.head_dim = 256}, cell(1024, 256), target);
  CHECK(place_of(wide, "mma:m128n128w8s1kv1p1") == place_of(wide, "mma:"));
  // The dynamic order pays where tiles differ in length.
  const Problem causal{.head_dim = 128, .causal = true};
  CHECK(predict(causal, cell(1024, 128), parse_schedule("wgmma:m128n128s2p2"), target) <
        0.9 * predict(causal, cell(1024, 128), parse_schedule("wgmma:m128n128s2p1"), target));
}

TEST_CASE("tiles with more rows than queries are not chosen, and few CTAs are seen to be slow") {
  for (const char* arch : {"sm_80", "sm_90", "sm_120"}) {
    const Target target = target_of(arch);
    const Problem problem{.dtype = DType::fp16, .head_dim = 128};
    const auto decode =
        ranked_space(problem, {.batch = 64, .heads = 32, .seqlen_q = 1, .seqlen_k = 4096}, target);
    CHECK(tile_m_of(decode.front().schedule) <= 32);
    const auto prefill = ranked_space(problem, cell(4096, 128), target);
    CHECK(tile_m_of(prefill.front().schedule) >= 64);
    // One head of 1024 rows: 256-row tiles would leave all but 4 multiprocessors idle.
    const auto narrow =
        ranked_space(problem, {.batch = 1, .heads = 1, .seqlen_q = 1024, .seqlen_k = 1024}, target);
    CHECK(tile_m_of(narrow.front().schedule) <= 64);
  }
}

TEST_CASE("pairs of CTAs load for each other where that was measured to pay, and not for the rows of one") {
  const Target target = target_of("sm_90a");
  const auto gain = [&](int head_dim, const Shape& shape, const std::string& alone, bool causal = false) {
    const Problem problem{.head_dim = head_dim, .causal = causal};
    return predict(problem, shape, parse_schedule(alone), target) /
           predict(problem, shape, parse_schedule(alone + "cl2"), target);
  };
  CHECK(gain(104, cell(4096, 104), "wgmma:m192n96s2qr0") > 1.02);  // rows that TMA copies slowly
  CHECK(gain(128, cell(4096, 128), "wgmma:m128n128s2") > 1);
  CHECK(gain(64, cell(4096, 64), "wgmma:m256n64s4qr0") < 1);
  // Under a mask they wait for each other, and only at the power cap is that worth it.
  CHECK(gain(128, cell(4096, 128), "wgmma:m192n64s4qr0p2", true) < 0.97);
  CHECK(gain(88, cell(4096, 88), "wgmma:m192n96s2qr0p2", true) < 1);
  CHECK(gain(256, cell(16384, 256), "wgmma:m128n64s2qr0o2re0p2", true) > 1);
  const Shape few{.batch = 32, .heads = 16, .seqlen_q = 128, .seqlen_k = 8192};
  CHECK(gain(128, few, "wgmma:m128n128s2") < 0.8);
}

TEST_CASE("decoding: what comes from memory, and how fast") {
  Target target = target_of("sm_90a");
  const Shape queries{.batch = 48, .heads = 128, .heads_kv = 32, .seqlen_q = 1, .seqlen_k = 1500};
  const auto ms = [&](int head_dim, const std::string& schedule, bool causal = false) {
    return predict({.head_dim = head_dim, .causal = causal}, queries, parse_schedule(schedule), target);
  };
  // Rows of 224 bytes share lines of L2 with the heads beside them, which 384 keys on their way lose.
  CHECK(ms(112, "wgmma:m64n128s3pp0") > 1.2 * ms(112, "wgmma:m64n80s2pp0"));
  CHECK(ms(128, "wgmma:m64n128s3pp0") < 1.02 * ms(128, "wgmma:m64n64s3pp0"));
  for (const char* schedule : {"mma:m16n64w1s2kv1", "simt:m32n32w4s2", "wgmma:m64n64s3pp0"})
    CHECK(ms(128, schedule, true) == ms(128, schedule));  // a mask hides nothing from a last query
  const double h200 = ms(128, "wgmma:m64n64s3pp0");
  target.memory_gbps = 3352;  // an H100's
  CHECK(ms(128, "wgmma:m64n64s3pp0") > 1.4 * h200);
}

TEST_CASE("heads that are packed side by side have a mask, too, where they fill more than a tile") {
  const Shape shape{.batch = 8, .heads = 64, .heads_kv = 8, .seqlen_q = 1024, .seqlen_k = 1024};
  const Schedule schedule = parse_schedule("wgmma:m192n64s2qr0o3op0p2");
  const Problem masked{.head_dim = 160, .causal = true}, full{.head_dim = 160};
  REQUIRE(pack_of(masked, shape, schedule).heads == 8);
  REQUIRE(pack_of(full, shape, schedule).heads == 8);
  const Target target = target_of("sm_90a");
  CHECK(predict(masked, shape, schedule, target) < 0.75 * predict(full, shape, schedule, target));
}

TEST_CASE("a warp alone has a quarter of a multiprocessor's units") {
  const Problem narrow{.head_dim = 16};
  const Shape decode{.batch = 9, .heads = 4, .heads_kv = 2, .seqlen_q = 4, .seqlen_k = 2816};
  const Target target = target_of("sm_90a");
  const auto ms = [&](const char* name) { return predict(narrow, decode, parse_schedule(name), target); };
  CHECK(ms("mma:m16n128w1s2qr1kv1") > 1.2 * ms("wgmma:m64n128s4pp0p0sp5"));  // measured: 2.1 times
}

TEST_CASE("who is done takes the next tile") {
  CHECK(makespan({5, 4, 3, 2, 1}, 2) == 8);  // 5 + 2 + 1 beside 4 + 3
  CHECK(makespan({4, 4, 2, 2}, 3) == 4);     // both short ones on the third
  CHECK(makespan({7}, 100) == 7);
  CHECK(makespan({}, 2) == 0);
}

TEST_CASE("causal costs about half, and twice the work about twice") {
  const Target target = target_of("sm_80");
  const Schedule schedule = parse_schedule("mma:m128n64w4s2");
  const double full = predict({.head_dim = 128}, cell(16384, 128), schedule, target);
  const double causal = predict({.head_dim = 128, .causal = true}, cell(16384, 128), schedule, target);
  CHECK(causal / full == doctest::Approx(0.53).epsilon(0.1));
  Shape twice = cell(16384, 128);
  twice.batch *= 2;
  CHECK(predict({.head_dim = 128}, twice, schedule, target) / full == doctest::Approx(2).epsilon(0.05));
  CHECK(predict({.head_dim = 128}, {.batch = 0, .heads = 8, .seqlen_q = 10, .seqlen_k = 10}, schedule,
                target) > 0);
  CHECK(predict({.head_dim = 128}, {.batch = 1, .heads = 8, .seqlen_q = 10, .seqlen_k = 0}, schedule,
                target) > 0);
}

TEST_CASE("few queries beside many keys want under a mask what they want without one") {
  for (const char* arch : {"sm_80", "sm_86", "sm_120"}) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      for (const int head_dim : {24, 128}) {
        const Target target = target_of(arch);
        const Shape shape{.batch = 4, .heads = 16, .seqlen_q = 33, .seqlen_k = 32768};
        Problem problem{.dtype = dtype, .head_dim = head_dim};
        CAPTURE(std::string(arch));
        CAPTURE(describe(problem));
        const Candidate full = ranked_space(problem, shape, target).front();
        problem.causal = true;
        const Schedule masked = ranked_space(problem, shape, target).front().schedule;
        problem.causal = false;
        CHECK(predict(problem, shape, masked, target) < 1.03 * full.predicted_ms);
      }
    }
  }
}

TEST_CASE("a family is passed over with a reason") {
  CHECK(family_note({.dtype = DType::bf16}, target_of("sm_75")).find("sm_80 or later") != std::string::npos);
  CHECK(family_note({.dtype = DType::bf16}, target_of("sm_90")).find("sm_90a") != std::string::npos);
  CHECK(family_note({.dtype = DType::bf16}, target_of("sm_90a")).empty());
  CHECK(family_note({.dtype = DType::fp32}, target_of("sm_90a")).empty());
  CHECK(family_note({.dtype = DType::fp32}, target_of("sm_75")).find("came with sm_80") != std::string::npos);
  CHECK(
      family_note({.dtype = DType::fp32, .head_dim = 16}, target_of("sm_90a")).find("from head_dim 24 on") !=
      std::string::npos);
  CHECK(family_note({.pass = Pass::backward, .dtype = DType::fp32}, target_of("sm_90a")).empty());
  CHECK(family_note({.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 160}, target_of("sm_90a"))
            .find("fp32 up to head_dim 128") != std::string::npos);
}

TEST_CASE("gradients of few rows in fp32 go to schedules that keep scores in two floats") {
  const Problem problem{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 64};
  const auto fits = [&](int rows, const char* family, const char* schedule) {
    const Shape shape{.batch = 2, .heads = 2, .seqlen_q = rows, .seqlen_k = 799};
    for (const Candidate& candidate : ranked_space(problem, shape, target_of("sm_90a"), family)) {
      if (to_string(candidate.schedule) == schedule) return candidate.pruned.empty();
    }
    return false;
  };
  CHECK(fits(15, "", "simt-backward:m16n16w4"));
  CHECK_FALSE(fits(15, "", "simt-backward:m32n32w4"));
  CHECK_FALSE(fits(15, "", "mma-backward:m16n16w2s1"));
  CHECK(fits(15, "mma", "mma-backward:m16n16w2s1"));  // there is no other
  CHECK(fits(16, "", "simt-backward:m32n32w4"));
  CHECK(fits(16, "", "mma-backward:m16n16w2s1"));
}

TEST_CASE("where tiles are few, CTAs share out their keys, and wisdom of many tiles does not count") {
  const Target target = target_of("sm_90a");
  const Problem problem{.head_dim = 128, .causal = true};
  const auto best = [&](const Shape& shape, const Problem& of) {
    return std::get<WgmmaSchedule>(ranked_space(of, shape, target).front().schedule);
  };
  const Shape decode{.batch = 1, .heads = 32, .heads_kv = 8, .seqlen_q = 1, .seqlen_k = 8192};
  CHECK(best(decode, problem).splits == 8);
  CHECK(bucket_of(problem, decode, target).ends_with("q1t8"));
  Shape many = decode;
  many.batch = 16;
  CHECK(best(many, problem).splits == 1);
  CHECK(bucket_of(problem, many, target).ends_with("q1t128"));
  many.batch = 200;
  CHECK(bucket_of(problem, many, target).ends_with("q1"));
  // No more clusters than run at once.
  Shape some = decode;
  some.batch = 4;
  CHECK(best(some, problem).splits == 2);
  CHECK(best(some, {.head_dim = 128}).splits == 2);
  // What wins for 24 tiles takes a quarter longer for 32.
  some.batch = 3;
  CHECK(best(some, problem).splits == 3);
  CHECK(bucket_of(problem, some, target).ends_with("q1t24"));
  CHECK(best({.batch = 1, .heads = 16, .seqlen_q = 1, .seqlen_k = 8192}, problem).splits > 3);
  const Shape chunk{.batch = 1, .heads = 4, .seqlen_q = 512, .seqlen_k = 16384};
  CHECK(best(chunk, problem).splits > 1);
  CHECK(bucket_of(problem, chunk, target).ends_with("q512t32"));
  // As many tiles as a shape can name are counted, too.
  constexpr int kMost = std::numeric_limits<int>::max();
  CHECK(predict(problem, {.batch = kMost, .heads = kMost, .seqlen_q = kMost, .seqlen_k = kMost},
                parse_schedule("wgmma:m64n64s4pp0p0sp8"), target) > 0);
  CHECK(predict({.head_dim = 72}, {.batch = 1, .heads = 1, .seqlen_q = 192, .seqlen_k = kMost},
                parse_schedule("wgmma:m192n96s2qr0"), target) > 0);
  // Nothing to share.
  const Shape short_keys{.batch = 1, .heads = 32, .heads_kv = 8, .seqlen_q = 1, .seqlen_k = 100};
  CHECK(to_string(ranked_space(problem, short_keys, target).front().schedule).find("sp") ==
        std::string::npos);
  // Nor where tiles are many, however long.
  for (const int head_dim : {8, 40, 64, 88, 128, 192, 256}) {
    for (const int seqlen : {1024, 4096, 16384}) {
      const Problem one{.head_dim = head_dim, .causal = seqlen == 4096};
      CHECK(best(cell(seqlen, head_dim), one).splits == 1);
    }
  }
  // A backward pass has its tiles over the keys.
  const Problem backward{.pass = Pass::backward, .head_dim = 128};
  CHECK(bucket_of(backward, {.batch = 1, .heads = 1, .seqlen_q = 64, .seqlen_k = 8192}, target).find('t') ==
        std::string::npos);
}

TEST_CASE("where tiles do not fill whole waves, CTAs have even shares, and buckets know how full they are") {
  const Target target = target_of("sm_90a");
  const auto best = [&](const Problem& problem, const Shape& shape) {
    return std::get<WgmmaSchedule>(ranked_space(problem, shape, target).front().schedule).persistent;
  };
  // What was measured (docs/performance/wgmma/even-shares.md): a wave and a fifth of tiles, or one and four
  // more.
  const Shape prompt{.batch = 1, .heads = 5, .seqlen_q = 4096, .seqlen_k = 4096};
  const Shape decode{.batch = 17, .heads = 32, .heads_kv = 8, .seqlen_q = 1, .seqlen_k = 8192};
  for (const int head_dim : {64, 128, 256}) {
    const Shape heads{.batch = 1, .heads = head_dim == 64 ? 9 : 5, .seqlen_q = 4096, .seqlen_k = 4096};
    CHECK(best({.head_dim = head_dim}, heads) == 3);
    CHECK(best({.head_dim = head_dim}, cell(16384, head_dim)) == 3);
  }
  CHECK(best({.head_dim = 128}, decode) % 2 == 1);  // even waves or even shares: 142 to 150 us, each
  CHECK(best({.head_dim = 128}, cell(1024, 128)) != 3);
  // Full waves.
  CHECK(best({.head_dim = 128}, {.batch = 1, .heads = 4, .seqlen_q = 4096, .seqlen_k = 4096}) != 3);
  CHECK(bucket_of({.head_dim = 128}, prompt, target).ends_with("w10"));
  CHECK(bucket_of({.head_dim = 128}, cell(1024, 128), target).find('w') == std::string::npos);
}

TEST_CASE("under a mask, a wave of tiles or two: even shares of long ones, small tiles of short ones") {
  const Target target = target_of("sm_90a");
  const auto best = [&](int head_dim, int heads, int seqlen) {
    return std::get<WgmmaSchedule>(
        ranked_space({.head_dim = head_dim, .causal = true},
                     {.batch = 1, .heads = heads, .seqlen_q = seqlen, .seqlen_k = seqlen}, target)
            .front()
            .schedule);
  };
  // Measured, docs/performance/wgmma/few-heads.md.
  for (const int head_dim : {64, 128, 256}) {
    CAPTURE(head_dim);
    CHECK(best(head_dim, 3, 4096).persistent == 3);
    CHECK(best(head_dim, 5, 4096).persistent == 3);
    CHECK(best(head_dim, 16, 2048).persistent == 2);
    CHECK(best(head_dim, 32, 1024).persistent == 2);
  }
  CHECK(best(128, 8, 2048).tile_m == 64);
  CHECK(best(256, 16, 1024).tile_m == 64);
  const Shape prompt{.batch = 1, .heads = 5, .seqlen_q = 4096, .seqlen_k = 4096};
  CHECK(bucket_of({.head_dim = 128, .causal = true}, prompt, target).ends_with("w10"));
}

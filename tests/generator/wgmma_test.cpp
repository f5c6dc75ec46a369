// Family wgmma: what a rendered kernel has, what it has not, and that each knob makes one of its own.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/generator/hopper.hpp"

using namespace flashjit;
using flashjit::test::count;
using flashjit::test::reason;
using flashjit::test::rendered;

namespace {

// A function's declaration and body.
std::string function(const std::string& text, const std::string& name) {
  const std::size_t begin = text.find(name);
  return begin == std::string::npos ? "" : text.substr(begin, text.find("\n}\n", begin) - begin);
}

constexpr Problem kD128{.head_dim = 128};
constexpr Problem kD128Causal{.head_dim = 128, .causal = true};
constexpr Problem kD192{.head_dim = 192};

}  // namespace

TEST_CASE("a block's product is one statement, an instruction a step") {
  const KernelSource kernel = rendered(kD128, "m128n112s2qr0");
  CHECK(count(kernel.text, "f\"(o[") == 0);  // O is no operand
  CHECK(count(kernel.text, "o63},") == 112 / 16);
  CHECK(count(kernel.text, "o64") == 0);
  const std::string scores = function(kernel.text, "void wgmma_scores(");
  CHECK(count(scores, "s55},") == 128 / 16);  // nor are S and P
  CHECK(count(scores, "\"+f\"(") == 0);
  CHECK(count(function(kernel.text, "void wgmma_values("), "{p24, p25, p26, p27}") == 1);
  CHECK(count(kernel.text, "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16") == 128 / 16);
  CHECK(count(kernel.text, "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16") == 112 / 16);
  CHECK(count(kernel.text, "wgmma.fence") == 2);
  CHECK(count(kernel.text, "wgmma.commit_group") == 2);
  CHECK(count(rendered({.dtype = DType::fp16, .head_dim = 72}, "m128n64s2").text, "m64n72k16.f32.f16.f16") ==
        64 / 16);
  // Half of Q in registers: scores come in both forms.
  const KernelSource half = rendered(kD192, "m128n64s2qr2");
  CHECK(count(half.text, "m64n64k16.f32") == 192 / 16);
  CHECK(count(function(half.text, "void wgmma_scores("), "\"r\"(q[") == 4 * 4);
  CHECK(count(half.text, "\"l\"(q_columns[") == 8);
}

TEST_CASE("a statement names each of its operands, and no other") {
  struct Case {
    Problem problem;
    const char* schedule;
  };
  for (const Case& one : std::vector<Case>{{kD128, "m128n112s2qr0"},
                                           {kD128, "m128n64s2"},
                                           {kD192, "m128n64s2qr2"},
                                           {{.head_dim = 88}, "m128n64s2qr2"},
                                           {{.head_dim = 72, .head_dim_v = 40}, "m64n64s2qr0pp0"}}) {
    CAPTURE(one.schedule);
    const std::string text = rendered(one.problem, one.schedule).text;
    for (const char* name :
         {"void wgmma_scores(", "void wgmma_values(", "void hide_scores(", "void find_peaks(", "void take_",
          "void scale_exponentials(", "void add_score_products("}) {
      CAPTURE(name);
      const std::string statement = function(text, name);
      if (statement.empty()) continue;  // this kernel has none
      int operands = 0;
      for (const char* bound : {"\"+f\"(", "\"=f\"(", "\"f\"(", "\"r\"(", "\"l\"(", "\"n\"("}) {
        operands += count(statement, bound);
      }
      std::set<int> named;
      for (std::size_t at = statement.find('%'); at != std::string::npos; at = statement.find('%', at + 1)) {
        named.insert(std::stoi(statement.substr(at + 1)));
      }
      CHECK(static_cast<int>(named.size()) == operands);
      CHECK(*named.rbegin() == operands - 1);
    }
  }
}

TEST_CASE("each score is hidden, compared, made an exponential, added up and packed once") {
  struct Case {
    const char* schedule;
    int scores;  // a thread
  };
  for (const Case& one :
       std::vector<Case>{{"m64n16s2pp0", 8}, {"m128n80s2ch8", 40}, {"m128n112s2qr0ch2", 56}}) {
    CAPTURE(one.schedule);
    const KernelSource kernel = rendered({.head_dim = 64, .causal = true}, one.schedule);
    const std::string hidden = function(kernel.text, "void hide_scores("),
                      peaks = function(kernel.text, "void find_peaks("),
                      exponentials = function(kernel.text, "void take_first_exponentials(") +
                                     function(kernel.text, "void take_last_exponentials("),
                      packed = function(kernel.text, "void pack_exponentials(");
    for (int i = 0; i < one.scores; ++i) {
      CAPTURE(i);
      CHECK(count(hidden, fmt::format("mov.f32 s{}, 0fff800000;", i)) == 1);
      CHECK(count(peaks, fmt::format(" s{},", i)) + count(peaks, fmt::format(" s{};", i)) == 1);
      CHECK(count(exponentials, fmt::format("ex2.approx.ftz.f32 s{0}, s{0};", i)) == 1);
      CHECK(count(packed, fmt::format(" s{},", i)) + count(packed, fmt::format(" s{};", i)) == 1);
    }
    CHECK(packed.find("p1, s3, s2;") != std::string::npos);  // the lower column in the lower half
    CHECK(count(exponentials, "add.f32") + count(exponentials, "mov.f32") == one.scores + 4);
  }
}

TEST_CASE("O leaves in whole panels, and in what the head dim has of a last one") {
  const auto fragments = [](int head_dim, const char* panel) {
    const std::string schedule = head_dim > 192 ? "m64n64s2pp0re0" : "m64n64s2pp0";
    return count(function(rendered({.head_dim = head_dim}, schedule).text, panel), "stmatrix");
  };
  CHECK(fragments(128, "void stage_panel(") == 4);
  CHECK(fragments(128, "void stage_last_panel(") == 0);
  CHECK(fragments(72, "void stage_panel(") == 4);
  CHECK(fragments(72, "void stage_last_panel(") == 1);
  CHECK(fragments(40, "void stage_panel(") == 0);
  CHECK(fragments(40, "void stage_last_panel(") == 3);
  const std::string last = function(rendered({.head_dim = 72}, "m64n64s2pp0").text, "void stage_last_panel(");
  CHECK(last.find("o32") != std::string::npos);
  CHECK(last.find("o36") == std::string::npos);
  CHECK(count(last, "mov.b32 pair") == 2);  // the other half of its fragment
}

TEST_CASE("a box of K or V moves all whole panels, another one the columns behind them and no more") {
  struct Case {
    int head_dim, whole, rest, row_bytes;
    bool half_step;
  };
  for (const Case& one : std::vector<Case>{{8, 0, 8, 128, true},
                                           {40, 0, 40, 128, true},
                                           {48, 0, 48, 128, false},
                                           {64, 1, 0, 0, false},
                                           {72, 1, 8, 32, true},
                                           {80, 1, 16, 32, false},
                                           {88, 1, 24, 64, true},
                                           {96, 1, 32, 64, false},
                                           {104, 1, 40, 128, true},
                                           {128, 2, 0, 0, false},
                                           {152, 2, 24, 64, true},
                                           {184, 2, 56, 128, true},
                                           {192, 3, 0, 0, false},
                                           {256, 4, 0, 0, false}}) {
    CAPTURE(one.head_dim);
    const KernelSource kernel =
        rendered({.head_dim = one.head_dim}, one.head_dim > 192 ? "m64n64s2qr0pp0re0" : "m64n64s2qr0pp0");
    std::vector<TensorMapSpec> maps = {{.operand = Operand::q, .box_rows = 64, .panels = 1, .packs = true}};
    for (const Operand operand : {Operand::k, Operand::v}) {
      if (one.whole > 0) maps.push_back({.operand = operand, .box_rows = 64, .panels = one.whole});
      if (one.rest > 0) {
        // V's panels are as wide as each other, since one product runs along all of them.
        const int row_bytes = operand == Operand::k ? one.row_bytes : 128;
        maps.push_back(
            {.operand = operand, .box_rows = 64, .panels = 1, .columns = one.rest, .row_bytes = row_bytes});
      }
    }
    maps.push_back({.operand = Operand::o, .box_rows = 64, .panels = 1, .packs = true});
    CHECK(kernel.maps == maps);
    const auto has = [&](const char* text) { return kernel.text.find(text) != std::string::npos; };
    CHECK(has("map_k;") == (one.whole > 0));
    CHECK(has("map_last_k;") == (one.rest > 0));
    CHECK(has("map_last_v;") == (one.rest > 0));
    CHECK(has("clear_half_step") == one.half_step);
    CHECK(has("kLastUpperHalf") == (one.rest > 0 && one.row_bytes < 128));
  }
  const KernelSource kernel = rendered({.head_dim = 192, .head_dim_v = 72}, "m128n112s2qr0");
  REQUIRE(kernel.maps.size() == 5);
  CHECK(kernel.maps[1].panels == 3);
  CHECK(kernel.maps[3].columns == 8);
}

TEST_CASE("what a problem does not need is absent") {
  const std::string full = rendered(kD128, "m128n128s2").text;
  const std::string causal = rendered(kD128Causal, "m128n128s2p2").text;
  CHECK(full.find("full_blocks") == std::string::npos);
  CHECK(full.find("kTicket") == std::string::npos);
  CHECK(causal.find("full_blocks") != std::string::npos);
  CHECK(causal.find("kTicket") != std::string::npos);
  CHECK(full.find("cluster_") == std::string::npos);
  CHECK(rendered(kD128, "m128n128s2cl2").text.find("multicast::cluster") != std::string::npos);
  const Problem bare{.head_dim = 128, .lse = false};
  CHECK(rendered(bare, "m128n128s2").text.find("store_lse") == std::string::npos);
  CHECK(rendered(kD128, "m128n128s2op0").text.find("recompute_scores") == std::string::npos);
  CHECK(full.find("/*%") == std::string::npos);
}

TEST_CASE("even shares: CTAs for themselves, of the tiles that fill no whole wave") {
  CHECK(reason(kD128, "m128n128s2p3") == "");
  CHECK(reason(kD128, "m128n128s2p3cl2") == "");
  CHECK(reason(kD128Causal, "m128n128s2p3cl2") == "persistent 3 under a mask needs cluster 1, cluster is 2");
  CHECK(reason(kD128, "m128n128s2o0p3") ==
        "o_passes 0 puts O in Q's place; persistent 3 adds up shares in a place of O's own, use 1 or more");
  const KernelSource kernel = rendered(kD128, "m128n128s2p3");
  const Geometry& geometry = kernel.geometry;
  CHECK(geometry.even_shares);
  CHECK(!geometry.persistent);
  CHECK(geometry.counters == 2);                               // warpgroups
  CHECK(geometry.piece_bytes == 2 * 2 * 128 * 16 * (1 + 16));  // two tiles'
  CHECK(kernel.maps.size() == 4);
  CHECK(kernel.text.find("cluster_rank") == std::string::npos);
}

TEST_CASE("each knob makes a kernel or a launch of its own") {
  const std::vector<std::string> schedules{
      "m128n128s2p2",    "m64n128s2p2pp0",     "m128n96s2p2",      "m128n128s1p2",    "m128n128s2p2qr0",
      "m128n128s2p2qr2", "m128n128s2p2o2",     "m128n128s2p2lz12", "m128n128s2p2op0", "m128n128s2p2pp0",
      "m128n128s2p2re0", "m128n128s2p1",       "m128n128s2p0",     "m128n128s2p2l16", "m128n128s2p2ch2",
      "m128n128s2p2u2",  "m128n128s2p2pp0ov0", "m128n128s2p0sp2",  "m128n128s2p0sp4", "m128n128s2p3"};
  std::vector<std::string> seen;
  for (const std::string& schedule : schedules) {
    CAPTURE(schedule);
    REQUIRE(reason(kD128Causal, schedule) == "");
    const KernelSource kernel = rendered(kD128Causal, schedule);
    const Geometry& g = kernel.geometry;
    // Without the header, which quotes the schedule, and the entry's name, which repeats it.
    std::string body = kernel.text.substr(kernel.text.find("\n\n"));
    body.erase(body.find(kernel.entry), kernel.entry.size());
    body += std::to_string(g.persistent) + std::to_string(g.dynamic) + " " + std::to_string(g.section_bytes);
    CHECK(std::find(seen.begin(), seen.end(), body) == seen.end());
    seen.push_back(std::move(body));
  }
}

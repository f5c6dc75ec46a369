// Family wgmma: what legality says of its pitfalls, and that each knob makes a kernel of its own.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "generator/legality.hpp"
#include "generator/render.hpp"

using namespace flashjit;

namespace {

const Target& hopper() {
  static const Target target = target_of("sm_90a");
  return target;
}

std::string reason(const Problem& problem, const std::string& schedule) {
  return legal(problem, parse_schedule("wgmma:" + schedule), hopper()).reason;
}

KernelSource rendered(const Problem& problem, const std::string& schedule) {
  return render(problem, parse_schedule("wgmma:" + schedule), hopper()).at(0);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// A function's declaration and body.
std::string function(const std::string& text, const std::string& name) {
  const std::size_t begin = text.find(name);
  return begin == std::string::npos ? "" : text.substr(begin, text.find("\n}\n", begin) - begin);
}

constexpr Problem kD64{.head_dim = 64};
constexpr Problem kD128{.head_dim = 128};
constexpr Problem kD128Causal{.head_dim = 128, .causal = true};
constexpr Problem kD192{.head_dim = 192};
constexpr Problem kD256{.head_dim = 256};

}  // namespace

TEST_CASE("registers: setmaxnreg's pools, in words") {
  CHECK(reason(kD64, "m256n64s4qr0") == "");
  CHECK(reason(kD64, "m256n80s4qr0") ==
        "tile 256x80 needs about 120 registers a thread (S 40, P 20, O 32, Q 0, the rest 28), 4 warpgroups "
        "leave 112");
  CHECK(reason(kD64, "m192n144s4qr0").find("3 warpgroups leave 160") != std::string::npos);
  CHECK(reason(kD128, "m192n96s2qr0").find("3 warpgroups leave 160") != std::string::npos);
  CHECK(reason(kD128, "m192n128s2qr0pp0ov0op0") == "");
  CHECK(reason(kD128, "m192n128s2qr0pp0ov0").find("the rest 40") != std::string::npos);
  CHECK(reason(kD192, "m128n64s2qr2") == "");
  CHECK(reason(kD256, "m128n64s2qr2o2re0").find("the rest 36), 2 warpgroups leave 240") != std::string::npos);
  // A product is compiled for what the launch gives, before setmaxnreg moves any.
  CHECK(reason({.head_dim = 136}, "m256n16s3qr0") ==
        "tile 256x16 has a product of 68 accumulators a thread, 4 warpgroups may have 66");
  CHECK(reason({.head_dim = 200}, "m192n16s3qr0re0") ==
        "tile 192x16 has a product of 100 accumulators a thread, 3 warpgroups may have 98");
  CHECK(reason(kD192, "m192n16s3qr0") == "");
  // Dynamic order leaves the consumers eight registers fewer: the producer holds tickets.
  const Problem causal{.head_dim = 256, .causal = true};
  CHECK(reason(causal, "m128n64s2qr2o2re0p2").find("2 warpgroups leave 232") != std::string::npos);
  CHECK(reason({.head_dim = 72, .causal = true}, "m256n64s3qr0p2") == "");
  // Past the estimate, and known to fit.
  CHECK(reason({.head_dim = 144, .causal = true}, "m192n64s2qr0o3p2") == "");
  CHECK(reason({.head_dim = 152, .causal = true}, "m192n64s2qr0o3p2") != "");
  CHECK(reason({.head_dim = 160, .causal = true}, "m192n64s2qr0o3op0p2") == "");
  CHECK(reason({.head_dim = 160, .causal = true}, "m192n64s2qr0o3p2") != "");
  // Within it, and known to spill.
  CHECK(reason({.head_dim = 144}, "m192n64s2qr0o3p3") == "");
  CHECK(reason({.dtype = DType::fp16, .head_dim = 144}, "m192n64s2qr0o3p3").find("spills a few bytes") !=
        std::string::npos);
  CHECK(reason({.head_dim = 120}, "m192n96s2qr0p3") == "");
  CHECK(reason({.head_dim = 120}, "m192n96s2qr0p3cl2").find("spills a few bytes") != std::string::npos);
  CHECK(reason({.head_dim = 80, .head_dim_v = 160}, "m128n128s2o3") == "");
  CHECK(reason({.head_dim = 80, .head_dim_v = 160}, "m128n128s2o3cl2").find("spills a few bytes") !=
        std::string::npos);
  CHECK(reason({.head_dim = 144, .causal = true}, "m192n64s2qr0o3pp0p2").find("spills a few bytes") !=
        std::string::npos);
  CHECK(reason({.head_dim = 160}, "m192n48s2qr0") == "");
  CHECK(reason({.head_dim = 160, .causal = true}, "m192n48s2qr0p2").find("spills a few bytes") !=
        std::string::npos);
}

TEST_CASE("several CTAs on a multiprocessor: what it has is shared out among them") {
  CHECK(reason(kD64, "m64n64s3pp0c1") == "min_ctas 1 is what 0 says, too; leave it at 0");
  CHECK(
      reason(kD64, "m128n64s2qr0c2") ==
      "tile 128x64 needs about 108 registers a thread (S 32, P 16, O 32, Q 0, the rest 28), 2 warpgroups in "
      "each of 2 CTAs leave 104");
  CHECK(reason(kD128, "m64n64s2qr0pp0c3") ==
        "tile 64x64 has a product of 64 accumulators a thread, 1 warpgroup in each of 3 CTAs may have 50");
  CHECK(reason({.head_dim = 72}, "m64n64s2qr0pp0c3") ==
        "tile 64x64 with 2 stages needs 85 KB of shared memory, 3 CTAs per multiprocessor have 75 KB each");
  CHECK(reason({.head_dim = 72}, "m64n64s2qr0pp0c2") == "");
  CHECK(reason({.head_dim = 8}, "m256n16s2qr0c4") ==
        "tile 256x16 has a product of 8 accumulators a thread, 4 warpgroups in each of 4 CTAs may have 0");
  // Registers of two or three warpgroups, in a launch of 80 a thread.
  const auto split = [](const Problem& problem, const char* schedule) {
    const KernelSource kernel = rendered(problem, schedule);
    CHECK(count(kernel.text, "__launch_bounds__(kThreads, kMinCtas)") == 1);
    const auto value = [&](const std::string& name) {
      return std::stoi(kernel.text.substr(kernel.text.find("int " + name + " = ") + name.size() + 7));
    };
    return std::vector{value("kMinCtas"), value("kProducerRegisters"), value("kConsumerRegisters")};
  };
  CHECK(split(kD64, "m64n64s3pp0c3") == std::vector{3, 24, 136});
  CHECK(split({.head_dim = 64, .causal = true}, "m64n64s3qr0pp0p2c3") == std::vector{3, 32, 128});
  CHECK(split({.head_dim = 32}, "m128n64s3c2") == std::vector{2, 32, 104});
  CHECK(count(rendered(kD64, "m64n64s3pp0").text, "__launch_bounds__(kThreads, 1)") == 1);
}

TEST_CASE("shared memory and the way of O") {
  CHECK(reason(kD256, "m128n64s2qr0o2re0") == "");
  CHECK(reason(kD256, "m128n64s2qr0o1re0") ==
        "tile 128x64 with 2 stages needs 257 KB of shared memory, sm_90a gives 227 KB");
  CHECK(reason(kD128, "m128n128s2o3") ==
        "o_passes 3 does not divide the 2 panels of 64 columns that head_dim_v 128 has");
  CHECK(reason({.head_dim = 64, .head_dim_v = 128}, "m128n64s2o0") ==
        "o_passes 0 puts O in Q's place, but head_dim_v 128 is wider than head_dim 64");
}

TEST_CASE("switches that contradict each other") {
  CHECK(reason(kD128, "m64n128s2") == "ping_pong needs two or more warpgroups, tile_m 64 has one");
  CHECK(reason(kD128, "m128n64s2ov0") ==
        "ping_pong orders pairs of products in flight together, overlap 0 has none");
  CHECK(reason(kD128, "m128n64s2pp0ov0re0") ==
        "rescale_early 0 makes no difference to overlap 0; leave it at 1");
  const Problem wide_values{.head_dim = 128, .head_dim_v = 256, .causal = true};
  CHECK(reason(wide_values, "m128n64s2qr0o2re0p2u2") ==
        "unroll 2 makes no difference to values of 256 columns, whose blocks are all taken by one loop; "
        "leave it at 1");
  CHECK(reason(wide_values, "m128n64s2qr0o2p2") ==
        "rescale_early 1 is not for values of 256 columns, whose blocks are all taken by one loop, at the "
        "end of which O is rescaled; set it to 0");
  CHECK(reason(wide_values, "m128n64s2qr0o2re0p2") == "");
  CHECK(reason(kD128, "m128n128s2l64") ==
        "section 64 orders the causal tiles of persistent 2 only; leave it at 32");
  CHECK(reason(kD128Causal, "m128n128s2p2l64") == "");
  CHECK(reason(kD128, "m128n128s2cl2") == "");
  CHECK(reason(kD128Causal, "m128n128s2p2cl2") == "");
  CHECK(reason(kD128, "m128n128s2ch5") == "max_chains is 5, may be 2, 4 or 8");
  CHECK(reason(kD128, "m96n128s2") == "tile_m is 96, wgmma needs a multiple of 64");
  CHECK(reason(kD128, "m128n120s2") == "tile_n is 120, wgmma needs a multiple of 16");
  CHECK(reason(kD64, "m128n64s2qr2") == "q_in_regs 2 splits Q's panels of 64 columns, head_dim 64 has one");
  CHECK(
      reason(kD128, "m128n128s2lz4") ==
      "optimistic 1 sums up 32 exponentials before it looks; 2^lazy must be at least twice that, lazy is 4");
  CHECK(reason({.dtype = DType::fp16, .head_dim = 64}, "m128n64s2lz16") ==
        "lazy 16 lets exponentials grow to 2^16, fp16 ends below 2^16");
}

TEST_CASE("CTAs that share out keys: one tile each, and O's pieces fit where K and V were") {
  CHECK(reason(kD128, "m64n128s3pp0p0sp8") == "");
  CHECK(reason(kD128, "m64n128s3pp0p0sp3") == "");
  CHECK(reason(kD128, "m64n128s3pp0sp8") ==
        "splits 8 leaves CTAs one tile each, which is persistent 0, not 1");
  CHECK(reason(kD128, "m64n128s2pp0p0cl2sp8") ==
        "splits 8 and cluster 2 are two uses of clusters; leave one of them at 1");
  CHECK(reason(kD128, "m64n128s2pp0p0o2sp8") ==
        "o_passes 2 makes no difference to splits above 1; leave it at 1");
  CHECK(reason(kD128, "m128n64s1p0sp4") ==
        "splits 4 adds up O in the place of K and V, which takes 64 KB; they have 32 KB");
  CHECK(reason({.head_dim = 168, .causal = true}, "m64n128s2pp0p0sp2").find("the rest 32), 1 warpgroup") !=
        std::string::npos);
  const KernelSource kernel = rendered(kD128, "m64n128s3pp0p0sp8");
  CHECK(kernel.geometry.cluster == 8);
  CHECK(kernel.geometry.tile_m == 64);
  CHECK(kernel.maps.size() == 3);  // O leaves by ordinary stores
  CHECK(kernel.text.find("store_output") == std::string::npos);
  CHECK(kernel.text.find("kQEmpty") == std::string::npos);
  CHECK(rendered(kD128, "m64n128s3pp0p0").text.find("merge(") == std::string::npos);
}

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

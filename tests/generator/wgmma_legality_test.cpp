// Family wgmma: what legality says of its pitfalls.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/generator/hopper.hpp"

using namespace flashjit;
using flashjit::test::count;
using flashjit::test::reason;
using flashjit::test::rendered;

namespace {

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
  CHECK(reason(kD128, "m192n128s2qr0pp0ov0").find("P 32, O 64, Q 0, the rest 28") != std::string::npos);
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
  CHECK(reason({.dtype = DType::fp16, .head_dim = 120}, "m192n96s2qr0p3").find("spills a few bytes") !=
        std::string::npos);
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
        "o_passes 3 does not divide the 2 panels of 64 columns that head_dim_v 128 has; use 1 or 2");
  CHECK(reason(kD128, "m128n64s2o0") == "");
  CHECK(reason({.head_dim = 64, .head_dim_v = 128}, "m128n64s2o0") ==
        "o_passes 0 puts O in Q's place, but head_dim_v 128 is wider than head_dim 64");
  // A slot of K begins where the swizzle does: 80 rows of 160 bytes take 13 KB.
  const int q = 128 * 256, o = q, k = 13 * 1024, v = 80 * 256, barriers = 8 * (4 * 2 + 2 * 2);
  CHECK(rendered({.head_dim = 72}, "m128n80s2").geometry.shared_bytes == q + o + 2 * (k + v) + barriers);
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
  CHECK(reason(kD128, "m128n16s2ch8") == "max_chains 8 is more than the 4 scores that a thread has of a row");
  CHECK(reason(kD128, "m128n128s2pt1") == "");
  CHECK(reason(kD128, "m128n128s2pt2") == "ptxas is 2, which makes the code of 3; may be 1 or 3");
  CHECK(reason(kD128, "m96n128s2") == "tile_m is 96, wgmma needs a multiple of 64");
  CHECK(reason(kD128, "m128n120s2") == "tile_n is 120, wgmma needs a multiple of 16");
  CHECK(reason(kD64, "m128n64s2qr2") == "q_in_regs 2 splits Q's panels of 64 columns, head_dim 64 has one");
  CHECK(
      reason(kD128, "m128n128s2lz4") ==
      "optimistic 1 sums up 32 exponentials before it looks; 2^lazy must be at least twice that, lazy is 4");
  CHECK(
      reason({.dtype = DType::fp16, .head_dim = 128}, "m128n128s2lz4").empty());  // its sums may reach 65504
  CHECK(reason(kD128, "m128n128s2lz0") ==
        "optimistic 1 lets exponentials grow before it looks, lazy 0 does not");
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

TEST_CASE("fp32: a kernel of its own, with few knobs") {
  const auto of = [](int head_dim, const std::string& tile) {
    return reason({.dtype = DType::fp32, .head_dim = head_dim}, tile + "op0pp0ov0p0");
  };
  CHECK(of(64, "m128n64s1qr2") == "");
  CHECK(of(64, "m256n64s1qr2") == "tile_m is 256, fp32 may have 64, 128 or 192");
  CHECK(reason({.dtype = DType::fp32, .head_dim = 64}, "m128n64s1qr2op0pp0ov0p1").find("persistent are 0") !=
        std::string::npos);
  CHECK(of(64, "m64n256s1qr0") == "tile 64x256 needs about 272 registers a thread, 1 warpgroup leaves 256");
  CHECK(of(128, "m192n64s1qr0") == "tile 192x64 needs about 160 registers a thread, 3 warpgroups leave 144");
  CHECK(of(256, "m64n64s2qr0").find("takes up to 152 columns, this head has 256") != std::string::npos);
  CHECK(of(64, "m128n64s4qr0").find("with 4 stages in three parts needs ") != std::string::npos);
}

TEST_CASE("fp32: CTAs that share out the columns") {
  const auto of = [](int head_dim, const std::string& schedule) {
    return reason({.dtype = DType::fp32, .head_dim = head_dim}, schedule);
  };
  CHECK(of(256, "m128n64s1qr2op0pp0ov0p0sp2") == "");
  CHECK(of(256, "m128n64s1qr2op0pp0ov0p0sp3") == "splits is 3, fp32 may have 1 or 2");
  CHECK(of(256, "m128n64s1qr2op0pp0ov0p0cl2sp2") ==
        "splits 2 and cluster 2 are two uses of clusters; leave one of them at 1");
  CHECK(of(72, "m128n64s1qr2op0pp0ov0p0sp2") ==
        "splits 2 halves the columns: head_dim must be a multiple of 16, it is 72");
  CHECK(reason({.dtype = DType::fp32, .head_dim = 64, .head_dim_v = 72}, "m128n64s1qr2op0pp0ov0p0sp2") ==
        "splits 2 halves the columns: head_dim_v must be a multiple of 16, it is 72");
  CHECK(of(256, "m128n80s1qr2op0pp0ov0p0sp2").find("takes up to 192 columns, this head has 256") !=
        std::string::npos);
  CHECK(of(256, "m128n80s1qr2op0pp0ov0p0sp2pt1").find("needs 257 KB") != std::string::npos);
}

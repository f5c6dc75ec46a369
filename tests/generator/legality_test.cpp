// legal(): which families and schedules may serve a problem, and the sentences for those that may not.
#include <doctest/doctest.h>

#include "flashjit/error.hpp"
#include "generator/render.hpp"
#include "tests/generator/legality.hpp"

using namespace flashjit;
using flashjit::test::kBf16;
using flashjit::test::kFp16;
using flashjit::test::kFp32;
using flashjit::test::reason;

namespace {

constexpr const char* kArchs[] = {"sm_75",  "sm_80",  "sm_86",  "sm_87",  "sm_88",  "sm_89", "sm_90",
                                  "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"};

}  // namespace

TEST_CASE("which family serves which dtype where") {
  for (const char* arch : kArchs) {
    CAPTURE(arch);
    const Target target = target_of(arch);
    CHECK(legal(kFp32, Family::simt, target));
    CHECK(bool(legal(kFp32, Family::mma, target)) == (target.capability >= 80));
    CHECK_FALSE(legal(kFp16, Family::simt, target));
    CHECK(legal(kFp16, Family::mma, target));
    CHECK(bool(legal(kBf16, Family::mma, target)) == (target.capability >= 80));
    CHECK(bool(legal(kBf16, Family::wgmma, target)) == (target.arch == "sm_90a"));
  }
}

TEST_CASE("a family that cannot says why, and the way out") {
  const auto sentence = [](const Problem& problem, Family family, const char* arch) {
    return legal(problem, family, target_of(arch)).reason;
  };
  CHECK(sentence(kBf16, Family::mma, "sm_75") ==
        "bf16 needs tensor cores of sm_80 or later, this is sm_75; use dtype fp16");
  CHECK(sentence(kFp32, Family::mma, "sm_75") ==
        "family mma computes fp32 by products of bf16, which came with sm_80, this is sm_75; use simt");
  Problem narrow = kFp32;
  narrow.head_dim = 16;
  CHECK(
      sentence(narrow, Family::mma, "sm_80") ==
      "family mma computes fp32 from head_dim 24 on, narrower ones less precisely than FMA does, this is 16; "
      "use simt");
  Problem gradients = kFp32;
  gradients.pass = Pass::backward;
  CHECK(sentence(gradients, Family::mma, "sm_75") ==
        "family mma computes fp32 by products of bf16, which came with sm_80, this is sm_75; use simt");
  CHECK(sentence(narrow, Family::wgmma, "sm_90a") ==
        "family wgmma computes fp32 from head_dim 24 on, narrower ones less precisely than FMA does, this is "
        "16; use simt");
  CHECK(sentence(gradients, Family::wgmma, "sm_90a").empty());
  gradients.head_dim_v = 136;
  CHECK(sentence(gradients, Family::wgmma, "sm_90a") ==
        "family wgmma computes gradients of fp32 up to head_dim 128, this is 136; use mma or simt");
  CHECK(sentence(kBf16, Family::simt, "sm_80") ==
        "family simt computes in fp32 only, dtype is bf16; use mma, or dtype fp32");
  CHECK(sentence(kBf16, Family::wgmma, "sm_90") ==
        "family wgmma needs sm_90a (Hopper), this is sm_90; use sm_90a, or mma");
  CHECK(sentence(kBf16, Family::wgmma, "sm_100") ==
        "family wgmma needs sm_90a (Hopper), this is sm_100; use mma");
}

TEST_CASE("the family's sentence comes before the schedule's") {
  CHECK(reason(kBf16, "mma:m128n256w4s4", "sm_75") == legal(kBf16, Family::mma, target_of("sm_75")).reason);
}

TEST_CASE("shared memory: how much is needed and how much there is") {
  CHECK(reason(kFp32, "simt:m128n64w4s2", "sm_80").empty());
  CHECK(reason(kFp32, "simt:m128n64w4s2", "sm_75") ==
        "tile 128x64 with 2 stages needs 91 KB of shared memory, sm_75 gives 64 KB");
  const Problem wide{.dtype = DType::fp16, .head_dim = 256};
  CHECK(reason(wide, "mma:m128n64w4s3", "sm_86").find("of shared memory, sm_86 gives 99 KB") !=
        std::string::npos);
  CHECK(reason(wide, "wgmma:m128n256s4re0", "sm_90a").find("needs ") != std::string::npos);
}

TEST_CASE("one CTA per multiprocessor is the default, and has one name") {
  CHECK(reason(kFp32, "simt:m64n32w4s2c1", "sm_80") == "min_ctas 1 is what 0 says, too; leave it at 0");
  CHECK(reason(kBf16, "mma:m128n64w4s2c1", "sm_80") ==
        "min_ctas 1 makes no difference to this tile; leave it at 0");
  // Where the loop leaves no room for two, 0 says nothing to ptxas.
  CHECK(reason(Problem{.dtype = DType::bf16, .head_dim = 96}, "mma:m128n64w4s2c1", "sm_80") == "");
}

TEST_CASE("simt: what does not divide is said") {
  CHECK(reason(kFp32, "simt:m64n32w4s2l5", "sm_80") == "lanes is 5, may be 4, 8 or 16");
  CHECK(reason(Problem{.dtype = DType::fp32, .head_dim = 24}, "simt:m64n32w4s2l16", "sm_80") ==
        "16 lanes cannot share 24 value columns evenly; use 8 or 4");
  CHECK(reason(kFp32, "simt:m72n32w4s2", "sm_80") ==
        "4 warps with 8 lanes across the keys cover 16 rows at a time: tile_m is 72, may be 1 to 8 times "
        "that");
  CHECK(reason(kFp32, "simt:m64n48w4s2", "sm_80") ==
        "8 lanes across the keys: tile_n is 48, may be 8 times 1, 2, 4 or 8");
  CHECK(reason(kFp32, "simt:m64n128w4s2", "sm_80") ==
        "8 lanes across the keys: tile_n is 128, may be 8 times 1, 2, 4 or 8");
  CHECK(reason(kFp32, "simt:m256n16w4s2", "sm_80") ==
        "4 warps with 8 lanes across the keys cover 16 rows at a time: tile_m is 256, may be 1 to 8 times "
        "that");
  CHECK(reason(Problem{.dtype = DType::fp32, .head_dim = 256}, "simt:m16n16w1s1", "sm_80") ==
        "1 warps copy less than one row of 256 floats at a time, use 2 or more");
}

TEST_CASE("simt: tiles that take all registers spill on some archs") {
  const Problem wide{.dtype = DType::fp32, .head_dim = 128};
  CHECK(reason(wide, "simt:m64n128w4s2l16", "sm_90").empty());
  CHECK(reason(wide, "simt:m64n128w4s2l16", "sm_103") ==
        "tile 64x128 spills a few bytes on sm_103, as compiling it showed");
  CHECK(reason({.dtype = DType::fp32, .head_dim = 64}, "simt:m128n64w4s1", "sm_120") ==
        "tile 128x64 spills a few bytes on sm_120, as compiling it showed");
}

TEST_CASE("there is a legal schedule for every head_dim of every family on every arch it serves") {
  // The smallest tiles of each family; the tuner's own space is tested in its room.
  const auto any = [](const Problem& problem, const Target& target,
                      std::initializer_list<const char*> schedules) {
    for (const char* schedule : schedules) {
      if (legal(problem, parse_schedule(schedule), target)) return true;
    }
    return false;
  };
  for (const char* arch : kArchs) {
    const Target target = target_of(arch);
    for (int dim = 8; dim <= 256; dim += 8) {
      for (const int dim_v : {8, dim, 256}) {
        CAPTURE(target.arch);
        CAPTURE(dim);
        CAPTURE(dim_v);
        const Problem fp32{.dtype = DType::fp32, .head_dim = dim, .head_dim_v = dim_v};
        CHECK(any(fp32, target, {"simt:m32n32w2s2", "simt:m32n16w2s1"}));
        Problem gradients = fp32;
        gradients.pass = Pass::backward;
        CHECK(any(gradients, target, {"simt-backward:m16n16w4dq1", "simt-backward:m8n16w2dq1"}));
        gradients.deterministic = true;
        CHECK(any(gradients, target, {"simt-backward:m16n16w4", "simt-backward:m8n16w2"}));
        Problem half = fp32;
        half.pass = Pass::backward;
        half.dtype = DType::fp16;
        half.deterministic = true;
        CHECK(any(half, target,
                  {"mma-backward:m32n64w8s1", "mma-backward:m16n64w8s1", "mma-backward:m16n32w4s1"}));
        const Problem fp16{.dtype = DType::fp16, .head_dim = dim, .head_dim_v = dim_v};
        CHECK(any(fp16, target,
                  {"mma:m64n64w4s2", "mma:m64n32w4s1kv1", "mma:m64n16w4s1kv1qr1", "mma:m64n16w4s1kv1",
                   "mma:m128n16w8s1kv1"}));
      }
    }
  }
}

TEST_CASE("simt-backward: what does not divide or fit is said") {
  Problem gradients{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 128};
  CHECK(reason(gradients, "simt-backward:m24n32w4", "sm_80") ==
        "4 warps cover 8 rows at a time: tile_m is 24, may be a multiple that divides 128");
  CHECK(reason(gradients, "simt-backward:m32n36w4", "sm_80") == "tile_n is 36, may be a multiple of 8");
  CHECK(
      reason(gradients, "simt-backward:m64n64w4", "sm_80") ==
      "tile 64x64 with 4 warps and head dims 128 and 128 needs about 292 registers a thread, there are 255");
  CHECK(reason(gradients, "simt-backward:m64n64w8", "sm_80") ==
        "tile 64x64 with head dims 128 and 128 needs 172 KB of shared memory, sm_80 gives 163 KB");
  CHECK_THROWS_WITH_AS(parse_schedule("simt-backward:m32n32w4dq2"),
                       doctest::Contains("dq is 2, may be 0 to 1"),
                       Error);  // it cannot order its additions
  gradients.deterministic = true;
  CHECK(reason(gradients, "simt-backward:m32n32w4dq1", "sm_80") ==
        "deterministic gradients forbid atomic additions to dQ (dq1); use dq0");
}

TEST_CASE("a schedule of the other pass is refused") {
  CHECK(reason(kBf16, "mma-backward:m64n64w8s1", "sm_80") ==
        "schedule mma-backward:m64n64w8s1 is for the backward pass, the problem asks for forward");
}

TEST_CASE("backward wgmma in fp32: one tile, whose stages and way to dQ may vary") {
  Problem gradients{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 64};
  CHECK(reason(gradients, "wgmma-backward:m64n64s2", "sm_90a").empty());
  CHECK(reason(gradients, "wgmma-backward:m64n64s1dq0", "sm_90a").empty());
  CHECK(reason(gradients, "wgmma-backward:m64n64s1dq2", "sm_90a") ==
        "fp32 has no fixed order of additions to dQ (dq2); use dq1 or dq0");
  gradients.deterministic = true;
  CHECK(reason(gradients, "wgmma-backward:m64n64s1", "sm_90a") ==
        "deterministic gradients forbid atomic additions to dQ (dq1); use dq0");
  gradients.deterministic = false;
  const std::string own_kernel =
      "fp32 has kernels of its own, where stages and dq may vary; tile_m and tile_n are 64, turns is 0, "
      "splits is 1, staged is 0";
  CHECK(reason(gradients, "wgmma-backward:m64n128s1", "sm_90a") == own_kernel);
  CHECK(reason(gradients, "wgmma-backward:m64n64s1t1", "sm_90a") == own_kernel);
  CHECK(reason(gradients, "wgmma-backward:m64n64s1sp2", "sm_90a") == own_kernel);
  gradients.head_dim = 72;
  CHECK(reason(gradients, "wgmma-backward:m64n64s1", "sm_90a").empty());
  CHECK(reason(gradients, "wgmma-backward:m64n64s2", "sm_90a") ==
        "tile 64x64 with 2 stages in three parts needs 314 KB of shared memory, sm_90a gives 227 KB");
  gradients.dtype = DType::bf16;
  CHECK(reason(gradients, "wgmma-backward:m64n128s1", "sm_90a") == "stages is 1, 16 bits have 2");
}

TEST_CASE("backward wgmma: where a tile's queries can be shared out") {
  Problem gradients{.pass = Pass::backward, .head_dim = 128};
  for (const char* schedule : {"wgmma-backward:m80n128s2t1sp8", "wgmma-backward:m64n128s2sp32"})
    CHECK(reason(gradients, schedule, "sm_90a").empty());
  const std::string refusal =
      "splits is 2, may be more than 1 with tile_n 128, dq1 and a head_dim of 16 or more";
  for (const char* schedule : {"wgmma-backward:m64n128s2dq2sp2", "wgmma-backward:m64n128s2dq0sp2"})
    CHECK(reason(gradients, schedule, "sm_90a") == refusal);
  gradients.head_dim = 256;
  CHECK(reason(gradients, "wgmma-backward:m64n64s2sp2", "sm_90a") == refusal);
  gradients.head_dim = 8;
  CHECK(reason(gradients, "wgmma-backward:m128n128s2sp2", "sm_90a") == refusal);
  gradients.head_dim = 16;
  CHECK(reason(gradients, "wgmma-backward:m128n128s2sp2", "sm_90a").empty());
}

TEST_CASE("backward wgmma: whose dQ leaves through shared memory by choice") {
  Problem gradients{.pass = Pass::backward, .head_dim = 128, .causal = true};
  for (const char* schedule : {"wgmma-backward:m64n128s2st1", "wgmma-backward:m64n128s2t1sp8st1"})
    CHECK(reason(gradients, schedule, "sm_90a").empty());
  CHECK(reason(gradients, "wgmma-backward:m80n128s2st1", "sm_90a") ==
        "staged is 1, may be 1 with tile_m 64, tile_n 128 and dq1, not with 80x128 and dq1");
  CHECK(reason(gradients, "wgmma-backward:m64n128s2dq2st1", "sm_90a") ==
        "staged is 1, may be 1 with tile_m 64, tile_n 128 and dq1, not with 64x128 and dq2");
}

TEST_CASE("backward wgmma: what its tiles of queries need") {
  Problem gradients{.pass = Pass::backward, .head_dim = 128};
  CHECK(reason(gradients, "wgmma-backward:m80n128s2dq2t1", "sm_90a").empty());
  CHECK(reason(gradients, "wgmma-backward:m96n128s2", "sm_90a") == "tile_m is 96, may be 64, 80 or 128");
  CHECK(reason(gradients, "wgmma-backward:m80n128s2dq0", "sm_90a") ==
        "tile_m 80 adds up dQ (dq1, dq2) of head_dim 128, not dq0 of 128");
  gradients.head_dim = 64;
  CHECK(
      reason(gradients, "wgmma-backward:m128n128s2dq0", "sm_90a") ==
      "tile 128x128 needs about 242 registers a thread (dK 32, dV 32, S, P, dP and dQ 128, the rest 50), two "
      "warpgroups leave 240");
  gradients.head_dim = 96;
  CHECK(reason(gradients, "wgmma-backward:m80n128s2", "sm_90a") ==
        "tile_m 80 adds up dQ (dq1, dq2) of head_dim 128, not dq1 of 96");
  CHECK(reason(gradients, "wgmma-backward:m64n64s2dq2", "sm_90a") ==
        "tile_n 64 with dq2 gives each of two CTAs half of dQ's columns, which takes a head_dim above 128, "
        "not 96; use tile_n 128");
  gradients.head_dim = 256;
  CHECK(reason(gradients, "wgmma-backward:m64n64s2", "sm_90a").empty());
  gradients.head_dim = 192;
  gradients.head_dim_v = 128;
  CHECK(reason(gradients, "wgmma-backward:m64n64s2dq2", "sm_90a").empty());
  gradients.head_dim_v = 200;
  CHECK(reason(gradients, "wgmma-backward:m64n64s2", "sm_90a") ==
        "tile_n 64 with dq1 has products of up to 192 columns, or 256 in two halves; head_dim_v is 200; use "
        "dq0");
  // What is recommended is there.
  gradients = {.pass = Pass::backward, .head_dim = 160};
  CHECK(reason(gradients, "wgmma-backward:m64n128s2", "sm_90a") ==
        "tile_m 64 with dq1 gives each of two warpgroups 64 columns of dQ, which takes a head_dim of 65 to "
        "128, not 160; use tile_n 64");
  CHECK(reason(gradients, "wgmma-backward:m64n64s2", "sm_90a").empty());
  gradients.head_dim = 200;
  CHECK(reason(gradients, "wgmma-backward:m64n128s2", "sm_90a") ==
        "tile_m 64 with dq1 gives each of two warpgroups 64 columns of dQ, which takes a head_dim of 65 to "
        "128, not 200; use tile_n 64 with dq0");
  CHECK(reason(gradients, "wgmma-backward:m64n64s2dq0", "sm_90a").empty());
}

TEST_CASE("render throws legal()'s sentence, and validate()'s before it") {
  CHECK_THROWS_WITH_AS(render(kBf16, parse_schedule("mma:m64n64w4s1kv1"), target_of("sm_75")),
                       "bf16 needs tensor cores of sm_80 or later, this is sm_75; use dtype fp16", Error);
  CHECK_THROWS_WITH_AS(render(Problem{.head_dim = 12}, parse_schedule("mma"), target_of("sm_80")),
                       "head_dim is 12, may be a multiple of 8 from 8 to 256", Error);
}

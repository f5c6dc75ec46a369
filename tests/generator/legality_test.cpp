// legal(): which families and schedules may serve a problem, and the sentences for those that may not.
#include <doctest/doctest.h>

#include "flashjit/error.hpp"
#include "generator/legality.hpp"
#include "generator/render.hpp"

using namespace flashjit;

namespace {

constexpr const char* kArchs[] = {"sm_75",  "sm_80",  "sm_86",  "sm_87",  "sm_88",  "sm_89", "sm_90",
                                  "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"};

std::string reason(const Problem& problem, const std::string& schedule, const std::string& arch) {
  return legal(problem, parse_schedule(schedule), target_of(arch)).reason;
}

constexpr Problem kFp32{.dtype = DType::fp32, .head_dim = 64};
constexpr Problem kFp16{.dtype = DType::fp16, .head_dim = 64};
constexpr Problem kBf16{.dtype = DType::bf16, .head_dim = 64};

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
  CHECK(sentence(gradients, Family::wgmma, "sm_90a") ==
        "family wgmma computes gradients of fp16 and bf16, dtype is fp32; use mma or simt");
  CHECK(sentence(kBf16, Family::simt, "sm_80") ==
        "family simt computes in fp32 only, dtype is bf16; use mma, or dtype fp32");
  CHECK(sentence(kBf16, Family::wgmma, "sm_90") ==
        "family wgmma needs sm_90a (Hopper), this is sm_90; use mma");
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
        "16 lanes cannot share 24 value columns evenly");
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

TEST_CASE("mma-backward: fp32 has tiles of its own") {
  const Problem gradients{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 128};
  CHECK(reason(gradients, "mma-backward:m32n64w8dq1", "sm_90a").empty());
  CHECK(reason(gradients, "mma-backward:m32n64w8", "sm_90a").empty());
  CHECK(reason(gradients, "mma-backward:m32n64w8s2dq1", "sm_90a") ==
        "fp32 is split on its way through registers, with stages 1");
  CHECK(reason(gradients, "mma-backward:m64n128w8dq1", "sm_90a") ==
        "fp32 has the tiles m32n64w8, m64n64w8, m32n32w4, m64n96w12, m64n32w8sp2, m32n32w8sp2, m32n48w6, "
        "m32n96w12, m16n32w4, m16n16w2, not m64n128w8");
  CHECK(reason(gradients, "mma-backward:m64n64w8dq1", "sm_90a") ==
        "tile 64x64 with 8 warps has registers enough up to head_dim 104, this is 128; it would spill");
  CHECK(reason(gradients, "mma-backward:m32n64w8dq1", "sm_80") ==
        "tile 32x64 in three parts needs 165 KB of shared memory, sm_80 gives 163 KB");
}

TEST_CASE("fp32 gradients: how wide a head may be, and how few threads copy it") {
  const auto gradients = [](int head_dim) {
    return Problem{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = head_dim};
  };
  CHECK(reason(gradients(208), "mma-backward:m32n32w8s1sp2dq0", "sm_90a") == "");
  CHECK(reason(gradients(216), "mma-backward:m32n32w8s1sp2dq0", "sm_90a") ==
        "dq 0 has registers enough up to head_dim 208, this is 216; it would spill");
  CHECK(reason(gradients(216), "mma-backward:m32n32w8s1sp2dq1", "sm_90a") == "");
  CHECK(reason(gradients(104), "mma-backward:m64n64w8dq1", "sm_90a") == "");  // as wide as this tile goes
  CHECK(reason(gradients(256), "simt-backward:m8n8w1", "sm_80") ==
        "1 warps copy less than one row of 256 floats at a time, use 2 or more");
}

TEST_CASE("mma: what does not divide, fit or go together is said") {
  CHECK(reason(kBf16, "mma:m128n72w4s2", "sm_80") == "tile_n is 72, mma needs a multiple of 16");
  CHECK(reason(kBf16, "mma:m144n64w4s2", "sm_80") ==
        "tile_m 144 does not split into multiples of 16 rows for 4 warps");
  CHECK(reason(kBf16, "mma:m64n64w4s2b3", "sm_80") ==
        "tile_n 64 does not split into 3 blocks of a multiple of 16 keys");
  CHECK(reason(kBf16, "mma:m64n64w4s2b2kv1", "sm_80") ==
        "blocks above 1 need kv_apart 0: they read K and V of a tile in turns");
  CHECK(reason(kBf16, "mma:m64n64w4s2b2op1", "sm_80") ==
        "optimistic 1 needs blocks 1: a tile is done again as a whole");
  CHECK(reason(kBf16, "mma:m64n64w4s2op1lz0", "sm_80") ==
        "optimistic 1 needs lazy above 0: it lets exponentials grow before it looks");
  CHECK(reason(kFp16, "mma:m64n64w4s2lz16", "sm_80") ==
        "lazy is 16, fp16 needs 15 or less: exponentials grow to 2^lazy, and it ends at 65504");
  for (const char* schedule : {"mma:m64n64w4s2kv1", "mma:m64n64w4s1"}) {
    CHECK(reason(kFp16, schedule, "sm_75") ==
          "sm_75 has no cp.async: copies go through registers, with stages 1 and kv_apart 1 only");
  }
  CHECK(reason(kBf16, "mma:m64n64w4s1", "sm_80") ==
        "one stage needs kv_apart 1, so that V is copied beside the first product");
  for (const char* knob : {"qr1", "op1", "u2"}) {
    CHECK(reason({.head_dim = 256}, std::string("mma:m128n128w8s1kv1p1") + knob, "sm_90a") ==
          "persistent 1 needs stages 1, q_in_regs 0, optimistic 0 and unroll 1");
  }
  CHECK(reason(kBf16, "mma:m256n16w16s2c4", "sm_86") ==
        "4 CTAs of 512 threads are more than the 1536 threads of a multiprocessor of sm_86");
  // All 64 KB may be used; but of a multiprocessor's 100 KB a CTA has 99. Of 228 KB a CTA takes one beside
  // what it asks for, so two of 114 do not fit.
  CHECK(reason({.dtype = DType::fp16, .head_dim = 128}, "mma:m128n64w8s1kv1", "sm_75") == "");
  CHECK(reason({.head_dim = 80}, "mma:m128n128w8s2", "sm_86") ==
        "tile 128x128 with 2 stages needs 100 KB of shared memory, sm_86 gives 99 KB");
  CHECK(reason({.head_dim = 192}, "mma:m128n48w8s1kv1p1", "sm_90a") == "");
}

// Of the kernel that the plan spends its time in.
int shared_bytes(const Problem& problem, const char* schedule) {
  const auto kernels = render(problem, parse_schedule(schedule), target_of("sm_90a"));
  return kernels[problem.pass == Pass::forward ? 0 : 1].geometry.shared_bytes;
}

TEST_CASE("simt: shared memory holds Q, P, and K and V in turns or side by side") {
  const int q = 64 * 68, k = 32 * 68, v = 32 * 64, p = 64 * 48;
  CHECK(shared_bytes(kFp32, "simt:m64n32w4s1") == 4 * (q + p + k));
  CHECK(shared_bytes(kFp32, "simt:m64n32w4s2") == 4 * (q + p + k + v));
}

TEST_CASE("mma-backward: shared memory holds K, V and P^T, and stages with the rows' statistics and dS^T") {
  const Problem gradients{.pass = Pass::backward, .head_dim = 64};
  const int tile = 64 * 128, statistics = 64 * 8, scores = 64 * 64 * 2;
  CHECK(shared_bytes(gradients, "mma-backward:m64n64w8s2dq1") ==
        2 * tile + 2 * (2 * tile + statistics) + scores + 2 * scores);
  CHECK(shared_bytes(gradients, "mma-backward:m64n64w8s1sp2") == 4 * tile + statistics + 2 * scores);
  CHECK(shared_bytes(gradients, "mma-backward:m64n64w8s1") == 4 * tile + statistics + scores);
}

TEST_CASE("mma: shared memory holds Q, K and V, and then O") {
  CHECK(shared_bytes(kBf16, "mma:m64n64w4s2") == 64 * 128 + 2 * 2 * 64 * 128);
  CHECK(shared_bytes(kBf16, "mma:m128n64w8s2qr1kv1") == 3 * 64 * 128 + 128 * 128);  // Q in the last V's place
  CHECK(shared_bytes({.head_dim = 64, .head_dim_v = 256}, "mma:m64n16w4s1kv1") == 64 * 512);
  CHECK(shared_bytes({.head_dim = 192}, "mma:m128n48w8s1kv1p1") == (48 + 128 + 128) * 384);  // O in V's place
}

TEST_CASE("mma: fp32 is split, by tiles of its own") {
  CHECK(reason(kFp32, "mma:m64n32w4s1kv1", "sm_80") == "");
  CHECK(reason(kFp32, "mma:m64n24w4s1kv1", "sm_80") == "tile_n is 24, mma needs a multiple of 16");
  CHECK(reason(kFp32, "mma:m128n32w4s1kv1", "sm_80") ==
        "tile_m is 128, fp32 needs 16 rows for each warp, 64 of 4");
  CHECK(reason(kFp32, "mma:m64n48w4s1kv1", "sm_80") ==
        "tile_n is 48, fp32 needs 4 warps' threads to divide into rows of that many");
  CHECK(reason(kFp32, "mma:m64n64w4s1kv1qr1", "sm_80") ==
        "fp32 is split on its way through registers, with stages 1 and kv_apart 1; q_in_regs, optimistic and "
        "persistent 0, blocks and unroll 1");
  CHECK(reason({.dtype = DType::fp32, .head_dim = 256}, "mma:m64n32w4s1kv1", "sm_86") ==
        "tile 64x32 in three parts needs 192 KB of shared memory, sm_86 gives 99 KB");
  CHECK(reason({.dtype = DType::fp32, .head_dim = 24}, "mma:m64n32w4s1kv1", "sm_80") == "");  // none narrower
}

TEST_CASE("a schedule of the other pass is refused") {
  CHECK(reason(kBf16, "mma-backward:m64n64w8s1", "sm_80") ==
        "schedule mma-backward:m64n64w8s1 is for the backward pass, the problem asks for forward");
}

TEST_CASE("mma: a CTA stays on its multiprocessor where it is alone there and tiles are of one length") {
  const Problem wide{.head_dim = 256};
  CHECK(reason(wide, "mma:m128n128w8s1kv1p1", "sm_90a").empty());
  CHECK(reason(Problem{.head_dim = 256, .causal = true}, "mma:m128n128w8s1kv1p1", "sm_90a") ==
        "persistent 1 is for full attention: causal tiles differ in length");
  CHECK(reason(wide, "mma:m64n64w4s2p1", "sm_90a") ==
        "persistent 1 needs stages 1, q_in_regs 0, optimistic 0 and unroll 1");
  CHECK(
      reason({.head_dim = 64}, "mma:m128n128w8s2op1lz5", "sm_90a") ==
      "optimistic 1 sums up 32 exponentials before it looks; 2^lazy must be at least twice that, lazy is 5");
  CHECK(reason({.head_dim = 64}, "mma:m128n128w8s2op1lz6", "sm_90a").empty());
  CHECK(
      reason(kFp16, "mma:m128n128w8s2op1lz5", "sm_90a") ==
      "optimistic 1 sums up 32 exponentials before it looks; 2^lazy must be at least twice that, lazy is 5");
  CHECK(reason(Problem{.dtype = DType::fp16, .head_dim = 256}, "mma:m128n16w8s1kv1p1", "sm_75") ==
        "persistent 1 needs cp.async, sm_75 has none");
  CHECK(reason(wide, "mma:m64n64w4s1kv1p1", "sm_90a") ==
        "persistent 1 is for a CTA that has the multiprocessor to itself, 96 KB of shared memory let two "
        "share it");
  CHECK(reason(wide, "mma:m64n64w4s1kv1p1", "sm_80").empty());
}

TEST_CASE("mma-backward: what does not divide or fit is said") {
  Problem gradients{.pass = Pass::backward, .dtype = DType::bf16, .head_dim = 256};
  CHECK(reason(gradients, "mma-backward:m64n64w8s2sp2dq1", "sm_90a").empty());
  CHECK(reason(gradients, "mma-backward:m64n64w3", "sm_90a") ==
        "warps is 3, backward mma needs pairs of them");
  CHECK(reason(gradients, "mma-backward:m48n64w4", "sm_90a") ==
        "tile_m is 48, backward mma needs 16, 32, 64 or 128");
  CHECK(reason(gradients, "mma-backward:m64n80w8", "sm_90a") ==
        "tile_n 80 does not split into multiples of 16 keys for 4 pairs of warps");
  CHECK(reason(gradients, "mma-backward:m64n96w8", "sm_90a") ==
        "tile_n 96 does not split into multiples of 16 keys for 4 pairs of warps");
  CHECK(reason(gradients, "mma-backward:m64n64w8s2dq1", "sm_80") ==
        "tile 64x64 with 2 stages needs 217 KB of shared memory, sm_80 gives 163 KB");
  CHECK(reason(gradients, "mma-backward:m64n64w4s1dq1", "sm_90a") ==
        "tile 64x64 with 4 warps needs about 448 registers a thread, 255 are there; it would spill");
  CHECK_THROWS_WITH_AS(parse_schedule("mma-backward:m32n32w4dq2"),
                       doctest::Contains("dq is 2, may be 0 to 1"), Error);
  // Two registers too many by the estimate; but ptxas was seen to fit it for Hopper, not for Blackwell.
  gradients.head_dim = 64;
  CHECK(reason(gradients, "mma-backward:m128n128w8s2dq1", "sm_90a").empty());
  CHECK(reason(gradients, "mma-backward:m128n128w8s2dq1", "sm_100") ==
        "tile 128x128 with 8 warps needs about 256 registers a thread, 255 are there; it would spill");
  for (const char* schedule : {"mma-backward:m16n64w4s1sp2", "mma-backward:m64n128w16s1sp2"})
    CHECK(
        reason(gradients, schedule, "sm_90a").starts_with("sharers 2 needs head dims of 32, 64, 128 or 256"));
  gradients.dtype = DType::fp16;
  CHECK(reason(gradients, "mma-backward:m64n64w8s2", "sm_75") ==
        "sm_75 has no cp.async: copies go through registers, with stages 1 only");
  gradients.head_dim = 96;
  CHECK(reason(gradients, "mma-backward:m64n64w8s2sp2dq1", "sm_90a") ==
        "sharers 2 needs head dims of 32, 64, 128 or 256 (96 and 96), tile_m from 32 on (64) and 4, 8 or 12 "
        "warps (8)");
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
        "tile_n 64 with dq1 has products of up to 192 columns, or 256 in two halves, not 200; use dq0");
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

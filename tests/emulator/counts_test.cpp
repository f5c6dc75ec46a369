// What the real kernels execute, counted: tensor-core work, bytes of device memory, bank conflicts. Through
// the front door, from Problem to launch.
#include <doctest/doctest.h>

#include <string>

#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"
#include "tests/support/gradient_case.hpp"

using namespace flashjit;
using emulator::OpClass;
using emulator::Profile;

namespace {

// Counts of one pass.
Profile profile_of(const std::string& arch, const std::string& schedule, const Problem& problem,
                   const Shape& shape) {
  auto [engine, device] = test::open_emulated_engine({.arch = arch, .counts = true});
  const test::AttentionCase one{.problem = problem, .shape = shape};
  const autotune::Check check = problem.pass == Pass::backward
                                    ? test::Gradients(one).run(engine, {.schedule = schedule}, false).check
                                    : test::Attention(one).run(engine, {.schedule = schedule});
  CHECK_MESSAGE(check.ok, check.message);
  return device->profile();
}

// Bytes of the tensors of a 16-bit problem (of fp32 ones, twice that).
struct Bytes {
  std::uint64_t q, k, v, o, lse;
};
Bytes bytes_of(const Problem& problem, const Shape& shape) {
  const auto size = static_cast<std::uint64_t>(size_of(problem.dtype));
  const auto rows = [&](int seqlen, int heads, int dim) {
    return static_cast<std::uint64_t>(shape.batch) * static_cast<std::uint64_t>(seqlen) *
           static_cast<std::uint64_t>(heads) * static_cast<std::uint64_t>(dim);
  };
  return {.q = size * rows(shape.seqlen_q, shape.heads, problem.head_dim),
          .k = size * rows(shape.seqlen_k, shape.kv_heads(), problem.head_dim),
          .v = size * rows(shape.seqlen_k, shape.kv_heads(), problem.value_dim()),
          .o = size * rows(shape.seqlen_q, shape.heads, problem.value_dim()),
          .lse = 4 * rows(shape.seqlen_q, shape.heads, 1)};
}

constexpr Problem kFull{.head_dim = 64};
constexpr Problem kCausal{.head_dim = 64, .causal = true};
constexpr Problem kFp32{.dtype = DType::fp32, .head_dim = 64};
constexpr Shape kSquare{.batch = 1, .heads = 2, .heads_kv = 2, .seqlen_q = 512, .seqlen_k = 512};
constexpr std::uint64_t kTilesM128 = 4, kTilesM64 = 8;

// Two products of seqlen_q x seqlen_k x head_dim a head, two operations each.
constexpr std::uint64_t kFlops = 2ull * 2 * 512 * 512 * 64 * 2;

}  // namespace

TEST_CASE("mma: Q is read once, K and V once per tile of queries, O and LSE written once") {
  for (const char* schedule :
       {"mma:m128n64w4s2", "mma:m128n64w8s3", "mma:m128n32w4s2kv1", "mma:m128n64w4s1qr1kv1"}) {
    CAPTURE(std::string(schedule));
    const Profile profile = profile_of("sm_80", schedule, kFull, kSquare);
    const Bytes bytes = bytes_of(kFull, kSquare);
    CHECK(profile.global_bytes_read == bytes.q + kTilesM128 * (bytes.k + bytes.v));
    CHECK(profile.global_bytes_written == bytes.o + bytes.lse);
    CHECK(profile.tensor_flops == kFlops);
    CHECK(profile.ctas == 2 * kTilesM128);
  }
}

TEST_CASE("mma: no bank conflict, whatever the head dim") {
  for (const int head_dim : {16, 32, 40, 64, 72, 80, 96, 128, 136, 192, 256}) {
    CAPTURE(head_dim);
    const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 70, .seqlen_k = 100};
    const Problem problem{.dtype = DType::fp16, .head_dim = head_dim};
    CHECK(profile_of("sm_80", "mma:m64n32w4s2", problem, shape).bank_conflicts == 0);
  }
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 70, .seqlen_k = 100};
  const Problem two_dims{.dtype = DType::fp16, .head_dim = 64, .head_dim_v = 96, .causal = true};
  CHECK(profile_of("sm_80", "mma:m64n32w4s2kv1", two_dims, shape).bank_conflicts == 0);
  CHECK(profile_of("sm_75", "mma:m64n32w4s1kv1", two_dims, shape).bank_conflicts == 0);
}

TEST_CASE("causal visits half of the tiles, and those on the diagonal") {
  // Of n x n tiles, n (n + 1) / 2; half of a diagonal tile's warps see none of the second half of its keys.
  const Profile profile = profile_of("sm_80", "mma:m64n64w4s2", kCausal, kSquare);
  const std::uint64_t tiles = kTilesM64 * (kTilesM64 + 1) / 2;
  CHECK(profile.tensor_flops == kFlops * (4 * tiles - kTilesM64) / (4 * kTilesM64 * kTilesM64));
  const Bytes bytes = bytes_of(kCausal, kSquare);
  CHECK(profile.global_bytes_read == bytes.q + tiles * (bytes.k + bytes.v) / kTilesM64);
  const Profile wgmma = profile_of("sm_90a", "wgmma:m64n64s2pp0", kCausal, kSquare);
  CHECK(wgmma.tensor_flops == kFlops * tiles / (kTilesM64 * kTilesM64));
}

TEST_CASE(
    "backward: five products in one pass, seven in two; causal does half, and what is on the diagonal") {
  struct Way {
    const char *arch, *schedule;
    int head_dim;
    std::uint64_t products, tile_n;  // queries come by 64
  };
  for (const Way& way : {Way{"sm_80", "mma-backward:m64n64w4s2dq1", 64, 5, 64},
                         Way{"sm_90a", "wgmma-backward:m64n64s2dq0", 64, 7, 64},
                         Way{"sm_90a", "wgmma-backward:m64n64s2", 256, 5, 128}}) {
    CAPTURE(std::string(way.schedule));
    Problem problem{.pass = Pass::backward, .head_dim = way.head_dim};
    const std::uint64_t product = kFlops / 2 * static_cast<std::uint64_t>(way.head_dim) / 64;
    CHECK(profile_of(way.arch, way.schedule, problem, kSquare).tensor_flops == way.products * product);
    problem.causal = true;
    // Of n tiles of keys, the k-th is seen by all queries from its own first one on.
    const std::uint64_t n = 512 / way.tile_n;
    CHECK(profile_of(way.arch, way.schedule, problem, kSquare).tensor_flops ==
          way.products * product * (n + 1) / (2 * n));
  }
}

TEST_CASE("wgmma: TMA reads Q once, K and V once per tile of queries; no bank conflict") {
  for (const char* schedule : {"wgmma:m128n64s2", "wgmma:m128n128s2p2", "wgmma:m128n64s2qr0o0"}) {
    CAPTURE(std::string(schedule));
    const Profile profile = profile_of("sm_90a", schedule, kFull, kSquare);
    const Bytes bytes = bytes_of(kFull, kSquare);
    // A tile counter, where tiles are dealt out dynamically, is a few bytes a tile.
    CHECK(profile.global_bytes_read >= bytes.q + kTilesM128 * (bytes.k + bytes.v));
    CHECK(profile.global_bytes_read <= bytes.q + kTilesM128 * (bytes.k + bytes.v) + 1024);
    CHECK(profile.global_bytes_written >= bytes.o + bytes.lse);
    CHECK(profile.global_bytes_written <= bytes.o + bytes.lse + 1024);
    CHECK(profile.tensor_flops == kFlops);
    CHECK(profile.bank_conflicts == 0);
  }
}

TEST_CASE("simt: no tensor core, Q once, K and V once per tile of queries; no bank conflict") {
  for (const char* schedule : {"simt:m64n64w4s2", "simt:m64n32w4s1"}) {
    CAPTURE(std::string(schedule));
    const Profile profile = profile_of("sm_86", schedule, kFp32, kSquare);
    const Bytes bytes = bytes_of(kFp32, kSquare);
    CHECK(profile.count(OpClass::tensor) == 0);
    CHECK(profile.global_bytes_read == bytes.q + kTilesM64 * (bytes.k + bytes.v));
    CHECK(profile.global_bytes_written == bytes.o + bytes.lse);
    CHECK(profile.bank_conflicts == 0);
    // Every multiply-add of both products is one lane of an instruction; the first of a sum needs no add.
    const std::uint64_t products = profile.by_opcode.at("fma.rn.f32") + profile.by_opcode.at("mul.f32");
    CHECK(32 * products >= kFlops / 2);
    CHECK(32 * products <= kFlops / 2 + kFlops / 20);
  }
}

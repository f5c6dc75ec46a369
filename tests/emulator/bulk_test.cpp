// Bulk copies, each through a kernel of a few lines.
#include <doctest/doctest.h>

#include <bit>

#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

TEST_CASE("bulk copies: from global, back with and without addition") {
  const std::string body = R"(
setp.ne.s32 %p1, %r30, 0;
@%p1 bra DONE;
mbarrier.init.shared::cta.b64 [%r29], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r29], 64;
add.s32 %r1, %r29, 64;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d30], 64, [%r29];
LOOP: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r29], 0;
@!%p2 bra LOOP;
cp.async.bulk.global.shared::cta.bulk_group [%d31], [%r1], 64;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d31], [%r1], 64;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
)";
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Bench bench({.threads = 32, .shared = 256, .seed = seed});
    std::vector<std::uint32_t> in(16);
    for (std::size_t k = 0; k < in.size(); ++k) in[k] = std::bit_cast<std::uint32_t>(static_cast<float>(k));
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), in, 16);
    for (std::size_t k = 0; k < in.size(); ++k)
      CHECK(std::bit_cast<float>(out[k]) == 2.0f * static_cast<float>(k));
  }
}

TEST_CASE("a bulk copy that adds floats has no subnormal numbers") {
  const std::string body = R"(
setp.ne.s32 %p1, %r30, 0;
@%p1 bra DONE;
ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d30];
st.global.v4.u32 [%d31], {%r1, %r1, %r2, %r2};
st.shared.v4.u32 [%r29], {%r1, %r2, %r2, %r3};
fence.proxy.async.shared::cta;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d31], [%r29], 16;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
)";
  constexpr std::uint32_t kLeast = 0x00800000, kNegative = 0x80000000;  // the smallest normal number
  Bench bench({.threads = 32, .shared = 16});
  const std::vector<std::uint32_t> out =
      bench.run(kernel_text(body), {3, kLeast, kNegative | (kLeast + 1), 0}, 4);
  CHECK(out[0] == 0);
  CHECK(out[1] == kLeast);
  CHECK(out[2] == 2 * kLeast);
  CHECK(out[3] == kNegative);
}

TEST_CASE("a bulk store that has read may write later") {
  const std::string body = R"(
setp.ne.s32 %p1, %r30, 0;
@%p1 bra DONE;
mov.u32 %r1, 7;
st.shared.v4.b32 [%r29], {%r1, %r1, %r1, %r1};
fence.proxy.async.shared::cta;
cp.async.bulk.global.shared::cta.bulk_group [%d30], [%r29], 16;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
ld.global.b32 %r2, [%d30];
st.global.b32 [%d31], %r2;
st.shared.v4.b32 [%r29], {%r2, %r2, %r2, %r2};
cp.async.bulk.wait_group 0;
ld.global.b32 %r2, [%d30];
st.global.b32 [%d31+4], %r2;
DONE:
)";
  int early = 0, late = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Bench bench({.threads = 32, .shared = 256, .seed = seed});
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {1, 1, 1, 1}, 2);
    CHECK(out[1] == 7);
    ++(out[0] == 7 ? early : late);
  }
  CHECK(early > 0);
  CHECK(late > 0);
}

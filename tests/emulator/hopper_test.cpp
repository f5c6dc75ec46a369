// Clusters and wgmma, each through a kernel of a few lines.
#include <doctest/doctest.h>

#include <bit>
#include <numeric>

#include "emulator/exec/half.hpp"
#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

TEST_CASE("a cluster: ranks, remote arrival, multicast and remote loads") {
  // CTA 0 multicasts to both; each tells the other's mbarrier that it has read; then each reads the other's
  // memory.
  const std::string body = R"(
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r2, %cluster_nctarank;
add.s32 %r3, %r29, 64;
add.s32 %r4, %r29, 8;
setp.eq.s32 %p1, %r30, 0;
@!%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r29], 1;
mbarrier.init.shared::cta.b64 [%r4], 1;
fence.mbarrier_init.release.cluster;
READY:
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
setp.ne.s32 %p2, %r1, 0;
@!%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r29], 128;
@%p2 bra WAIT;
mov.b16 %h1, 3;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%d30], 128, [%r29], %h1;
WAIT:
bar.warp.sync 0xffffffff;
LOOP: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r29], 0;
@!%p3 bra LOOP;
xor.b32 %r5, %r1, 1;
shl.b32 %r6, %r30, 2;
add.s32 %r6, %r6, %r3;
ld.shared.u32 %r7, [%r6];
bar.warp.sync 0xffffffff;
mapa.shared::cluster.u32 %r8, %r4, %r5;
@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];
LOOP2: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r4], 0;
@!%p3 bra LOOP2;
mad.lo.s32 %r9, %r1, 1000, %r7;
st.shared.u32 [%r6+256], %r9;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
mapa.shared::cluster.u32 %r10, %r6, %r5;
ld.shared::cluster.u32 %r11, [%r10+256];
mul.lo.s32 %r12, %r1, 128;
add.s32 %r12, %r12, %r6;
sub.s32 %r12, %r12, %r3;
cvt.u64.u32 %d1, %r12;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r11;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
)";
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    Bench bench({.grid = 2, .threads = 32, .shared = 1024, .cluster = 2, .seed = seed});
    std::vector<std::uint32_t> in(32);
    std::iota(in.begin(), in.end(), 5u);
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), in, 64);
    for (std::uint32_t k = 0; k < 32; ++k) {
      CHECK(out[k] == 1005 + k);
      CHECK(out[32 + k] == 5 + k);
    }
  }
}

TEST_CASE("a cluster's barrier waits for all threads that have not exited, however they arrive") {
  // Of each CTA, warp 0 arrives and exits, warp 1 exits but for lanes that arrive apart from each other and
  // wait together, and warp 2 is late.
  const std::string body = R"(
shl.b32 %r1, %r27, 2;
add.s32 %r1, %r29, %r1;
mov.u32 %r2, %cluster_ctarank;
xor.b32 %r3, %r2, 1;
mapa.shared::cluster.u32 %r3, %r1, %r3;
setp.eq.s32 %p1, %r28, 1;
setp.eq.s32 %p2, %r28, 2;
@%p2 bra LATE;
@%p1 bra APART;
barrier.cluster.arrive;
exit;
APART:
setp.ge.u32 %p3, %r27, 24;
@%p3 exit;
setp.lt.u32 %p4, %r27, 8;
@%p4 bra FIRST;
barrier.cluster.arrive.release;
bra TOGETHER;
FIRST:
barrier.cluster.arrive.release;
TOGETHER:
barrier.cluster.wait.acquire;
ld.shared::cluster.u32 %r4, [%r3];
mad.lo.s32 %r5, %r2, 32, %r27;
mul.wide.u32 %d1, %r5, 4;
add.s64 %d1, %d31, %d1;
st.global.u32 [%d1], %r4;
bra LAST;
LATE:
mov.b32 %r6, 0;
LOOP: add.s32 %r6, %r6, 1;
setp.lt.s32 %p5, %r6, 3000;
@%p5 bra LOOP;
mad.lo.s32 %r7, %r2, 100, %r27;
st.shared.u32 [%r1], %r7;
barrier.cluster.arrive;
barrier.cluster.wait;
LAST:
barrier.cluster.arrive;
barrier.cluster.wait;
)";
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    Bench bench({.grid = 2, .threads = 96, .shared = 1024, .cluster = 2, .seed = seed});
    const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 64);
    for (std::uint32_t lane = 0; lane < 24; ++lane) {
      CHECK(out[lane] == 100 + lane);
      CHECK(out[32 + lane] == lane);
    }
  }
}

TEST_CASE("isspacep tells a CTA's own shared memory from its cluster's, and constants from other memory") {
  const std::string body = R"(
cvt.u64.u32 %d1, %r29;
cvta.shared.u64 %d1, %d1;
mov.u32 %r1, %cluster_ctarank;
xor.b32 %r1, %r1, 1;
mapa.u64 %d2, %d1, %r1;
mov.u64 %d3, five;
cvta.const.u64 %d3, %d3;
isspacep.shared::cta %p1, %d1;
isspacep.shared::cluster %p2, %d1;
isspacep.shared::cta %p3, %d2;
isspacep.shared::cluster %p4, %d2;
isspacep.const %p5, %d3;
isspacep.const %p6, %d31;
isspacep.global %p7, %d31;
mov.b32 %r2, 0;
@%p1 or.b32 %r2, %r2, 1;
@%p2 or.b32 %r2, %r2, 2;
@%p3 or.b32 %r2, %r2, 4;
@%p4 or.b32 %r2, %r2, 8;
@%p5 or.b32 %r2, %r2, 16;
@%p6 or.b32 %r2, %r2, 32;
@%p7 or.b32 %r2, %r2, 64;
st.global.u32 [%d31], %r2;
)";
  Bench bench({.grid = 2, .threads = 1, .shared = 64, .cluster = 2});
  const std::string outer = ".global .b32 four = 4;\n.const .b32 five = 5;\n";
  CHECK(bench.run(kernel_text(body, "sm_90a", outer), {0}, 1).front() == 1 + 2 + 8 + 16 + 64);
}

TEST_CASE("wgmma against a plain product: K-major and MN-major, A from shared memory and registers") {
  // A (64 x 16) and B (n 32 x k 16, or k 16 x n 64) lie as TMA would put them, 128-byte swizzle.
  constexpr std::size_t kTile = std::size_t{64} * 64;
  auto value = [](int seed, int r, int c) { return static_cast<float>((r * 7 + c * 3 + seed) % 11 - 5); };
  for (bool transposed : {false, true}) {
    for (bool registers : {false, true}) {
      CAPTURE(transposed);
      CAPTURE(registers);
      const int columns = transposed ? 64 : 32;
      std::vector<std::uint16_t> a(kTile), b(kTile);
      auto put = [](std::vector<std::uint16_t>& to, int row, int column, float x) {
        int at = row * 128 + column * 2;
        at ^= ((at >> 7) & 7) << 4;
        to[static_cast<std::size_t>(at) / 2] = static_cast<std::uint16_t>(bf16_of_float(x));
      };
      for (int r = 0; r < 64; ++r) {
        for (int k = 0; k < 16; ++k) put(a, r, k, value(1, r, k));
      }
      for (int k = 0; k < 16; ++k) {
        for (int n = 0; n < columns; ++n)
          transposed ? put(b, k, n, value(2, k, n)) : put(b, n, k, value(2, k, n));
      }
      std::vector<std::uint32_t> in(kTile);
      std::memcpy(in.data(), a.data(), a.size() * 2);
      std::memcpy(in.data() + a.size() / 2, b.data(), b.size() * 2);
      std::string list = "{", stores;
      for (int k = 0; k < columns / 2; ++k) {
        list += fmt::format("{}%f{}", k == 0 ? "" : ", ", k);
        stores += fmt::format("st.global.f32 [%d3+{}], %f{};\n", 4 * k, k);
      }
      list += "}";
      const std::string fragments = registers ? R"(
shl.b32 %r6, %r28, 11;
add.s32 %r6, %r29, %r6;
and.b32 %r7, %r27, 15;
shl.b32 %r8, %r7, 7;
add.s32 %r6, %r6, %r8;
shr.u32 %r9, %r27, 4;
and.b32 %r10, %r7, 7;
xor.b32 %r9, %r9, %r10;
shl.b32 %r9, %r9, 4;
add.s32 %r6, %r6, %r9;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r40, %r41, %r42, %r43}, [%r6];
)"
                                              : "";
      const std::string product = fmt::format(
          "wgmma.mma_async.sync.aligned.m64n{}k16.f32.bf16.bf16 {}, {}, %d2, %p1, 1, 1, {}{};", columns, list,
          registers ? "{%r40, %r41, %r42, %r43}" : "%d1", registers ? "" : "0, ", transposed ? 1 : 0);
      const std::string body = fmt::format(R"(
setp.ge.s32 %p20, %r30, 128;
@%p20 bra END;
mul.wide.u32 %d1, %r30, 128;
add.s64 %d1, %d30, %d1;
shl.b32 %r1, %r30, 7;
add.s32 %r1, %r29, %r1;
mov.b32 %r5, 0;
COPY:
ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d1];
st.shared.v4.u32 [%r1], {{%r10, %r11, %r12, %r13}};
add.s64 %d1, %d1, 16;
add.s32 %r1, %r1, 16;
add.s32 %r5, %r5, 1;
setp.lt.s32 %p2, %r5, 8;
@%p2 bra COPY;
fence.proxy.async.shared::cta;
bar.sync 1, 128;
{}
shr.u32 %r2, %r29, 4;
cvt.u64.u32 %d1, %r2;
or.b64 %d1, %d1, 0x4000004000010000;
add.s64 %d2, %d1, 512;
setp.ne.b32 %p1, 0, 0;
wgmma.fence.sync.aligned;
{}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mul.wide.u32 %d3, %r30, {};
add.s64 %d3, %d31, %d3;
{}
END:
)",
                                           fragments, product, 4 * columns / 2, stores);
      // The product is the same in a cluster of as many warps as can be, without order among them, and
      // without any check.
      for (const auto& [ctas, checks] : {std::pair{1u, Checks::all}, std::pair{16u, Checks::all},
                                         std::pair{16u, Checks::memory}, std::pair{1u, Checks::off}}) {
        Bench bench({.grid = ctas,
                     .threads = ctas == 1 ? 128u : 160u,
                     .shared = 16384,
                     .cluster = ctas,
                     .seed = 3,
                     .checks = checks});
        const std::vector<std::uint32_t> out =
            bench.run(kernel_text(body), in, std::size_t{64} * static_cast<std::size_t>(columns));
        int wrong = 0;
        for (int thread = 0; thread < 128; ++thread) {
          for (int e = 0; e < columns / 2; ++e) {
            const int lane = thread & 31;
            const int row = 16 * (thread >> 5) + (lane >> 2) + 8 * (e >> 1 & 1),
                      column = 8 * (e >> 2) + 2 * (lane & 3) + (e & 1);
            float expected = 0;
            for (int k = 0; k < 16; ++k) expected += value(1, row, k) * value(2, k, column);
            const auto at = static_cast<std::size_t>(thread) * static_cast<std::size_t>(columns / 2) +
                            static_cast<std::size_t>(e);
            wrong += std::bit_cast<float>(out[at]) != expected ? 1 : 0;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("wgmma that nothing commits, and groups that nothing waits for, are ended") {
  const auto run = [](const std::string& body) {
    Bench bench({.threads = 128, .shared = 8192});
    bench.device().set_checks(Checks::off);
    static_cast<void>(bench.run(kernel_text(body), {0}, 1));
  };
  const std::string multiply = R"(
shr.u32 %r2, %r29, 4;
cvt.u64.u32 %d1, %r2;
or.b64 %d1, %d1, 0x4000004000010000;
setp.ne.b32 %p1, 0, 0;
wgmma.fence.sync.aligned;
LOOP: wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %d1, %d1, %p1, 1, 1, 0, 0;
)";
  CHECK_THROWS_WITH_AS(run(multiply + "bra LOOP;"),
                       doctest::Contains("4096 wgmma of the warp are in no group"), Error);
  CHECK_THROWS_WITH_AS(run(multiply + "wgmma.commit_group.sync.aligned;\nbra LOOP;"),
                       doctest::Contains("4096 groups of wgmma were not waited for"), Error);
}

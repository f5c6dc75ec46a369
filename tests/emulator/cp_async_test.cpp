// cp.async that tells an mbarrier when it is done.
#include <doctest/doctest.h>

#include <numeric>

#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

TEST_CASE("cp.async.mbarrier.arrive: who waits for the mbarrier sees the copies of a warp that has left") {
  // Without .noinc the arrival is one besides those that the mbarrier was made for.
  for (const char* arrival : {"cp.async.mbarrier.arrive.noinc.shared.b64 [%r29];\n",
                              "cp.async.mbarrier.arrive.shared.b64 [%r29];\n"
                              "mbarrier.arrive.shared::cta.b64 _, [%r29];\n"}) {
    CAPTURE(arrival);
    const std::string body = fmt::format(R"(
setp.eq.s32 %p1, %r30, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r29], 32;
bar.sync 0;
shl.b32 %r1, %r27, 4;
cvt.u64.u32 %d1, %r1;
add.s64 %d2, %d31, %d1;
add.s64 %d1, %d30, %d1;
add.s32 %r1, %r29, %r1;
setp.eq.s32 %p2, %r28, 1;
@%p2 bra READ;
cp.async.ca.shared.global [%r1+64], [%d1], 8;
cp.async.commit_group;
cp.async.ca.shared.global [%r1+72], [%d1+8], 8;
{}exit;
READ: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r29], 0;
@!%p3 bra READ;
ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r1+64];
st.global.v4.u32 [%d2], {{%r2, %r3, %r4, %r5}};
)",
                                         arrival);
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      CAPTURE(seed);
      Bench bench({.threads = 64, .shared = 1024, .seed = seed});
      std::vector<std::uint32_t> in(128);
      std::iota(in.begin(), in.end(), 5u);
      CHECK(bench.run(kernel_text(body), in, 128) == in);
    }
  }
}

TEST_CASE("copies that nothing commits, and groups that nothing waits for, are ended") {
  const auto run = [](const std::string& body) {
    Bench bench({.shared = 16});
    bench.device().set_checks(Checks::off);
    static_cast<void>(bench.run(kernel_text(body), {0, 0, 0, 0}, 1));
  };
  const std::string copy = "LOOP: cp.async.ca.shared.global [%r29], [%d30], 16;\n";
  CHECK_THROWS_WITH_AS(run(copy + "bra LOOP;"),
                       doctest::Contains("65536 cp.async of the warp are in no group"), Error);
  CHECK_THROWS_WITH_AS(run(copy + "cp.async.commit_group;\nbra LOOP;"),
                       doctest::Contains("65536 groups of cp.async were not waited for"), Error);
}

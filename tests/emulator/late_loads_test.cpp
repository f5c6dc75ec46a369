// Loads from shared memory that a write may overtake, since nothing had used their result when others were
// told of them: found under every seed, whenever the write happens to come; and all that looks alike and is
// right.
#include <doctest/doctest.h>

#include <numeric>

#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

namespace {

// Warp 0 reads a tile of 512 bytes that warp 1 has copied to shared memory, and lets it copy the next one
// there.
struct Parts {
  std::string load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r40, %r41, %r42, %r43}, [%r2];\n";
  std::string before;  // the arrival
  std::string arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r29+8];\n";
  std::string after;
  std::string wait =
      "EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r29+8], 0;\n"
      "@!%p3 bra EMPTY;\n";
  std::string overwrite =
      "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r29], 512;\n"
      "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d30+512], 512, "
      "[%r29];\n";
};

std::string kernel_of(const Parts& parts) {
  return kernel_text(fmt::format(R"(
add.s32 %r1, %r29, 128;
shl.b32 %r3, %r27, 4;
add.s32 %r2, %r1, %r3;
setp.eq.s32 %p1, %r27, 0;
setp.eq.s32 %p2, %r28, 0;
setp.ne.s32 %p20, 0, 0;
mul.wide.u32 %d1, %r27, 4;
add.s64 %d1, %d31, %d1;
setp.ne.s32 %p4, %r30, 0;
@%p4 bra READY;
mbarrier.init.shared::cta.b64 [%r29], 1;
mbarrier.init.shared::cta.b64 [%r29+8], 1;
mbarrier.init.shared::cta.b64 [%r29+16], 1;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
@%p2 bra READER;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r29], 512;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d30], 512, [%r29];
{}{}bra DONE;
READER:
FULL: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r29], 0;
@!%p3 bra FULL;
{}{}bar.warp.sync 0xffffffff;
{}{}NEXT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r29], 1;
@!%p3 bra NEXT;
DONE:
)",
                                 parts.wait, parts.overwrite, parts.load, parts.before, parts.arrive,
                                 parts.after));
}

// How many seeds find a race, of twelve; any other finding fails the test.
int races(const std::string& text, const RunOptions& options, std::string* message = nullptr) {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    RunOptions seeded = options;
    seeded.seed = seed;
    Bench bench(seeded);
    std::vector<std::uint32_t> in(256);
    std::iota(in.begin(), in.end(), 0u);
    try {
      bench.run(text, in, 64);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::device) throw;
      if (message != nullptr) *message = error.what();
      CHECK_MESSAGE(bench.device().findings().size() == 1, error.what());
      CHECK_MESSAGE(bench.device().findings().front().kind == FindingKind::race, error.what());
      ++found;
    }
  }
  return found;
}
int races(const Parts& parts) {
  return races(kernel_of(parts), {.threads = 64, .shared = 1024});
}

const std::string kUse = "xor.b32 %r44, %r40, %r41;\nst.global.u32 [%d1], %r44;\n";

}  // namespace

TEST_CASE("an arrival before the result of ldmatrix is used lets a bulk copy overtake it") {
  const std::string text = kernel_of({.after = kUse});
  std::string message;
  CHECK(races(text, {.threads = 64, .shared = 1024}, &message) == 12);
  CHECK_MESSAGE(message.find("nothing has used yet what PTX line") != std::string::npos, message);
  CHECK_MESSAGE(message.find("(ldmatrix.sync") != std::string::npos, message);
  CHECK_MESSAGE(message.find("cp.async.bulk.shared") != std::string::npos, message);
  CHECK_MESSAGE(message.find("[%r29+8];") != std::string::npos, message);  // where the warp arrives

  CHECK(races({.before = kUse}) == 0);
  CHECK(races({.before = "xor.b32 %r45, %r43, 1;\n", .after = kUse}) == 0);  // one of the four shows all
  CHECK(races({.before = "bar.warp.sync 0xffffffff;\n" + kUse + "bar.warp.sync 0xffffffff;\n"}) == 0);
}

TEST_CASE("a result that nothing uses, or that is overwritten first, cannot be wrong") {
  CHECK(races(Parts{}) == 0);
  CHECK(races({.after = "mov.b32 %r40, 1;\nmov.b32 %r41, 2;\n" + kUse}) == 0);
  CHECK(races({.after = "@%p1 mov.b32 %r40, 1;\nmov.b32 %r41, 2;\n" + kUse}) == 12);
  // Of a load by lane 0 alone, nothing is left when the lane has another value.
  const std::string load = "mov.b32 %r40, 7;\nmov.b32 %r41, 8;\n@%p1 ld.shared.u32 %r40, [%r1];\n";
  CHECK(races({.load = load, .after = kUse}) == 12);
  CHECK(races({.load = load, .after = "@%p1 mov.b32 %r40, 1;\n" + kUse}) == 0);
  CHECK(races({.load = load, .after = "@!%p1 st.global.u32 [%d1], %r40;\n"}) == 0);
}

TEST_CASE("what only moves a result is no use of it, and the copy holds it too") {
  const std::string move = "mov.b32 %r50, %r40;\n";
  const std::string use_copy = "add.s32 %r51, %r50, 1;\nst.global.u32 [%d1], %r51;\n";
  CHECK(races({.before = move, .after = use_copy}) == 12);
  CHECK(races({.before = move, .after = kUse}) == 12);
  CHECK(races({.before = move + use_copy, .after = kUse}) == 0);
  const std::string pack = "mov.b64 %d5, {%r40, %r41};\nmov.b64 {%r50, %r51}, %d5;\ncvt.u64.u32 %d6, %r51;\n";
  CHECK(races({.before = pack, .after = "add.s64 %d6, %d6, 1;\nst.global.u64 [%d31], %d6;\n"}) == 12);
  CHECK(races({.before = pack + "add.s64 %d6, %d6, 1;\n", .after = kUse}) == 0);
}

TEST_CASE("an instruction whose guard is false for all lanes is no use") {
  CHECK(races({.before = "@%p20 xor.b32 %r44, %r40, 1;\n", .after = kUse}) == 12);
  CHECK(races({.before = "@!%p20 xor.b32 %r44, %r40, 1;\n", .after = kUse}) == 0);
  CHECK(races({.before = "@%p1 xor.b32 %r44, %r40, 1;\n", .after = kUse}) == 0);  // warps wait, not lanes
}

TEST_CASE("a number that decides a branch before the arrival has come") {
  const std::string load = "ld.shared.u32 %r40, [%r1];\n";
  const std::string branch = "setp.eq.s32 %p5, %r40, 77;\n@%p5 bra NEXT;\n";
  CHECK(races({.load = load, .before = branch}) == 0);
  CHECK(races({.load = load, .after = branch}) == 12);
  CHECK(races({.load = "ld.shared.v4.u32 {%r40, %r41, %r42, %r43}, [%r2];\n", .after = branch}) == 12);
}

TEST_CASE("ordinary stores and copies of the same SM queue behind the load") {
  const std::string arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r29];\n";
  const std::string store = "@%p1 st.shared.u32 [%r1], %r30;\n";
  CHECK(races({.after = kUse, .overwrite = store + arrive}) == 0);
  CHECK(races({.after = kUse,
               .overwrite =
                   "@%p1 cp.async.cg.shared.global [%r1], [%d30], 16;\ncp.async.wait_all;\n" + arrive}) == 0);
  // And so does what comes after those; but not in bytes that they did not write.
  const std::string load = "ld.shared.u32 %r40, [%r1];\n", use = "st.global.u32 [%d1], %r40;\n";
  const std::string copy = "fence.proxy.async.shared::cta;\n" + Parts().overwrite;
  CHECK(races({.load = load, .after = use, .overwrite = store + copy}) == 0);
  CHECK(races({.after = kUse, .overwrite = store + copy}) == 12);
}

TEST_CASE("no barrier waits for a load, however the writer hears of it") {
  CHECK(races({.arrive = "bar.arrive 1, 64;\n", .after = kUse, .wait = "bar.sync 1, 64;\n"}) == 12);
  CHECK(races({.arrive = "bar.sync 1, 64;\n", .after = kUse, .wait = "bar.sync 1, 64;\n"}) == 12);
  CHECK(races({.before = kUse, .arrive = "bar.sync 1, 64;\n", .wait = "bar.sync 1, 64;\n"}) == 0);
  // One that it has told before counts for nothing, and neither does one that it tells too late.
  const std::string other = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r29+16];\n";
  CHECK(races({.before = other + kUse}) == 0);
  CHECK(races({.after = kUse + other}) == 12);
  // A warp that starts the copy itself.
  CHECK(races({.arrive = Parts().overwrite, .after = kUse, .wait = "", .overwrite = ""}) == 12);
  CHECK(races({.before = kUse, .arrive = Parts().overwrite, .wait = "", .overwrite = ""}) == 0);
}

TEST_CASE("fences wait for loads") {
  for (const char* fence : {"fence.acq_rel.cta;\n", "fence.acq_rel.cluster;\n", "membar.gl;\n",
                            "fence.proxy.async.shared::cta;\n", "fence.proxy.async;\n"}) {
    CAPTURE(fence);
    CHECK(races({.before = fence, .after = kUse}) == 0);
    CHECK(races({.after = fence + kUse}) == 12);
    CHECK(races({.after = fence}) == 0);
  }
}

TEST_CASE("what another CTA of the cluster stores comes past the loads") {
  // CTA 0 reads a word, and lets CTA 1 store the next one; for what st.async stores, it waits in the end.
  constexpr const char* kWait =
      "LAST: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r29+8], 0;\n@!%p3 bra LAST;\n";
  const auto text = [](std::string_view before, std::string_view after, std::string_view store,
                       std::string_view arrive = "mbarrier.arrive.shared::cluster.b64 ") {
    return kernel_text(fmt::format(R"(
mov.u32 %r1, %cluster_ctarank;
setp.eq.s32 %p1, %r30, 0;
setp.eq.s32 %p2, %r1, 0;
@!%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r29], 1;
mbarrier.init.shared::cta.b64 [%r29+8], 1;
st.shared.u32 [%r29+128], %r1;
fence.mbarrier_init.release.cluster;
fence.proxy.async;
READY:
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
@!%p1 bra DONE;
@!%p2 bra WRITER;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r29+8], 4;
ld.shared.u32 %r2, [%r29+128];
{}mapa.shared::cluster.u32 %r3, %r29, 1;
{}_, [%r3];
{}{}bra DONE;
WRITER:
mapa.shared::cluster.u32 %r3, %r29, 0;
add.s32 %r4, %r3, 8;
add.s32 %r5, %r3, 128;
LOOP: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r29], 0;
@!%p3 bra LOOP;
{}
DONE:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
)",
                                   before, arrive, after, store.starts_with("st.async") ? kWait : "", store));
  };
  const RunOptions options{.grid = 2, .threads = 32, .shared = 1024, .cluster = 2};
  for (const char* store :
       {"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5], %r30, [%r4];",
        "st.shared::cluster.u32 [%r5], %r30;"}) {
    CAPTURE(store);
    CHECK(races(text("", "st.global.u32 [%d31], %r2;\n", store), options) == 12);
    CHECK(races(text("st.global.u32 [%d31], %r2;\n", "", store), options) == 0);
    CHECK(races(text("", "", store), options) == 0);
    CHECK(races(text("", "st.global.u32 [%d31], %r2;\n", store,
                     "mbarrier.arrive.release.cluster.shared::cluster.b64 "),
                options) == 0);
  }
}

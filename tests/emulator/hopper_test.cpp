// TMA, bulk copies, clusters and wgmma, each through a kernel of a few lines.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "emulator/exec/half.hpp"
#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

namespace {

// A kernel that takes a tensor map, an output and two coordinates, and has one mbarrier at the start of
// shared memory and the tile 1024 bytes after it.
std::string tma_kernel(std::string_view body) {
  return fmt::format(
      ".version 8.7\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"
      ".visible .entry test(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 x, .param .u32 "
      "y)\n{{\n"
      ".reg .b32 %r<64>;\n.reg .b64 %d<32>;\n.reg .pred %p<8>;\n"
      "mov.b64 %d1, map;\ncvta.param.u64 %d30, %d1;\nld.param.u64 %d31, [out];\nld.param.u32 %r1, "
      "[x];\nld.param.u32 %r2, [y];\n"
      "mov.u32 %r30, %tid.x;\nmov.u32 %r29, smem;\nadd.s32 %r28, %r29, 1024;\nmul.wide.u32 %d29, %r30, "
      "16;\nadd.s64 %d29, %d31, %d29;\n"
      "shl.b32 %r27, %r30, 4;\nadd.s32 %r27, %r28, %r27;\nsetp.eq.s32 %p1, %r30, 0;\n{}\nret;\n}}\n",
      body);
}

constexpr const char* kLoad = R"(
@!%p1 bra AFTER;
mbarrier.init.shared::cta.b64 [%r29], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r29], BYTES;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r28], [%d30, {%r1, %r2}], [%r29];
AFTER:
bar.sync 0;
LOOP: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r29], 0;
@!%p2 bra LOOP;
ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r27];
st.global.v4.u32 [%d29], {%r10, %r11, %r12, %r13};
)";

std::string with_bytes(std::string text, int bytes) {
  return text.replace(text.find("BYTES"), 5, std::to_string(bytes));
}

}  // namespace

TEST_CASE("TMA loads: every swizzle, and zeros outside the tensor") {
  constexpr int kWidth = 96, kHeight = 20;  // elements of 16 bits
  std::vector<std::uint16_t> tensor(kWidth * kHeight);
  std::iota(tensor.begin(), tensor.end(), std::uint16_t{1});
  for (int swizzle : {0, 32, 64, 128}) {
    for (auto [x, y] : {std::pair{0, 0}, std::pair{8, 3}, std::pair{-4, -2}, std::pair{88, 17}}) {
      CAPTURE(swizzle);
      CAPTURE(x);
      CAPTURE(y);
      const int columns = swizzle == 0 ? 64 : swizzle / 2;
      constexpr int kRows = 8;
      auto device = open_emulated_device({.arch = "sm_90a"});
      void* memory = device->allocate(tensor.size() * 2);
      device->copy_to_device(memory, tensor.data(), tensor.size() * 2, nullptr);
      runtime::TensorMap map = device->encode({.base = memory,
                                               .size = {kWidth, kHeight},
                                               .stride = {kWidth * 2},
                                               .box = {static_cast<std::uint32_t>(columns), kRows},
                                               .element_bytes = 2,
                                               .bf16 = true,
                                               .swizzle_bytes = swizzle});
      const int bytes = columns * 2 * kRows;
      auto kernel = device->load({.entry = "test", .ptx = tma_kernel(with_bytes(kLoad, bytes)), .cubin = {}});
      void* out = device->allocate(static_cast<std::size_t>(bytes));
      void* params[] = {&map, &out, &x, &y};
      device->launch(*kernel,
                     {.grid = 1, .threads = static_cast<std::uint32_t>(bytes / 16), .shared_bytes = 8192},
                     params, nullptr);
      std::vector<std::uint16_t> got(static_cast<std::size_t>(bytes) / 2);
      device->copy_to_host(got.data(), out, got.size() * 2, nullptr);
      int wrong = 0;
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < columns; ++c) {
          const int from_x = x + c, from_y = y + r;
          const bool inside = from_x >= 0 && from_x < kWidth && from_y >= 0 && from_y < kHeight;
          const std::uint16_t expected =
              inside ? tensor[static_cast<std::size_t>(from_y * kWidth + from_x)] : std::uint16_t{0};
          // Bits 4, 5, 6 of the address are exclusive-ored with bits 7, 8, 9.
          int at = (r * columns + c) * 2;
          const int pattern = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
          at ^= ((at >> 7) & pattern) << 4;
          wrong += got[static_cast<std::size_t>(at) / 2] != expected ? 1 : 0;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("TMA stores leave out what is outside the tensor") {
  auto device = open_emulated_device({.arch = "sm_90a"});
  constexpr int kWidth = 40, kHeight = 5;
  void* memory = device->allocate(kWidth * kHeight * 2);
  device->fill(memory, 0, kWidth * kHeight * 2, nullptr);
  runtime::TensorMap map = device->encode({.base = memory,
                                           .size = {kWidth, kHeight},
                                           .stride = {kWidth * 2},
                                           .box = {32, 4},
                                           .element_bytes = 2,
                                           .bf16 = true,
                                           .swizzle_bytes = 64});
  const std::string body = R"(
mov.b32 %r10, 0x00010001;
st.shared.v4.u32 [%r27], {%r10, %r10, %r10, %r10};
fence.proxy.async.shared::cta;
bar.sync 0;
@!%p1 bra DONE;
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d30, {%r1, %r2}], [%r28];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
)";
  auto kernel = device->load({.entry = "test", .ptx = tma_kernel(body), .cubin = {}});
  void* out = device->allocate(16);
  int x = 16, y = 3;
  void* params[] = {&map, &out, &x, &y};
  device->launch(*kernel, {.grid = 1, .threads = 16, .shared_bytes = 4096}, params, nullptr);
  std::vector<std::uint16_t> got(kWidth * kHeight);
  device->copy_to_host(got.data(), memory, got.size() * 2, nullptr);
  int wrong = 0;
  for (int r = 0; r < kHeight; ++r) {
    for (int c = 0; c < kWidth; ++c)
      wrong += got[static_cast<std::size_t>(r * kWidth + c)] != (c >= 16 && r >= 3 ? 1 : 0) ? 1 : 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a tensor map that the driver would refuse is refused") {
  auto device = open_emulated_device({.arch = "sm_90a"});
  alignas(16) static std::uint16_t data[64];
  runtime::TensorMapRequest good{.base = data,
                                 .size = {8, 8},
                                 .stride = {16},
                                 .box = {8, 8},
                                 .element_bytes = 2,
                                 .bf16 = true,
                                 .swizzle_bytes = 0};
  CHECK_NOTHROW((void)device->encode(good));
  auto refused = [&](auto change) {
    runtime::TensorMapRequest request = good;
    change(request);
    CHECK_THROWS_AS((void)device->encode(request), Error);
  };
  refused([](auto& r) { r.base = reinterpret_cast<const char*>(r.base) + 2; });
  refused([](auto& r) { r.stride[0] = 24; });
  refused([](auto& r) { r.box[0] = 4; });
  refused([](auto& r) { r.box[1] = 257; });
  refused([](auto& r) { r.swizzle_bytes = 48; });
  refused([](auto& r) { r.box[0] = 32, r.swizzle_bytes = 32; });
}

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

TEST_CASE("wgmma against a plain product: K-major and MN-major, A from shared memory and registers") {
  // A (64 x 16) and B (n 32 x k 16, or k 16 x n 64) lie as TMA would put them, 128-byte swizzle.
  auto value = [](int seed, int r, int c) { return static_cast<float>((r * 7 + c * 3 + seed) % 11 - 5); };
  for (bool transposed : {false, true}) {
    for (bool registers : {false, true}) {
      CAPTURE(transposed);
      CAPTURE(registers);
      const int columns = transposed ? 64 : 32;
      std::vector<std::uint16_t> a(64 * 64), b(64 * 64);
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
      std::vector<std::uint32_t> in(64 * 64);
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
bar.sync 0;
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
)",
                                           fragments, product, 4 * columns / 2, stores);
      Bench bench({.threads = 128, .shared = 16384, .seed = 3});
      const std::vector<std::uint32_t> out =
          bench.run(kernel_text(body), in, static_cast<std::size_t>(64 * columns));
      int wrong = 0;
      for (int thread = 0; thread < 128; ++thread) {
        for (int e = 0; e < columns / 2; ++e) {
          const int lane = thread & 31;
          const int row = 16 * (thread >> 5) + (lane >> 2) + 8 * (e >> 1 & 1),
                    column = 8 * (e >> 2) + 2 * (lane & 3) + (e & 1);
          float expected = 0;
          for (int k = 0; k < 16; ++k) expected += value(1, row, k) * value(2, k, column);
          wrong += std::bit_cast<float>(out[static_cast<std::size_t>(thread * columns / 2 + e)]) != expected
                       ? 1
                       : 0;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

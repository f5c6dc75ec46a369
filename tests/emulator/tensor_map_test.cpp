// Tensor maps: which are refused, and boxes that no shared memory holds.
#include <doctest/doctest.h>

#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

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
  refused([](auto& r) { r.size[1] = (1ull << 32) + 1; });
  refused([](auto& r) { r.stride[0] = 1ull << 40; });
  good.size = {1ull << 32, 1ull << 32};
  good.stride = {(1ull << 40) - 16};
  CHECK_NOTHROW((void)device->encode(good));
}

TEST_CASE("a box of more bytes than 32 bits count lies outside shared memory, as any that is too large") {
  auto device = open_emulated_device({.arch = "sm_90a"});
  constexpr const char* kText = R"(.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry test(.param .align 64 .b8 map[128])
{
.reg .b32 %r<4>;
.reg .b64 %d<2>;
mov.b64 %d1, map;
mov.u32 %r1, smem;
mov.u32 %r2, 0;
mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
add.s32 %r3, %r1, 1024;
cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d1, {%r2, %r2, %r2, %r2, %r2}], [%r1];
ret;
}
)";
  void* memory = device->allocate(1024);
  auto kernel = device->load({.entry = "test", .ptx = kText, .cubin = {}});
  for (const std::uint32_t last : {2u, 16u, 256u}) {
    runtime::TensorMap map = device->encode({.base = memory,
                                             .size = {8, 4, 4, 4, 4},
                                             .stride = {16, 16, 16, 16},
                                             .box = {8, 256, 256, 256, last},
                                             .element_bytes = 2,
                                             .bf16 = true,
                                             .swizzle_bytes = 0});
    void* params[] = {&map};
    CHECK_THROWS_WITH_AS(
        device->launch(*kernel, {.grid = 1, .threads = 1, .shared_bytes = 8192}, params, nullptr),
        doctest::Contains(
            fmt::format("{} bytes of shared memory at offset 1024", (16ull << 24) * last).c_str()),
        Error);
  }
}

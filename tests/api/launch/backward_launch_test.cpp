// The launches of a backward call: kernels in order, launches that fail, empty sides, tensor maps.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/api/launch/made_up_backward.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("kernels run in order, over their own tiles, in one workspace") {
  FakeDevice device;
  std::vector<BackwardParams> seen;
  device.execute = [&](const std::string&, const runtime::Launch&, std::span<void* const> params) {
    seen.push_back(*static_cast<const BackwardParams*>(params.back()));
  };
  const api::Launcher launcher(device, plan(device, DqWay::ordered));
  Memory memory;
  BackwardArgs args = memory.args();
  args.scale = 0.5F;

  SUBCASE("the caller's") {
    args.workspace = memory.workspace;  // large enough for a device that only writes calls down
    launcher.backward(kShape, args, nullptr);
    CHECK(device.ordered_allocations() == 0);
    const std::size_t rows = std::size_t{2} * 4 * 256;
    const auto distance = [&](const void* array) {
      return reinterpret_cast<std::uintptr_t>(array) - reinterpret_cast<std::uintptr_t>(memory.workspace);
    };
    CHECK(distance(seen[0].lse_log2) == 0);
    CHECK(distance(seen[0].delta) == rows * 4);
    CHECK(distance(seen[0].dq_sum) == rows * 8);
    CHECK(distance(seen[0].counters) == rows * (8 + 64 * 4));
  }
  SUBCASE("the pool's, given back after") {
    launcher.backward(kShape, args, nullptr);
    CHECK(device.ordered_allocations() == 1);
    CHECK(device.bytes_alive() == 0);
  }
  const auto launches = device.launches();
  REQUIRE(launches.size() == 3);
  CHECK(launches[0].entry == "first");
  CHECK(launches[0].launch.grid == 2 * 4 * 2);  // 130 rows in tiles of 128, each head
  CHECK(launches[1].entry == "keys");
  CHECK(launches[1].launch.grid == 2 * 2 * 3);  // 200 keys in tiles of 96, each K/V head
  CHECK(launches[2].entry == "last");
  CHECK(launches[2].launch.grid == 2 * 4 * 3);
  CHECK(seen[0].tiles == 2);
  CHECK(seen[1].tiles == 3);
  CHECK(seen[2].tiles == 3);
  CHECK(seen[1].padded_q == 256);
  CHECK(seen[1].group == 2);
  CHECK(seen[1].scale == 0.5F);
  CHECK(seen[1].dk_row == 2 * 64);
  CHECK(seen[1].dout_batch == 130 * 4 * 64);
}

TEST_CASE("a launch that fails gives the pool's workspace back") {
  FakeDevice device;
  device.execute = [](const std::string& entry, const runtime::Launch&, std::span<void* const>) {
    if (entry == "keys") throw Error(ErrorCode::device, "it fell over");
  };
  const api::Launcher launcher(device, plan(device, DqWay::atomic));
  Memory memory;
  CHECK_THROWS_AS(launcher.backward(kShape, memory.args(), nullptr), Error);
  CHECK(device.bytes_alive() == 0);
}

TEST_CASE("kernels that stopped half-way leave the next pass zeros") {
  FakeDevice device;
  bool stops = true;
  device.execute = [&](const std::string& entry, const runtime::Launch&, std::span<void* const> params) {
    int* const counter = static_cast<const BackwardParams*>(params.back())->tile_counter;
    CHECK(counter[0] == 0);
    CHECK(counter[1] == 0);
    if (!stops || entry != "keys") return;
    counter[0] = counter[1] = 7;
    throw Error(ErrorCode::device, "it fell over");
  };
  const api::Launcher launcher(device, plan(device, DqWay::atomic, {}, true));
  Memory memory;
  CHECK_THROWS_WITH_AS(launcher.backward(kShape, memory.args(), nullptr), "it fell over", Error);
  stops = false;
  launcher.backward(kShape, memory.args(), nullptr);
  CHECK(device.launches().size() == 1 + 3);
}

TEST_CASE("tiles that are divided have room for their sums, and zeros") {
  FakeDevice device;
  std::vector<BackwardParams> seen;
  device.execute = [&](const std::string& entry, const runtime::Launch&, std::span<void* const> params) {
    if (entry == "keys") seen.push_back(*static_cast<const BackwardParams*>(params.back()));
  };
  const int ctas = device.target().sm_count, most = ctas * 3 / 4;
  const api::Launcher launcher(device, plan(device, DqWay::atomic, {}, true, true));
  Memory memory;
  BackwardArgs args = memory.args();
  args.workspace = memory.workspace;
  const auto tiles_of = [&](int heads, int seqlen_q) {
    launcher.backward({.batch = 1, .heads = heads, .seqlen_q = seqlen_q, .seqlen_k = 96}, args, nullptr);
    CHECK(seen.back().undivided_tiles + seen.back().divided_tiles == heads);
    return seen.back().divided_tiles;
  };
  CHECK(tiles_of(ctas + 1, 64 * 64) == most);
  CHECK(seen.back().least_steps == 8);
  CHECK(seen.back().more_steps == 24);
  CHECK(tiles_of(ctas, 64 * 64) == 0);
  CHECK(tiles_of(ctas + 1, 64) == 0);
  CHECK(tiles_of(ctas + 1, 0) == 0);

  // Each stream has words of its own.
  const int* const words = seen.back().tile_counter;
  launcher.backward({.batch = 1, .heads = 2, .seqlen_q = 64, .seqlen_k = 96}, args,
                    reinterpret_cast<Stream>(std::uintptr_t{0x1000}));
  CHECK(std::abs(seen.back().tile_counter - words) >= 2 + most);

  const auto bytes = [&](int heads) {
    const Shape shape{.batch = 1, .heads = heads, .seqlen_q = 64 * 64, .seqlen_k = 96};
    const api::Launcher whole(device, plan(device, DqWay::atomic, {}, true, false));
    return launcher.workspace_bytes(shape) - whole.workspace_bytes(shape);
  };
  const std::size_t of_tile = std::size_t{96} * (64 + 64) * 4;
  CHECK(bytes(2) == 2 * of_tile);
  CHECK(bytes(2 * ctas) == most * of_tile);
  CHECK(launcher.workspace_bytes({.batch = 1, .heads = 2, .seqlen_q = 0, .seqlen_k = 96}) == 0);
}

TEST_CASE("what freeing says after a launch that failed does not hide why it failed") {
  struct Stubborn : FakeDevice {
    void free_ordered(void* pointer, runtime::Stream stream) override {
      FakeDevice::free_ordered(pointer, stream);
      throw Error(ErrorCode::device, "cuMemFreeAsync failed");
    }
  };
  Stubborn device;
  device.execute = [](const std::string& entry, const runtime::Launch&, std::span<void* const>) {
    if (entry == "keys") throw Error(ErrorCode::device, "it fell over");
  };
  const api::Launcher launcher(device, plan(device, DqWay::atomic));
  Memory memory;
  CHECK_THROWS_WITH_AS(launcher.backward(kShape, memory.args(), nullptr), "it fell over", Error);
}

TEST_CASE("a tensor that no map can describe is named before any kernel runs") {
  struct Refusing : FakeDevice {
    runtime::TensorMap encode(const runtime::TensorMapRequest& request) override {
      if (request.stride[3] >= 1ULL << 38)
        throw Error(ErrorCode::invalid_argument, "tensor map: stride of dimension 4 is too large");
      return FakeDevice::encode(request);
    }
  };
  Refusing device;
  const api::Launcher launcher(
      device, plan(device, DqWay::atomic,
                   {{.operand = Operand::k, .box_rows = 64}, {.operand = Operand::dout, .box_rows = 64}}));
  Memory memory;
  BackwardArgs args = memory.args();
  args.dout_strides = {1LL << 38, 64, 256};
  CHECK_THROWS_WITH_AS(launcher.backward(kShape, args, nullptr),
                       doctest::Contains("dout: tensor map: stride"), Error);
  CHECK(device.launches().empty());
  CHECK(device.bytes_alive() == 0);
}

TEST_CASE(
    "an empty side: the other's gradients are still written, and nothing is asked of what is not there") {
  FakeDevice device;
  const api::Launcher launcher(
      device, plan(device, DqWay::atomic,
                   {{.operand = Operand::k, .box_rows = 64}, {.operand = Operand::dout, .box_rows = 64}}));
  Memory memory;
  BackwardArgs args = memory.args();
  const auto entries = [&](const Shape& shape) {
    const std::size_t before = device.launches().size();
    launcher.backward(shape, args, nullptr);
    std::string text;
    for (std::size_t i = before; i < device.launches().size(); ++i) text += device.launches()[i].entry + " ";
    return text;
  };
  SUBCASE("no queries") {
    args.q = args.o = args.dout = nullptr;
    args.lse = nullptr;
    args.dq = nullptr;
    CHECK(entries({.batch = 2, .heads = 4, .seqlen_q = 0, .seqlen_k = 5}) == "keys ");
    args.q = args.o = args.dout = args.dk;  // at whatever address
    args.dq = args.dv;
    CHECK(entries({.batch = 2, .heads = 4, .seqlen_q = 0, .seqlen_k = 5}) == "keys ");
  }
  SUBCASE("no keys") {
    args.k = args.v = nullptr;
    args.dk = args.dv = nullptr;
    CHECK(entries({.batch = 2, .heads = 4, .seqlen_q = 5, .seqlen_k = 0}) == "first last ");
  }
  SUBCASE("neither, and no batch") {
    args = {};
    CHECK(entries({.batch = 2, .heads = 4}).empty());
    CHECK(entries({.batch = 0, .heads = 4, .seqlen_q = 5, .seqlen_k = 5}).empty());
    CHECK(entries({.batch = 0, .heads = 1 << 30, .seqlen_q = 1 << 30, .seqlen_k = 1 << 30}).empty());
  }
}

TEST_CASE("tensor maps of gradients") {
  struct MapDevice : FakeDevice {
    runtime::TensorMap encode(const runtime::TensorMapRequest& request) override {
      requests.push_back(request);
      return FakeDevice::encode(request);
    }
    std::vector<runtime::TensorMapRequest> requests;
  } device;
  const api::Launcher launcher(device, plan(device, DqWay::own_pass,
                                            {{.operand = Operand::dk, .box_rows = 32, .panels = 1},
                                             {.operand = Operand::dout, .box_rows = 64, .panels = 1}}));
  Memory memory;
  launcher.backward(kShape, memory.args(), nullptr);
  REQUIRE(device.requests.size() == 6);  // two for each kernel
  CHECK(device.requests[0].base == memory.dk);
  CHECK(device.requests[0].size == std::array<std::uint64_t, 5>{64, 200, 1, 2, 2});
  CHECK(device.requests[1].base == memory.dout);
  CHECK(device.requests[1].size == std::array<std::uint64_t, 5>{64, 130, 1, 4, 2});
  launcher.backward(kShape, memory.args(), nullptr);
  CHECK(device.requests.size() == 6);
  BackwardArgs moved = memory.args();
  moved.dv = memory.workspace;  // no map shows it, but a call with another tensor is another call
  launcher.backward(kShape, moved, nullptr);
  CHECK(device.requests.size() == 12);
}

}  // namespace
}  // namespace flashjit::test

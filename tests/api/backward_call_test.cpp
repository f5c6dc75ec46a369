// A backward call: arguments that are wrong, the workspace, the kernels in order, empty sides, tensor maps.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "api/launch/backward_call.hpp"
#include "api/launch/launcher.hpp"
#include "tests/api/support.hpp"

namespace flashjit::test {
namespace {

const Problem kBackward{.pass = Pass::backward, .dtype = DType::bf16, .head_dim = 64, .causal = true};

struct Memory {
  alignas(256) std::byte q[256], k[256], v[256], o[256], dout[256], lse[256], dq[256], dk[256], dv[256],
      workspace[256];
  BackwardArgs args() {
    return {.q = q,
            .k = k,
            .v = v,
            .o = o,
            .dout = dout,
            .lse = reinterpret_cast<float*>(lse),
            .dq = dq,
            .dk = dk,
            .dv = dv};
  }
};

// A plan of kernels that nobody wrote: one over query tiles, one over key tiles, one over query tiles.
std::shared_ptr<const api::LoadedPlan> plan(FakeDevice& device, DqWay way,
                                            const std::vector<TensorMapSpec>& maps = {}) {
  auto made = std::make_shared<api::LoadedPlan>();
  made->problem = kBackward;
  made->schedule = WgmmaBackwardSchedule{.tile_m = 64, .tile_n = 96, .dq = static_cast<int>(way)};
  const auto add = [&](const char* entry, const Geometry& geometry) {
    api::KernelCode code;
    code.source.entry = entry;
    code.source.geometry = geometry;
    code.source.maps = maps;
    made->kernels.push_back({.code = std::make_shared<const api::KernelCode>(std::move(code)),
                             .kernel = device.load({.entry = entry, .ptx = {}, .cubin = {}, .origins = {}})});
  };
  add("first", {.tile_m = 128, .threads = 256});
  add("keys", {.grid = Grid::key_tiles, .tile_m = 64, .tile_n = 96, .threads = 128});
  add("last", {.tile_m = 64, .threads = 64});
  return made;
}

struct Case {
  const char* what;
  std::function<void(BackwardArgs&, Memory&)> change;
  std::vector<const char*> says;
};

const std::vector<Case> kCases = {
    {"q null", [](auto& a, auto&) { a.q = nullptr; }, {"q is ", "16 bytes"}},
    {"k null", [](auto& a, auto&) { a.k = nullptr; }, {"k is "}},
    {"v null", [](auto& a, auto&) { a.v = nullptr; }, {"v is "}},
    {"o null", [](auto& a, auto&) { a.o = nullptr; }, {"o is "}},
    {"dout null", [](auto& a, auto&) { a.dout = nullptr; }, {"dout is "}},
    {"lse null", [](auto& a, auto&) { a.lse = nullptr; }, {"lse is ", "4 bytes"}},
    {"dq null", [](auto& a, auto&) { a.dq = nullptr; }, {"dq is "}},
    {"dk null", [](auto& a, auto&) { a.dk = nullptr; }, {"dk is "}},
    {"dv null", [](auto& a, auto&) { a.dv = nullptr; }, {"dv is "}},
    {"dout unaligned", [](auto& a, auto& m) { a.dout = m.dout + 8; }, {"dout is ", "16 bytes"}},
    {"dk unaligned", [](auto& a, auto& m) { a.dk = m.dk + 2; }, {"dk is ", "16 bytes"}},
    {"lse unaligned", [](auto& a, auto& m) { a.lse = reinterpret_cast<float*>(m.lse + 1); }, {"lse is "}},
    {"workspace unaligned",
     [](auto& a, auto& m) { a.workspace = m.workspace + 16; },
     {"workspace is ", "128 bytes"}},
    {"dq is q", [](auto& a, auto& m) { a.dq = m.q; }, {"dq is the same memory as q"}},
    {"dq is dout", [](auto& a, auto& m) { a.dq = m.dout; }, {"dq is the same memory as dout"}},
    {"dk is dq", [](auto& a, auto& m) { a.dk = m.dq; }, {"dq is the same memory as dk"}},
    {"dv is v", [](auto& a, auto& m) { a.dv = m.v; }, {"dv is the same memory as v"}},
    {"dv is lse", [](auto& a, auto& m) { a.dv = m.lse; }, {"dv is the same memory as lse"}},
    {"workspace is dk", [](auto& a, auto& m) { a.workspace = m.dk; }, {"dk is the same memory as workspace"}},
    {"workspace is o", [](auto& a, auto& m) { a.workspace = m.o; }, {"workspace is the same memory as o"}},
    {"scale 0", [](auto& a, auto&) { a.scale = 0.0F; }, {"scale is 0"}},
    {"dout row stride 36",
     [](auto& a, auto&) {
       a.dout_strides = {40000, 64, 36};
     },
     {"dout_strides.row is 36"}},
    {"dout row stride 0",
     [](auto& a, auto&) {
       a.dout_strides = {40000, 64, 0};
     },
     {"dout_strides.row is 0"}},
    {"o head stride 3",
     [](auto& a, auto&) {
       a.o_strides = {40000, 3, 256};
     },
     {"o_strides.head is 3"}},
    {"dq head stride 0",
     [](auto& a, auto&) {
       a.dq_strides = {40000, 0, 256};
     },
     {"dq_strides.head is 0"}},
    {"dk rows overlap heads",
     [](auto& a, auto&) {
       a.dk_strides = {40000, 64, 64};
     },
     {"dk_strides", "overlap"}},
    {"dv batches overlap",
     [](auto& a, auto&) {
       a.dv_strides = {128 * 100, 64, 128};
     },
     {"dv_strides", "overlap"}},
    {"shape heads 6 of 4",
     [](auto& a, auto&) { a.shape = Shape{.heads = 6, .heads_kv = 4, .seqlen_q = 1}; },
     {"heads is 6"}},
    {"more rows than can be padded",
     [](auto& a, auto&) { a.shape = Shape{.seqlen_q = std::numeric_limits<int>::max() - 3, .seqlen_k = 1}; },
     {"seqlen_q is 2147483644", "2147483135"}},
    {"more keys than whole tiles of them",
     [](auto& a, auto&) { a.shape = Shape{.seqlen_q = 1, .seqlen_k = std::numeric_limits<int>::max()}; },
     {"seqlen_k is 2147483647", "2147483135"}},
    {"too many tiles",
     [](auto& a, auto&) {
       a.shape = Shape{.batch = 1 << 20, .heads = 1 << 16, .seqlen_q = 1, .seqlen_k = 1};
     },
     {"shape", "tiles of 128 query rows"}},
    {"too many tiles of keys",
     [](auto& a, auto&) {
       a.shape = Shape{.batch = 1 << 20, .heads = 1 << 16, .seqlen_q = 0, .seqlen_k = 1};
     },
     {"shape", "tiles of 96 keys"}},
};

TEST_CASE("a wrong argument of a backward call is named, and nothing is launched") {
  FakeDevice device;
  const api::Launcher launcher(device, plan(device, DqWay::atomic));
  Memory memory;
  for (const Case& c : kCases) {
    CAPTURE(c.what);
    BackwardArgs args = memory.args();
    c.change(args, memory);
    bool threw = false;
    try {
      launcher.backward(args.shape.value_or(kShape), args, nullptr);
    } catch (const Error& error) {
      threw = true;
      CAPTURE(error.message());
      CHECK(error.code() == ErrorCode::invalid_argument);
      for (const char* words : c.says) CHECK_MESSAGE(error.message().find(words) != std::string::npos, words);
    }
    CHECK(threw);
  }
  CHECK(device.launches().empty());
  CHECK(device.bytes_alive() == 0);
}

TEST_CASE("a plan runs its own pass and no other") {
  FakeDevice device;
  const api::Launcher backward(device, plan(device, DqWay::own_pass));
  Pointers pointers;
  CHECK_THROWS_WITH_AS(backward.forward(kShape, pointers.args(), nullptr),
                       doctest::Contains("this plan is for the backward pass, may not run a forward one"),
                       Error);
  CompilerScript script;
  FakeEngine fake(script);
  Memory memory;
  const Plan forward = fake.engine->plan(kProblem, kShape);
  CHECK_THROWS_WITH_AS(forward.backward(memory.args()),
                       doctest::Contains("this plan is for the forward pass, may not run a backward one"),
                       Error);
  CHECK(forward.workspace_bytes(kShape) == 0);
}

TEST_CASE("a workspace is asked for by the lengths that a call may have") {
  FakeDevice device;
  const api::Launcher launcher(device, plan(device, DqWay::atomic));
  Shape shape = kShape;
  shape.seqlen_q = std::numeric_limits<int>::max();
  CHECK_THROWS_WITH_AS(static_cast<void>(launcher.workspace_bytes(shape)),
                       "seqlen_q is 2147483647, may be at most 2147483135", Error);
  shape.seqlen_q = 1;
  shape.seqlen_k = std::numeric_limits<int>::max();
  CHECK_THROWS_WITH_AS(static_cast<void>(launcher.workspace_bytes(shape)),
                       "seqlen_k is 2147483647, may be at most 2147483135", Error);
}

TEST_CASE("a stride that nobody looks at fits a tensor map, however long the tensor is") {
  Memory memory;
  BackwardArgs args = memory.args();
  args.k_strides = {.batch = -3, .head = 0, .row = 64};  // one K for all heads, of 8 GB
  BackwardParams params;
  const Shape shape{.batch = 1, .heads = 128, .seqlen_q = 1, .seqlen_k = 1 << 26};
  REQUIRE(api::make_backward_params(kBackward, shape, args, {}, params));
  CHECK(params.k_batch == 64);
  CHECK(params.k_head == 0);
}

TEST_CASE("sums of dq that a kernel of 32-bit places cannot reach are refused") {
  const Problem problem{.pass = Pass::backward, .head_dim = 64};
  const Shape shape{.batch = 32769, .heads = 64, .seqlen_q = 1, .seqlen_k = 1};  // 2^28 padded rows and more
  CHECK_NOTHROW(api::WorkspaceLayout(problem, shape, {.dq_sum = true, .tile_m = 128}));
  CHECK_NOTHROW(api::WorkspaceLayout(problem, shape, {.narrow = true, .tile_m = 128}));
  CHECK_THROWS_WITH_AS(api::WorkspaceLayout(problem, shape, {.dq_sum = true, .narrow = true, .tile_m = 128}),
                       doctest::Contains("268443648 rows for sums of dq, may make 268435455 at head_dim 64"),
                       Error);
}

TEST_CASE(
    "the workspace is one fp32 copy of dq, two rows of LSE and a few counters, and own_pass needs no copy") {
  FakeDevice device;
  for (const int seqlen : {1, 127, 128, 129, 4096}) {
    const Shape shape{.batch = 2, .heads = 6, .heads_kv = 3, .seqlen_q = seqlen, .seqlen_k = 77};
    const std::size_t rows = std::size_t{2} * 6 * ((seqlen + 127) / 128 * 128);
    const auto bytes = [&](DqWay way) {
      return api::Launcher(device, plan(device, way)).workspace_bytes(shape);
    };
    CHECK(bytes(DqWay::own_pass) == rows * 2 * sizeof(float));
    CHECK(bytes(DqWay::atomic) == rows * (2 + 64) * sizeof(float) + rows / 32 * sizeof(int));
    CHECK(bytes(DqWay::ordered) == rows * (2 + 64) * sizeof(float) + rows / 32 * sizeof(int));
  }
}

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

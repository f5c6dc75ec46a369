// A backward call: arguments that are wrong, and the workspace.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "api/launch/backward_call.hpp"
#include "tests/api/launch/made_up_backward.hpp"

namespace flashjit::test {
namespace {

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

TEST_CASE("parts of a tile's queries add up an fp32 copy of dv and dk, of whole tiles") {
  const Problem problem{.pass = Pass::backward, .head_dim = 64, .head_dim_v = 40};
  const Shape shape{.batch = 3, .heads = 8, .heads_kv = 2, .seqlen_q = 100, .seqlen_k = 200};
  const api::WorkspaceLayout whole(problem, shape, {.tile_n = 128});
  const api::WorkspaceLayout parts(problem, shape, {.tile_n = 128, .splits = 4});
  CHECK(parts.key_sums == whole.bytes);
  CHECK(parts.bytes - whole.bytes == std::size_t{3} * 2 * 256 * (64 + 40) * 4);
  const api::WorkspaceLayout divided(problem, shape, {.tile_n = 128, .divided_tiles = 5});
  CHECK(divided.bytes - whole.bytes == std::size_t{5} * 128 * (64 + 40) * 4);
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

TEST_CASE("tiles of rows and of keys that kernels have copied take their bytes of the workspace") {
  const Problem problem{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = 64};
  const Shape shape{.batch = 2, .heads = 6, .heads_kv = 3, .seqlen_q = 130, .seqlen_k = 65};
  const std::size_t rows = std::size_t{2} * 6 * 256, key_tiles = std::size_t{2} * 3 * 2;
  for (const bool dq_sum : {true, false}) {
    const int key_bytes = dq_sum ? 0 : 49152;
    const api::WorkspaceLayout layout(problem, shape,
                                      {.dq_sum = dq_sum,
                                       .tile_m = 64,
                                       .row_parts_bytes = 49664,
                                       .tile_n = 64,
                                       .key_parts_bytes = key_bytes});
    CHECK(layout.row_parts == rows * (dq_sum ? 1 + 64 : 1) * sizeof(float));  // delta, and sums
    CHECK(layout.key_parts == layout.row_parts + rows / 64 * 49664);
    CHECK(layout.bytes == layout.key_parts + key_tiles * key_bytes);
    CHECK(layout.row_parts % api::kWorkspaceAlignment == 0);
    CHECK(layout.key_parts % api::kWorkspaceAlignment == 0);
  }
}

}  // namespace
}  // namespace flashjit::test

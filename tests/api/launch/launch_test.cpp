// The launch path: parameters and tensor maps of calls that are right.
#include <doctest/doctest.h>

#include <thread>

#include "api/launch/forward_call.hpp"
#include "api/launch/tensor_maps.hpp"
#include "tests/api/at_exit.hpp"
#include "tests/api/launch/made_up_kernel.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("packed strides, defaults and given ones") {
  Pointers pointers;
  ForwardParams params;
  REQUIRE(api::make_forward_params(kProblem, kShape, pointers.args(), params));
  CHECK(params.q_row == 4 * 64);
  CHECK(params.q_head == 64);
  CHECK(params.q_batch == 130 * 4 * 64);
  CHECK(params.k_row == 2 * 64);
  CHECK(params.v_batch == 200 * 2 * 64);
  CHECK(params.heads_kv == 2);
  CHECK(params.scale_log2 == doctest::Approx(0.125 * 1.4426950408889634));

  ForwardArgs args = pointers.args();
  args.scale = 0.5F;
  args.q_strides = {
      .batch = 4 * 136 * 64, .head = 136 * 64, .row = 64};  // (batch, heads, seqlen, dim) with room
  args.k_strides = {.batch = 0, .head = 0, .row = 64};      // one K for all
  args.o_strides = {.batch = 130 * 512, .head = 128, .row = 512};
  REQUIRE(api::make_forward_params(kProblem, kShape, args, params));
  CHECK(params.scale_log2 == doctest::Approx(0.5 * 1.4426950408889634));
  CHECK(params.q_head == 136 * 64);
  CHECK(params.k_batch == 0);
  CHECK(params.k_head == 0);
  CHECK(params.o_row == 512);
}

TEST_CASE("the stride of a dimension of one element is not looked at, nor those of a tensor of none") {
  Pointers pointers;
  ForwardArgs args = pointers.args();
  args.q_strides = {.batch = 3, .head = -5, .row = 72};
  ForwardParams params;
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 5, .seqlen_k = 5};
  REQUIRE(api::make_forward_params(kProblem, shape, args, params));
  CHECK(params.q_row == 72);
  CHECK(params.q_head == 64);

  args = pointers.args();
  args.k_strides = args.v_strides = {.batch = 8, .head = 1, .row = 3};
  const Shape no_keys{.batch = 2, .heads = 4, .seqlen_q = 5, .seqlen_k = 0};
  CHECK(api::make_forward_params(kProblem, no_keys, args, params));
  args.k = args.v = args.o;  // nor is its address
  CHECK(api::make_forward_params(kProblem, no_keys, args, params));
}

TEST_CASE("nothing to compute launches nothing and asks for no pointers; no keys is something to compute") {
  CompilerScript script;
  FakeEngine fake(script);
  const Plan plan = fake.engine->plan(kProblem, kShape);
  ForwardArgs none;
  none.shape = Shape{.batch = 0, .heads = 4, .seqlen_q = 10, .seqlen_k = 10};
  plan.forward(none);
  none.shape = Shape{.batch = 0, .heads = 1 << 30, .seqlen_q = 1 << 30, .seqlen_k = 1 << 30};
  plan.forward(none);
  none.shape = Shape{.batch = 3, .heads = 4, .seqlen_q = 0, .seqlen_k = 10};
  plan.forward(none);
  CHECK(fake.device->launches().empty());
  Pointers pointers;
  ForwardArgs no_keys = pointers.args();
  no_keys.k = no_keys.v = nullptr;
  no_keys.shape = Shape{.batch = 3, .heads = 4, .seqlen_q = 10, .seqlen_k = 0};
  plan.forward(no_keys);
  CHECK(fake.device->launches().size() == 1);
}

TEST_CASE("tensor maps are encoded again only when something changed") {
  struct Counting : FakeDevice {
    std::vector<runtime::TensorMapRequest> requests;
    runtime::TensorMap encode(const runtime::TensorMapRequest& request) override {
      requests.push_back(request);
      return FakeDevice::encode(request);
    }
  } device;
  Pointers pointers;
  const api::Launcher launcher(device, kernel(device, {.tile_m = 64, .threads = 128},
                                              {{.operand = Operand::q, .box_rows = 64, .panels = 1},
                                               {.operand = Operand::v, .box_rows = 128, .panels = 1}}));
  device.execute = [&](const std::string&, const runtime::Launch&, std::span<void* const> params) {
    REQUIRE(params.size() == 3);
    CHECK(static_cast<const runtime::TensorMap*>(params[1])->opaque[0] ==
          reinterpret_cast<std::uintptr_t>(pointers.v));
  };
  launcher.forward(kShape, pointers.args(), nullptr);
  REQUIRE(device.requests.size() == 2);
  const runtime::TensorMapRequest& q = device.requests[0];
  CHECK(q.base == pointers.q);
  CHECK(q.size == std::array<std::uint64_t, 5>{64, 130, 1, 4, 2});
  CHECK(q.stride == std::array<std::uint64_t, 4>{512, 128, 128, 130 * 512});
  CHECK(q.box == std::array<std::uint32_t, 5>{64, 64, 1, 1, 1});
  CHECK(q.swizzle_bytes == 128);
  CHECK(q.bf16);

  launcher.forward(kShape, pointers.args(), nullptr);
  CHECK(device.requests.size() == 2);
  ForwardArgs scaled = pointers.args();
  scaled.scale = 2.0F;  // no map depends on it
  launcher.forward(kShape, scaled, nullptr);
  CHECK(device.requests.size() == 2);
  Shape longer = kShape;
  ++longer.seqlen_k;
  launcher.forward(longer, pointers.args(), nullptr);
  CHECK(device.requests.size() == 4);
  ForwardArgs strided = pointers.args();
  strided.q_strides = {130 * 512, 64, 512};
  launcher.forward(longer, strided, nullptr);
  CHECK(device.requests.size() == 6);
  SUBCASE("a head dim of several panels, moved at once or one by one") {
    Problem problem = kProblem;
    problem.head_dim = 192;
    const std::vector<TensorMapSpec> specs = {{.operand = Operand::k, .box_rows = 64, .panels = 3},
                                              {.operand = Operand::k, .box_rows = 64, .panels = 1}};
    ForwardParams params;
    REQUIRE(api::make_forward_params(problem, kShape, pointers.args(), params));
    device.requests.clear();
    static_cast<void>(api::TensorMapper(device, specs, problem).maps_for(api::tensors_of(params)));
    REQUIRE(device.requests.size() == 2);
    CHECK(device.requests[0].size == std::array<std::uint64_t, 5>{64, 200, 3, 2, 2});
    CHECK(device.requests[0].stride == std::array<std::uint64_t, 4>{768, 128, 384, 200 * 768});
    CHECK(device.requests[0].box == std::array<std::uint32_t, 5>{64, 64, 3, 1, 1});
    CHECK(device.requests[1].size == std::array<std::uint64_t, 5>{192, 200, 1, 2, 2});
    CHECK(device.requests[1].box == std::array<std::uint32_t, 5>{64, 64, 1, 1, 1});
  }
  SUBCASE("whole panels, and the columns behind them in a box of their own") {
    Problem problem = kProblem;
    problem.head_dim = 152;
    const std::vector<TensorMapSpec> specs = {
        {.operand = Operand::k, .box_rows = 64, .panels = 2},
        {.operand = Operand::k, .box_rows = 64, .panels = 1, .columns = 24, .row_bytes = 64}};
    ForwardParams params;
    REQUIRE(api::make_forward_params(problem, kShape, pointers.args(), params));
    device.requests.clear();
    static_cast<void>(api::TensorMapper(device, specs, problem).maps_for(api::tensors_of(params)));
    REQUIRE(device.requests.size() == 2);
    CHECK(device.requests[0].size == std::array<std::uint64_t, 5>{64, 200, 2, 2, 2});
    CHECK(device.requests[0].box == std::array<std::uint32_t, 5>{64, 64, 2, 1, 1});
    CHECK(device.requests[0].swizzle_bytes == 128);
    CHECK(device.requests[1].size == std::array<std::uint64_t, 5>{152, 200, 1, 2, 2});
    CHECK(device.requests[1].box == std::array<std::uint32_t, 5>{24, 64, 1, 1, 1});
    CHECK(device.requests[1].swizzle_bytes == 64);
  }
  SUBCASE("each thread has its own") {
    std::thread([&] { launcher.forward(longer, strided, nullptr); }).join();
    CHECK(device.requests.size() == 8);
  }
  SUBCASE("a launch at exit finds no table that is gone") {
    CHECK(holds_at_exit([&] { launcher.forward(longer, strided, nullptr); },
                        [&] {
                          launcher.forward(longer, strided, nullptr);
                          return device.requests.size() == 8;
                        }));
  }
  SUBCASE("another kernel has its own") {
    const api::Launcher other(device, kernel(device, {.tile_m = 64, .threads = 128},
                                             {{.operand = Operand::q, .box_rows = 64, .panels = 1},
                                              {.operand = Operand::v, .box_rows = 64, .panels = 1}}));
    other.forward(longer, strided, nullptr);
    CHECK(device.requests.size() == 8);
  }
  SUBCASE("an empty K is a map of q, which nobody reads") {
    device.execute = nullptr;
    Shape none = kShape;
    none.seqlen_k = 0;
    ForwardArgs args = pointers.args();
    args.k = args.v = nullptr;
    launcher.forward(none, args, nullptr);
    CHECK(device.requests.back().base == pointers.q);
    CHECK(device.requests.back().size[1] == 1);
  }
}

}  // namespace
}  // namespace flashjit::test

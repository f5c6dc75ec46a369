// A thousand runs on a GPU give the same bits, in all families. There are more tiles than
// multiprocessors, so that rings, turns and tickets go on from one tile to the next, and outputs are poisoned
// before each run.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "api/engine_state.hpp"
#include "api/tuning.hpp"
#include "autotune/inputs.hpp"
#include "flashjit/error.hpp"

using namespace flashjit;

namespace {

constexpr int kRuns = 1000;

struct Case {
  Problem problem;
  const char* schedule;
  bool equal_dq = true;          // backward: dK and dV are, whatever the way to dQ
  std::optional<Shape> shape{};  // of no more elements than shape_of's
};

// An engine on a Hopper GPU, or a skipped test: 77 is what ctest calls skipped.
EngineState& state_or_skip() {
  static std::optional<EngineState> state;
  if (state) return *state;
  try {
    state.emplace(EngineOptions{.device = "cuda", .use_cache = false});
  } catch (const Error& error) {
    fmt::print("SKIPPED: no GPU. {}\n", error.what());
    std::exit(77);
  }
  if (state->device().target().arch != "sm_90a") {
    fmt::print("SKIPPED: family wgmma wants sm_90a, this is {}.\n", state->device().target().arch);
    std::exit(77);
  }
  return *state;
}

Shape shape_of(const Problem& problem) {
  const int heads = 2560 / problem.head_dim;
  return {.batch = 2, .heads = heads, .heads_kv = heads, .seqlen_q = 1099, .seqlen_k = 1099};
}

// Random tensors, one after the other in device memory: q, k, v, o, dout; outputs follow them.
class Tensors {
 public:
  Tensors(runtime::Device& device, const Problem& problem, int inputs, int outputs)
      : device_(device), shape_(shape_of(problem)), rows_(shape_.batch * shape_.heads * shape_.seqlen_q) {
    const std::size_t elements = static_cast<std::size_t>(rows_) * problem.head_dim;
    bytes_ = size_of(problem.dtype) * elements;
    std::vector<std::byte> values(inputs * bytes_);
    autotune::fill_normal(problem.dtype, values.data(), static_cast<std::int64_t>(inputs * elements), 5);
    memory_ = static_cast<std::byte*>(device.allocate((inputs + outputs) * bytes_));
    device.copy_to_device(memory_, values.data(), values.size(), nullptr);
  }
  ~Tensors() { device_.free(memory_); }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  std::byte* at(int number) const { return memory_ + number * bytes_; }
  std::size_t bytes() const { return bytes_; }
  const Shape& shape() const { return shape_; }
  int rows() const { return rows_; }

 private:
  runtime::Device& device_;
  Shape shape_;
  int rows_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

// How many of the runs after the first left other bits in `compared` bytes from `outputs` on.
template <typename Run>
int different_runs(runtime::Device& device, std::byte* outputs, std::size_t poisoned, std::size_t compared,
                   const Run& run) {
  std::vector<std::byte> first(compared), again(compared);
  int different = 0;
  for (int k = 0; k < kRuns; ++k) {
    device.fill(outputs, 0xff, poisoned, nullptr);
    run();
    device.copy_to_host(k == 0 ? first.data() : again.data(), outputs, compared, nullptr);
    if (k > 0 && std::memcmp(first.data(), again.data(), compared) != 0) ++different;
  }
  return different;
}

}  // namespace

TEST_CASE("a thousand forward runs, bit for bit") {
  EngineState& state = state_or_skip();
  for (const Case& one : std::vector<Case>{
           {{.head_dim = 128}, "wgmma:m128n128s2cl2"},
           {{.head_dim = 128}, "wgmma:m64n128s3pp0p0sp8"},
           // Two tiles, which several clusters share out: whichever comes last.
           {.problem = {.head_dim = 128},
           .schedule = "wgmma:m64n64s4pp0p0sp4",
           .shape = Shape{.batch = 1, .heads = 2, .seqlen_q = 50, .seqlen_k = 16384}},
           // Even shares, of a wave and a half, in pairs, of few tiles, and under a mask.
           {.problem = {.head_dim = 128},
           .schedule = "wgmma:m128n128s2p3pt1",
           .shape = Shape{.batch = 1, .heads = 6, .seqlen_q = 4096, .seqlen_k = 4096}},
           {.problem = {.head_dim = 128},
           .schedule = "wgmma:m192n64s4qr0p3cl2",
           .shape = Shape{.batch = 1, .heads = 6, .seqlen_q = 4096, .seqlen_k = 4096}},
           {.problem = {.head_dim = 128},
           .schedule = "wgmma:m64n64s3pp0p3",
           .shape = Shape{.batch = 1, .heads = 21, .seqlen_q = 50, .seqlen_k = 2048}},
           {.problem = {.head_dim = 128, .causal = true},
           .schedule = "wgmma:m128n128s2p3",
           .shape = Shape{.batch = 1, .heads = 5, .seqlen_q = 4096, .seqlen_k = 4096}},
           {{.head_dim = 128, .causal = true}, "wgmma:m192n64s4qr0p2"},
           {{.head_dim = 64, .causal = true}, "wgmma:m256n64s4qr0p2"},
           // Several CTAs on a multiprocessor, each with several tiles; tiles off a counter without a mask.
           {.problem = {.head_dim = 64, .causal = true},
           .schedule = "wgmma:m64n64s3qr0pp0p2c3",
           .shape = Shape{.batch = 20, .heads = 24, .seqlen_q = 128, .seqlen_k = 128}},
           {.problem = {.head_dim = 32},
           .schedule = "wgmma:m128n64s3c2",
           .shape = Shape{.batch = 20, .heads = 24, .seqlen_q = 128, .seqlen_k = 128}},
           {.problem = {.head_dim = 96},
           .schedule = "wgmma:m128n64s2p2",
           .shape = Shape{.batch = 30, .heads = 12, .seqlen_q = 128, .seqlen_k = 128}},
           {{.dtype = DType::fp16, .head_dim = 256, .causal = true}, "wgmma:m128n64s2qr0o2re0p2"},
           {{.head_dim = 128, .causal = true}, "mma:m128n64w8s2"},
           {{.dtype = DType::fp32, .head_dim = 128, .causal = true}, "mma:m128n32w8s1kv1"},
           {{.dtype = DType::fp32, .head_dim = 128, .causal = true}, "wgmma:m128n64s1qr2op0pp0ov0p0"},
           {{.dtype = DType::fp32, .head_dim = 128}, "wgmma:m128n64s1qr2op0pp0ov0p0cl2"},
           {{.dtype = DType::fp32, .head_dim = 256, .causal = true}, "wgmma:m64n32s1qr0op0pp0ov0p0cl2"},
           {{.dtype = DType::fp32, .head_dim = 256, .causal = true}, "wgmma:m128n64s1qr2op0pp0ov0p0sp2"},
           {{.dtype = DType::fp32, .head_dim = 64}, "wgmma:m192n64s2qr2op0pp0ov0p0"},
           {{.dtype = DType::fp32, .head_dim = 64}, "simt:m128n64w8s2"}}) {
    CAPTURE(one.schedule);
    const Tensors tensors(state.device(), one.problem, 3, 1);
    ForwardArgs args;
    args.q = tensors.at(0);
    args.k = tensors.at(1);
    args.v = tensors.at(2);
    args.o = tensors.at(3);
    args.shape = one.shape.value_or(tensors.shape());
    const autotune::Built built =
        api::build_with(state, one.problem)(parse_schedule(one.schedule), std::chrono::milliseconds(0));
    CHECK(different_runs(state.device(), tensors.at(3), tensors.bytes(), tensors.bytes(),
                         [&] { built.forward(args, nullptr); }) == 0);
  }
}

TEST_CASE("a thousand backward runs, bit for bit") {
  EngineState& state = state_or_skip();
  runtime::Device& device = state.device();
  constexpr auto kBackward = Pass::backward;
  // A few tiles more than there are multiprocessors, so that the last ones are divided.
  const int heads = device.target().sm_count / 9 + 1;
  const Shape divided{.batch = 1, .heads = heads, .heads_kv = heads, .seqlen_q = 1099, .seqlen_k = 1099};
  for (const Case& one : std::vector<Case>{
           {{.pass = kBackward, .head_dim = 64, .causal = true}, "wgmma-backward:m128n128s2t1", false},
           {{.pass = kBackward, .head_dim = 64}, "wgmma-backward:m128n128s2dq2t1"},
           {{.pass = kBackward, .head_dim = 128, .causal = true}, "wgmma-backward:m64n128s2dq2t1"},
           {{.pass = kBackward, .head_dim = 128}, "wgmma-backward:m64n128s2", false},
           {{.pass = kBackward, .head_dim = 64}, "wgmma-backward:m128n128s2t1", false, divided},
           {{.pass = kBackward, .head_dim = 128}, "wgmma-backward:m64n128s2", false, divided},
           {{.pass = kBackward, .head_dim = 128}, "wgmma-backward:m80n128s2t1", false, divided},
           {{.pass = kBackward, .head_dim = 128}, "wgmma-backward:m80n128s2dq2t1"},
           {{.pass = kBackward, .dtype = DType::fp16, .head_dim = 256, .causal = true},
            "wgmma-backward:m64n64s2dq0"},
           {{.pass = kBackward, .dtype = DType::fp16, .head_dim = 256, .causal = true},
            "wgmma-backward:m64n64s2dq2"},
           {{.pass = kBackward, .head_dim = 256}, "wgmma-backward:m64n64s2", false},
           {{.pass = kBackward, .head_dim = 128, .causal = true}, "mma-backward:m64n64w8s2sp2dq1", false},
           {{.pass = kBackward, .head_dim = 64}, "mma-backward:m64n64w4s2"},
           {{.pass = kBackward, .dtype = DType::fp32, .head_dim = 64}, "simt-backward:m64n64w4"},
           {{.pass = kBackward, .dtype = DType::fp32, .head_dim = 64, .causal = true},
            "simt-backward:m64n64w4dq1",
            false},
           {{.pass = kBackward, .dtype = DType::fp32, .head_dim = 64, .causal = true},
            "mma-backward:m32n32w4dq1",
            false},
           {{.pass = kBackward, .dtype = DType::fp32, .head_dim = 256}, "mma-backward:m32n32w8sp2dq1", false},
           {{.pass = kBackward, .dtype = DType::fp32, .head_dim = 64, .causal = true},
            "wgmma-backward:m64n64s2",
            false},
           {{.pass = kBackward, .dtype = DType::fp32, .head_dim = 128}, "wgmma-backward:m64n64s1dq0"}}) {
    CAPTURE(one.schedule);
    const Tensors tensors(device, one.problem, 5, 3);
    auto* lse = static_cast<float*>(device.allocate(sizeof(float) * tensors.rows()));
    std::vector<float> values(tensors.rows());
    autotune::fill_normal(DType::fp32, values.data(), tensors.rows(), 6);
    device.copy_to_device(lse, values.data(), sizeof(float) * values.size(), nullptr);
    const autotune::Built built =
        api::build_with(state, one.problem)(parse_schedule(one.schedule), std::chrono::milliseconds(0));
    BackwardArgs args;
    args.q = tensors.at(0);
    args.k = tensors.at(1);
    args.v = tensors.at(2);
    args.o = tensors.at(3);
    args.dout = tensors.at(4);
    args.lse = lse;
    args.dk = tensors.at(5);
    args.dv = tensors.at(6);
    args.dq = tensors.at(7);
    const Shape shape = one.shape.value_or(tensors.shape());
    args.shape = shape;
    args.workspace = device.allocate(built.workspace_bytes(shape));
    CHECK(different_runs(device, tensors.at(5), 3 * tensors.bytes(), (one.equal_dq ? 3 : 2) * tensors.bytes(),
                         [&] { built.backward(args, nullptr); }) == 0);
    device.free(args.workspace);
    device.free(lse);
  }
}

// Family wgmma on a GPU: a thousand runs give the same bits. There are more tiles than multiprocessors, so
// that rings, turns and tickets go on from one tile to the next, and outputs are poisoned before each run.
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

}  // namespace

TEST_CASE("a thousand runs, bit for bit") {
  EngineState& state = state_or_skip();
  runtime::Device& device = state.device();
  for (const Case& one : std::vector<Case>{
           {{.head_dim = 128}, "wgmma:m128n128s2u2"},
           {{.head_dim = 128, .causal = true}, "wgmma:m192n64s4qr0p2"},
           {{.head_dim = 64, .causal = true}, "wgmma:m256n64s4qr0p2"},
           {{.dtype = DType::fp16, .head_dim = 256, .causal = true}, "wgmma:m128n64s2qr0o2re0p2"}}) {
    const int heads = 2560 / one.problem.head_dim;
    const Shape shape{.batch = 2, .heads = heads, .heads_kv = heads, .seqlen_q = 1099, .seqlen_k = 1099};
    CAPTURE(one.schedule);
    const std::size_t elements =
        static_cast<std::size_t>(shape.batch) * heads * shape.seqlen_q * one.problem.head_dim;
    const std::size_t bytes = 2 * elements;
    std::vector<std::byte> inputs(3 * bytes), first(bytes), again(bytes);
    autotune::fill_normal(one.problem.dtype, inputs.data(), static_cast<std::int64_t>(3 * elements), 5);
    auto* memory = static_cast<std::byte*>(device.allocate(4 * bytes));
    device.copy_to_device(memory, inputs.data(), inputs.size(), nullptr);
    ForwardArgs args;
    args.q = memory;
    args.k = memory + bytes;
    args.v = memory + 2 * bytes;
    args.o = memory + 3 * bytes;
    args.shape = shape;
    const autotune::Built built =
        api::build_with(state, one.problem)(parse_schedule(one.schedule), std::chrono::milliseconds(0));
    int different = 0;
    for (int run = 0; run < kRuns; ++run) {
      device.fill(memory + 3 * bytes, 0xff, bytes, nullptr);
      built.forward(args, nullptr);
      device.copy_to_host(run == 0 ? first.data() : again.data(), memory + 3 * bytes, bytes, nullptr);
      if (run > 0 && std::memcmp(first.data(), again.data(), bytes) != 0) ++different;
    }
    CHECK(different == 0);
    device.free(memory);
  }
}

// `flashjit demo`: the main task on a few problems, as ./quickstart shows it.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "api/build/template_overlay.hpp"
#include "cli/common/attention.hpp"
#include "cli/common/flush.hpp"
#include "cli/common/options.hpp"
#include "cli/common/tell.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

// The GPU if there is one, else the emulator of Hopper.
Engine open_engine(const DeviceOptions& wanted, bool& emulated) {
  EngineOptions options;
  options.on_message = [](std::string_view line) { tell(fmt::format("  {}", line)); };
  options.device = wanted.device();
  emulated = wanted.emulated();
  // Here, since an Engine's error about them looks like a missing GPU's.
  static_cast<void>(api::templates_from_environment());
  try {
    return Engine(options);
  } catch (const Error& error) {
    if (!wanted.emulator_stands_in(error)) throw;
    tell(fmt::format("  {}", error.message()));
    tell(
        "There is no GPU to run on, so everything is done but tuning and timing: kernels are rendered and\n"
        "compiled for sm_90a, and the emulator executes their PTX on the CPU. Times marked ~ are an estimate "
        "of the model.");
    emulated = true;
    options.device = DeviceOptions::kStandIn;
    return Engine(options);
  }
}

int demo(const DeviceOptions& device) {
  bool emulated = false;
  Engine engine = open_engine(device, emulated);
  tell(fmt::format("Device: {}", engine.device_description()));
  const Shape usual{.batch = 4, .heads = 16, .seqlen_q = 4096, .seqlen_k = 4096};
  const Shape shape =
      emulated ? Shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 200, .seqlen_k = 200} : usual;
  const bool turing = engine.target().capability < 80;  // Turing has no bf16
  const DType half = turing ? DType::fp16 : DType::bf16;
  const std::vector<Problem> problems = {{.dtype = half, .head_dim = 128, .causal = true},
                                         {.dtype = half, .head_dim = 64},
                                         {.dtype = DType::fp16, .head_dim = 80, .causal = true},
                                         {.dtype = half, .head_dim = 192, .head_dim_v = 128},
                                         {.dtype = DType::fp32, .head_dim = 64}};
  fmt::print("{}\n", table_heading());
  int failed = 0;
  std::string shown;  // the schedule of the first problem
  for (const Problem& problem : problems) {
    AttentionRequest request{.problem = problem, .shape = shape};
    request.options.tuning = emulated ? Tuning::off : Tuning::quick;
    request.inputs = autotune::make_inputs(problem, shape, autotune::InputKind::normal, 1);
    std::string code;
    if (emulated) {  // the kernel that a GPU would run, not one for a few tiles
      const Origin origin = engine.plan(problem, usual).origin();
      request.options.schedule = origin.schedule;
      code = origin.code;
    }
    const AttentionReport report = run_attention(engine, request);
    fmt::print("{}\n", table_line(report, code));
    if (shown.empty()) shown = report.plan.origin().schedule;
    flush_stdout();
    if (!report.check.ok) {
      tell(fmt::format("  WRONG: {}", report.check.message));
      ++failed;
    }
  }
  tell(failed == 0
           ? fmt::format(
                 "Every result is within FlashAttention's rule: at most twice the error of the plain\n"
                 "computation in the working precision, plus a rounding or two of the result. Read what\n"
                 "ran first:\nflashjit inspect --arch {}{} --head-dim 128 --causal "
                 "--schedule {} --emit source",
                 engine.target().arch, turing ? " --dtype fp16" : "", shown)
           : fmt::format("{} results are wrong", failed));
  return failed == 0 ? 0 : 1;
}

}  // namespace

void add_demo(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("demo", "Render, compile, tune, cache, run and check a few problems");
  auto device = std::make_shared<DeviceOptions>();
  device->add_to(*verb);
  verb->callback([device, &exit_code] { exit_code = demo(*device); });
}

}  // namespace flashjit::cli

// `flashjit check`: runs a problem under all of the emulator's checks with several seeds, as
// compute-sanitizer does on a GPU.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/backward/inputs.hpp"
#include "autotune/backward/slopes.hpp"
#include "cli/common/attention.hpp"
#include "cli/common/emulation.hpp"
#include "cli/common/json.hpp"
#include "cli/common/options.hpp"
#include "cli/common/tell.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

struct CheckOptions {
  ProblemOptions problem;
  ShapeOptions shape;
  DeviceOptions device;
  std::string inputs = "normal";
  std::uint64_t seed = 1;
  int seeds = 3;
  int threads = 0;
  std::string schedule;
  std::string family;
  bool no_cache = false;
  bool json = false;
};

// What a run without findings has shown: the emulator's FindingKinds in words.
constexpr const char* kChecked[] = {
    "bounds and alignment of every access to global, shared, local and parameter memory",
    "no use of memory that was freed, or that nothing wrote",
    "no race in shared memory, no missing proxy or wgmma fence",
    "every cp.async, TMA copy and wgmma waited for before its result is used",
    "barriers reached by all, no deadlock, no divergence at an aligned instruction",
    "tensor maps and wgmma descriptors that fit their data",
};

// The result of one seed, which makes the inputs, interleaves the warps and decides when asynchronous copies
// happen.
struct SeedResult {
  std::uint64_t seed = 0;
  std::vector<emulator::Finding> findings;
  autotune::Check check;   // rows is 0 if findings ended the run
  autotune::Check slopes;  // gradients against finite differences; rows is 0 for a forward pass
  std::string kernel, schedule;

  [[nodiscard]] bool clean() const { return findings.empty() && check.ok && (slopes.rows == 0 || slopes.ok); }
};

// Compares a few elements of each gradient with the slope of the float64 forward pass when an input is moved.
// Each element needs a forward pass of one head, so this is done only if that is quick.
autotune::Check check_slopes(const AttentionRequest& request, const AttentionReport& report,
                             std::uint64_t seed) {
  constexpr double kQuick = 1e8;
  constexpr int kEach = 6;
  if (flops(request.problem, request.shape) / request.shape.kv_heads() > kQuick) return {};
  autotune::HostBackward call;
  call.attention = autotune::host_attention(request.problem, request.shape, request.inputs);
  call.dout = request.dout.bytes.data();
  call.dout_strides = request.dout.strides;
  return autotune::compare_with_slopes(
      call, {.dq = report.dq.bytes.data(), .dk = report.dk.bytes.data(), .dv = report.dv.bytes.data()},
      report.gradients, kEach, seed);
}

SeedResult run_seed(Emulation& emulation, const CheckOptions& options, const PlanOptions& plan_options,
                    const Problem& problem, const Shape& shape, std::uint64_t seed) {
  SeedResult result{.seed = seed};
  emulation.device->set_seed(seed);
  const Plan plan = emulation.engine.plan(problem, shape, plan_options);
  result.kernel = plan.kernel_name();
  result.schedule = plan.origin().schedule;
  AttentionRequest request{
      .problem = problem,
      .shape = shape,
      .options = plan_options,
      .inputs = autotune::make_inputs(problem, shape, autotune::parse_input_kind(options.inputs), seed),
      .time = false};
  if (problem.pass == Pass::backward) request.dout = autotune::make_dout(problem, shape, seed);
  try {
    const AttentionReport report = run_attention(emulation.engine, request);
    result.check = report.check;
    if (problem.pass == Pass::backward) result.slopes = check_slopes(request, report, seed);
  } catch (const Error& error) {
    result.findings = emulation.device->findings();
    if (error.code() != ErrorCode::device || result.findings.empty()) throw;
  }
  return result;
}

nlohmann::json to_json(const emulator::Finding& finding) {
  nlohmann::json source = nlohmann::json::array();
  for (std::size_t k = 0; k < finding.source_lines.size(); ++k)
    source.push_back({{"line", finding.source_lines[k]}, {"template", finding.origins[k]}});
  return {{"kind", to_string(finding.kind)},
          {"message", finding.message},
          {"cta", {finding.cta[0], finding.cta[1], finding.cta[2]}},
          {"warp", finding.warp},
          {"lanes", fmt::format("0x{:08x}", finding.lanes)},
          {"ptx_line", finding.ptx_line},
          {"ptx", finding.ptx_text},
          {"source", source},
          {"seed", finding.seed},
          {"count", finding.count}};
}

nlohmann::json to_json(const SeedResult& result) {
  nlohmann::json findings = nlohmann::json::array();
  for (const emulator::Finding& finding : result.findings) findings.push_back(to_json(finding));
  nlohmann::json json{{"seed", result.seed}, {"clean", result.clean()}, {"findings", findings}};
  if (result.check.rows > 0) {
    json["reference"] = {{"ok", result.check.ok},
                         {"rows", result.check.rows},
                         {"max_error", result.check.max_error},
                         {"allowed", result.check.allowed}};
    if (result.slopes.rows == 0) json["reference"]["lse_error"] = result.check.lse_error;
  }
  if (result.slopes.rows > 0) {
    json["finite_differences"] = {{"ok", result.slopes.ok},
                                  {"elements", result.slopes.rows},
                                  {"max_error", result.slopes.max_error},
                                  {"allowed", result.slopes.allowed}};
  }
  return json;
}

void print(const SeedResult& result) {
  for (const emulator::Finding& finding : result.findings) fmt::print("{}\n", finding.text());
  if (!result.findings.empty()) return;
  for (const autotune::Check* check : {&result.check, &result.slopes}) {
    if (!check->message.empty()) fmt::print("wrong result: {}\n", check->message);
  }
}

int run(const CheckOptions& options) {
  const Problem problem = options.problem.problem();
  const Shape shape = options.shape.shape_to_launch(true);
  Emulation emulation = emulate(
      options.device, {.checks = emulator::Checks::all, .threads = static_cast<unsigned>(options.threads)},
      !options.no_cache);
  const PlanOptions plan_options = as_on_a_gpu(emulation.engine, problem, options.shape,
                                               {.schedule = options.schedule, .family = options.family});
  std::vector<SeedResult> results;
  const SeedResult* failed = nullptr;
  for (int k = 0; k < options.seeds && failed == nullptr; ++k) {
    const SeedResult& result = results.emplace_back(run_seed(emulation, options, plan_options, problem, shape,
                                                             options.seed + static_cast<std::uint64_t>(k)));
    if (!result.clean()) failed = &result;
  }

  const SeedResult& last = results.back();
  const std::string what = fmt::format("{} {}, {} on {}", describe(problem), describe(shape), last.schedule,
                                       emulation.device->name());
  if (options.json) {
    nlohmann::json json{
        {"problem", describe(problem)}, {"shape", describe(shape)},           {"kernel", last.kernel},
        {"schedule", last.schedule},    {"device", emulation.device->name()}, {"clean", failed == nullptr},
        {"checked", kChecked},          {"seeds", nlohmann::json::array()}};
    for (const SeedResult& result : results) json["seeds"].push_back(to_json(result));
    fmt::print("{}\n", indented(json));
  } else if (failed != nullptr) {
    print(*failed);
  } else {
    const std::string seeds = results.size() == 1 ? fmt::format("seed {}", last.seed)
                                                  : fmt::format("seeds {} to {}", options.seed, last.seed);
    fmt::print("clean: {}, {}\n", what, seeds);
    for (const char* checked : kChecked) fmt::print("  {}\n", checked);
    fmt::print("  {} rows within {:.2e} of float64, {:.2e} allowed\n", last.check.rows, last.check.max_error,
               last.check.allowed);
    if (last.slopes.rows > 0) {
      fmt::print("  {} elements of dq, dk and dv within {:.2e} of finite differences, {:.2e} allowed\n",
                 last.slopes.rows, last.slopes.max_error, last.slopes.allowed);
    }
  }
  if (failed == nullptr) return 0;
  tell_message(fmt::format("{}: not clean. To see it again: --seed {} --seeds 1", what, failed->seed));
  return 1;
}

}  // namespace

void add_check(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("check", "Run a problem under all of the emulator's checks; needs no GPU");
  auto options = std::make_shared<CheckOptions>();
  options->problem.add_to(*verb);
  options->shape.add_to(*verb);
  options->device.add_arch_to(*verb);
  verb->add_option("--inputs", options->inputs, autotune::input_kind_names())
      ->capture_default_str()
      ->group("Data");
  add_seed_to(*verb, options->seed, "the first: of the inputs, and of how warps interleave");
  verb->add_option("--seeds", options->seeds, "how many, one after the other")
      ->check(whole_number(1))
      ->capture_default_str()
      ->group("Data");
  verb->add_option("--threads", options->threads, "CTAs at once; 0: one a core")
      ->check(whole_number())
      ->capture_default_str();
  add_schedule_to(*verb, options->schedule);
  add_family_to(*verb, options->family);
  verb->add_flag("--no-cache", options->no_cache, "read and write nothing on disk");
  verb->add_flag("--json", options->json, "print JSON");
  verb->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace flashjit::cli

// `flashjit run`: attention on random or .npy inputs, checked against the reference and timed.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "autotune/backward/inputs.hpp"
#include "cli/common/attention.hpp"
#include "cli/common/json.hpp"
#include "cli/common/npy_tensors.hpp"
#include "cli/common/options.hpp"
#include "cli/common/tell.hpp"
#include "cli/verbs.hpp"

namespace flashjit::cli {
namespace {

struct RunOptions {
  ProblemOptions problem;
  ShapeOptions shape;
  DeviceOptions device;
  NpyTensors files;
  std::string inputs = "normal";
  std::uint64_t seed = 1;
  std::optional<float> scale;
  std::string schedule;
  std::string family;
  Tuning tuning = Tuning::off;
  bool no_check = false;
  bool no_time = false;
  bool no_cache = false;
  bool json = false;
};

nlohmann::json to_json(const AttentionReport& report) {
  const Origin& origin = report.plan.origin();
  nlohmann::json json{{"problem", describe(report.plan.problem())},
                      {"shape", describe(report.plan.shape())},
                      {"kernel", report.plan.kernel_name()},
                      {"schedule", origin.schedule},
                      {"choice", origin.choice},
                      {"code", origin.code}};
  if (!origin.note.empty()) json["note"] = origin.note;
  if (report.milliseconds > 0) {
    json["milliseconds"] = report.milliseconds;
    json["tflops"] = report.tflops;
    json["time_is_estimate"] = report.estimated;
  }
  if (report.check.rows > 0) {
    json["check"] = {{"ok", report.check.ok},
                     {"rows", report.check.rows},
                     {"max_error", report.check.max_error},
                     {"allowed", report.check.allowed},
                     {"lse_error", report.check.lse_error}};
    if (report.plan.problem().pass == Pass::backward) {
      json["check"].erase("lse_error");
      for (const auto& [name, check] : {std::pair{"dq", &report.gradients.dq},
                                        {"dk", &report.gradients.dk},
                                        {"dv", &report.gradients.dv}}) {
        json["check"][name] = {{"ok", check->ok},
                               {"rows", check->rows},
                               {"max_error", check->max_error},
                               {"allowed", check->allowed}};
      }
    }
  }
  return json;
}

void refuse_beside_files(const CLI::App& verb, const RunOptions& options) {
  constexpr const char* kWhich = "--q, --k and --v";
  refuse_ignored(verb,
                 {"--dtype", "--head-dim", "--head-dim-v", "--batch", "--heads", "--heads-kv", "--seqlen-q",
                  "--seqlen-k", "--inputs"},
                 kWhich, "the files decide it");
  const bool random_dout = options.problem.problem().pass == Pass::backward && !options.files.gives_dout();
  if (!random_dout) refuse_ignored(verb, {"--seed"}, kWhich, "nothing is random");
}

int run(const RunOptions& options) {
  EngineOptions engine_options;
  engine_options.device = options.device.device();
  engine_options.use_cache = !options.no_cache;
  AttentionRequest request;
  request.problem = options.problem.problem();
  options.files.check_outputs(request.problem);
  Engine engine(engine_options);  // before the inputs, which may be large
  if (options.files.given()) {
    request.inputs = options.files.load(request.problem, request.shape);
  } else {
    request.shape = options.shape.shape(options.device.emulated());
    request.inputs = autotune::make_inputs(request.problem, request.shape,
                                           autotune::parse_input_kind(options.inputs), options.seed);
  }
  if (request.problem.pass == Pass::backward || options.files.gives_dout()) {
    std::optional<autotune::HostTensor> dout = options.files.load_dout(request.problem, request.shape);
    request.dout =
        dout ? *std::move(dout) : autotune::make_dout(request.problem, request.shape, options.seed);
  }
  request.options = {.schedule = options.schedule, .family = options.family, .tuning = options.tuning};
  request.scale = options.scale;
  request.check = !options.no_check;
  request.time = !options.no_time;

  const AttentionReport report = run_attention(engine, request);
  if (options.json) {
    fmt::print("{}\n", indented(to_json(report)));
  } else {
    const Origin& origin = report.plan.origin();
    fmt::print("{}\n{}\n", table_heading(), table_line(report));
    tell(fmt::format("device    {}\nkernel    {}\nschedule  {} ({})", engine.device_description(),
                     report.plan.kernel_name(), origin.schedule, origin.choice));
    if (!origin.note.empty()) tell(fmt::format("note      {}", origin.note));
    if (report.estimated && report.milliseconds > 0) tell("time      ~ an estimate: no GPU ran this");
  }
  options.files.save(request.problem, request.shape, report);
  if (report.check.rows > 0 && !report.check.ok) {
    tell_message(fmt::format("wrong result: {}", report.check.message));
    return 1;
  }
  return 0;
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto* verb =
      app.add_subcommand("run", "Run attention or its gradient, check it against float64, say how fast");
  auto options = std::make_shared<RunOptions>();
  options->problem.add_to(*verb);
  options->shape.add_to(*verb);
  options->device.add_to(*verb);
  options->files.add_to(*verb);
  verb->add_option("--inputs", options->inputs, autotune::input_kind_names())
      ->capture_default_str()
      ->group("Data");
  add_seed_to(*verb, options->seed, "of the random inputs");
  verb->add_option("--scale", options->scale, "of the logits; 1/sqrt(head_dim) by default")
      ->check(number_between(1.1754944e-38, 1.7014117e38))  // the Engine's limits
      ->group("Data");
  add_schedule_to(*verb, options->schedule);
  add_family_to(*verb, options->family);
  add_tune_to(*verb, options->tuning);
  verb->add_flag("--no-check", options->no_check, "do not compare with the reference");
  verb->add_flag("--no-time", options->no_time, "run once only");
  verb->add_flag("--no-cache", options->no_cache, "read and write nothing on disk");
  verb->add_flag("--json", options->json, "print JSON");
  verb->callback([options, verb, &exit_code] {
    refuse_tuned_schedule(*verb, options->tuning);
    if (options->files.given()) refuse_beside_files(*verb, *options);
    exit_code = run(*options);
  });
}

}  // namespace flashjit::cli

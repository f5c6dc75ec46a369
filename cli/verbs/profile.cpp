// `flashjit profile`: what a problem's kernel executes, counted by the emulator: instructions by class,
// bytes, and bank conflicts by line.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "autotune/backward/inputs.hpp"
#include "cli/common/attention.hpp"
#include "cli/common/emulation.hpp"
#include "cli/common/json.hpp"
#include "cli/common/options.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

struct ProfileOptions {
  ProblemOptions problem;
  ShapeOptions shape;
  DeviceOptions device;
  std::uint64_t seed = 1;
  std::string schedule;
  std::string family;
  bool no_cache = false;
  bool json = false;
};

int run(const ProfileOptions& options) {
  const Problem problem = options.problem.problem();
  const Shape shape = options.shape.shape(true);
  // Counting needs no checks; `flashjit check` does these.
  Emulation emulation =
      emulate(options.device, {.seed = options.seed, .checks = emulator::Checks::off, .counts = true},
              !options.no_cache);
  AttentionRequest request;
  request.problem = problem;
  request.shape = shape;
  request.options = as_on_a_gpu(emulation.engine, problem, options.shape,
                                {.schedule = options.schedule, .family = options.family});
  request.inputs = autotune::make_inputs(problem, shape, autotune::InputKind::normal, options.seed);
  if (problem.pass == Pass::backward) request.dout = autotune::make_dout(problem, shape, options.seed);
  request.check = request.time = false;
  request.before_backward = [&] { emulation.device->clear_profile(); };
  const AttentionReport report = run_attention(emulation.engine, request);
  const emulator::Profile profile = emulation.device->profile();
  if (options.json) {
    nlohmann::json json{{"problem", describe(problem)},
                        {"shape", describe(shape)},
                        {"kernel", report.plan.kernel_name()},
                        {"schedule", report.plan.origin().schedule},
                        {"device", emulation.device->name()}};
    json.update(nlohmann::json::parse(profile.json()));
    fmt::print("{}\n", indented(json));
  } else {
    fmt::print("{} {}, {} on {}\n{}", describe(problem), describe(shape), report.plan.origin().schedule,
               emulation.device->name(), profile.table());
  }
  return 0;
}

}  // namespace

void add_profile(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand(
      "profile", "Count what a kernel executes: instructions, bytes, bank conflicts by line");
  auto options = std::make_shared<ProfileOptions>();
  options->problem.add_to(*verb);
  options->shape.add_to(*verb);
  options->device.add_arch_to(*verb);
  add_seed_to(*verb, options->seed, "of the inputs, and of how warps interleave");
  add_schedule_to(*verb, options->schedule);
  add_family_to(*verb, options->family);
  verb->add_flag("--no-cache", options->no_cache, "read and write nothing on disk");
  verb->add_flag("--json", options->json, "print JSON");
  verb->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace flashjit::cli

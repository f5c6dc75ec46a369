// A tuning run for an Engine: which runner it has, and how it builds kernels.
#include "api/tuning.hpp"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "api/choose.hpp"
#include "api/engine_state.hpp"
#include "autotune/canonical.hpp"
#include "autotune/worker.hpp"
#include "flashjit/error.hpp"

namespace flashjit::api {
autotune::Build build_with(EngineState& state, const Problem& problem) {
  return [&state, problem = autotune::canonical(problem)](
             const Schedule& schedule, std::chrono::milliseconds deadline) -> autotune::Built {
    PlanCode code = state.builder().code(problem, schedule, deadline);
    runtime::Resources resources = code.resources();
    auto launcher = std::make_shared<const Launcher>(
        state.device(), state.builder().load(problem, schedule, std::move(code)));
    // The tuner always gives a shape.
    autotune::Built built{.resources = std::move(resources)};
    if (problem.pass == Pass::forward) {
      built.forward = [launcher](const ForwardArgs& args, runtime::Stream stream) {
        launcher->forward(args.shape.value(), args, stream);
      };
    } else {
      built.backward = [launcher](const BackwardArgs& args, runtime::Stream stream) {
        launcher->backward(args.shape.value(), args, stream);
      };
      built.workspace_bytes = [launcher](const Shape& shape) { return launcher->workspace_bytes(shape); };
    }
    return built;
  };
}

std::string worker_version(const TemplateSet& templates) {
  const autotune::Versions versions = versions_of(templates);
  return fmt::format("{}, templates {}", versions.flashjit, versions.templates);
}

autotune::TuneResult tune(EngineState& state, const Problem& problem, const Shape& shape,
                          autotune::TuneOptions options) {
  if (const auto wise = state.chooser().preferred(problem, shape, {.family = options.family}))
    options.incumbent = wise->schedule;
  runtime::Device& device = state.device();
  const Target& target = device.target();
  if (!device.estimates_time()) {  // on a real device, a bad kernel takes the process down
    try {
      const auto worker = autotune::make_worker_runner({.version = worker_version(state.templates()),
                                                        .device = device.name(),
                                                        .problem = problem,
                                                        .shape = shape,
                                                        .cache_dir = state.options().cache_dir,
                                                        .use_cache = state.options().use_cache},
                                                       {.executable = autotune::find_worker()});
      return autotune::tune(problem, shape, target, *worker, options);
    } catch (const autotune::NoWorker& none) {
      state.message("tuning in this process: " + none.message());
    }
  }
  const auto runner = autotune::make_local_runner(device, problem, shape, build_with(state, problem));
  return autotune::tune(problem, shape, target, *runner, options);
}

}  // namespace flashjit::api

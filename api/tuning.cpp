// A tuning run for an Engine: which runner, and what it builds with.
#include "api/tuning.hpp"

#include <memory>
#include <utility>

#include "api/engine_state.hpp"
#include "autotune/worker.hpp"
#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

std::unique_ptr<autotune::Runner> make_runner(EngineState& state, const Problem& problem,
                                              const Shape& shape) {
  runtime::Device& device = state.device();
  if (!device.estimates_time()) {  // a real one, which a bad kernel takes down with the process
    if (const auto worker = autotune::find_worker()) {
      return autotune::make_worker_runner({.version = FLASHJIT_VERSION,
                                           .device = device.name(),
                                           .problem = problem,
                                           .shape = shape,
                                           .cache_dir = state.options().cache_dir,
                                           .use_cache = state.options().use_cache},
                                          {.executable = *worker});
    }
    state.message(
        "tuning in this process: there is no flashjit executable beside the program, beside the library or "
        "in "
        "PATH (FLASHJIT_WORKER names one)");
  }
  return autotune::make_local_runner(device, problem, shape, build_with(state, problem));
}

}  // namespace

autotune::Build build_with(EngineState& state, const Problem& problem) {
  return [&state, problem](const Schedule& schedule, std::chrono::milliseconds deadline) -> autotune::Built {
    PlanCode code = state.builder().code(problem, schedule, deadline);
    runtime::Resources resources = code.resources();
    auto launcher = std::make_shared<const Launcher>(
        state.device(), state.builder().load(problem, schedule, std::move(code)));
    // The tuner always names the shape.
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

autotune::TuneResult tune(EngineState& state, const Problem& problem, const Shape& shape,
                          const autotune::TuneOptions& options) {
  const Target& target = state.device().target();
  try {
    const std::unique_ptr<autotune::Runner> runner = make_runner(state, problem, shape);
    return autotune::tune(problem, shape, target, *runner, options);
  } catch (const Error& error) {
    // A worker that does not start, or is another version: as good as none.
    if (error.code() != ErrorCode::not_found || state.device().estimates_time()) throw;
    state.message("tuning in this process: " + error.message());
    const auto runner =
        autotune::make_local_runner(state.device(), problem, shape, build_with(state, problem));
    return autotune::tune(problem, shape, target, *runner, options);
  }
}

}  // namespace flashjit::api

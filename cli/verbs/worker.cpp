// `flashjit worker`, hidden: the process in which a tuning run tries its candidates (autotune/worker.hpp).
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "api/build/template_overlay.hpp"
#include "api/engine_state.hpp"
#include "api/tuning.hpp"
#include "autotune/worker.hpp"
#include "cli/verbs.hpp"

namespace flashjit::cli {
namespace {

// A runner, and the engine that owns its kernels.
class OwningRunner : public autotune::Runner {
 public:
  OwningRunner(const autotune::Job& job, const EngineOptions& options)
      : state_(options),
        runner_(autotune::make_local_runner(state_.device(), job.problem, job.shape,
                                            api::build_with(state_, job.problem))) {}

  void build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
             const autotune::BuildDone& done) override {
    runner_->build(schedules, time, done);
  }
  autotune::Check verify(const Schedule& schedule) override { return runner_->verify(schedule); }
  autotune::Timing time(const Schedule& schedule, const autotune::MeasureOptions& options) override {
    return runner_->time(schedule, options);
  }

 private:
  EngineState state_;
  std::unique_ptr<autotune::Runner> runner_;
};

}  // namespace

void add_worker(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("worker", "Serve a tuning run on stdin and stdout");
  verb->group("");  // not in --help
  verb->callback([&exit_code] {
    exit_code =
        autotune::serve(0, 1, api::worker_version(api::templates_from_environment()),
                        [](const autotune::Job& job) -> std::unique_ptr<autotune::Runner> {
                          EngineOptions options;
                          options.device = job.device;
                          options.cache_dir = job.cache_dir;
                          options.use_cache = job.use_cache;
                          options.on_message = [](std::string_view) {};  // the parent has shown it already
                          return std::make_unique<OwningRunner>(job, options);
                        });
  });
}

}  // namespace flashjit::cli

#include "tests/mutation/harness.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "api/engine_state.hpp"
#include "emulator/emulated_device.hpp"
#include "flashjit/error.hpp"

namespace flashjit::test {
namespace {

// A mutant that spins must end: right runs of the subjects take less than a third of this, and most less than
// a hundredth.
constexpr std::uint64_t kMostSteps = 20'000'000;

// The compiler that an Engine sees: shared compiles, edited.
class EditingCompiler : public runtime::Compiler {
 public:
  EditingCompiler(Compiles& compiles, EditPtx edit) : compiles_(compiles), edit_(std::move(edit)) {}
  [[nodiscard]] std::string path() const override { return compiles_.compiler().path(); }
  [[nodiscard]] std::string build_id() const override { return compiles_.compiler().build_id(); }
  [[nodiscard]] std::vector<std::string> archs() const override { return compiles_.compiler().archs(); }
  [[nodiscard]] bool makes_cubin(const Target& target) const override {
    return compiles_.compiler().makes_cubin(target);
  }
  [[nodiscard]] std::vector<std::string> options(const Target& target) const override {
    return compiles_.compiler().options(target);
  }
  runtime::Compiled compile(const KernelSource& source, const Target& target, std::chrono::milliseconds,
                            const std::atomic<bool>*) override {
    runtime::Compiled compiled = compiles_.get(source, target);
    const std::lock_guard lock(mutex_);
    if (edit_) edit_(source, compiled.ptx);
    return compiled;
  }

 private:
  Compiles& compiles_;
  std::mutex mutex_;  // an Engine compiles the kernels of a plan side by side; edits know nothing of it
  const EditPtx edit_;
};

struct Machine {
  Engine engine;
  emulator::EmulatedDevice* device;
};

Machine open(const Experiment& experiment, Compiles& compiles, emulator::EmulatorOptions how) {
  const Subject& subject = *experiment.subject;
  how.arch = subject.arch;
  how.sm_count = subject.sm_count;
  how.most_steps = kMostSteps;
  const EngineOptions options{.device = "emulated:" + subject.arch, .use_cache = false};
  EngineState::Parts parts = EngineState::parts_from_environment(options, [](std::string_view) {});
  std::unique_ptr<emulator::EmulatedDevice> device = emulator::open_emulated_device(how);
  emulator::EmulatedDevice* const reached = device.get();
  parts.device = std::move(device);
  if (experiment.templates != nullptr) parts.templates = *experiment.templates;
  parts.load_compiler = [&compiles, edit = experiment.edit] {
    return std::make_shared<EditingCompiler>(compiles, edit);
  };
  return {.engine = EngineAccess::make(std::make_shared<EngineState>(options, std::move(parts))),
          .device = reached};
}

}  // namespace

Trial::Trial(const Subject& subject) : subject_(subject) {
  const auto add = [&](const AttentionCase& one) {
    if (one.problem.pass == Pass::forward)
      attentions_.emplace_back(one);
    else
      gradients_.emplace_back(one);
  };
  AttentionCase one = subject.one;
  add(one);
  for (const Shape& shape : subject.more) {
    one.shape = shape;
    add(one);
  }
}

autotune::Check Trial::run(Engine& engine) const {
  const PlanOptions options{.schedule = subject_.schedule};
  autotune::Check check;
  for (const Attention& attention : attentions_) {
    if (check = attention.run(engine, options); !check.ok) return check;
  }
  for (const Gradients& gradients : gradients_) {
    if (check = gradients.run(engine, options, subject_.one.problem.deterministic).check; !check.ok)
      return check;
  }
  return check;
}

const runtime::Compiled& Compiles::get(const KernelSource& source, const Target& target) {
  const std::string key = target.arch + "\n" + source.text;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
  }
  runtime::Compiled compiled = compiler_->compile(source, target, std::chrono::milliseconds(0));
  const std::lock_guard lock(mutex_);
  return known_.emplace(key, std::move(compiled)).first->second;
}

Catch run(const Experiment& experiment, Compiles& compiles) {
  for (int k = 0; k < experiment.seeds; ++k) {
    Catch result{.seed = experiment.first_seed + static_cast<std::uint64_t>(k)};
    Machine machine =
        open(experiment, compiles, {.seed = result.seed, .counts = experiment.subject->conflict_free});
    try {
      const autotune::Check check = experiment.trial->run(machine.engine);
      result.caught = !check.ok;
      result.by = "wrong result";
      result.words = check.message;
      const std::uint64_t conflicts = machine.device->profile().bank_conflicts;
      if (check.ok && conflicts != 0 && experiment.subject->conflict_free)
        result = {.caught = true,
                  .by = "bank conflicts",
                  .words = fmt::format("{} of them", conflicts),
                  .seed = result.seed};
    } catch (const Error& error) {
      result.caught = true;
      const bool found = error.code() == ErrorCode::device && !machine.device->findings().empty();
      result.by = found ? to_string(machine.device->findings().front().kind) : "refused";
      result.words = found ? machine.device->findings().front().message : error.message();
    }
    if (result.caught) return result;
  }
  return {};
}

std::map<std::string, std::set<int>> executed_lines(const Experiment& experiment, Compiles& compiles) {
  Machine machine = open(experiment, compiles, {.checks = emulator::Checks::off, .counts = true});
  static_cast<void>(experiment.trial->run(machine.engine));
  return machine.device->profile().executed_lines;
}

}  // namespace flashjit::test

// What is behind an Engine: a device, a compiler on demand, the cache, and tables of everything it made.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "api/build/kernel_builder.hpp"
#include "api/choose.hpp"
#include "api/launch/launcher.hpp"
#include "api/remembered.hpp"
#include "api/single_flight.hpp"
#include "cache/store.hpp"
#include "flashjit/engine.hpp"
#include "generator/render.hpp"
#include "runtime/device.hpp"

namespace flashjit {

namespace api {
// Throws Error{invalid_argument} for a device name that does not exist.
[[noreturn]] void refuse_device(const std::string& name);
}  // namespace api

class EngineState {
 public:
  // What an Engine is made of. The public constructor takes these from the environment; tests bring their
  // own.
  struct Parts {
    std::unique_ptr<runtime::Device> device;
    std::unique_ptr<cache::Store> store;
    std::filesystem::path wisdom_file;         // empty: none
    std::filesystem::path system_wisdom_file;  // likewise
    TemplateSet templates;
    api::LoadCompiler load_compiler;
  };
  static Parts parts_from_environment(const EngineOptions& options, const api::Message& message);

  EngineState(EngineOptions options, Parts parts);
  explicit EngineState(const EngineOptions& options);

  // Kernels that are ready to launch, why these kernels, and where their code came from.
  struct Ready {
    std::shared_ptr<const api::Launcher> launcher;
    Origin origin;
    api::Choice choice;
    std::string untuned;  // why tuning failed; empty if it did not
  };
  struct Answer {
    std::shared_ptr<const Ready> ready;
    bool fresh = false;  // made by this very call
  };
  // Throws as Engine::plan does. Returns at once if the plan was made before.
  Answer ready(const Problem& problem, const Shape& shape, const PlanOptions& options);

  // Chooses the schedule of a plan for this problem, which must be canonical, and gets its code: the schedule
  // that was asked for, else the first of wisdom's and the model's that spills no registers. Whatever was
  // passed over, families too, is added to the note.
  using PlanCodePointer = std::shared_ptr<const api::PlanCode>;
  struct Chosen {
    api::Choice choice;
    PlanCodePointer code;
  };
  Chosen choose(const Problem& problem, const Shape& shape, const PlanOptions& options, std::string& note);

  [[nodiscard]] runtime::Device& device() { return *parts_.device; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }
  [[nodiscard]] const TemplateSet& templates() const { return parts_.templates; }
  [[nodiscard]] api::KernelBuilder& builder() { return builder_; }
  [[nodiscard]] api::Chooser& chooser() { return chooser_; }
  void message(std::string_view line) const { options_.on_message(line); }
  bool in_capture(Stream stream);
  // Refuses copies, because the graph would read or write host memory whenever it runs, and refuses waits.
  void refuse_in_capture(const char* what, Stream stream);

 private:
  struct PlanKey {
    Problem problem;
    std::string bucket;
    std::string schedule;
    std::string family;
    Tuning tuning;
    // Only if the shape has another schedule than the one that the bucket's first shape got.
    std::optional<Schedule> carried_over = {};
    bool operator==(const PlanKey&) const = default;
  };
  // All that ready() is asked for, except the stream.
  struct Question {
    Problem problem;
    Shape shape;
    std::string schedule;
    std::string family;
    Tuning tuning;
    bool operator==(const Question&) const = default;
  };
  struct KernelKey {
    Problem problem;
    Schedule schedule;
    bool operator==(const KernelKey&) const = default;
  };
  struct Hash {
    std::size_t operator()(const PlanKey& key) const;
    std::size_t operator()(const Question& question) const;
    std::size_t operator()(const KernelKey& key) const;
  };
  using LauncherPointer = std::shared_ptr<const api::Launcher>;

  // For a question that was not answered before.
  Answer answer(const Question& question, const PlanOptions& options);
  // Finds or makes one entry of plans_. Without `first`, the plan of the bucket's first shape, the bucket is
  // tuned. This is done once, also where it fails.
  Answer find_or_make(const PlanKey& key, const Shape& shape, const PlanOptions& options,
                      const Ready* first = nullptr);
  // Lets one tuning run at a time use a device.
  static std::mutex& tuning_on(const std::string& device);
  // Tunes unless wisdom makes it superfluous. Returns why tuning failed; empty if it did not.
  std::string tune(const Problem& problem, const Shape& shape, const PlanOptions& options);
  Ready make(const Problem& problem, const Shape& shape, const PlanOptions& options, const Ready* first);
  // nullopt if the code spills registers and may_spill is false. The note reports a spill in either case.
  std::optional<Chosen> attempt(const Problem& problem, const api::Choice& choice, bool may_spill,
                                std::string& note);

  const EngineOptions options_;
  Parts parts_;  // declared before the tables, so that kernels are unloaded before their device goes
  api::KernelBuilder builder_;
  api::Chooser chooser_;
  static constexpr std::size_t kAnswers = 4096;  // some 200 bytes each
  api::Remembered<Question, std::shared_ptr<const Ready>, Hash> answers_{kAnswers};
  api::SingleFlight<PlanKey, std::shared_ptr<const Ready>, Hash> plans_;
  api::SingleFlight<KernelKey, PlanCodePointer, Hash> codes_;
  api::SingleFlight<KernelKey, LauncherPointer, Hash> kernels_;
};

// For those that need the state behind an Engine, or make one from their own parts: the C interface, cli and
// tests.
struct EngineAccess {
  static EngineState& state(const Engine& engine) { return *engine.state_; }
  static Engine make(std::shared_ptr<EngineState> state) { return Engine(std::move(state)); }
};

}  // namespace flashjit

// What an Engine is behind its handle: one device, a compiler on demand, the cache, and the tables of what
// was made.
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
// Throws Error{invalid_argument} for a device's name that is none.
[[noreturn]] void refuse_device(const std::string& name);
}  // namespace api

class EngineState {
 public:
  // What an Engine is made of. The public constructor takes these from the environment, tests bring their
  // own.
  struct Parts {
    std::unique_ptr<runtime::Device> device;
    std::unique_ptr<cache::Store> store;
    std::filesystem::path wisdom_file;         // empty: none
    std::filesystem::path system_wisdom_file;  // the same
    TemplateSet templates;
    api::LoadCompiler load_compiler;
  };
  static Parts parts_from_environment(const EngineOptions& options, const api::Message& message);

  EngineState(EngineOptions options, Parts parts);
  explicit EngineState(const EngineOptions& options);

  // Kernels that are ready to launch, why these, and where their code came from.
  struct Ready {
    std::shared_ptr<const api::Launcher> launcher;
    Origin origin;
    api::Choice choice;
  };
  struct Answer {
    std::shared_ptr<const Ready> ready;
    bool fresh = false;  // made by this very call
  };
  // Throws as Engine::plan does. At once when it was made before.
  Answer ready(const Problem& problem, const Shape& shape, const PlanOptions& options);

  // The schedule that a plan for this problem, which is canonical, is made of, and its code: what was asked
  // for, else the first of wisdom's and the model's that spills no registers. The note grows by what was
  // passed over, families too.
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
  // Of a copy, since the graph would read or write the host's memory whenever it runs, and of what waits.
  void refuse_in_capture(const char* what, Stream stream);

 private:
  struct PlanKey {
    Problem problem;
    std::string bucket;
    std::string schedule;
    std::string family;
    Tuning tuning;
    // Only where the shape has another schedule than the first of its bucket that was asked for.
    std::optional<Schedule> carried_over = {};
    bool operator==(const PlanKey&) const = default;
  };
  // All that ready() is asked, but for the stream.
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

  // What was not answered before.
  Answer answer(const Question& question, const PlanOptions& options);
  // One entry of plans_.
  Answer find_or_make(const PlanKey& key, const Shape& shape, const PlanOptions& options);
  // One tuning run at a time on a device.
  static std::mutex& tuning_on(const std::string& device);
  // Tunes unless wisdom makes it superfluous; returns what went wrong, if it did.
  std::string tune(const Problem& problem, const Shape& shape, const PlanOptions& options);
  Ready make(const Problem& problem, const Shape& shape, const PlanOptions& options);
  // nullopt when the code spills registers and another schedule may be taken instead. The note says so either
  // way.
  std::optional<Chosen> attempt(const Problem& problem, const api::Choice& choice, bool may_spill,
                                std::string& note);

  const EngineOptions options_;
  Parts parts_;  // outlives the tables: kernels are unloaded before their device goes
  api::KernelBuilder builder_;
  api::Chooser chooser_;
  static constexpr std::size_t kAnswers = 4096;  // some 200 bytes each
  api::Remembered<Question, std::shared_ptr<const Ready>, Hash> answers_{kAnswers};
  api::SingleFlight<PlanKey, std::shared_ptr<const Ready>, Hash> plans_;
  api::SingleFlight<KernelKey, PlanCodePointer, Hash> codes_;
  api::SingleFlight<KernelKey, LauncherPointer, Hash> kernels_;
};

// The rooms above the API (cli, bench, tests) reach the state of an Engine, and make one of their own parts.
struct EngineAccess {
  static EngineState& state(const Engine& engine) { return *engine.state_; }
  static Engine make(std::shared_ptr<EngineState> state) { return Engine(std::move(state)); }
};

}  // namespace flashjit

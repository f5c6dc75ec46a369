// Which schedules to try for a problem, best first, and why: the given one, then wisdom's, then the model's.
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/build/kernel_builder.hpp"
#include "autotune/wisdom.hpp"
#include "flashjit/engine.hpp"
#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/render.hpp"
#include "generator/schedule.hpp"

namespace flashjit::api {

struct Choice {
  Schedule schedule;
  std::string why;                                  // Origin::choice
  std::optional<autotune::CarryOver> lengths = {};  // for other shapes of the bucket; empty if it was given
};

// The version of this library and these templates. Wisdom of another version is a guide, but does not replace
// tuning.
autotune::Versions versions_of(const TemplateSet& templates);

// What learn() reports, and Plan::origin().note afterwards, if a run compared nothing.
inline constexpr std::string_view kLearntNothing =
    "the tuning budget ended before two schedules were timed, so nothing is kept";

class Chooser {
 public:
  // `file` is the user's wisdom; if it is empty, what is learnt stays in memory. `system_file` is only read.
  Chooser(const Target& target, std::string gpu, autotune::Versions versions, std::filesystem::path file,
          std::filesystem::path system_file, Message message);

  // The schedule that was asked for, else wisdom's; nullopt: ask the model. Throws Error{invalid_argument} if
  // the schedule or family does not exist, {unsupported} if the schedule is not legal here.
  std::optional<Choice> preferred(const Problem& problem, const Shape& shape, const PlanOptions& options);

  // All legal schedules in the model's order, best first; needs a prediction for each. Never empty: throws
  // Error: unsupported, with the reason of every family, if no schedule can serve the problem.
  std::vector<Schedule> ranked(const Problem& problem, const Shape& shape, const PlanOptions& options);

  // Whether a record makes tuning with this effort superfluous.
  bool knows(const Problem& problem, const Shape& shape, const std::string& family, Tuning effort);

  // Keeps the result of a tuning run. Returns false if nothing was learnt, or if only this process learnt it,
  // because there is no file or the file could not be written (which message_ reports).
  bool learn(const Problem& problem, const Shape& shape, Tuning effort, const autotune::TuneResult& result);

 private:
  void read_files();  // at the first need, and again while descriptors or memory are short
  std::optional<autotune::WisdomChoice> wise(const Problem& problem, const Shape& shape,
                                             const std::string& family);

  const Target& target_;
  const std::string gpu_;
  const autotune::Versions versions_;
  const std::filesystem::path file_;
  const std::filesystem::path system_file_;
  const Message message_;
  std::mutex mutex_;
  bool read_ = false;
  autotune::Wisdom own_;
};

}  // namespace flashjit::api

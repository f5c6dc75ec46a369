// Which schedules to try for a problem, best first, and why: what was asked for, then wisdom, then the model.
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
  std::optional<autotune::CarryOver> lengths = {};  // for other shapes of the bucket; none where it was given
};

// This library and these templates: wisdom by others guides, but does not stand for tuning again.
autotune::Versions versions_of(const TemplateSet& templates);

// What learn() says, and Plan::origin().note after it, where a run compared nothing.
inline constexpr std::string_view kLearntNothing =
    "the tuning budget ended before two schedules were timed, so nothing is kept";

class Chooser {
 public:
  // `file` is the user's wisdom; empty: what is learnt is kept in memory alone. `system_file` is read only.
  Chooser(const Target& target, std::string gpu, autotune::Versions versions, std::filesystem::path file,
          std::filesystem::path system_file, Message message);

  // The schedule that was asked for, else wisdom's; nullopt: ask the model. Throws Error{invalid_argument}
  // for a schedule or a family that is none, {unsupported} for a schedule that is not legal here.
  std::optional<Choice> preferred(const Problem& problem, const Shape& shape, const PlanOptions& options);

  // All legal schedules as the model ranks them, best first. Costs a prediction for each. Never empty: throws
  // Error{unsupported} with every family's reason when nothing can serve the problem.
  std::vector<Schedule> ranked(const Problem& problem, const Shape& shape, const PlanOptions& options);

  // Is there a record that makes tuning with this effort superfluous?
  bool knows(const Problem& problem, const Shape& shape, const std::string& family, Tuning effort);

  // Files the result of a tuning run; false where nothing was learnt, or for this process alone: there is no
  // file, or it could not be written, which was said.
  bool learn(const Problem& problem, const Shape& shape, Tuning effort, const autotune::TuneResult& result);

 private:
  void read_files();  // on first need
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

// The order in which schedules are tried.
#include "api/choose.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "autotune/tuner.hpp"
#include "cache/entry.hpp"
#include "cache/files.hpp"
#include "flashjit/error.hpp"
#include "generator/legality.hpp"

namespace flashjit::api {
namespace {

constexpr std::array kFamilies = {Family::simt, Family::mma, Family::wgmma};

std::optional<Family> family_named(const std::string& name) {
  if (name.empty()) return std::nullopt;
  std::string known;
  for (const Family family : kFamilies) {
    if (name == to_string(family)) return family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", to_string(family));
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("family is \"{}\", may be {}", name, known));
}

[[noreturn]] void refuse(const Problem& problem, std::optional<Family> asked, const Target& target) {
  const std::string family = asked.has_value() ? to_string(*asked) : "";
  throw Error(ErrorCode::unsupported,
              fmt::format("no kernel for {} on {}:\n  {}", describe(problem), target.arch,
                          fmt::join(autotune::unserved_notes(problem, target, family), "\n  ")));
}

Schedule given_schedule(const Problem& problem, const PlanOptions& options, std::optional<Family> family,
                        const Target& target) {
  const Schedule given = parse_schedule(options.schedule);
  if (family.has_value() && family_of(given) != *family) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("schedule is \"{}\", may be one of family {}, which was asked for too",
                            options.schedule, options.family));
  }
  if (const Legality legality = legal(problem, given, target); !legality) {
    throw Error(ErrorCode::unsupported,
                fmt::format("schedule \"{}\": {}", options.schedule, legality.reason));
  }
  return given;
}

}  // namespace

autotune::Versions versions_of(const TemplateSet& templates) {
  cache::Key all;
  for (const auto& [path, text] : templates) all.fields.emplace_back(path, text);
  return {.flashjit = FLASHJIT_VERSION, .templates = all.digest()};
}

Chooser::Chooser(const Target& target, std::string gpu, autotune::Versions versions,
                 std::filesystem::path file, std::filesystem::path system_file, Message message)
    : target_(target),
      gpu_(std::move(gpu)),
      versions_(std::move(versions)),
      file_(std::move(file)),
      system_file_(std::move(system_file)),
      message_(std::move(message)) {}

std::optional<Choice> Chooser::preferred(const Problem& problem, const Shape& shape,
                                         const PlanOptions& options) {
  const std::optional<Family> family = family_named(options.family);
  if (!options.schedule.empty()) return Choice{given_schedule(problem, options, family, target_), "given"};
  const auto choice = wise(problem, shape, options.family);
  if (!choice.has_value()) return std::nullopt;
  return Choice{choice->schedule, choice->words, choice->lengths};
}

std::vector<Schedule> Chooser::ranked(const Problem& problem, const Shape& shape,
                                      const PlanOptions& options) {
  std::vector<Schedule> made;
  for (const autotune::Candidate& candidate :
       autotune::ranked_space(problem, shape, target_, options.family)) {
    if (!candidate.pruned.empty()) break;  // the legal ones come first
    made.push_back(candidate.schedule);
  }
  if (made.empty()) refuse(problem, family_named(options.family), target_);
  return made;
}

bool Chooser::knows(const Problem& problem, const Shape& shape, const std::string& family, Tuning effort) {
  const auto choice = wise(problem, shape, family);
  return choice.has_value() && choice->exact && choice->record.effort >= effort;
}

bool Chooser::learn(const Problem& problem, const Shape& shape, Tuning effort,
                    const autotune::TuneResult& result) {
  if (result.learnt_nothing()) {
    if (message_) message_(kLearntNothing);
    return false;
  }
  autotune::Wisdom learnt;
  learnt.add(autotune::record_of(problem, shape, target_, gpu_, result, effort, versions_), versions_);
  const bool kept =
      !file_.empty() && autotune::merge_wisdom(file_, learnt, versions_, cache::publish, message_);
  const std::lock_guard lock(mutex_);
  own_.add(learnt, versions_);
  return kept;
}

std::optional<autotune::WisdomChoice> Chooser::wise(const Problem& problem, const Shape& shape,
                                                    const std::string& family) {
  read_files();
  const autotune::Wisdom shipped = autotune::shipped_wisdom_for(problem);
  const std::lock_guard lock(mutex_);
  return autotune::choose(own_, shipped, problem, shape, target_, gpu_, versions_, family);
}

void Chooser::read_files() {
  std::vector<std::string> lines;  // told after unlocking: message_ may block on a thread that needs the lock
  {
    const std::lock_guard lock(mutex_);
    if (read_) return;
    bool short_of = false;
    for (const auto& file : {system_file_, file_}) {
      if (file.empty()) continue;
      own_.add(autotune::read_wisdom(
                   file, [&](std::string_view line) { lines.emplace_back(line); }, &short_of),
               versions_);
    }
    read_ = !short_of;
  }
  for (const std::string& line : lines) message_(line);
}

}  // namespace flashjit::api

// `flashjit inspect`: what becomes of a problem on an arch, from source to machine code. Needs no GPU.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/inspection.hpp"
#include "cli/common/json.hpp"
#include "cli/common/options.hpp"
#include "cli/common/write_file.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

struct InspectOptions {
  ProblemOptions problem;
  ShapeOptions shape;
  DeviceOptions device;
  std::string schedule;
  std::string family;
  std::string kernel;
  std::string emit;
  std::string output;
  std::string compare;
  bool no_cache = false;
  bool json = false;
};

void write(const std::string& bytes, const InspectOptions& options) {
  if (!options.output.empty()) {
    if (const int error = write_file(options.output, {bytes}); error != 0) {
      throw Error(ErrorCode::io, fmt::format("--output is {}, may be a file that can be written: {}",
                                             options.output, std::strerror(error)));
    }
    return;
  }
  if (options.emit == "cubin" && isatty(STDOUT_FILENO) == 1) {
    throw Error(ErrorCode::invalid_argument, "a cubin is no text for a terminal",
                "give -o FILE, or pipe it somewhere");
  }
  fmt::print("{}", bytes);
}

void print_table(const Inspection& inspection) {
  for (const auto& [what, value] : rows(inspection)) fmt::print("{:<10}  {}\n", what, value);
}

// A plan with one kernel is an object; a backward pass's kernels are a list.
nlohmann::json to_json(const std::vector<Inspection>& inspections) {
  if (inspections.size() == 1) return to_json(inspections.front());
  nlohmann::json list = nlohmann::json::array();
  for (const Inspection& inspection : inspections) list.push_back(to_json(inspection));
  return list;
}

// Texts of several kernels follow one another; the schedule is the same for all.
std::string emit_all(const std::vector<Inspection>& inspections, const std::string& artefact) {
  if (inspections.size() == 1 || artefact == "schedule") return emit(inspections.front(), artefact);
  if (artefact == "cubin") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the plan has {} kernels, and a cubin holds one", inspections.size()),
                "Say which with --kernel: its number from 0, its name, or the end of that.");
  }
  std::string text;
  for (const Inspection& inspection : inspections)
    text += fmt::format("{}{}", text.empty() ? "" : "\n", emit(inspection, artefact));
  return text;
}

using Rows = std::vector<std::pair<std::string, std::string>>;

// The rows that differ, side by side.
void print_comparison(const Rows& left, const Rows& right) {
  const auto value_of = [](const auto& list, const std::string& what) {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const auto& row) { return row.first == what; });
    return found == list.end() ? std::string("none") : found->second;
  };
  std::vector<std::string> names;
  for (const auto* list : {&left, &right}) {
    for (const auto& row : *list) {
      if (std::find(names.begin(), names.end(), row.first) == names.end()) names.push_back(row.first);
    }
  }
  std::size_t width = 0;
  for (const std::string& name : names) width = std::max(width, value_of(left, name).size());
  for (const std::string& name : names) {
    const std::string one = value_of(left, name);
    const std::string other = value_of(right, name);
    if (one != other) fmt::print("{:<10}  {:<{}}  {}\n", name, one, width, other);
  }
}

int run(const InspectOptions& options) {
  if (!options.compare.empty() && !options.emit.empty()) {
    throw Error(ErrorCode::invalid_argument, "--compare and --emit are two questions: give one of them");
  }
  if (!options.output.empty() && options.emit.empty()) {
    throw Error(ErrorCode::invalid_argument, "--output needs --emit, which says what to write",
                fmt::format("--emit may be {}", kArtefacts));
  }
  if (!options.emit.empty()) check_artefact(options.emit);  // before anything is compiled for it
  const Problem problem = options.problem.problem();
  const Shape shape = options.shape.shape(false);
  const auto state = options.device.with_device([&](const std::string& device) {
    EngineOptions engine;
    engine.device = device;
    engine.use_cache = !options.no_cache;
    return std::make_unique<EngineState>(engine);
  });
  // The compiler's reports affect which schedule is chosen, but not the source of a given schedule.
  const bool needs_code =
      options.schedule.empty() || (options.emit != "source" && options.emit != "schedule");
  const auto look = [&](const std::string& schedule) {
    std::vector<Inspection> all = (needs_code ? inspect : sketch)(
        *state, problem, shape, {.schedule = schedule, .family = options.family});
    if (!options.kernel.empty()) all = {find_kernel(all, options.kernel)};
    return all;
  };

  const std::vector<Inspection> inspections = look(options.schedule);
  if (!options.emit.empty()) {
    write(emit_all(inspections, options.emit), options);
  } else if (!options.compare.empty()) {
    const std::vector<Inspection> others = look(options.compare);
    if (options.json) {
      fmt::print("{}\n", indented(nlohmann::json::array({to_json(inspections), to_json(others)})));
    } else {
      for (std::size_t i = 0; i < std::max(inspections.size(), others.size()); ++i) {
        if (i != 0) fmt::print("\n");
        print_comparison(i < inspections.size() ? rows(inspections[i]) : Rows(),
                         i < others.size() ? rows(others[i]) : Rows());
      }
    }
  } else if (options.json) {
    fmt::print("{}\n", indented(to_json(inspections)));
  } else {
    for (std::size_t i = 0; i < inspections.size(); ++i) {
      if (i != 0) fmt::print("\n");
      print_table(inspections[i]);
    }
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("inspect", "Look at a kernel: its source, code, resources and occupancy");
  auto options = std::make_shared<InspectOptions>();
  options->problem.add_to(*verb);
  options->shape.add_to(*verb);
  options->device.add_arch_to(*verb);
  add_schedule_to(*verb, options->schedule);
  add_family_to(*verb, options->family);
  verb->add_option(
          "--kernel", options->kernel,
          "one of a backward pass's: its number from 0, its name, or the end of that; all by default")
      ->check(has_text());
  verb->add_option("--emit", options->emit, std::string(kArtefacts) + ", to stdout or -o")->check(has_text());
  verb->add_option("-o,--output", options->output, "the file that --emit writes")->check(has_text());
  verb->add_option("--compare", options->compare, "another schedule: print what differs")->check(has_text());
  verb->add_flag("--no-cache", options->no_cache, "read and write nothing on disk");
  verb->add_flag("--json", options->json, "print JSON");
  verb->callback([options, verb, &exit_code] {
    if (!options->emit.empty())
      refuse_ignored(*verb, {"--json"}, "--emit", "what it prints is the artefact as it is");
    exit_code = run(*options);
  });
}

}  // namespace flashjit::cli

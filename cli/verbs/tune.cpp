// `flashjit tune`: searches for the best schedule, shows its predictions, and keeps what it learnt.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "api/build/template_overlay.hpp"
#include "api/engine_state.hpp"
#include "api/tuning.hpp"
#include "autotune/tuner.hpp"
#include "autotune/wisdom.hpp"
#include "cache/files.hpp"
#include "cache/store.hpp"
#include "cli/common/flush.hpp"
#include "cli/common/grid.hpp"
#include "cli/common/options.hpp"
#include "cli/common/tell.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

constexpr std::size_t kShown = 20;  // rows of a table, unless --all is given

struct TuneFlags {
  ProblemOptions problem;
  ShapeOptions shape;
  DeviceOptions device;
  bool quick = false;
  bool full = false;
  bool dry_run = false;
  bool grid = false;
  bool all = false;
  bool json = false;
  double budget = 0;
  std::string family;
  std::string export_file;
};

std::string status_of(const autotune::Candidate& candidate, const std::string& best) {
  if (!candidate.pruned.empty()) return candidate.pruned;
  return to_string(candidate.schedule) == best ? "chosen" : "";
}

void print_table(const Cell& cell, const std::vector<autotune::Candidate>& candidates,
                 const std::string& best, bool all) {
  const double work = flops(cell.first, cell.second) * 1e-9;
  fmt::print("{:<30} {:>11} {:>8} {:>11} {:>8} {:>7} {:>5}  {}\n", "schedule", "predicted", "TFLOP/s",
             "measured", "TFLOP/s", "spread", "regs", "");
  std::size_t shown = 0;
  struct Hidden {
    int count = 0;
    std::string first;  // the first hidden candidate, and why it is hidden
  };
  std::map<std::string, Hidden> hidden;  // by reason, without the numbers in its text
  for (const autotune::Candidate& c : candidates) {
    if (!all && (shown >= kShown || (c.predicted_ms == 0 && !c.pruned.empty()))) {
      std::string kind;
      for (const char letter : c.pruned) {
        if (letter < '0' || letter > '9') kind += letter;
      }
      Hidden& alike = hidden[kind];
      if (alike.count++ == 0) {
        alike.first = c.pruned.empty() ? "legal, predicted slower"
                                       : fmt::format("{}: {}", to_string(c.schedule), c.pruned);
      }
      continue;
    }
    ++shown;
    const auto ms = [](double value) {
      return value > 0 ? fmt::format("{:.4f} ms", value) : std::string("-");
    };
    const auto rate = [&](double value) {
      return value > 0 ? fmt::format("{:.1f}", work / value) : std::string("-");
    };
    const std::string spread = c.measured_ms > 0 ? fmt::format("{:.1f} %", 100 * c.spread) : "-";
    const std::string registers = c.resources.registers > 0 ? fmt::format("{}", c.resources.registers) : "-";
    fmt::print("{:<30} {:>11} {:>8} {:>11} {:>8} {:>7} {:>5}  {}\n", to_string(c.schedule),
               ms(c.predicted_ms), rate(c.predicted_ms), ms(c.measured_ms), rate(c.measured_ms), spread,
               registers, status_of(c, best));
  }
  for (const auto& [kind, alike] : hidden) {
    fmt::print("{:>5} more{} {}\n", alike.count, kind.empty() ? ":" : ", such as", alike.first);
  }
  if (!hidden.empty()) fmt::print("      (--all shows each)\n");
}

void print_json(const Cell& cell, const std::string& where,
                const std::vector<autotune::Candidate>& candidates, const std::string& best) {
  nlohmann::json list = nlohmann::json::array();
  for (const autotune::Candidate& c : candidates) {
    nlohmann::json one{{"schedule", to_string(c.schedule)}};
    if (c.predicted_ms > 0) one["predicted_ms"] = c.predicted_ms;
    if (c.measured_ms > 0) {
      one["measured_ms"] = c.measured_ms;
      one["spread"] = c.spread;
      if (c.busy_ms > 0) one["busy_ms"] = c.busy_ms;
      if (c.clock_mhz > 0) one["clock_mhz"] = c.clock_mhz;
    }
    if (c.resources.registers > 0) one["registers"] = c.resources.registers;
    if (!c.pruned.empty()) one["pruned"] = c.pruned;
    list.push_back(std::move(one));
  }
  nlohmann::json line{{"problem", describe(cell.first)}, {"shape", describe(cell.second)}, {"device", where}};
  if (!best.empty()) line["best"] = best;
  line["candidates"] = std::move(list);
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  flush_stdout();
}

int dry_run(const TuneFlags& flags, const std::vector<Cell>& cells) {
  const Target target = flags.device.target();
  bool all_served = true;
  for (const Cell& cell : cells) {
    const auto candidates = attempt(cells, cell, [&] {
      auto ranked = autotune::ranked_space(cell.first, cell.second, target, flags.family);
      if (ranked.empty()) autotune::refuse_unserved(cell.first, target, flags.family);
      return ranked;
    });
    if (!candidates) {
      all_served = false;
      continue;
    }
    if (flags.json) {
      print_json(cell, target.arch, *candidates, {});
      continue;
    }
    const auto legal_ones = std::count_if(candidates->begin(), candidates->end(),
                                          [](const auto& candidate) { return candidate.pruned.empty(); });
    fmt::print("{} at {} on {}, bucket {}: {} candidates, {} of them legal\n", describe(cell.first),
               describe(cell.second), target.arch, autotune::bucket_of(cell.first, cell.second, target),
               candidates->size(), legal_ones);
    if (const auto note = autotune::family_note(cell.first, target); !note.empty())
      fmt::print("note: {}\n", note);
    print_table(cell, *candidates, {}, flags.all);
  }
  return all_served ? 0 : 1;
}

// Why the cache directory will not keep what is learnt; empty if it will.
std::string unkept(const autotune::Versions& versions) {
  const cache::StoreOptions store = cache::options_from_environment();
  if (store.directory.empty()) return cache::no_directory(store).message();
  std::string why;  // the last line; those before it are told when the search reads the file
  const bool kept = autotune::merge_wisdom(store.directory / "wisdom.jsonl", {}, versions, cache::publish,
                                           [&](std::string_view line) { why = line; });
  return kept ? "" : why;
}

int search(const TuneFlags& flags, const std::vector<Cell>& cells) {
  const Tuning effort = flags.full ? Tuning::full : Tuning::quick;
  EngineOptions options;
  options.device = flags.device.device();
  options.on_message = tell_message;
  EngineState state(options);
  const std::string description = state.device().description();
  const auto versions = api::versions_of(api::templates_from_environment());
  const bool exports = !flags.export_file.empty();
  const auto export_wisdom = [&](const autotune::Wisdom& learnt) {
    if (exports &&
        !autotune::merge_wisdom(flags.export_file, learnt, versions, cache::publish, tell_message)) {
      throw Error(ErrorCode::io,
                  fmt::format("--export is {}, may be a file that can be written", flags.export_file));
    }
  };
  // Find out now, not after minutes of measuring, which files can be written.
  export_wisdom({});
  if (const std::string why = unkept(versions); !why.empty()) {
    tell_message(fmt::format("what is learnt goes to {}: {}",
                             exports ? "the file of --export alone" : "no file (--export names one)", why));
  }
  bool kept = true;
  bool all_tuned = true;
  for (const Cell& cell : cells) {
    const auto& [problem, shape] = cell;
    const auto tuned = attempt(cells, cell, [&] {
      return api::tune(state, cell.first, cell.second,
                       {.effort = effort,
                        .budget = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * flags.budget)),
                        .family = flags.family,
                        .progress = tell_message});
    });
    if (!tuned) {
      all_tuned = false;
      continue;
    }
    const autotune::TuneResult& result = *tuned;
    kept = state.chooser().learn(problem, shape, effort, result) && kept;
    all_tuned = all_tuned && !result.learnt_nothing();
    if (!result.learnt_nothing()) {
      autotune::Wisdom learnt;
      learnt.add(autotune::record_of(problem, shape, state.device().target(), autotune::gpu_of(description),
                                     result, effort, versions, {{"device", description}}),
                 versions);
      export_wisdom(learnt);
    }
    const std::string best = to_string(result.best);
    if (flags.json) {
      print_json(cell, description, result.candidates, best);
      continue;
    }
    fmt::print("{} at {} on {}: {} candidates, {} compiled, {} timed in {:.1f} s{}\n", describe(problem),
               describe(shape), description, result.candidates.size(), result.compiled, result.timed,
               result.seconds, result.out_of_time ? " (the budget ended it early)" : "");
    auto tried = result.candidates;
    std::stable_sort(tried.begin(), tried.end(), [](const auto& one, const auto& two) {
      const auto key = [](const autotune::Candidate& c) { return c.measured_ms > 0 ? c.measured_ms : 1e300; };
      return key(one) < key(two);
    });
    print_table(cell, tried, best, flags.all);
    flush_stdout();
  }
  return all_tuned && (kept || exports) ? 0 : 1;
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("tune", "Find the best schedule by measuring, and remember it");
  auto flags = std::make_shared<TuneFlags>();
  flags->problem.add_to(*verb);
  flags->shape.add_to(*verb);
  flags->device.add_arch_to(*verb);
  auto* quick = verb->add_flag("--quick", flags->quick, "a dozen candidates, 5 s a problem (the default)");
  verb->add_flag("--full", flags->full, "about a hundred candidates, 30 s a problem")->excludes(quick);
  verb->add_flag("--dry-run", flags->dry_run,
                 "show the candidates, what the model expects of them, and why others are out");
  verb->add_option("--budget", flags->budget, "seconds a problem, in place of the mode's own")
      ->check(number_between(0.001, 86400));
  add_family_to(*verb, flags->family);
  verb->add_flag("--grid", flags->grid,
                 "head_dim 64, 128, 256, full and causal, 1k, 4k, 16k: 18 problems of this pass and dtype");
  verb->add_flag("--all", flags->all, "show every candidate");
  verb->add_option("--export", flags->export_file, "add the records to this wisdom file too")
      ->check(has_text());
  verb->add_flag("--json", flags->json, "one JSON line a problem");
  verb->callback([flags, verb, &exit_code] {
    if (flags->grid) refuse_beside_grid(*verb);
    if (flags->dry_run)
      refuse_ignored(*verb, {"--quick", "--full", "--budget", "--export"}, "--dry-run",
                     "it measures nothing");
    if (flags->json) refuse_ignored(*verb, {"--all"}, "--json", "its lines have every candidate");
    if (!flags->dry_run && !flags->device.arch().empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("arch is \"{}\", but --arch is for --dry-run; tuning measures on --device",
                              flags->device.arch()));
    }
    const Problem problem = flags->problem.problem();
    const std::vector<Cell> cells =
        flags->grid ? grid_of(problem)
                    : std::vector<Cell>{{problem, flags->shape.shape_to_launch(flags->device.emulated())}};
    exit_code = flags->dry_run ? dry_run(*flags, cells) : search(*flags, cells);
  });
}

}  // namespace flashjit::cli

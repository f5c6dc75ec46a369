// `flashjit bench`: times problems as the tuner does, and prints JSON lines.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "api/engine_state.hpp"
#include "api/tuning.hpp"
#include "autotune/runner.hpp"
#include "cli/common/flush.hpp"
#include "cli/common/grid.hpp"
#include "cli/common/options.hpp"
#include "cli/common/tell.hpp"
#include "cli/verbs.hpp"

namespace flashjit::cli {
namespace {

struct BenchFlags {
  ProblemOptions problem;
  ShapeOptions shape;
  DeviceOptions device;
  bool grid = false;
  bool no_check = false;
  int rounds = 3;
  double pause = 0.25;
  double seconds = 0.1;
  std::string schedule;
  std::string family;
  Tuning tuning = Tuning::off;
  std::string commit;
};

// What was found of one cell, whose plan has this origin.
struct Bench {
  Cell cell;
  Origin origin;
  autotune::Check check;
  std::vector<autotune::Timing> rounds;
};

// The least that a launch must move: each tensor once.
double bytes_of(const Problem& problem, const Shape& shape) {
  const double columns = problem.head_dim + problem.value_dim();
  const double q_and_o = 1.0 * shape.batch * shape.seqlen_q * shape.heads * columns * size_of(problem.dtype);
  const double k_and_v =
      1.0 * shape.batch * shape.seqlen_k * shape.kv_heads() * columns * size_of(problem.dtype);
  const double lse = problem.lse ? 4.0 * shape.batch * shape.seqlen_q * shape.heads : 0;
  // A backward pass also reads dout and writes three gradients. Its workspace does not count.
  const double dout =
      1.0 * shape.batch * shape.seqlen_q * shape.heads * problem.value_dim() * size_of(problem.dtype);
  const double dq = dout / problem.value_dim() * problem.head_dim;
  return q_and_o + k_and_v + lse + (problem.pass == Pass::backward ? dout + dq + k_and_v : 0);
}

// Not named to_json: from 3.11.3 on, a call with a json argument also finds nlohmann's own
// to_json(json&, value), and the two are ambiguous.
nlohmann::json line_of(const Bench& bench, const nlohmann::json& environment) {
  const auto& [problem, shape] = bench.cell;
  std::vector<double> medians;
  double spread = 0, fastest = 1e300, clock = 0;
  int launches = 0;
  for (const autotune::Timing& round : bench.rounds) {
    medians.push_back(round.median_ms);
    spread = std::max(spread, round.spread);
    fastest = std::min(fastest, round.fastest_ms);
    clock += round.clock_mhz / static_cast<double>(bench.rounds.size());
    launches += round.launches;
  }
  std::sort(medians.begin(), medians.end());
  const double ms = medians.size() % 2 == 1
                        ? medians[medians.size() / 2]
                        : (medians[medians.size() / 2 - 1] + medians[medians.size() / 2]) / 2;
  nlohmann::json json{{"problem",
                       {{"pass", to_string(problem.pass)},
                        {"dtype", to_string(problem.dtype)},
                        {"head_dim", problem.head_dim},
                        {"head_dim_v", problem.value_dim()},
                        {"causal", problem.causal},
                        {"lse", problem.lse}}},
                      {"shape",
                       {{"batch", shape.batch},
                        {"heads", shape.heads},
                        {"heads_kv", shape.kv_heads()},
                        {"seqlen_q", shape.seqlen_q},
                        {"seqlen_k", shape.seqlen_k}}},
                      {"schedule", bench.origin.schedule},
                      {"choice", bench.origin.choice},
                      {"code", bench.origin.code},
                      {"milliseconds", ms},
                      {"fastest_ms", fastest},
                      {"rounds_ms", medians},
                      {"spread", spread},
                      {"launches", launches},
                      {"tflops", flops(problem, shape) / ms * 1e-9},
                      {"gbps", bytes_of(problem, shape) / ms * 1e-6},
                      {"environment", environment}};
  if (!bench.origin.note.empty()) json["note"] = bench.origin.note;
  if (clock > 0) json["clock_mhz"] = clock;
  if (bench.check.rows > 0) {
    json["check"] = {{"ok", bench.check.ok},
                     {"max_error", bench.check.max_error},
                     {"allowed", bench.check.allowed},
                     {"rows", bench.check.rows}};
    if (problem.pass == Pass::forward) json["check"]["lse_error"] = bench.check.lse_error;
  }
  if (problem.pass == Pass::backward) json["problem"]["deterministic"] = problem.deterministic;
  return json;
}

// Checks a cell's schedule, unless told not to, and times it.
Bench measure(EngineState& state, const Cell& cell, const Origin& origin, const BenchFlags& flags) {
  const auto& [problem, shape] = cell;
  Bench one{.cell = cell, .origin = origin, .check = {}, .rounds = {}};
  const auto runner =
      autotune::make_local_runner(state.device(), problem, shape, api::build_with(state, problem));
  const Schedule schedule = parse_schedule(origin.schedule);
  if (!flags.no_check) one.check = runner->verify(schedule);
  if (!flags.no_check && !one.check.ok) {
    tell_message(
        fmt::format("wrong result: {} with {}: {}", describe(problem), origin.schedule, one.check.message));
  }
  for (int round = 0; round < flags.rounds; ++round) {
    one.rounds.push_back(runner->time(schedule, {.pause_seconds = flags.pause, .seconds = flags.seconds}));
  }
  return one;
}

int bench(const BenchFlags& flags, const std::vector<Cell>& cells) {
  EngineOptions options;
  options.device = flags.device.device();
  options.on_message = tell_message;
  EngineState state(options);
  runtime::Device& device = state.device();
  nlohmann::json environment{{"device", device.description()},
                             {"arch", device.target().arch},
                             {"flashjit", FLASHJIT_VERSION},
                             {"pause_s", flags.pause},
                             {"time_is_estimate", device.estimates_time()}};
  if (!flags.commit.empty()) environment["commit"] = flags.commit;

  const PlanOptions plan{.schedule = flags.schedule, .family = flags.family, .tuning = flags.tuning};
  // Make all plans first, so that tuning does not heat the GPU during timing.
  std::vector<std::optional<Origin>> origins;
  origins.reserve(cells.size());
  for (const Cell& cell : cells) {
    origins.push_back(
        attempt(cells, cell, [&] { return state.ready(cell.first, cell.second, plan).ready->origin; }));
  }
  bool well = true;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto timed =
        origins[i] ? attempt(cells, cells[i], [&] { return measure(state, cells[i], *origins[i], flags); })
                   : std::nullopt;
    well = well && timed && (flags.no_check || timed->check.ok);
    if (!timed) continue;
    fmt::print("{}\n",
               line_of(*timed, environment).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    flush_stdout();
  }
  return well ? 0 : 1;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("bench", "Time problems with the tuner's own method; JSON lines");
  auto flags = std::make_shared<BenchFlags>();
  flags->problem.add_to(*verb);
  flags->shape.add_to(*verb);
  flags->device.add_to(*verb);
  verb->add_flag("--grid", flags->grid,
                 "head_dim 64, 128, 256, full and causal, 1k, 4k, 16k: 18 problems of this pass and dtype");
  add_schedule_to(*verb, flags->schedule);
  add_family_to(*verb, flags->family);
  add_tune_to(*verb, flags->tuning);
  verb->add_option("--rounds", flags->rounds, "timings of each problem, with a pause before each")
      ->check(whole_number(1, 100))
      ->capture_default_str();
  verb->add_option("--pause", flags->pause, "seconds of idleness before a timing, against heat")
      ->check(number_between(0, 60))
      ->capture_default_str();
  verb->add_option("--seconds", flags->seconds, "of launches in a timing, about")
      ->check(number_between(0.001, 60))
      ->capture_default_str();
  verb->add_option("--commit", flags->commit, "noted in each line: the commit that is timed")
      ->check(has_text());
  verb->add_flag("--no-check", flags->no_check, "do not compare with the reference");
  verb->callback([flags, verb, &exit_code] {
    if (flags->grid) refuse_beside_grid(*verb);
    refuse_tuned_schedule(*verb, flags->tuning);
    const Problem problem = flags->problem.problem();
    exit_code = bench(
        *flags, flags->grid
                    ? grid_of(problem)
                    : std::vector<Cell>{{problem, flags->shape.shape_to_launch(flags->device.emulated())}});
  });
}

}  // namespace flashjit::cli

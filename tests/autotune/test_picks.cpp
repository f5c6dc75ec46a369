// How far what the analytic model picks is behind the fastest: of all 16-bit forward schedules that were ever
// timed side by side on an H200 or H100 (bench/results/schedules.jsonl, which bench/collect.py gathers), and
// of random problems of fp32.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "autotune/tune.hpp"
#include "flashjit/error.hpp"
#include "generator/legality.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

namespace {

struct Timed {
  Problem problem;
  Shape shape;
  std::map<std::string, double> ms;  // by schedule
};

Timed timed_of(const nlohmann::json& line) {
  const auto number = [&line](const char* name) { return line.at(name).get<int>(); };
  return {.problem = {.pass = parse_pass(line.value("pass", "forward")),
                      .dtype = parse_dtype(line.at("dtype").get<std::string>()),
                      .head_dim = number("d"),
                      .head_dim_v = number("dv"),
                      .causal = line.at("causal").get<bool>(),
                      .deterministic = line.value("deterministic", false)},
          .shape = {.batch = number("b"),
                    .heads = number("h"),
                    .heads_kv = number("hk"),
                    .seqlen_q = number("sq"),
                    .seqlen_k = number("sk")},
          .ms = line.at("ms").get<std::map<std::string, double>>()};
}

// None where it is not legal any more, or not known.
std::optional<Schedule> schedule_of(const std::string& text, const Problem& problem, const Target& target) {
  try {
    const Schedule schedule = parse_schedule(text);
    if (legal(problem, schedule, target)) return schedule;
  } catch (const Error&) {
  }
  return std::nullopt;
}

// By what part the pick takes longer than the fastest; none where less than two schedules are left.
std::optional<double> behind(const Timed& timed, const Target& target) {
  struct Ranked {
    double predicted, measured;
  };
  std::vector<Ranked> ranked;
  for (const auto& [text, ms] : timed.ms) {
    if (const auto schedule = schedule_of(text, timed.problem, target))
      ranked.push_back({predict(timed.problem, timed.shape, *schedule, target), ms});
  }
  if (ranked.size() < 2) return std::nullopt;
  const auto by = [&ranked](double Ranked::*member) {
    return *std::min_element(ranked.begin(), ranked.end(),
                             [member](const Ranked& a, const Ranked& b) { return a.*member < b.*member; });
  };
  return by(&Ranked::predicted).measured / by(&Ranked::measured).measured - 1;
}

struct Sum {
  int problems = 0, far_behind = 0;
  double behind = 0;

  void add(double part) {
    ++problems;
    behind += part;
    far_behind += part > 0.05 ? 1 : 0;
  }
  [[nodiscard]] double mean() const { return behind / problems; }
};

// Calls visit(line, part) for each line of a file of timed schedules: what was timed, and how far the pick is
// behind.
void each_behind(const char* path, const std::function<void(const nlohmann::json&, double)>& visit) {
  const Target target = target_of("sm_90a");
  std::ifstream lines(path);
  REQUIRE(lines.good());
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line);
    if (const std::optional<double> part = behind(timed_of(parsed), target)) visit(parsed, *part);
  }
}

}  // namespace

TEST_CASE("of all that was timed, the model's picks are little behind the fastest") {
  std::map<std::string, Sum> by_file;
  Sum all;
  each_behind(FLASHJIT_TIMED_SCHEDULES, [&](const nlohmann::json& line, double part) {
    for (Sum* sum : {&all, &by_file[line.at("from").get<std::string>()]}) sum->add(part);
  });
  for (const auto& [file, sum] : by_file) {
    fmt::print("{:42} {:4} problems, {:.2f} % behind, {} of them by more than 5 %\n", file, sum.problems,
               100 * sum.mean(), sum.far_behind);
  }
  fmt::print("all {}: {:.3f} % behind, {} by more than 5 %\n", all.problems, 100 * all.mean(),
             all.far_behind);
  REQUIRE(all.problems > 6000);
  // 0.82 % and 4.7 % on 1 December 2026.
  CHECK(all.mean() < 0.0085);
  CHECK(all.far_behind < 0.048 * all.problems);
}

TEST_CASE("picks for fp32, of all families") {
  std::map<int, Sum> runs;  // 1 and 2: gradients, fitted to and not; 3: forward without wgmma,
                            // 4: with it, 5: and with pairs of CTAs, 6: which may share out columns
  each_behind(FLASHJIT_TIMED_FP32,
              [&](const nlohmann::json& line, double part) { runs[line.at("run").get<int>()].add(part); });
  for (const auto& [run, sum] : runs) {
    fmt::print("fp32, run {}: {} problems, {:.2f} % behind, {} of them by more than 5 %\n", run, sum.problems,
               100 * sum.mean(), sum.far_behind);
  }
  // 3.7, 2.6, 4.6, 1.5, 1.3 and 1.2 % on 1 December 2026.
  CHECK(runs[1].mean() < 0.04);
  CHECK(runs[2].mean() < 0.03);
  CHECK(runs[3].mean() < 0.05);
  CHECK(runs[4].mean() < 0.02);
  CHECK(runs[5].mean() < 0.015);
  CHECK(runs[6].mean() < 0.015);
}

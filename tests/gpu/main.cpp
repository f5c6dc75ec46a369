// Runs the correctness grid on a device: every case with every family that can serve it, against float64.
//
//   correctness_grid [--pass forward] [--device cuda] [--sample N] [--part K/N] [--cases N] [--repeats N]
//                    [--seed S] [--threads T] [--json FILE]
//
// --part K/N runs the K-th of N parts of the grid's problems (from 0), with C cases of each; the parts of one
// seed are the whole. On the emulator every launch has all checks on, a seed of its own (its case's), and few
// multiprocessors, so that persistent CTAs get several tiles. Prints one summary line; exits 0 when all are
// within the rule, 1 when not, 2 for a wrong call, 77 without a device.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/engine_state.hpp"
#include "autotune/backward/backward.hpp"
#include "autotune/tune.hpp"
#include "generator/legality.hpp"
#include "generator/schedule.hpp"
#include "runtime/compile.hpp"
#include "tests/gpu/grid.hpp"
#include "tests/support/emulated_engine.hpp"
#include "tests/support/gradient_case.hpp"

namespace {

using namespace flashjit;
using flashjit::test::Attention;
using flashjit::test::AttentionCase;
using flashjit::test::Gradients;

struct Options {
  std::string device = "cuda";
  std::string json;
  test::GridOptions grid;
  int threads = 0;
  int part = 0, parts = 1;  // of the problems
  int cases = 0;            // of each problem; 0: all
  int repeats = 2;          // runs of a backward pass that must be bit-equal
  [[nodiscard]] bool emulated() const { return device.rfind("emulated:", 0) == 0; }
};

int number(const std::string& flag, const std::string& text) {
  std::size_t end = 0;
  int value = -1;
  try {
    value = std::stoi(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end != text.size() || value < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is \"{}\", may be a number of 0 or more", flag, text));
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  options.grid.seed = std::chrono::system_clock::now().time_since_epoch().count() % 1'000'000;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) throw Error(ErrorCode::invalid_argument, flag + " has no value");
    const std::string value = argv[i + 1];
    if (flag == "--device") {
      options.device = value;
    } else if (flag == "--pass") {
      options.grid.pass = parse_pass(value);
    } else if (flag == "--json") {
      options.json = value;
    } else if (flag == "--sample") {
      options.grid.sample = number(flag, value);
    } else if (flag == "--seed") {
      options.grid.seed = static_cast<std::uint64_t>(number(flag, value));
    } else if (flag == "--threads") {
      options.threads = number(flag, value);
    } else if (flag == "--part") {
      const std::size_t slash = value.find('/');
      options.part = number(flag, value.substr(0, slash));
      options.parts = slash == std::string::npos ? 0 : number(flag, value.substr(slash + 1));
      if (options.part >= options.parts)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("--part is \"{}\", may be K/N with K below N", value));
    } else if (flag == "--cases") {
      options.cases = number(flag, value);
    } else if (flag == "--repeats") {
      options.repeats = number(flag, value);
    } else {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("flag \"{}\", may be --pass, --device, --sample, --part, --cases, --repeats, "
                              "--seed, --threads or --json",
                              flag));
    }
  }
  if (options.threads == 0)
    options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.grid.small = options.emulated();
  return options;
}

// What all threads report to.
class Results {
 public:
  void add(const AttentionCase& one, const std::string& family, const std::string& schedule,
           const autotune::Check& check) {
    const std::lock_guard lock(mutex_);
    Tally& tally = tallies_[fmt::format("{} {}", family, to_string(one.problem.dtype))];
    ++tally.cases;
    const double ratio = check.allowed > 0 ? check.max_error / check.allowed : check.ok ? 0 : 1e9;
    if (ratio > tally.worst) tally.worst = ratio, tally.worst_case = describe(one) + " " + schedule;
    tally.worst_lse = std::max(tally.worst_lse, check.lse_error / check.lse_allowed);
    if (!check.ok) fail(fmt::format("{} {}: {}", describe(one), schedule, check.message));
  }
  void add_error(const AttentionCase& one, const std::string& family, const std::string& words) {
    const std::lock_guard lock(mutex_);
    ++tallies_[fmt::format("{} {}", family, to_string(one.problem.dtype))].cases;
    fail(fmt::format("{} {}: {}", describe(one), family, words));
  }

  [[nodiscard]] nlohmann::ordered_json to_json() const {
    nlohmann::ordered_json json{{"cases", cases()}, {"failures", failures_.size()}, {"worst_ratio", worst()}};
    for (const auto& [name, tally] : tallies_) {
      json["by_family"][name] = {{"cases", tally.cases},
                                 {"worst_ratio", tally.worst},
                                 {"worst_case", tally.worst_case},
                                 {"worst_lse_ratio", tally.worst_lse}};
    }
    json["failed"] = failures_;
    return json;
  }
  [[nodiscard]] std::int64_t cases() const {
    std::int64_t sum = 0;
    for (const auto& [name, tally] : tallies_) sum += tally.cases;
    return sum;
  }
  [[nodiscard]] double worst() const {
    double most = 0;
    for (const auto& [name, tally] : tallies_) most = std::max(most, tally.worst);
    return most;
  }
  [[nodiscard]] std::size_t failures() const { return failures_.size(); }

 private:
  struct Tally {
    std::int64_t cases = 0;
    double worst = 0;  // largest error / allowed error
    double worst_lse = 0;
    std::string worst_case;
  };

  void fail(const std::string& words) {
    constexpr std::size_t kShown = 20;
    if (failures_.size() < kShown) std::fprintf(stderr, "WRONG %s\n", words.c_str());
    failures_.push_back(words);
  }

  std::mutex mutex_;
  std::map<std::string, Tally> tallies_;
  std::vector<std::string> failures_;
};

constexpr int kEmulatedSms = 4;

// In fp32 family mma may have no tile for a wide head, sooner so for deterministic gradients; all other
// families have one where they are legal. Its errors in gradients of few rows are luck: plans leave those to
// simt, whose small tiles keep scores in two floats.
bool serves(Family family, const Problem& problem, const Shape& shape, const Target& target) {
  if (family != Family::mma || problem.dtype != DType::fp32) return bool(legal(problem, family, target));
  if (autotune::needs_rows(problem, shape, MmaBackwardSchedule{})) return false;
  const std::vector<autotune::Candidate> space = autotune::search_space(problem, target);
  return std::any_of(space.begin(), space.end(), [&](const autotune::Candidate& candidate) {
    return family_of(candidate.schedule) == family && candidate.pruned.empty();
  });
}

// The gradients of one case, as fast as can be and deterministic; what must be bit-equal is run again.
void run_backward(Engine& engine, const AttentionCase& one, const Gradients& gradients, Family family,
                  int repeats, Results& results) {
  const bool emulated = EngineAccess::state(engine).device().estimates_time();
  for (const bool deterministic : {false, true}) {
    Problem problem = one.problem;
    problem.deterministic = deterministic;
    if (!serves(family, problem, one.shape, engine.target())) continue;
    const PlanOptions options{.family = to_string(family)};
    Gradients::Result first = gradients.run(engine, options, deterministic);
    // Whatever becomes of dq, dk and dv have the same bits: they come from one CTA or pair, or are the sum of
    // two shares; of more where heads share keys and a plan shares out queries. An emulator takes its time:
    // there only what was asked to be deterministic is run again.
    const bool parts = family == Family::wgmma && one.shape.heads != one.shape.kv_heads() &&
                       get(parse_schedule(first.schedule), "splits") > 1;
    const int runs = deterministic || !emulated ? repeats : 1;
    for (int run = 1; run < runs && first.check.ok; ++run) {
      const Gradients::Result again = gradients.run(engine, options, deterministic);
      const auto must_repeat = [&](const char* name, const autotune::HostTensor& a,
                                   const autotune::HostTensor& b) {
        if (a.bytes == b.bytes) return;
        first.check.ok = false;
        first.check.message += fmt::format(" {} of runs 0 and {} differ", name, run);
      };
      if (deterministic) must_repeat("dq", first.dq, again.dq);
      if (parts) continue;
      must_repeat("dk", first.dk, again.dk);
      must_repeat("dv", first.dv, again.dv);
    }
    results.add(one, to_string(family), first.schedule, first.check);
  }
}

void run(Engine& engine, const AttentionCase& one, int rows, int reference_threads, int repeats,
         Results& results) {
  std::optional<Attention> attention;
  std::optional<Gradients> gradients;
  if (one.problem.pass == Pass::forward) {
    attention.emplace(one, rows, reference_threads);
  } else {
    gradients.emplace(one, rows, reference_threads);
  }
  for (const Family family : {Family::simt, Family::mma, Family::wgmma}) {
    if (!serves(family, one.problem, one.shape, engine.target())) continue;
    const std::string name = to_string(family);
    try {
      if (gradients.has_value()) {
        run_backward(engine, one, *gradients, family, repeats, results);
      } else {
        std::string schedule;
        const autotune::Check check = attention->run(engine, {.family = name}, &schedule);
        results.add(one, name, schedule, check);
      }
    } catch (const Error& error) {
      results.add_error(one, name, error.what());
    }
  }
}

// An Engine of a thread's own; on the emulator, with its device.
struct Bench {
  Engine engine;
  emulator::EmulatedDevice* emulated = nullptr;
};

Bench open(const Options& options) {
  // Without a cache, on a GPU too: what is checked is what this build renders and this NVRTC compiles.
  if (!options.emulated()) return {.engine = Engine({.device = options.device, .use_cache = false})};
  auto [engine, device] = test::open_emulated_engine(
      {.arch = options.device.substr(options.device.find(':') + 1), .threads = 1, .sm_count = kEmulatedSms});
  return {.engine = std::move(engine), .emulated = device};
}

int run_grid(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  Bench first = open(options);
  Engine& engine = first.engine;
  std::fprintf(stderr, "%s: seed %llu\n", engine.device_description().c_str(),
               static_cast<unsigned long long>(options.grid.seed));

  std::vector<test::Group> groups;
  const std::vector<test::Group> all = grid(engine.target(), options.grid);
  for (std::size_t k = static_cast<std::size_t>(options.part); k < all.size();
       k += static_cast<std::size_t>(options.parts)) {
    groups.push_back(all[k]);
    test::Group& group = groups.back();
    std::shuffle(group.begin(), group.end(), std::mt19937_64(options.grid.seed + k));
    if (options.cases > 0 && group.size() > static_cast<std::size_t>(options.cases))
      group.resize(static_cast<std::size_t>(options.cases));
  }
  Results results;
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) {
    threads.emplace_back([&] {
      // A GPU is shared; an emulated device runs one launch at a time.
      std::optional<Bench> own;
      if (options.emulated()) own = open(options);
      Bench& bench = own ? *own : first;
      for (std::size_t at = next++; at < groups.size(); at = next++) {
        for (const AttentionCase& one : groups[at]) {
          if (bench.emulated != nullptr) bench.emulated->set_seed(one.seed % 1'000'000);
          run(bench.engine, one, 0, 1, options.repeats, results);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!options.grid.small && options.grid.sample == 0 && options.parts == 1) {
    for (const AttentionCase& one : test::large_cases(engine.target(), options.grid)) {
      run(engine, one, 512, options.threads, options.repeats, results);
    }
  }

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const bool right = results.failures() == 0 && results.cases() > 0;
  std::printf(
      "%s: %lld %s cases on %s, seed %llu: %zu wrong, largest error %.3f of what the rule allows, %.0f s\n",
      right ? "RIGHT" : "WRONG", static_cast<long long>(results.cases()), to_string(options.grid.pass),
      engine.device_description().c_str(), static_cast<unsigned long long>(options.grid.seed),
      results.failures(), results.worst(), seconds);
  if (!options.json.empty()) {
    nlohmann::ordered_json json{{"pass", to_string(options.grid.pass)},
                                {"device", engine.device_description()},
                                {"nvrtc", runtime::load_nvrtc()->build_id()},
                                {"seed", options.grid.seed},
                                {"sample", options.grid.sample},
                                {"part", options.part},
                                {"parts", options.parts},
                                {"seconds", seconds}};
    json.update(results.to_json());
    std::ofstream file(options.json);
    file << json.dump(2) << "\n";
    if (!file.flush()) throw Error(ErrorCode::io, options.json + " cannot be written");
  }
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_grid(parse(argc, argv));
  } catch (const Error& error) {
    const bool missing = error.code() == ErrorCode::not_found;
    std::fprintf(stderr, "%s%s\n", missing ? "SKIPPED: " : "correctness_grid: ", error.what());
    return missing ? 77 : 2;
  }
}

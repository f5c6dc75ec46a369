// Compiles the shipped search space and prints what each kernel takes; exits with 1 if one fails or spills.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "autotune/tune.hpp"
#include "flashjit/error.hpp"
#include "generator/render.hpp"
#include "runtime/compile.hpp"
#include "tests/support/compile_pool.hpp"

using namespace flashjit;

namespace {

struct Choice {
  std::vector<std::string> archs{"sm_75",  "sm_80",  "sm_86",  "sm_87",  "sm_88",  "sm_89", "sm_90",
                                 "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"};
  std::vector<std::string> dtypes{"fp16", "bf16", "fp32"};
  std::vector<int> head_dims{8, 16, 32, 40, 64, 72, 96, 128, 136, 160, 192, 256};
  std::vector<std::string> families{"simt", "mma", "wgmma"};
  std::vector<std::string> passes{"forward", "backward"};
  int value_dim = 0;
  std::string part;  // of a schedule's name
  int every = 1;
  int threads = 0;
};

struct Job {
  std::string what;
  test::CompilePool::Result result;
};

// One line per kernel: arch, problem, schedule, registers, spilled bytes, milliseconds. False: it is no good.
bool report(const Job& job) {
  try {
    const std::shared_ptr<const runtime::Compiled> compiled = job.result.get();
    const runtime::Resources& r = compiled->resources;
    const int spilled = r.spill_stores + r.spill_loads;
    fmt::print("{} {} registers, {} bytes spilled, {:.0f} ms{}\n", job.what, r.registers, spilled,
               compiled->milliseconds,
               spilled > 0          ? " SPILLS"
               : r.warnings.empty() ? ""
                                    : " WARNS");
    for (const std::string& warning : r.warnings) fmt::print("  {}\n", warning);
    std::fflush(stdout);
    return spilled == 0 && r.warnings.empty();
  } catch (const Error& error) {
    fmt::print("{} FAILS: {}\n", job.what, error.what());
    return false;
  }
}

class Run {
 public:
  explicit Run(const Choice& choice) : choice_(choice), pool_(choice.threads) {}

  int all() {
    for (const std::string& arch : choice_.archs) {
      const Target target = target_of(arch);
      if (!nvrtc_->makes_cubin(target)) {
        fmt::print("SKIPPED: NVRTC {} makes no machine code for {}, which --arch can leave out\n",
                   nvrtc_->build_id(), arch);
        return 77;
      }
      for (const std::string& dtype : choice_.dtypes) {
        for (const int head_dim : choice_.head_dims) {
          for (const std::string& pass : choice_.passes) {
            for (const bool causal : {false, true}) {
              add({.pass = parse_pass(pass),
                   .dtype = parse_dtype(dtype),
                   .head_dim = head_dim,
                   .head_dim_v = choice_.value_dim,
                   .causal = causal},
                  target);
            }
          }
        }
      }
    }
    while (!jobs_.empty()) take();
    fmt::print("{} kernels, {} pruned before, {} spill, warn or fail\n", compiled_, pruned_, bad_);
    return bad_ == 0 && compiled_ > 0 ? 0 : 1;
  }

 private:
  void add(const Problem& problem, const Target& target) {
    for (const autotune::Candidate& candidate : autotune::search_space(problem, target)) {
      const std::string family = to_string(family_of(candidate.schedule));
      if (std::find(choice_.families.begin(), choice_.families.end(), family) == choice_.families.end())
        continue;
      if (!candidate.pruned.empty()) {
        ++pruned_;
        continue;
      }
      if (to_string(candidate.schedule).find(choice_.part) == std::string::npos) continue;
      if (seen_++ % choice_.every != 0) continue;
      const std::string what =
          fmt::format("{} {} {}", target.arch, describe(problem), to_string(candidate.schedule));
      const std::size_t kernels = render(problem, candidate.schedule, target).size();
      for (std::size_t k = 0; k < kernels; ++k) {
        const std::string kernel = kernels == 1 ? what : fmt::format("{} kernel {}", what, k);
        // Rendered by the thread that compiles: the sources of all jobs at once would be gigabytes.
        jobs_.push_back({kernel, pool_.submit(kernel, [=, this](const std::atomic<bool>& cancelled) {
                           const KernelSource source = render(problem, candidate.schedule, target)[k];
                           return std::make_shared<const runtime::Compiled>(
                               nvrtc_->compile(source, target, std::chrono::minutes(5), &cancelled));
                         })});
      }
      while (static_cast<int>(jobs_.size()) > 4 * pool_.threads()) take();
    }
  }

  void take() {
    ++compiled_;
    bad_ += report(jobs_.front()) ? 0 : 1;
    jobs_.pop_front();
  }

  const Choice& choice_;
  std::shared_ptr<runtime::Compiler> nvrtc_ = runtime::load_nvrtc();
  test::CompilePool pool_;
  std::deque<Job> jobs_;
  int seen_ = 0, compiled_ = 0, pruned_ = 0, bad_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Choice choice;
  CLI::App app{
      "Compiles every legal schedule of the shipped search space; exits with 1 if one fails or spills."};
  app.add_option("--arch", choice.archs, "only these")->delimiter(',')->capture_default_str();
  app.add_option("--dtype", choice.dtypes, "only these")->delimiter(',')->capture_default_str();
  app.add_option("--head-dim", choice.head_dims, "only these")->delimiter(',')->capture_default_str();
  app.add_option("--head-dim-v", choice.value_dim, "columns of V; 0: as many as head_dim");
  app.add_option("--family", choice.families, "only these")->delimiter(',')->capture_default_str();
  app.add_option("--pass", choice.passes, "only these")->delimiter(',')->capture_default_str();
  app.add_option("--part", choice.part, "only schedules whose name has this, such as p3");
  app.add_option("--every", choice.every, "a sample: only each Nth schedule")->check(CLI::PositiveNumber);
  app.add_option("--threads", choice.threads, "0: one per core");
  CLI11_PARSE(app, argc, argv);
  try {
    return Run(choice).all();
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}

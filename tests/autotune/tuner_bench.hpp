// A tuning run on a fake device with a fake clock.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autotune/tuner.hpp"
#include "tests/autotune/fake_kernels.hpp"

namespace flashjit::test {

inline const Problem kProblem{.dtype = DType::fp16, .head_dim = 32, .causal = true};
inline const Shape kShape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 40, .seqlen_k = 72};

struct Bench {
  FakeKernels kernels{kProblem};
  std::unique_ptr<autotune::Runner> runner;
  std::optional<Schedule> incumbent;
  std::vector<std::string> lines;

  autotune::TuneResult tune(Tuning effort = Tuning::quick, std::chrono::milliseconds budget = {}) {
    if (!runner) {
      runner = autotune::make_local_runner(kernels.device, kProblem, kShape, kernels.build(),
                                           {.threads = 2, .clock = &kernels.clock});
    }
    autotune::TuneOptions options;
    options.effort = effort;
    options.budget = budget;
    options.incumbent = incumbent;
    options.clock = &kernels.clock;
    options.progress = [this](std::string_view line) { lines.emplace_back(line); };
    return autotune::tune(kProblem, kShape, kernels.device.target(), *runner, options);
  }
};

// The n best predictions that a quick run compiles, by name.
inline std::vector<std::string> tried(const autotune::TuneResult& result) {
  std::vector<std::string> names;
  for (const autotune::Candidate& candidate : result.candidates) {
    if (candidate.measured_ms > 0) names.push_back(to_string(candidate.schedule));
  }
  return names;
}

inline const autotune::Candidate& find(const autotune::TuneResult& result, const std::string& name) {
  const auto found = std::find_if(
      result.candidates.begin(), result.candidates.end(),
      [&](const autotune::Candidate& candidate) { return to_string(candidate.schedule) == name; });
  REQUIRE(found != result.candidates.end());
  return *found;
}

}  // namespace flashjit::test

// The backward pass of an AttentionCase, to be run through the front door and judged.
#pragma once

#include <string>

#include "autotune/backward/inputs.hpp"
#include "autotune/backward/reference.hpp"
#include "tests/support/attention_case.hpp"

namespace flashjit::test {

class Gradients {
 public:
  // Makes inputs and reference; the problem's pass is backward. rows > 0 checks that many rows of each tensor
  // alone, for problems that are large: o and lse are then no forward pass's, and the reference starts from
  // them too.
  explicit Gradients(const AttentionCase& one, int rows = 0, int reference_threads = 1);

  struct Result {
    autotune::Check check;  // of the gradient that is furthest from right
    autotune::HostTensor dq, dk, dv;
    std::string schedule;
  };
  // Runs the plan on the engine's device, from poisoned gradients and workspace. Beyond the rule, what lies
  // between the rows of strided gradients must be untouched.
  [[nodiscard]] Result run(Engine& engine, const PlanOptions& options, bool deterministic) const;

 private:
  [[nodiscard]] autotune::HostBackward call() const;

  AttentionCase case_;
  bool sampled_;
  autotune::BackwardInputs inputs_;
  autotune::HostTensor dq_, dk_, dv_;  // poison
  autotune::GradientBlocks blocks_;
  autotune::HostGradients reference_, plain_;
};

}  // namespace flashjit::test

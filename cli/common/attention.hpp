// One pass of attention on an Engine, for `run`, `demo` and `check`: upload, launch, check against the
// reference, time.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "autotune/backward/reference.hpp"
#include "autotune/inputs.hpp"
#include "autotune/reference.hpp"
#include "flashjit/engine.hpp"

namespace flashjit::cli {

struct AttentionRequest {
  Problem problem;
  Shape shape;
  PlanOptions options;
  autotune::Inputs inputs;
  autotune::HostTensor dout;  // backward: the gradient of o
  std::optional<float> scale;
  bool check = true;  // against float64, by FlashAttention's rule
  bool time = true;
  std::function<void()> before_backward;  // called when o and lse are ready, perhaps from a forward kernel
};

struct AttentionReport {
  Plan plan;
  autotune::Check check;    // rows is 0 if no check was asked for
  double milliseconds = 0;  // median of one launch with cold caches; 0: not timed
  bool estimated = false;   // the time is the model's figure, not measured
  double tflops = 0;
  autotune::HostTensor o;
  std::vector<float> lse;  // empty if the problem has none
  // Backward only. o and lse are then the pass's inputs, and check is the worst of the gradients'.
  autotune::HostTensor dq, dk, dv;
  autotune::GradientCheck gradients;
};

// Forward or backward, as the problem says. A backward pass starts from the float64 reference's o and lse if
// computing them is quick, else from those of our forward kernel.
AttentionReport run_attention(Engine& engine, const AttentionRequest& request);

// The columns that `run` and `demo` print: a heading, then one line per report.
std::string table_heading();
// `code`: where the kernel's code came from, if another plan than the report's fetched it.
std::string table_line(const AttentionReport& report, const std::string& code = {});

}  // namespace flashjit::cli

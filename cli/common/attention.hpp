// One pass of attention on an Engine, as `run`, `demo` and `check` do it: upload, launch, check against the
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
  std::function<void()> before_backward;  // called when its o and lse are there, which a kernel may have made
};

struct AttentionReport {
  Plan plan;
  autotune::Check check;    // rows is 0 where it was not asked for
  double milliseconds = 0;  // median of one launch, cold caches; 0: not timed
  bool estimated = false;   // the time is a model's figure, not a clock's
  double tflops = 0;
  autotune::HostTensor o;
  std::vector<float> lse;  // empty where the problem has none
  // Backward alone; o and lse are then what it was given, and check is the worst of the gradients'.
  autotune::HostTensor dq, dk, dv;
  autotune::GradientCheck gradients;
};

// Forward or backward, as the problem says. A backward pass starts from the float64 reference's o and lse
// where that takes no time to speak of, else from our forward kernel's.
AttentionReport run_attention(Engine& engine, const AttentionRequest& request);

// The columns that `run` and `demo` print: a heading, then a line a report.
std::string table_heading();
// `code`: where the kernel's code came from, if the plan is not the one that fetched it.
std::string table_line(const AttentionReport& report, const std::string& code = {});

}  // namespace flashjit::cli

// One attention on an Engine: upload, launch, check against the reference, time.
#include "cli/common/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/engine_state.hpp"
#include "autotune/backward/inputs.hpp"
#include "autotune/measure.hpp"
#include "autotune/tune.hpp"
#include "generator/schedule.hpp"

namespace flashjit::cli {
namespace {

// A check in float64 takes seconds per billion multiply-adds. Above this limit only a sample of rows is
// checked.
constexpr double kCheckAll = 4e9;

std::vector<autotune::RowBlock> rows_to_check(const Problem& problem, const Shape& shape) {
  if (flops(problem, shape) <= kCheckAll) return autotune::all_rows(shape);
  return autotune::sample_rows(shape, 32, 16, 1);
}

Buffer upload(Engine& engine, const std::vector<std::byte>& bytes) {
  Buffer buffer = engine.allocate(bytes.size());
  engine.upload(buffer, bytes.data(), bytes.size());
  return buffer;
}

// A set of device tensors. There are several, so that neighbouring launches find none of their inputs in L2.
struct DeviceSet {
  Buffer q, k, v, o, lse;
  Buffer dout, dq, dk, dv;  // backward

  [[nodiscard]] std::size_t bytes() const {
    return q.size() + k.size() + v.size() + o.size() + dout.size() + dq.size() + dk.size() + dv.size();
  }
};

std::size_t rows_of(const Shape& shape) {
  return static_cast<std::size_t>(shape.batch) * shape.heads * shape.seqlen_q;
}

template <class MakeSet, class Launch>
void time_launches(Engine& engine, std::vector<DeviceSet>& sets, const MakeSet& make_set,
                   const Launch& launch, AttentionReport& report) {
  runtime::Device& device = EngineAccess::state(engine).device();
  const double work = flops(report.plan.problem(), report.plan.shape());
  report.estimated = device.estimates_time();
  if (work <= 0) return;
  if (report.estimated) {  // the emulator's own run time says nothing about a GPU
    report.milliseconds = autotune::predict(report.plan.problem(), report.plan.shape(),
                                            parse_schedule(report.plan.origin().schedule), engine.target());
  } else {
    const std::size_t wanted =
        2 * static_cast<std::size_t>(engine.target().l2_bytes) / sets.front().bytes() + 1;
    while (sets.size() < std::clamp<std::size_t>(wanted, 1, 32)) sets.push_back(make_set());
    const auto one = [&](std::int64_t i) { launch(sets[static_cast<std::size_t>(i) % sets.size()]); };
    report.milliseconds = autotune::measure(device, nullptr, one, {}).median_ms;
  }
  report.tflops = work / report.milliseconds * 1e-9;
}

AttentionReport run_forward(Engine& engine, const AttentionRequest& request) {
  const Problem& problem = request.problem;
  const Shape& shape = request.shape;
  AttentionReport report{.plan = engine.plan(problem, shape, request.options)};
  report.o = autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, problem.value_dim());
  const std::size_t lse_count = problem.lse ? rows_of(shape) : 0;
  report.lse.assign(lse_count, std::nanf(""));
  const std::size_t lse_bytes = lse_count * sizeof(float);

  const auto make_set = [&] {
    DeviceSet set{.q = upload(engine, request.inputs.q.bytes),
                  .k = upload(engine, request.inputs.k.bytes),
                  .v = upload(engine, request.inputs.v.bytes),
                  .o = upload(engine, report.o.bytes),
                  .lse = engine.allocate(lse_bytes)};
    engine.upload(set.lse, report.lse.data(), lse_bytes);
    return set;
  };
  const auto forward = [&](const DeviceSet& set) {
    report.plan.forward({.q = set.q.data(),
                         .k = set.k.data(),
                         .v = set.v.data(),
                         .o = set.o.data(),
                         .lse = problem.lse ? static_cast<float*>(set.lse.data()) : nullptr,
                         .q_strides = request.inputs.q.strides,
                         .k_strides = request.inputs.k.strides,
                         .v_strides = request.inputs.v.strides,
                         .scale = request.scale});
  };

  std::vector<DeviceSet> sets;
  sets.push_back(make_set());
  forward(sets.front());
  engine.download(report.o.bytes.data(), sets.front().o, report.o.bytes.size());
  engine.download(report.lse.data(), sets.front().lse, lse_bytes);

  if (request.check) {
    autotune::HostAttention attention = autotune::host_attention(problem, shape, request.inputs);
    attention.scale = request.scale;
    const autotune::HostOutput output{.o = report.o.bytes.data(),
                                      .o_strides = report.o.strides,
                                      .lse = lse_count == 0 ? nullptr : report.lse.data()};
    report.check = autotune::acceptable(attention, rows_to_check(problem, shape), output);
  }
  if (request.time) time_launches(engine, sets, make_set, forward, report);
  return report;
}

// Gets o and lse of the forward pass whose gradients are wanted.
void add_forward_results(Engine& engine, const AttentionRequest& request, AttentionReport& report) {
  Problem forward = request.problem;
  forward.pass = Pass::forward;
  forward.lse = true;
  forward.deterministic = false;
  if (flops(forward, request.shape) <= kCheckAll) {
    autotune::HostAttention attention = autotune::host_attention(forward, request.shape, request.inputs);
    attention.scale = request.scale;
    const autotune::HostResult result = autotune::reference(attention, autotune::all_rows(request.shape));
    report.o = autotune::to_tensor(forward, request.shape, result);
    report.lse = autotune::to_lse(request.shape, result);
    return;
  }
  AttentionRequest first;
  first.problem = forward;
  first.shape = request.shape;
  first.inputs = request.inputs;
  first.scale = request.scale;
  first.check = first.time = false;
  AttentionReport results = run_forward(engine, first);
  report.o = std::move(results.o);
  report.lse = std::move(results.lse);
}

autotune::GradientCheck check_gradients(const AttentionRequest& request, const AttentionReport& report) {
  const Shape& shape = request.shape;
  autotune::HostBackward call = autotune::host_backward(request.problem, shape, request.inputs, request.dout);
  call.attention.scale = request.scale;
  const bool whole = flops(request.problem, shape) <= kCheckAll;
  if (!whole) {  // the true gradient of one key needs the forward pass of every row
    call.o = report.o.bytes.data();
    call.o_strides = report.o.strides;
    call.lse = report.lse.data();
  }
  return autotune::acceptable_gradients(
      call, whole ? autotune::all_gradients(shape) : autotune::sample_gradients(shape, 8, 16, 1),
      {.dq = report.dq.bytes.data(), .dk = report.dk.bytes.data(), .dv = report.dv.bytes.data()});
}

AttentionReport run_backward(Engine& engine, const AttentionRequest& request) {
  const Problem& problem = request.problem;
  const Shape& shape = request.shape;
  AttentionReport report{.plan = engine.plan(problem, shape, request.options)};
  add_forward_results(engine, request, report);
  if (request.before_backward) request.before_backward();
  report.dq = autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, problem.head_dim);
  report.dk =
      autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_k, shape.kv_heads(), problem.head_dim);
  report.dv =
      autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_k, shape.kv_heads(), problem.value_dim());
  const std::size_t lse_bytes = report.lse.size() * sizeof(float);
  const Buffer workspace = engine.allocate(report.plan.workspace_bytes(shape));

  const auto make_set = [&] {
    DeviceSet set{.q = upload(engine, request.inputs.q.bytes),
                  .k = upload(engine, request.inputs.k.bytes),
                  .v = upload(engine, request.inputs.v.bytes),
                  .o = upload(engine, report.o.bytes),
                  .lse = engine.allocate(lse_bytes),
                  .dout = upload(engine, request.dout.bytes),
                  .dq = upload(engine, report.dq.bytes),
                  .dk = upload(engine, report.dk.bytes),
                  .dv = upload(engine, report.dv.bytes)};
    engine.upload(set.lse, report.lse.data(), lse_bytes);
    return set;
  };
  const auto backward = [&](const DeviceSet& set) {
    report.plan.backward({.q = set.q.data(),
                          .k = set.k.data(),
                          .v = set.v.data(),
                          .o = set.o.data(),
                          .dout = set.dout.data(),
                          .lse = static_cast<const float*>(set.lse.data()),
                          .dq = set.dq.data(),
                          .dk = set.dk.data(),
                          .dv = set.dv.data(),
                          .q_strides = request.inputs.q.strides,
                          .k_strides = request.inputs.k.strides,
                          .v_strides = request.inputs.v.strides,
                          .o_strides = report.o.strides,
                          .dout_strides = request.dout.strides,
                          .scale = request.scale,
                          .workspace = workspace.data()});
  };

  std::vector<DeviceSet> sets;
  sets.push_back(make_set());
  backward(sets.front());
  const auto fetch = [&](autotune::HostTensor& tensor, const Buffer& from) {
    engine.download(tensor.bytes.data(), from, tensor.bytes.size());
  };
  fetch(report.dq, sets.front().dq);
  fetch(report.dk, sets.front().dk);
  fetch(report.dv, sets.front().dv);
  if (request.check) {
    report.gradients = check_gradients(request, report);
    report.check = report.gradients.worst();
  }
  if (request.time) time_launches(engine, sets, make_set, backward, report);
  return report;
}

}  // namespace

AttentionReport run_attention(Engine& engine, const AttentionRequest& request) {
  return request.problem.pass == Pass::forward ? run_forward(engine, request) : run_backward(engine, request);
}

// Wide enough for forward problems, and for all schedules but a few.
constexpr auto kRow = "{:<28} {:<18} {:<32} {:>10} {:>9} {:>10} {:>10}  {}";

std::string table_heading() {
  return fmt::format(kRow, "problem", "shape", "schedule", "time ms", "TFLOP/s", "error", "allowed", "cubin");
}

std::string table_line(const AttentionReport& report, const std::string& code) {
  const Origin& origin = report.plan.origin();
  const auto figure = [&](double value, int digits) {
    return value == 0 ? std::string("-")
                      : fmt::format("{}{:.{}f}", report.estimated ? "~" : "", value, digits);
  };
  const bool checked = report.check.rows > 0;
  return fmt::format(kRow, describe(report.plan.problem()), describe(report.plan.shape()), origin.schedule,
                     figure(report.milliseconds, 3), figure(report.tflops, 1),
                     checked ? fmt::format("{:.2e}", report.check.max_error) : "-",
                     checked ? fmt::format("{:.2e}", report.check.allowed) : "-",
                     code.empty() ? origin.code : code);
}

}  // namespace flashjit::cli

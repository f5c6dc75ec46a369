// One attention on an Engine: upload, launch, check against the reference, time.
#include "cli/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "api/engine_state.hpp"
#include "autotune/measure.hpp"

namespace flashjit::cli {
namespace {

// Checking every row in float64 takes seconds a billion multiply-adds; beyond this much a sample does.
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

// Sets of device tensors, so that neighbouring launches find none of their inputs in L2.
struct DeviceSet {
  Buffer q, k, v, o, lse;
};

}  // namespace

AttentionReport run_attention(Engine& engine, const AttentionRequest& request) {
  const Problem& problem = request.problem;
  const Shape& shape = request.shape;
  AttentionReport report{.plan = engine.plan(problem, shape, request.options)};
  report.o = autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, problem.value_dim());
  const std::size_t lse_count =
      problem.lse ? static_cast<std::size_t>(shape.batch) * shape.heads * shape.seqlen_q : 0;
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

  runtime::Device& device = EngineAccess::state(engine).device();
  report.estimated = device.estimates_time();
  if (request.time && flops(problem, shape) > 0) {
    const auto& in = request.inputs;
    const std::size_t set_bytes =
        in.q.bytes.size() + in.k.bytes.size() + in.v.bytes.size() + report.o.bytes.size();
    const std::size_t wanted =
        report.estimated ? 1 : 2 * static_cast<std::size_t>(engine.target().l2_bytes) / set_bytes + 1;
    while (sets.size() < std::clamp<std::size_t>(wanted, 1, 32)) sets.push_back(make_set());
    const auto launch = [&](std::int64_t i) { forward(sets[static_cast<std::size_t>(i) % sets.size()]); };
    report.milliseconds = autotune::measure(device, nullptr, launch, {}).median_ms;
    report.tflops = flops(problem, shape) / report.milliseconds * 1e-9;
  }
  return report;
}

std::string table_heading() {
  return fmt::format("{:<28} {:<18} {:<24} {:>10} {:>9} {:>10} {:>10}  {}", "problem", "shape", "schedule",
                     "time ms", "TFLOP/s", "error", "allowed", "cubin");
}

std::string table_line(const AttentionReport& report) {
  const Origin& origin = report.plan.origin();
  const auto figure = [&](double value, int digits) {
    return value == 0 ? std::string("-")
                      : fmt::format("{}{:.{}f}", report.estimated ? "~" : "", value, digits);
  };
  const bool checked = report.check.rows > 0;
  return fmt::format("{:<28} {:<18} {:<24} {:>10} {:>9} {:>10} {:>10}  {}", describe(report.plan.problem()),
                     describe(report.plan.shape()), origin.schedule, figure(report.milliseconds, 3),
                     figure(report.tflops, 1), checked ? fmt::format("{:.2e}", report.check.max_error) : "-",
                     checked ? fmt::format("{:.2e}", report.check.allowed) : "-", origin.code);
}

}  // namespace flashjit::cli

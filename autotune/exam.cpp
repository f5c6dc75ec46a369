// Outputs are poisoned before a kernel runs, and compared with the pass's reference afterwards, with the
// guards after them.
#include "autotune/exam.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "autotune/backward/inputs.hpp"
#include "flashjit/error.hpp"

namespace flashjit::autotune {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuard = 4096;  // bytes after an output that nobody may touch

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool all_poison(const std::byte* data, std::size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte x) { return x == std::byte{0xff}; });
}

}  // namespace

CallLayout::CallLayout(const Problem& problem, const Shape& shape) {
  const bool backward = problem.pass == Pass::backward;
  const auto queries = static_cast<std::size_t>(shape.batch) * shape.seqlen_q * shape.heads;
  const auto keys = static_cast<std::size_t>(shape.batch) * shape.seqlen_k * shape.kv_heads();
  const auto element = static_cast<std::size_t>(size_of(problem.dtype));
  const std::size_t row = problem.head_dim * element;
  const std::size_t value_row = problem.value_dim() * element;
  const double all_rows = 1.0 * shape.batch * shape.heads * shape.seqlen_q +
                          1.0 * shape.batch * shape.kv_heads() * shape.seqlen_k;
  if (all_rows * static_cast<double>(row + value_row) > 0x1p60)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shape {} is too large: its tensors have more than 2^60 bytes", describe(shape)));
  const auto input = [&](std::size_t size) { return std::exchange(bytes, bytes + aligned(size)); };
  const auto output = [&](const char* name, Rows rows, std::size_t size) {
    outputs.push_back({name, rows, bytes, size});
    return std::exchange(bytes, bytes + aligned(size + kGuard));
  };
  q = input(queries * row);
  k = input(keys * row);
  v = input(keys * value_row);
  if (backward) {
    dout = input(queries * value_row);
    o = input(queries * value_row);
    lse = input(queries * sizeof(float));
  }
  input_bytes = bytes;
  if (backward) {
    dq = output("dq", Rows::queries, queries * row);
    dk = output("dk", Rows::keys, keys * row);
    dv = output("dv", Rows::keys, keys * value_row);
  } else {
    o = output("output", Rows::queries, queries * value_row);
    lse = output("LSE", Rows::lse, queries * sizeof(float));
    if (!problem.lse) outputs.pop_back();
  }
}

void fill_inputs(const Problem& problem, const Shape& shape, const CallLayout& layout, std::uint64_t seed,
                 std::byte* image) {
  const bool backward = problem.pass == Pass::backward;
  const std::size_t tensors = backward ? layout.lse : layout.input_bytes;
  fill_normal(problem.dtype, image, static_cast<std::int64_t>(tensors) / size_of(problem.dtype), seed);
  if (!backward) return;
  // The mean of exp(x) for a standard normal x is exp(1/2), and scores are nearly standard normal.
  const float lse = std::log(static_cast<float>(std::max(1, shape.seqlen_k))) + 0.5F;
  std::fill_n(reinterpret_cast<float*>(image + layout.lse), (layout.input_bytes - layout.lse) / sizeof(float),
              lse);
}

void fill_inputs(const Problem& problem, const Shape& shape, const CallLayout& layout, InputKind kind,
                 std::uint64_t seed, std::byte* image) {
  const auto copy = [&](const HostTensor& tensor, std::size_t at) {
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), image + at);
  };
  const auto copy_forward = [&](const Inputs& inputs) {
    copy(inputs.q, layout.q);
    copy(inputs.k, layout.k);
    copy(inputs.v, layout.v);
  };
  if (problem.pass == Pass::forward) return copy_forward(make_inputs(problem, shape, kind, seed));
  const BackwardInputs inputs = make_backward_inputs(problem, shape, kind, seed);
  copy_forward(inputs.forward);
  copy(inputs.dout, layout.dout);
  copy(inputs.o, layout.o);
  std::copy(inputs.lse.begin(), inputs.lse.end(), reinterpret_cast<float*>(image + layout.lse));
}

void launch(const Built& built, const Problem& problem, const Shape& shape, const CallLayout& layout,
            std::byte* set, void* workspace) {
  auto* const lse = reinterpret_cast<float*>(set + layout.lse);
  if (problem.pass == Pass::forward) {
    ForwardArgs args;
    args.q = set + layout.q;
    args.k = set + layout.k;
    args.v = set + layout.v;
    args.o = set + layout.o;
    if (problem.lse) args.lse = lse;
    args.shape = shape;
    return built.forward(args, nullptr);
  }
  BackwardArgs args;
  args.q = set + layout.q;
  args.k = set + layout.k;
  args.v = set + layout.v;
  args.o = set + layout.o;
  args.dout = set + layout.dout;
  args.lse = lse;
  args.dq = set + layout.dq;
  args.dk = set + layout.dk;
  args.dv = set + layout.dv;
  args.workspace = workspace;
  args.shape = shape;
  built.backward(args, nullptr);
}

Exam::Exam(const Problem& problem, const Shape& shape, const std::byte* image, std::byte* set, int blocks,
           std::uint64_t seed, int threads)
    : problem_(problem), shape_(shape), layout_(problem, shape), set_(set), whole_(blocks == 0) {
  constexpr int kRows = 8;  // in each block of a sample
  HostAttention& attention = call_.attention;
  attention.problem = problem;
  attention.shape = shape;
  attention.q = image + layout_.q;
  attention.k = image + layout_.k;
  attention.v = image + layout_.v;
  blocks_ = whole_ ? all_gradients(shape, 32) : sample_gradients(shape, blocks, kRows, seed);
  if (problem.pass == Pass::forward) {
    expected_ = reference(attention, blocks_.queries, threads);
    simple_ = plain(attention, blocks_.queries, threads);
    return;
  }
  call_.dout = image + layout_.dout;
  if (!whole_) {
    // The true gradient of a few rows of a long sequence would take the forward pass of all rows.
    call_.o = image + layout_.o;
    call_.lse = reinterpret_cast<const float*>(image + layout_.lse);
  }
  expected_gradients_ = reference_gradients(call_, blocks_, threads);
  simple_gradients_ = plain_gradients(call_, blocks_, threads);
}

Check Exam::examine(runtime::Device& device, const Built& built, void* workspace) {
  const std::size_t first = layout_.input_bytes;
  device.fill(set_ + first, 0xff, layout_.bytes - first, nullptr);  // NaN, the guards included
  launch(built, problem_, shape_, layout_, set_, workspace);
  device.synchronize(nullptr);
  host_.resize(layout_.bytes - first);
  for (const CallLayout::Output& output : layout_.outputs) {
    if (std::string wrong = fetch(device, output); !wrong.empty()) {
      Check check;
      check.message = std::move(wrong);
      return check;
    }
  }
  return compare();
}

std::string Exam::fetch(runtime::Device& device, const CallLayout::Output& output) {
  std::byte* const host = host_.data() + (output.at - layout_.input_bytes);
  const auto copy = [&](std::size_t first, std::size_t bytes) {
    device.copy_to_host(host + first, set_ + output.at + first, bytes, nullptr);
  };
  if (whole_) {
    copy(0, output.bytes + kGuard);
    if (!all_poison(host + output.bytes, kGuard))
      return fmt::format("it writes past the end of the {}", output.name);
    return {};
  }
  if (output.rows == CallLayout::Rows::lse) {
    for (const RowBlock& block : blocks_.queries) {
      const std::size_t head = static_cast<std::size_t>(block.batch) * shape_.heads + block.head;
      copy((head * shape_.seqlen_q + block.first) * sizeof(float), block.count * sizeof(float));
    }
    return {};
  }
  const bool of_keys = output.rows == CallLayout::Rows::keys;
  const std::size_t rows = of_keys ? shape_.seqlen_k : shape_.seqlen_q;
  const std::size_t heads = of_keys ? shape_.kv_heads() : shape_.heads;
  for (const RowBlock& block : of_keys ? blocks_.keys : blocks_.queries) {
    const std::size_t row = output.bytes / (static_cast<std::size_t>(shape_.batch) * rows);
    const std::size_t first = (static_cast<std::size_t>(block.batch) * rows + block.first) * row;
    copy(first, block.count * row);
    // The other heads of these rows are not compared, but must have been written.
    for (std::size_t at = first; at < first + block.count * row; at += row / heads) {
      if (all_poison(host + at, row / heads))
        return fmt::format("it leaves part of the {} unwritten", output.name);
    }
  }
  return {};
}

Check Exam::compare() const {
  if (problem_.pass == Pass::forward) {
    return acceptable(call_.attention, blocks_.queries, expected_, simple_,
                      {.o = result(layout_.o),
                       .lse = problem_.lse ? reinterpret_cast<const float*>(result(layout_.lse)) : nullptr});
  }
  return acceptable_gradients(call_, blocks_, expected_gradients_, simple_gradients_,
                              {.dq = result(layout_.dq), .dk = result(layout_.dk), .dv = result(layout_.dv)})
      .worst();
}

}  // namespace flashjit::autotune

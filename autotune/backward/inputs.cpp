// The forward reference gives o and lse, so that a backward kernel can be tried without a forward one.
#include "autotune/backward/inputs.hpp"

#include "autotune/numeric.hpp"

namespace flashjit::autotune {

BackwardInputs make_backward_inputs(const Problem& problem, const Shape& shape, InputKind kind,
                                    std::uint64_t seed, const BackwardLayout& layout,
                                    std::optional<float> scale, int threads) {
  BackwardInputs inputs{.forward = make_inputs(problem, shape, kind, seed, layout.forward)};
  HostAttention attention = host_attention(problem, shape, inputs.forward);
  attention.scale = scale;
  const HostResult result = reference(attention, all_rows(shape), threads);
  inputs.o = to_tensor(problem, shape, result, layout.o);
  inputs.lse = to_lse(shape, result);
  inputs.dout = make_dout(problem, shape, seed, layout.dout);
  return inputs;
}

HostTensor make_dout(const Problem& problem, const Shape& shape, std::uint64_t seed, const Strides& strides) {
  // V's numbers under another seed: a tensor of (batch, seqlen_q, heads, head_dim_v).
  const Shape of_queries{
      .batch = shape.batch, .heads = shape.heads, .seqlen_q = 0, .seqlen_k = shape.seqlen_q};
  return make_inputs(problem, of_queries, InputKind::normal, seed + 0x9e3779b9u, {.v = strides}).v;
}

HostBackward host_backward(const Problem& problem, const Shape& shape, const Inputs& forward,
                           const HostTensor& dout) {
  HostBackward backward;
  backward.attention = host_attention(problem, shape, forward);
  backward.dout = dout.bytes.data();
  backward.dout_strides = dout.strides;
  return backward;
}

HostTensor to_tensor(const Problem& problem, const Shape& shape, const HostResult& result,
                     const Strides& strides) {
  const int dv = problem.value_dim();
  HostTensor tensor = poisoned(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, dv, strides);
  std::size_t at = 0;
  for (const RowBlock& block : all_rows(shape)) {
    for (int r = 0; r < block.count; ++r) {
      const std::int64_t base = block.batch * tensor.strides.batch + block.head * tensor.strides.head +
                                (block.first + r) * tensor.strides.row;
      for (int x = 0; x < dv; ++x, ++at) {
        store_element(problem.dtype, tensor.bytes.data(), base + x, static_cast<float>(result.out[at]));
      }
    }
  }
  return tensor;
}

std::vector<float> to_lse(const Shape& shape, const HostResult& result) {
  std::vector<float> lse(static_cast<std::size_t>(shape.batch) * shape.heads * shape.seqlen_q);
  std::size_t at = 0;
  for (const RowBlock& block : all_rows(shape)) {
    for (int r = 0; r < block.count; ++r, ++at) {
      const std::size_t head = static_cast<std::size_t>(block.batch) * shape.heads + block.head;
      lse[head * shape.seqlen_q + block.first + r] = static_cast<float>(result.lse[at]);
    }
  }
  return lse;
}

}  // namespace flashjit::autotune

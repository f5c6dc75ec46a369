// What a backward pass starts from: a forward pass's inputs and results, and a random gradient of its output.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autotune/backward/reference.hpp"
#include "autotune/inputs.hpp"

namespace flashjit::autotune {

struct BackwardInputs {
  Inputs forward;          // q, k and v
  HostTensor o;            // float64's, rounded to the dtype
  HostTensor dout;         // standard normal, as autograd might hand it over
  std::vector<float> lse;  // float64's, packed (batch, heads, seqlen_q)
};
struct BackwardLayout {
  InputLayout forward;
  Strides o{}, dout{};  // all zero: packed
};
BackwardInputs make_backward_inputs(const Problem& problem, const Shape& shape, InputKind kind,
                                    std::uint64_t seed, const BackwardLayout& layout = {},
                                    std::optional<float> scale = {}, int threads = 0);

// The gradient of o alone.
HostTensor make_dout(const Problem& problem, const Shape& shape, std::uint64_t seed,
                     const Strides& strides = {});

// The inputs as the reference wants them. Without o and lse, so that it gives the true gradients.
HostBackward host_backward(const Problem& problem, const Shape& shape, const Inputs& forward,
                           const HostTensor& dout);

// The result of a forward pass, of all_rows(), as tensors: what a perfect kernel would write.
HostTensor to_tensor(const Problem& problem, const Shape& shape, const HostResult& result,
                     const Strides& strides = {});
std::vector<float> to_lse(const Shape& shape, const HostResult& result);

}  // namespace flashjit::autotune

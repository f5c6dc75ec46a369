// Which gradients are right: float64 on the CPU, the same done plainly in the working precision, and the rule
// that compares the two with a kernel's.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/reference.hpp"

namespace flashjit::autotune {

// One backward problem in host memory. Without lse, the gradients of sum(dout * attention(q, k, v)). With o
// and lse, what a backward kernel that is given these has to compute, whether or not a forward pass gives
// them: P = exp(S - lse), dS = P * (dout V^T - rowsum(dout * o)). Then a few rows of a long sequence cost no
// more than a few rows.
struct HostBackward {
  HostAttention attention;     // its q, k and v
  const void* dout = nullptr;  // (batch, seqlen_q, heads, head_dim_v)
  const void* o = nullptr;     // likewise; null exactly if lse is
  const float* lse = nullptr;  // packed (batch, heads, seqlen_q)
  Strides dout_strides{}, o_strides{};
};

// The rows of dq, and of dk and dv (whose blocks count K/V heads), that are looked at.
struct GradientBlocks {
  std::vector<RowBlock> queries, keys;
};
GradientBlocks all_gradients(const Shape& shape, int rows = 64);
// As sample_rows, of queries and of keys.
GradientBlocks sample_gradients(const Shape& shape, int blocks, int rows, std::uint64_t seed);

// Row after row, in the order of the blocks. Rows that see no key, and keys that no row sees, have zeros.
struct HostGradients {
  std::vector<double> dq, dk;  // head_dim a row
  std::vector<double> dv;      // value_dim() a row
};

// float64 throughout. threads 0: as many as the machine has.
HostGradients reference_gradients(const HostBackward& backward, const GradientBlocks& blocks,
                                  int threads = 0);

// What automatic differentiation of plain() computes: K is scaled instead of Q, and scores, P, dP, dS, the
// heads' shares of dK and dV and the results are rounded to the dtype; sums are in fp32. What a backward pass
// is handed comes with an error: that of fp32 for the LSE, that of O, rounded to the dtype, for delta.
HostGradients plain_gradients(const HostBackward& backward, const GradientBlocks& blocks, int threads = 0);

// The gradients as tensors in host memory.
struct HostGradientOutput {
  const void* dq = nullptr;
  const void* dk = nullptr;
  const void* dv = nullptr;
  Strides dq_strides{}, dk_strides{}, dv_strides{};
};

struct GradientCheck {
  Check dq, dk, dv;
  [[nodiscard]] bool ok() const { return dq.ok && dk.ok && dv.ok; }
  [[nodiscard]] const Check& worst() const;  // the one that is furthest from its bound, or beyond it
};

// FlashAttention 3's rule for gradients without softcap (hopper/test_flash_attn.py), the same as for outputs,
// applied to each of the three: max|got - ref| <= 2 * max|plain - ref| + atol, as acceptable() has it.
GradientCheck acceptable_gradients(const HostBackward& backward, const GradientBlocks& blocks,
                                   const HostGradients& expected, const HostGradients& simple,
                                   const HostGradientOutput& output);
// The same in one call.
GradientCheck acceptable_gradients(const HostBackward& backward, const GradientBlocks& blocks,
                                   const HostGradientOutput& output);

}  // namespace flashjit::autotune

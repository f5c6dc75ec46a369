// Attention's tensors as .npy files: --q --k --v --dout in; --out --lse-out --dq-out --dk-out --dv-out out.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "cli/common/attention.hpp"

namespace flashjit::cli {

class NpyTensors {
 public:
  void add_to(CLI::App& verb);
  [[nodiscard]] bool given() const { return !q_.empty() || !k_.empty() || !v_.empty(); }
  [[nodiscard]] bool gives_dout() const { return !dout_.empty(); }
  // Reads q (batch, seqlen_q, heads, head_dim), k and v (batch, seqlen_k, heads_kv, …). The files decide the
  // dtype, the head dims and the shape. Throws Error that names the file and what is wrong with it.
  autotune::Inputs load(Problem& problem, Shape& shape) const;
  // Reads dout (batch, seqlen_q, heads, head_dim_v). Empty if it was not given; dout is then random.
  [[nodiscard]] std::optional<autotune::HostTensor> load_dout(const Problem& problem,
                                                              const Shape& shape) const;
  // Checks, before anything slow starts, that save() will be able to write what was asked for. Throws
  // Error{invalid_argument} for a tensor that this problem does not have, and for a file that is named twice;
  // Error{io} for a file that cannot be written.
  void check_outputs(const Problem& problem) const;
  // Writes what was asked for: o (batch, seqlen_q, heads, head_dim_v) and lse (batch, heads, seqlen_q); dq as
  // q, dk as k and dv as v.
  void save(const Problem& problem, const Shape& shape, const AttentionReport& report) const;

 private:
  std::string q_, k_, v_, dout_, out_, lse_out_, dq_out_, dk_out_, dv_out_;
};

}  // namespace flashjit::cli

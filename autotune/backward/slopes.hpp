// Gradients by finite differences: the check that owes nothing to anybody's backward formula.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/backward/reference.hpp"

namespace flashjit::autotune {

// Slopes of sum(dout * attention(q, k, v)), in float64 on the CPU.
class Slopes {
 public:
  explicit Slopes(const HostBackward& backward);

  // With respect to one element of q, or of k or v (whose head counts K/V heads), by central differences of
  // two steps and Richardson's extrapolation.
  double of_q(int batch, int row, int head, int column);
  double of_k(int batch, int row, int head, int column);
  double of_v(int batch, int row, int head, int column);

 private:
  // A packed copy in fp32, so that an element can be moved by less than its dtype can represent.
  struct Copy {
    std::vector<float> data;
    Strides strides;
  };
  static Copy copy(DType dtype, const void* data, const Strides& given, int batch, int rows, int heads,
                   int dim);
  double slope(Copy& tensor, std::int64_t element, const std::vector<RowBlock>& rows);
  [[nodiscard]] double loss(const std::vector<RowBlock>& rows) const;
  [[nodiscard]] std::vector<RowBlock> rows_that_see(int batch, int kv_head) const;

  Copy q_, k_, v_, dout_;
  HostAttention attention_;  // fp32, of the copies
};

// Compares a seeded sample of elements of each gradient with slopes. The tolerance is that of `rule`,
// FlashAttention's, plus the error that the differences themselves may have. Check::rows counts the elements.
Check compare_with_slopes(const HostBackward& backward, const HostGradientOutput& output,
                          const GradientCheck& rule, int per_tensor, std::uint64_t seed);

}  // namespace flashjit::autotune

// What is right: attention in float64 on the CPU, the same done plainly in the working precision, and the
// rule that compares a result with both.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"

namespace flashjit::autotune {

// Strides of a packed (batch, rows, heads, dim) tensor; `given` itself unless it is all zero.
Strides strides_or_packed(const Strides& given, int rows, int heads, int dim);

// One forward problem in host memory: raw elements of problem.dtype, strides in elements (all zero: packed).
struct HostAttention {
  Problem problem;
  Shape shape;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  Strides q_strides{}, k_strides{}, v_strides{};
  std::optional<float> scale{};
};

// Neighbouring query rows of one head: what one thread computes.
struct RowBlock {
  int batch = 0;
  int head = 0;
  int first = 0;
  int count = 0;
};

// Every row, in blocks of at most `rows`.
std::vector<RowBlock> all_rows(const Shape& shape, int rows = 64);
// A seeded sample of about `blocks` blocks of `rows` rows; the first and the last rows of the first and last
// head are in it.
std::vector<RowBlock> sample_rows(const Shape& shape, int blocks, int rows, std::uint64_t seed);

// Results row after row, in the order of the requested blocks. A row that sees no key has out 0 and lse
// -infinity.
struct HostResult {
  std::vector<double> out;  // value_dim() per row
  std::vector<double> lse;  // natural log
};

// float64 throughout. threads 0: as many as the machine has.
HostResult reference(const HostAttention& attention, std::span<const RowBlock> blocks, int threads = 0);

// The same formula done plainly in problem.dtype (sums in fp32), operations reordered: K is scaled instead of
// Q, and scores, probabilities and results are rounded to the dtype. This measures what error is to be
// expected.
HostResult plain(const HostAttention& attention, std::span<const RowBlock> blocks, int threads = 0);

// What comparing a result with the reference found.
struct Check {
  bool ok = false;
  double max_error = 0;    // largest |out - reference|; infinite if a NaN stands where a number must
  double plain_error = 0;  // largest |plain - reference|
  double allowed = 0;      // 2 * plain_error + atol
  double lse_error = 0;    // largest |lse - reference| / max(1, |reference|); 0 when no LSE was checked
  double lse_allowed = 1e-5;
  std::int64_t rows = 0;  // how many were compared
  std::string message;    // empty when ok; else what is wrong and where
};

// Compares rows of a tensor of `dim` columns by the rule of acceptable(). `name` is the tensor's, for
// the message; `expected` and `simple` are dim numbers per row, in the order of the blocks.
Check compare(DType dtype, const char* name, std::span<const RowBlock> blocks, int dim, const void* got,
              const Strides& strides, std::span<const double> expected, std::span<const double> simple);

// The output side of a check, in host memory.
struct HostOutput {
  const void* o = nullptr;
  Strides o_strides{};
  const float* lse = nullptr;  // packed (batch, heads, seqlen_q); null: not checked
};

// FlashAttention's rule: max|out - ref| <= 2 * max|plain - ref| + atol, atol = 2 * max|(ref + 0.3 - 0.3) -
// ref| in the dtype (its tests' "fwd_atol"); LSE within 1e-5, relative where it is larger than 1. `expected`
// and `simple` are reference() and plain() of the same blocks, so that many candidates share them.
Check acceptable(const HostAttention& attention, std::span<const RowBlock> blocks, const HostResult& expected,
                 const HostResult& simple, const HostOutput& output);
// The same in one call.
Check acceptable(const HostAttention& attention, std::span<const RowBlock> blocks, const HostOutput& output);

}  // namespace flashjit::autotune

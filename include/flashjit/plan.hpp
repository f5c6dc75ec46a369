// Plan: a chosen, loaded kernel. Running it is cheap: no allocation, no lock, no string.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "flashjit/problem.hpp"

struct CUstream_st;

#pragma GCC visibility push(default)

namespace flashjit {

using Stream = CUstream_st*;  // CUstream or cudaStream_t; null is the default stream

// Distances between neighbours, in elements; the last dimension is contiguous. All zero: packed (batch,
// seqlen, heads, head_dim). q, k and v may have a stride of 0 in batch or head, to share one tensor; the
// elements of o may not overlap. The stride of a dimension of size 1 is not looked at.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
};

// Device pointers, 16-byte aligned (lse: 4-byte); strides are multiples of 16 bytes. k and v may be null
// where there are no keys, and everything where there are no rows.
struct ForwardArgs {
  const void* q = nullptr;  // (batch, seqlen_q, heads, head_dim)
  const void* k = nullptr;  // (batch, seqlen_k, heads_kv, head_dim)
  const void* v = nullptr;  // (batch, seqlen_k, heads_kv, head_dim_v)
  void* o = nullptr;        // (batch, seqlen_q, heads, head_dim_v)
  float* lse = nullptr;  // (batch, heads, seqlen_q), natural log; null: not wanted. A row that sees no key: o
                         // 0, lse -inf
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
  std::optional<float> scale{};  // of the logits, above 0; 1 / sqrt(head_dim) by default
  std::optional<Shape>
      shape{};  // the Plan's own by default; any other is legal, and as fast while it is alike
};

// Where a plan's schedule and code came from.
struct Origin {
  std::string schedule;  // "mma:m128n64w4s2"
  std::string choice;    // why this one: "given", "wisdom (this GPU)", "shipped wisdom (sm_90)", "model",
                         // "tuned (quick)" …
  std::string code;      // "memory", "disk", "system", "compiled in 412 ms"
  std::string note;  // what else a user should know (a family that was passed over, and why); may be empty
};

class Plan {
 public:
  // Enqueues one forward pass. Throws Error{invalid_argument} before anything is enqueued if an argument is
  // wrong.
  void forward(const ForwardArgs& args, Stream stream = nullptr) const;

  [[nodiscard]] const Problem& problem() const;
  [[nodiscard]] const Shape& shape() const;
  [[nodiscard]] const Origin& origin() const;
  [[nodiscard]] std::string kernel_name() const;
  [[nodiscard]] const std::string& source() const;    // the CUDA C++ that runs
  [[nodiscard]] std::size_t workspace_bytes() const;  // device memory that the plan holds for itself

 private:
  friend class Engine;
  explicit Plan(std::shared_ptr<const class PlanState> state);
  std::shared_ptr<const class PlanState> state_;
};

}  // namespace flashjit

#pragma GCC visibility pop

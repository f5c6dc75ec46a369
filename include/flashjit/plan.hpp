// Plan: chosen, loaded kernels. Running them is cheap: no string, and no lock or allocation but where
// docs/api.md says so ("Threads, streams, contexts").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.hpp"

struct CUstream_st;

#pragma GCC visibility push(default)

namespace flashjit {

// CUstream or cudaStream_t. Null is the legacy default stream, in programs that are compiled for per-thread
// ones, too: those name theirs CU_STREAM_PER_THREAD.
using Stream = CUstream_st*;

// Distances between neighbours, in elements; the last dimension is contiguous. All zero: packed (batch,
// seqlen, heads, head_dim). Each is at least the tensor's last dimension (so none is negative) and below 2^40
// bytes, or, in batch and head of what is read, 0, to share one tensor. The elements of what is written may
// not overlap each other: each stride is at least all that the smaller ones span. The stride of a dimension
// of size 1 is not looked at; to share over batch and heads, give row a value, also where there is one row.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
};

// Device pointers, 16-byte aligned (lse: 4-byte); strides are multiples of 16 bytes. o may overlap neither q,
// k nor v, of which only an equal pointer is found. k and v may be null where there are no keys, and
// everything where there are no rows.
struct ForwardArgs {
  const void* q = nullptr;  // (batch, seqlen_q, heads, head_dim)
  const void* k = nullptr;  // (batch, seqlen_k, heads_kv, head_dim)
  const void* v = nullptr;  // (batch, seqlen_k, heads_kv, head_dim_v)
  void* o = nullptr;        // (batch, seqlen_q, heads, head_dim_v)
  float* lse = nullptr;  // (batch, heads, seqlen_q), natural log; null: not wanted. A row that sees no key: o
                         // 0, lse -inf
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
  std::optional<float> scale{};  // of the logits, 1.18e-38 to 1.7e38; 1 / sqrt(head_dim) by default
  std::optional<Shape>
      shape{};  // the Plan's own by default; any other is legal, and as fast while it is alike
};

// The gradients of a loss, from that of the forward pass's output. Pointers and strides as in ForwardArgs; q,
// k, v, o, lse, scale and shape are the forward pass's own. All are needed, but those of queries (q, o, dout,
// lse, dq) where there are no rows, and those of keys (k, v, dk, dv) where there are no keys. Where heads
// share K and V, dk and dv are the sums over these heads. What nobody sees has gradient 0.
struct BackwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  const void* dout = nullptr;  // (batch, seqlen_q, heads, head_dim_v), the gradient of o
  const float* lse = nullptr;
  void* dq = nullptr;  // as q; it and the next two are written, not added to
  void* dk = nullptr;  // as k
  void* dv = nullptr;  // as v
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{}, dout_strides{};  // a stride of 0 in batch or
                                                                               // head shares one tensor
  Strides dq_strides{}, dk_strides{}, dv_strides{};                            // elements may not overlap
  std::optional<float> scale{};
  std::optional<Shape> shape{};
  // workspace_bytes(shape) bytes of device memory, 128-byte aligned, that no other work uses until this pass
  // is done; what they hold before does not matter. Null: taken from a pool of the Engine's in stream order
  // and given back, which is safe in any stream, and in a capture gives the graph memory of its own.
  void* workspace = nullptr;
};

// One of the kernels that a plan launches. The text is the Plan's, and lives as long.
struct KernelView {
  std::string_view name;    // "flashjit_forward_mma_bf16_d128_causal_m128n64w4s2"
  std::string_view source;  // the CUDA C++ that runs, complete in itself
};

// Where a plan's schedule and code came from.
struct Origin {
  std::string schedule;  // "mma:m128n64w4s2"
  // Why this one: "given"; "wisdom (…)" that was tuned here or read from a file, also in this very call;
  // "shipped wisdom (…)"; "model". The brackets begin with "this GPU", another one's name ("…, same arch"),
  // or, of shipped wisdom, the arch ("sm_90a"); what the record is further away in follows, and "carried over
  // by the model" where that found another schedule faster for this shape than the record's.
  std::string choice;
  std::string code;  // "memory", "disk", "system", "compiled in 412 ms"
  std::string note;  // what else a user should know (a family that was passed over, and why); may be empty
};

// May be launched from many threads and into many streams at once. A Plan that was moved from may be
// destroyed and assigned to, and nothing else.
class Plan {
 public:
  // Enqueues one forward or backward pass. Throws Error{invalid_argument} before anything is enqueued if an
  // argument is wrong, or the plan's problem is of the other pass; unsupported where a capture has used up
  // the counters that Engine::prepare made, or stream-ordered memory is needed that the GPU has not; device
  // where a CUDA call failed or the emulator found a bug in the kernel. A captured launch uses the Plan's
  // kernels and tile counters: the Plan must outlive every graph that captured it.
  void forward(const ForwardArgs& args, Stream stream = nullptr) const;
  void backward(const BackwardArgs& args, Stream stream = nullptr) const;

  // What BackwardArgs::workspace must hold at these sizes: two fp32 numbers per row of q, rows padded per
  // head to whole tiles of the schedule's and to 128, and, unless the schedule does without, an fp32 copy of
  // dq, likewise padded, and a counter per 32 rows. 0 for the forward pass. Throws Error{invalid_argument}.
  [[nodiscard]] std::size_t workspace_bytes(const Shape& shape) const;

  [[nodiscard]] const Problem& problem() const;
  [[nodiscard]] const Shape& shape() const;
  [[nodiscard]] const Origin& origin() const;
  [[nodiscard]] std::string kernel_name() const;  // problem and schedule; a backward pass's kernels add to it
  [[nodiscard]] std::vector<KernelView> kernels() const;  // in launch order: forward one, backward several
  [[nodiscard]] std::size_t held_bytes() const;           // device memory that the plan holds for itself

 private:
  friend class Engine;
  explicit Plan(std::shared_ptr<const class PlanState> state);
  std::shared_ptr<const class PlanState> state_;
};

}  // namespace flashjit

#pragma GCC visibility pop

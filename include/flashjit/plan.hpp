// Plan: chosen, loaded kernels. Running them is cheap: a launch makes no string, and takes no lock and
// allocates nothing except where docs/api.md says so ("Threads, streams, contexts").
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

// CUstream or cudaStream_t. Null is the legacy default stream, even in programs compiled for per-thread
// default streams; there, pass CU_STREAM_PER_THREAD.
using Stream = CUstream_st*;

// Distances between neighbours, in elements. The last dimension is contiguous. All three zero: packed (batch,
// seqlen, heads, head_dim). Otherwise:
// - Each stride is a multiple of 16 bytes, at least the length of the tensor's last dimension (so none is
//   negative), and below 2^40 bytes.
// - In a tensor that is only read, a batch or head stride of 0 makes all batches, or all heads, use the same
//   data.
// - In a tensor that is written, elements must not overlap each other: each stride is at least all that the
//   smaller ones span.
// - The stride of a dimension of size 1 is ignored. To share over both batch and heads, set row even if there
//   is only one row, since three zeros mean packed.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
};

// Device pointers, aligned to 16 bytes (lse: 4 bytes). o and lse must not overlap each other, nor q, k or v;
// only equal pointers are detected. k and v may be null where there are no keys, and every pointer may be
// null where there are no query rows. A row that sees no key has o = 0 and lse = -infinity.
struct ForwardArgs {
  const void* q = nullptr;  // (batch, seqlen_q, heads, head_dim)
  const void* k = nullptr;  // (batch, seqlen_k, heads_kv, head_dim)
  const void* v = nullptr;  // (batch, seqlen_k, heads_kv, head_dim_v)
  void* o = nullptr;        // (batch, seqlen_q, heads, head_dim_v)
  float* lse = nullptr;  // (batch, heads, seqlen_q), packed: natural log-sum-exp of rows; null if not wanted
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
  std::optional<float> scale{};  // of the logits, 1.18e-38 to 1.7e38; default: 1 / sqrt(head_dim)
  std::optional<Shape>
      shape{};  // default: the Plan's own; any other is legal, but one much unlike it may run slower
};

// The gradients of a loss, computed from the gradient of the forward pass's output. q, k, v, o, lse, scale
// and shape are the forward pass's own; pointers and strides follow the rules of ForwardArgs.
// - All pointers but workspace are needed, except those of queries (q, o, dout, lse, dq) where there are no
//   query rows, and those of keys (k, v, dk, dv) where there are no keys.
// - q, k, v, o and dout must be finite, even in rows that see no key.
// - dq, dk, dv and workspace must overlap neither each other nor an input; only equal pointers are detected.
// - Where heads share K and V, dk and dv are sums over these heads. Whatever takes no part has gradient 0.
struct BackwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  const void* dout = nullptr;  // (batch, seqlen_q, heads, head_dim_v), the gradient of o
  const float* lse = nullptr;
  void* dq = nullptr;  // as q; dq, dk and dv are written, not added to
  void* dk = nullptr;  // as k
  void* dv = nullptr;  // as v
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{}, dout_strides{};  // batch or head 0: shared
  Strides dq_strides{}, dk_strides{}, dv_strides{};                            // no overlap
  std::optional<float> scale{};
  std::optional<Shape> shape{};
  // Device memory of workspace_bytes(shape) bytes, aligned to 128 bytes, that no other work uses until this
  // pass has finished. Its contents before the call don't matter. Null: the launch takes memory from a pool
  // of the Engine's in stream order and gives it back. That is safe in any number of streams; in a capture,
  // the memory belongs to the graph.
  void* workspace = nullptr;
};

// One of the kernels that a plan launches. The text belongs to the Plan and lives as long as the Plan.
struct KernelView {
  std::string_view name;    // "flashjit_forward_mma_bf16_d128_causal_m128n64w4s2"
  std::string_view source;  // the CUDA C++ that runs, complete in itself
};

// Where a plan's schedule and code came from.
struct Origin {
  std::string schedule;  // "mma:m128n64w4s2"
  // Why this schedule: "given"; "wisdom (…)", if it was tuned here (perhaps in this very call) or read from a
  // file; "shipped wisdom (…)"; or "model". The brackets begin with "this GPU", with another GPU's name ("…,
  // same arch"), or, for shipped wisdom, with the arch ("sm_90a"). Then they say how else the record differs
  // from what was asked, and "carried over by the model" if the model found another schedule faster for this
  // shape than the record's.
  std::string choice;
  std::string code;  // "memory", "disk", "system", "compiled in 412 ms"
  std::string note;  // what else a user should know (a family that was passed over, and why); may be empty
};

// A cheap handle that can be copied; all copies share the kernels. May be launched from many threads and into
// many streams at once. A Plan that was moved from may be destroyed or assigned to, and nothing else.
class Plan {
 public:
  // Enqueue one forward or backward pass. Throw Error:
  // - invalid_argument, before anything is enqueued, if an argument is wrong or the plan's problem is of the
  //   other pass;
  // - unsupported if captures have used up the counters that Engine::prepare made, or if the launch needs
  //   stream-ordered memory and the GPU has none;
  // - device if a CUDA call failed or the emulator found a bug in the kernel.
  //
  // A captured launch uses the Plan's kernels and tile counters: the Plan must outlive every graph that
  // captured it.
  void forward(const ForwardArgs& args, Stream stream = nullptr) const;
  void backward(const BackwardArgs& args, Stream stream = nullptr) const;

  // How many bytes BackwardArgs::workspace must hold at these sizes (docs/api.md, "Workspace", says for
  // what); 0 for the forward pass. Throws Error: invalid_argument.
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

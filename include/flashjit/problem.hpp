// What is asked for: the Problem a kernel is specialised on, and the Shape that is known at the call.
#pragma once

#include <string>

#pragma GCC visibility push(default)

namespace flashjit {

enum class Pass { forward, backward };
enum class DType { bf16 = 0, fp16 = 1, fp32 = 2 };  // as FLASHJIT_BF16 … in flashjit.h

// Everything a kernel is specialised on. No sizes and no pointers: one kernel serves every Shape.
struct Problem {
  Pass pass = Pass::forward;
  DType dtype = DType::bf16;  // of q, k, v and o; arithmetic inside is fp32
  int head_dim = 128;         // of q and k: a multiple of 8, 8 to 256
  int head_dim_v = 0;         // of v and o: likewise; 0 means the same as head_dim
  bool causal =
      false;  // bottom-right aligned: query i sees keys 0 .. i + seqlen_k - seqlen_q (FlashAttention 2.1)
  bool lse = true;  // forward only: can write the log-sum-exp of each row; a call may still leave it out
  bool deterministic = false;  // backward only: bit-equal gradients from run to run

  [[nodiscard]] int value_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
  bool operator==(const Problem&) const = default;
};

// Sizes known at the call. heads, 1 or more, must be a multiple of heads_kv (GQA; MQA when heads_kv is 1). 0
// tokens are legal, and up to 2147483135 (2^31 - 513); so is batch 0, of which nothing is launched.
struct Shape {
  int batch = 1;
  int heads = 1;
  int heads_kv = 0;  // 0 means the same as heads
  int seqlen_q = 0;
  int seqlen_k = 0;

  [[nodiscard]] int kv_heads() const { return heads_kv == 0 ? heads : heads_kv; }
  bool operator==(const Shape&) const = default;
};

// Throw Error{invalid_argument} that names the field, what it was and what it may be.
void validate(const Problem& problem);
void validate(const Shape& shape);

const char* to_string(Pass pass);    // "forward", "backward"
const char* to_string(DType dtype);  // "fp16", "bf16", "fp32"
Pass parse_pass(const std::string& text);
DType parse_dtype(const std::string& text);
int size_of(DType dtype);  // bytes of one element

// "forward bf16 d128 causal", for messages; a Shape reads "4x32/8x4096x4096" (batch x heads/heads_kv x
// seqlens).
std::string describe(const Problem& problem);
std::string describe(const Shape& shape);

// Multiply-adds counted twice, as FlashAttention's benchmarks count: 2*b*h*sq*avg_sk*(d+dv), where avg_sk is
// sk, or, causal, (max(0, sk-sq)+sk)/2: the mean number of keys that a row sees, but where there are more
// rows than keys, of which it is sk/2 (sk*sk/(2*sq) is seen). 2.5 times that for the backward pass.
double flops(const Problem& problem, const Shape& shape);

}  // namespace flashjit

#pragma GCC visibility pop

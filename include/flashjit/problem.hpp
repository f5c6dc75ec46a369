// What is asked for: the Problem, on which a kernel is specialised, and the Shape, which is known at the
// call.
#pragma once

#include <string>

#pragma GCC visibility push(default)

namespace flashjit {

enum class Pass { forward, backward };
enum class DType { bf16 = 0, fp16 = 1, fp32 = 2 };  // same values as FLASHJIT_BF16 … in flashjit.h

// Everything a kernel is specialised on. No sizes and no pointers: one kernel serves every Shape.
struct Problem {
  Pass pass = Pass::forward;
  DType dtype = DType::bf16;  // of q, k, v and o; arithmetic inside is fp32
  int head_dim = 128;         // of q and k: a multiple of 8, 8 to 256
  int head_dim_v = 0;         // of v and o: likewise; 0 means the same as head_dim
  bool causal =
      false;  // aligned bottom right: query i sees keys 0 .. i + seqlen_k - seqlen_q (FlashAttention 2.1+)
  bool lse = true;  // forward only: can write the log-sum-exp of each row; a call may still leave it out
  bool deterministic = false;  // backward only: bit-equal gradients from run to run

  [[nodiscard]] int value_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
  bool operator==(const Problem&) const = default;
};

// Sizes known at the call. heads is 1 or more, and a multiple of heads_kv (GQA; MQA if heads_kv is 1). Each
// seqlen is 0 to 2147483135 (2^31 - 513). With batch 0 nothing is launched, nor is a forward pass without
// query rows; a backward pass without them sets dk and dv to 0.
struct Shape {
  int batch = 1;
  int heads = 1;
  int heads_kv = 0;  // 0 means the same as heads
  int seqlen_q = 0;
  int seqlen_k = 0;

  [[nodiscard]] int kv_heads() const { return heads_kv == 0 ? heads : heads_kv; }
  bool operator==(const Shape&) const = default;
};

// Throw Error: invalid_argument, whose message names the field, its value and what it may be.
void validate(const Problem& problem);
void validate(const Shape& shape);

const char* to_string(Pass pass);    // "forward", "backward"
const char* to_string(DType dtype);  // "fp16", "bf16", "fp32"
Pass parse_pass(const std::string& text);
DType parse_dtype(const std::string& text);
int size_of(DType dtype);  // bytes of one element

// For messages: "forward bf16 d128 causal"; "4x32/8x4096x4096", which is batch x heads/heads_kv x seqlens.
std::string describe(const Problem& problem);
std::string describe(const Shape& shape);

// Floating-point operations as FlashAttention's benchmarks count them, a multiply-add as two:
// 2*b*h*sq*avg_sk*(d+dv), and 2.5 times that for the backward pass. avg_sk is sk, or (max(0, sk-sq)+sk)/2 if
// causal. That is the mean number of keys that a row sees, except with more rows than keys: avg_sk is then
// sk/2, although a row sees sk*sk/(2*sq).
double flops(const Problem& problem, const Shape& shape);

}  // namespace flashjit

#pragma GCC visibility pop

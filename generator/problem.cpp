// Problems and shapes: checks, names and FLOPs.
#include "flashjit/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "flashjit/error.hpp"
#include "generator/render.hpp"

namespace flashjit {
namespace {

[[noreturn]] void refuse(std::string_view name, const auto& was, std::string_view may_be) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}, may be {}", name, was, may_be));
}

void check_head_dim(std::string_view name, int dim) {
  if (dim < 8 || dim > 256 || dim % 8 != 0) refuse(name, dim, "a multiple of 8 from 8 to 256");
}

// Kernels round lengths up to whole tiles in 32 bits.
void check_length(const char* name, int seqlen) {
  constexpr int kLongest = std::numeric_limits<int>::max() - 512;
  if (seqlen < 0) refuse(name, seqlen, "0 or more");
  if (seqlen > kLongest) refuse(name, seqlen, fmt::format("at most {}", kLongest));
}

}  // namespace

void validate(const Problem& problem) {
  const auto number = [](auto value) { return static_cast<int>(value); };
  if (problem.pass < Pass::forward || problem.pass > Pass::backward) {
    refuse("pass", number(problem.pass), "forward (0) or backward (1)");
  }
  if (problem.dtype < DType::bf16 || problem.dtype > DType::fp32) {
    refuse("dtype", number(problem.dtype), "bf16 (0), fp16 (1) or fp32 (2)");
  }
  check_head_dim("head_dim", problem.head_dim);
  if (problem.head_dim_v != 0) check_head_dim("head_dim_v", problem.head_dim_v);
}

void validate(const Shape& shape) {
  if (shape.batch < 0) refuse("batch", shape.batch, "0 or more");
  if (shape.heads < 1) refuse("heads", shape.heads, "1 or more");
  if (shape.heads_kv < 0) refuse("heads_kv", shape.heads_kv, "1 or more, or 0 for the same as heads");
  if (shape.heads % shape.kv_heads() != 0) {
    refuse("heads", fmt::format("{} with heads_kv {}", shape.heads, shape.kv_heads()),
           "a multiple of heads_kv");
  }
  check_length("seqlen_q", shape.seqlen_q);
  check_length("seqlen_k", shape.seqlen_k);
}

const char* to_string(Pass pass) {
  return pass == Pass::forward ? "forward" : "backward";
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return "fp16";
    case DType::bf16:
      return "bf16";
    case DType::fp32:
      return "fp32";
  }
  return "?";
}

Pass parse_pass(const std::string& text) {
  if (text == "forward") return Pass::forward;
  if (text == "backward") return Pass::backward;
  refuse("pass", fmt::format("\"{}\"", text), "forward or backward");
}

DType parse_dtype(const std::string& text) {
  if (text == "fp16") return DType::fp16;
  if (text == "bf16") return DType::bf16;
  if (text == "fp32") return DType::fp32;
  refuse("dtype", fmt::format("\"{}\"", text), "fp16, bf16 or fp32");
}

int size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : 2;
}

std::string describe(const Problem& problem) {
  std::string text =
      fmt::format("{} {} d{}", to_string(problem.pass), to_string(problem.dtype), problem.head_dim);
  if (problem.value_dim() != problem.head_dim) text += fmt::format("/{}", problem.value_dim());
  text += problem.causal ? " causal" : " full";
  if (!problem.lse) text += " without LSE";
  if (problem.deterministic) text += " deterministic";
  return text;
}

std::string describe(const Shape& shape) {
  const std::string heads = shape.heads == shape.kv_heads()
                                ? fmt::format("{}", shape.heads)
                                : fmt::format("{}/{}", shape.heads, shape.kv_heads());
  return fmt::format("{}x{}x{}x{}", shape.batch, heads, shape.seqlen_q, shape.seqlen_k);
}

double flops(const Problem& problem, const Shape& shape) {
  const double sq = shape.seqlen_q;
  const double sk = shape.seqlen_k;
  const double mean_keys = problem.causal ? (std::max(0.0, sk - sq) + sk) / 2 : sk;
  const double forward =
      2.0 * shape.batch * shape.heads * sq * mean_keys * (problem.head_dim + problem.value_dim());
  return problem.pass == Pass::forward ? forward : 2.5 * forward;
}

std::string kernel_name(const Problem& problem, const Schedule& schedule) {
  const std::string text = to_string(schedule);
  const auto colon = text.find(':');
  std::string name = fmt::format("flashjit_{}_{}_{}_d{}", to_string(problem.pass),
                                 to_string(family_of(schedule)), to_string(problem.dtype), problem.head_dim);
  if (problem.value_dim() != problem.head_dim) name += fmt::format("v{}", problem.value_dim());
  if (problem.causal) name += "_causal";
  if (!problem.lse) name += "_nolse";
  if (problem.deterministic) name += "_deterministic";
  return name + "_" + text.substr(colon + 1);
}

}  // namespace flashjit

// Problems that the forward pass in fp32 must get right, whatever family computes them.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/attention_case.hpp"

namespace flashjit::test {

inline Problem fp32_forward(int head_dim, bool causal, int head_dim_v = 0) {
  return {.dtype = DType::fp32, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
}

inline Shape two_of(int heads, int heads_kv, int seqlen_q, int seqlen_k) {
  return {.batch = 2, .heads = heads, .heads_kv = heads_kv, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k};
}

// Largest error over what the rule allows.
inline double ratio(Engine& engine, const std::string& schedule, const AttentionCase& one) {
  const autotune::Check check = Attention(one).run(engine, {.schedule = schedule});
  CHECK_MESSAGE(check.ok, describe(one), " ", schedule, ": ", check.message);
  return check.max_error / check.allowed;
}

// Narrow heads of each oddity, odd sizes.
inline std::vector<AttentionCase> odd_sizes() {
  std::vector<AttentionCase> cases;
  for (const bool causal : {false, true}) {
    for (const auto& [dim, dim_v] : {std::pair{24, 8}, {40, 72}, {56, 56}, {64, 64}, {64, 24}}) {
      for (const Shape& shape : {two_of(2, 1, 70, 130), two_of(3, 1, 200, 50), two_of(2, 2, 1, 64)}) {
        for (const Layout layout : {Layout::packed, Layout::strided})
          cases.push_back({.problem = fp32_forward(dim, causal, dim_v), .shape = shape, .layout = layout});
      }
    }
  }
  return cases;
}

// Values near the ends of fp32.
inline std::vector<AttentionCase> near_the_ends() {
  std::vector<AttentionCase> cases;
  for (const int exponent : {120, -100}) {
    cases.push_back(
        {.problem = fp32_forward(64, false), .shape = two_of(2, 1, 40, 90), .value_exponent = exponent});
  }
  return cases;
}

// Keys of score -infinity, some of a row's and all, by a column whose infinity small and large queries
// multiply.
inline std::vector<AttentionCase> silent_keys() {
  std::vector<AttentionCase> cases;
  for (const int silent : {50, 90}) {
    for (const float query : {1.0f, 0.001f, 5000.0f}) {
      cases.push_back({.problem = fp32_forward(64, false),
                       .shape = two_of(2, 1, 40, 90),
                       .silent = silent,
                       .silent_query = query});
    }
  }
  return cases;
}

// Many keys that score alike, and more than the last block, which comes first.
inline AttentionCase keys_alike() {
  return {.problem = fp32_forward(64, false),
          .shape = {.batch = 1, .heads = 1, .seqlen_q = 16, .seqlen_k = 4096},
          .low = 64};
}

// One row a head, where luck decides: the mean of this many seeds, for each kind of input.
inline void check_many_seeds(Engine& engine, const std::string& schedule, int head_dim, int seeds) {
  using autotune::InputKind;
  for (const InputKind inputs : {InputKind::normal, InputKind::peaky, InputKind::growing}) {
    CAPTURE(head_dim);
    CAPTURE(std::string(to_string(inputs)));
    double sum = 0;
    for (int seed = 1; seed <= seeds; ++seed) {
      sum += ratio(engine, schedule,
                   {.problem = fp32_forward(head_dim, false),
                    .shape = two_of(3, 1, 1, 129),
                    .inputs = inputs,
                    .seed = static_cast<std::uint64_t>(seed)});
    }
    CHECK(sum / seeds < 0.4);
  }
}

}  // namespace flashjit::test

// Problems that gradients in fp32 must get right, whatever family computes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autotune/tune.hpp"
#include "tests/support/gradient_case.hpp"

namespace flashjit::test {

inline Problem fp32_gradients(int head_dim, bool causal, int head_dim_v = 0) {
  return {.pass = Pass::backward,
          .dtype = DType::fp32,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .causal = causal};
}

// Several tiles either way, ragged ends, rows before the first key's diagonal.
constexpr Shape kRagged{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 75, .seqlen_k = 101};

// Every tile of a family's space, with one of the head dims that may have it: another one for each tile.
inline std::map<std::string, AttentionCase> tiles_of_space(Family family) {
  std::map<std::string, std::vector<Problem>> problems;
  for (const int head_dim : {24, 64, 128}) {
    const Problem problem = fp32_gradients(head_dim, true);
    for (const autotune::Candidate& candidate : autotune::search_space(problem, target_of("sm_90a"))) {
      if (candidate.pruned.empty() && family_of(candidate.schedule) == family)
        problems[to_string(candidate.schedule)].push_back(problem);
    }
  }
  std::map<std::string, AttentionCase> cases;
  for (const auto& [schedule, suited] : problems) {
    cases[schedule] = {.problem = suited[cases.size() % suited.size()],
                       .shape = {.heads = 2, .heads_kv = 1, .seqlen_q = 75, .seqlen_k = 101}};
  }
  return cases;
}

inline std::vector<AttentionCase> layouts_and_inputs() {
  using autotune::InputKind;
  std::vector<AttentionCase> cases;
  for (const Layout layout : {Layout::strided, Layout::shared}) {
    for (const InputKind inputs :
         {InputKind::normal, InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny})
      cases.push_back(
          {.problem = fp32_gradients(64, true), .shape = kRagged, .layout = layout, .inputs = inputs});
  }
  return cases;
}

// Sizes that are odd or nothing.
inline std::vector<AttentionCase> sizes() {
  std::vector<AttentionCase> cases;
  for (const auto& [seqlen_q, seqlen_k] : std::vector<std::pair<int, int>>{
           {1, 1}, {1, 129}, {129, 1}, {0, 5}, {5, 0}, {0, 0}, {32, 32}, {200, 60}, {3, 150}, {130, 17}}) {
    for (const bool causal : {false, true}) {
      cases.push_back(
          {.problem = fp32_gradients(32, causal),
           .shape = {.batch = 2, .heads = 3, .heads_kv = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k}});
    }
  }
  return cases;
}

// A row of these has an LSE that is its one key's score, far from 0 and rounded, as an H200 found.
inline AttentionCase one_key_in_a_crowd(int head_dim, std::uint64_t seed) {
  return {.problem = fp32_gradients(head_dim, true),
          .shape = {.batch = 2, .heads = 2, .heads_kv = 2, .seqlen_q = 129, .seqlen_k = 1},
          .layout = Layout::strided,
          .inputs = autotune::InputKind::crowd,
          .seed = seed};
}

// Where a single key has all the weight, dP is delta, so that dQ and dK are exactly 0.
inline AttentionCase single_key(int head_dim) {
  return {.problem = fp32_gradients(head_dim, false),
          .shape = {.batch = 2, .heads = 3, .heads_kv = 1, .seqlen_q = 50, .seqlen_k = 1}};
}
inline bool all_zero(const autotune::HostTensor& tensor) {
  const auto* const numbers = reinterpret_cast<const float*>(tensor.bytes.data());
  return std::all_of(numbers, numbers + tensor.bytes.size() / sizeof(float), [](float x) { return x == 0; });
}

// The forward pass writes an LSE of -infinity where scores are below -2^100, as those of keys that a column
// of q and k masks. No mask hides these scores here, and the row has no part in any gradient.
inline Gradients silent_rows(bool causal) {
  return Gradients(
      {.problem = fp32_gradients(40, causal), .shape = kRagged, .layout = Layout::strided, .blind = 40}, 400);
}

// How many numbers of a tensor of fp32 are NaN, of those from element `first` on, and up to `end`.
inline std::int64_t count_nans(const autotune::HostTensor& tensor, std::int64_t first, std::int64_t end) {
  const auto* const numbers = reinterpret_cast<const float*>(tensor.bytes.data());
  return std::count_if(numbers + first, numbers + end, [](float x) { return std::isnan(x); });
}

// An infinity in q makes NaN of what it touches: its row of dq, and dk and dv of all keys.
inline bool spreads_infinite_rows(Engine& engine, const std::string& schedule) {
  constexpr int kDim = 40, kRows = 3;
  const Shape shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 75, .seqlen_k = 101};
  const Gradients::Result result =
      Gradients({.problem = fp32_gradients(kDim, false), .shape = shape, .endless_rows = kRows}, 16)
          .run(engine, {.schedule = schedule}, false);
  const std::int64_t row = shape.heads * kDim, of_keys = shape.seqlen_k * kDim;
  return count_nans(result.dq, 0, kRows * row) == kRows * row &&
         count_nans(result.dq, kRows * row, shape.seqlen_q * row) == 0 &&
         count_nans(result.dk, 0, of_keys) == of_keys && count_nans(result.dv, 0, of_keys) == of_keys;
}

}  // namespace flashjit::test

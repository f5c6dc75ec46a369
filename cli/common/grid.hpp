// The cells over which attention is compared, here and in other papers: 16k tokens, 2048 / head_dim heads.
#pragma once

#include <fmt/format.h>

#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "cli/common/options.hpp"
#include "cli/common/tell.hpp"
#include "flashjit/error.hpp"
#include "flashjit/problem.hpp"

namespace flashjit::cli {

using Cell = std::pair<Problem, Shape>;

// head_dim 64, 128 and 256, full and causal, sequences of 1k, 4k and 16k: 18 cells with the pass, dtype and
// features of `like`.
inline std::vector<Cell> grid_of(const Problem& like) {
  std::vector<Cell> cells;
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      for (const int seqlen : {1024, 4096, 16384}) {
        Problem problem = like;
        problem.head_dim = head_dim;
        problem.head_dim_v = 0;
        problem.causal = causal;
        cells.push_back(
            {problem,
             {.batch = 16384 / seqlen, .heads = 2048 / head_dim, .seqlen_q = seqlen, .seqlen_k = seqlen}});
      }
    }
  }
  return cells;
}

// Returns what `work` makes of one of `cells`. If it throws an Error, or finds no memory, the other cells of
// a grid may succeed, and are minutes of work: says so, and returns nullopt. A single cell's error goes on to
// the caller.
template <class Work>
auto attempt(const std::vector<Cell>& cells, const Cell& cell, const Work& work)
    -> std::optional<decltype(work())> {
  const auto say = [&](const char* why) {
    tell_message(fmt::format("{} at {}: {}", describe(cell.first), describe(cell.second), why));
  };
  try {
    return work();
  } catch (const Error& error) {
    if (cells.size() == 1) throw;
    say(error.what());
  } catch (const std::bad_alloc&) {
    if (cells.size() == 1) throw;
    say("the host's memory ran out");
  }
  return std::nullopt;
}

// Refuses the flags whose values --grid sets.
inline void refuse_beside_grid(const CLI::App& verb) {
  refuse_ignored(verb,
                 {"--head-dim", "--head-dim-v", "--causal", "--batch", "--heads", "--heads-kv", "--seqlen-q",
                  "--seqlen-k"},
                 "--grid", "its 18 problems have head dims, masks and sizes of their own");
}

}  // namespace flashjit::cli

// Which cases there are.
#include "tests/gpu/grid.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "generator/legality.hpp"

namespace flashjit::test {
namespace {

// Around tile sizes, far from them, one token, none, many more keys than queries and the other way round.
constexpr std::array<std::pair<int, int>, 16> kSeqlens = {{{1, 1},
                                                           {1, 129},
                                                           {129, 1},
                                                           {0, 5},
                                                           {5, 0},
                                                           {63, 65},
                                                           {64, 64},
                                                           {128, 128},
                                                           {127, 129},
                                                           {113, 203},
                                                           {203, 113},
                                                           {3, 799},
                                                           {513, 17},
                                                           {65, 257},
                                                           {256, 192},
                                                           {191, 255}}};

constexpr std::array<std::pair<int, int>, 3> kHeads = {{{2, 2}, {4, 2}, {3, 1}}};  // MHA, GQA, MQA

bool served(const Problem& problem, const Target& target) {
  return legal(problem, Family::simt, target) || legal(problem, Family::mma, target) ||
         legal(problem, Family::wgmma, target);
}

std::vector<Problem> problems(const Target& target, Pass pass) {
  std::vector<Problem> made;
  const auto add = [&](DType dtype, int head_dim, int head_dim_v, bool causal) {
    const Problem problem{
        .pass = pass, .dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
    if (served(problem, target)) made.push_back(problem);
  };
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const bool causal : {false, true}) {
      for (int dim = 8; dim <= 256; dim += 8) add(dtype, dim, 0, causal);
      for (const auto& [dim, dim_v] : {std::pair{64, 128}, {192, 128}, {40, 8}, {8, 256}})
        add(dtype, dim, dim_v, causal);
    }
  }
  return made;
}

Group group_of(const Problem& problem, std::mt19937_64& random, bool small) {
  Group group;
  for (const auto& [seqlen_q, seqlen_k] : kSeqlens) {
    if (small && seqlen_q * seqlen_k > 128 * 128) continue;
    for (const auto& [heads, heads_kv] : kHeads) {
      for (const Layout layout : {Layout::packed, Layout::strided, Layout::shared}) {
        const std::uint64_t seed = random();
        // Half of the cases are plain normal numbers, the rest one of those that hurt.
        auto kind = seed % 2 == 0 ? autotune::InputKind::normal
                                  : autotune::kInputKinds[seed / 2 % autotune::kInputKinds.size()];
        if (kind == autotune::InputKind::crowd && problem.pass == Pass::backward && seqlen_q == 1) {
          kind = autotune::InputKind::normal;  // dQ's error would be one rounding, of the giant's dS
        }
        group.push_back({.problem = problem,
                         .shape = {.batch = 2,
                                   .heads = heads,
                                   .heads_kv = heads_kv,
                                   .seqlen_q = seqlen_q,
                                   .seqlen_k = seqlen_k},
                         .layout = layout,
                         .inputs = kind,
                         .seed = seed});
      }
    }
  }
  return group;
}

}  // namespace

std::vector<Group> grid(const Target& target, const GridOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<Group> groups;
  std::size_t all = 0;
  for (const Problem& problem : problems(target, options.pass)) {
    groups.push_back(group_of(problem, random, options.small));
    all += groups.back().size();
  }
  if (options.sample > 0 && static_cast<std::size_t>(options.sample) < all) {
    for (Group& group : groups) {
      std::erase_if(group, [&](const AttentionCase&) {
        return random() % all >= static_cast<std::uint64_t>(options.sample);
      });
    }
    std::erase_if(groups, [](const Group& group) { return group.empty(); });
  }
  std::shuffle(groups.begin(), groups.end(), random);  // slow and quick ones mixed, for an even load
  return groups;
}

std::vector<AttentionCase> large_cases(const Target& target, const GridOptions& options) {
  const std::uint64_t seed = options.seed;
  std::vector<AttentionCase> cases;
  const DType half = target.capability >= 80 ? DType::bf16 : DType::fp16;
  for (const bool causal : {false, true}) {
    for (const int head_dim : {64, 128, 256}) {
      const Problem problem{.pass = options.pass, .dtype = half, .head_dim = head_dim, .causal = causal};
      cases.push_back({.problem = problem,
                       .shape = {.batch = 2, .heads = 16, .heads_kv = 4, .seqlen_q = 4096, .seqlen_k = 4096},
                       .seed = seed});
      cases.push_back({.problem = problem,
                       .shape = {.batch = 2, .heads = 2, .heads_kv = 1, .seqlen_q = 200, .seqlen_k = 300},
                       .layout = Layout::far,
                       .seed = seed});
    }
  }
  cases.push_back({.problem = {.pass = options.pass, .dtype = half, .head_dim = 64, .causal = true},
                   .shape = {.batch = 1, .heads = 1, .seqlen_q = 70'001, .seqlen_k = 70'003},
                   .seed = seed});
  cases.push_back({.problem = {.pass = options.pass, .dtype = DType::fp32, .head_dim = 64},
                   .shape = {.batch = 2, .heads = 2, .heads_kv = 1, .seqlen_q = 200, .seqlen_k = 300},
                   .layout = Layout::far,
                   .seed = seed});
  return cases;
}

}  // namespace flashjit::test

// Family wgmma: which schedules are legal.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/wgmma_fp32.hpp"
#include "generator/families/wgmma_layout.hpp"
#include "generator/families/wgmma_loops.hpp"
#include "generator/families/wgmma_registers.hpp"
#include "generator/recipe.hpp"

namespace flashjit {

using namespace wgmma_forward;

namespace {

Legality legal_splits(const Problem& problem, const WgmmaSchedule& s) {
  if (s.splits == 1) return {};
  if (s.persistent != 0) {
    return {fmt::format("splits {} leaves CTAs one tile each, which is persistent 0, not {}", s.splits,
                        s.persistent)};
  }
  if (s.o_passes != 1) {
    return {fmt::format("o_passes {} makes no difference to splits above 1; leave it at 1", s.o_passes)};
  }
  const int columns = 8 * s.splits;  // each CTA adds up eight of them, and eight of every further 8 * splits
  const int pieces = s.tile_m * 4 * ((problem.value_dim() + columns - 1) / columns * columns);
  if (const int room = ring_bytes(problem, s); pieces > room) {
    return {fmt::format("splits {} adds up O in the place of K and V, which takes {}; they have {}", s.splits,
                        kilobytes(pieces), kilobytes(room))};
  }
  return {};
}

// Whether shared memory, too, has room for min_ctas CTAs.
Legality legal_min_ctas(const Problem& problem, const WgmmaSchedule& s, const Target& target) {
  if (s.min_ctas == 1) return {"min_ctas 1 is what 0 says, too; leave it at 0"};
  return room_for_ctas(staged_tile(s.tile_m, s.tile_n, s.stages), shared_bytes(problem, s), s.min_ctas,
                       target);
}

Legality legal_even_shares(const Problem& problem, const WgmmaSchedule& s) {
  if (!has_even_shares(s)) return {};
  if (s.cluster != 1 && problem.causal) {
    return {fmt::format("persistent 3 under a mask needs cluster 1, cluster is {}", s.cluster)};
  }
  if (s.o_passes == 0)
    return {
        "o_passes 0 puts O in Q's place; persistent 3 adds up shares in a place of O's own, use 1 or more"};
  return {};
}

}  // namespace

Legality legal_wgmma(const Problem& problem, const WgmmaSchedule& s, const Target& target) {
  const int warpgroups = warpgroups_of(s);
  if (s.tile_m % 64 != 0) return {fmt::format("tile_m is {}, wgmma needs a multiple of 64", s.tile_m)};
  if (s.tile_n % 16 != 0) return {fmt::format("tile_n is {}, wgmma needs a multiple of 16", s.tile_n)};
  if (s.max_chains != 2 && s.max_chains != 4 && s.max_chains != 8) {
    return {fmt::format("max_chains is {}, may be 2, 4 or 8", s.max_chains)};
  }
  if (s.ptxas == 2) return {"ptxas is 2, which makes the code of 3; may be 1 or 3"};
  if (s.splits != 1 && s.cluster != 1) {
    return {fmt::format("splits {} and cluster {} are two uses of clusters; leave one of them at 1", s.splits,
                        s.cluster)};
  }
  if (problem.dtype == DType::fp32) return legal_wgmma_fp32(problem, s, target);
  if (s.max_chains > s.tile_n / 4) {
    return {fmt::format("max_chains {} is more than the {} scores that a thread has of a row", s.max_chains,
                        s.tile_n / 4)};
  }
  if (problem.dtype == DType::fp16 && s.lazy > 15) {
    return {fmt::format("lazy {} lets exponentials grow to 2^{}, fp16 ends below 2^16", s.lazy, s.lazy)};
  }
  if (s.optimistic == 1 && s.lazy == 0)
    return {"optimistic 1 lets exponentials grow before it looks, lazy 0 does not"};
  if (s.optimistic == 1 && problem.dtype == DType::bf16 && 1 << s.lazy < s.tile_n / 2)
    return optimism_in_vain(s.tile_n, s.lazy);
  if (s.ping_pong == 1 && warpgroups == 1)
    return {"ping_pong needs two or more warpgroups, tile_m 64 has one"};
  if (s.ping_pong == 1 && s.overlap == 0) {
    return {"ping_pong orders pairs of products in flight together, overlap 0 has none"};
  }
  if (s.rescale_early == 0 && s.overlap == 0)
    return {"rescale_early 0 makes no difference to overlap 0; leave it at 1"};
  if (s.unroll != 1 && has_one_step(problem, s)) {
    return {
        fmt::format("unroll {} makes no difference to values of {} columns, whose blocks are all taken by "
                    "one loop; leave it at 1",
                    s.unroll, problem.value_dim())};
  }
  // ptxas would wait for the scores before rescaling O, since a tile's first block has no values in flight
  // (C7517).
  if (s.rescale_early == 1 && s.overlap == 1 && has_one_step(problem, s)) {
    return {
        fmt::format("rescale_early 1 is not for values of {} columns, whose blocks are all taken by one "
                    "loop, at the end of which O is rescaled; set it to 0",
                    problem.value_dim())};
  }
  if (const int usual = WgmmaSchedule{}.section; s.section != usual && (is_static(s) || !problem.causal)) {
    return {fmt::format("section {} orders the causal tiles of persistent 2 only; leave it at {}", s.section,
                        usual)};
  }
  if (s.q_in_regs == 2 && panels_of(problem.head_dim) < 2) {
    return {
        fmt::format("q_in_regs 2 splits Q's panels of 64 columns, head_dim {} has one", problem.head_dim)};
  }
  if (Legality split = legal_splits(problem, s); !split) return split;
  if (Legality even = legal_even_shares(problem, s); !even) return even;
  const int panels_v = panels_of(problem.value_dim());
  if (s.o_passes > 0 && panels_v % s.o_passes != 0) {
    return {fmt::format(
        "o_passes {} does not divide the {} panels of 64 columns that head_dim_v {} has; use 1 or {}",
        s.o_passes, panels_v, problem.value_dim(), panels_v)};
  }
  if (s.o_passes == 0 && panels_v > panels_of(problem.head_dim)) {
    return {fmt::format("o_passes 0 puts O in Q's place, but head_dim_v {} is wider than head_dim {}",
                        problem.value_dim(), problem.head_dim)};
  }
  const FragmentRegisters needed = fragments_of(problem, s);
  if (const int most = accumulators_at_most(s); std::max(needed.s, needed.o) > most) {
    return {fmt::format("tile {}x{} has a product of {} accumulators a thread, {} may have {}", s.tile_m,
                        s.tile_n, std::max(needed.s, needed.o), consumers(s), most)};
  }
  const int granted = registers_of(s).consumer;
  if (needed.total() > granted && !known_to_fit(problem, s)) {
    return {
        fmt::format("tile {}x{} needs about {} registers a thread (S {}, P {}, O {}, Q {}, the rest {}), {} "
                    "leave{} {}",
                    s.tile_m, s.tile_n, needed.total(), needed.s, needed.p, needed.o, needed.q, needed.other,
                    consumers(s), warpgroups == 1 ? "s" : "", granted)};
  }
  if (known_to_spill(problem, s)) {
    return {
        fmt::format("{} spills a few bytes at head_dim {}, values of {}{}, as compiling it showed; "
                    "take another tile, or change a switch",
                    to_string(Schedule{s}), problem.head_dim, problem.value_dim(),
                    problem.causal ? ", under a mask" : "")};
  }
  if (Legality several = legal_min_ctas(problem, s, target); !several) return several;
  const int shared = shared_bytes(problem, s);
  if (shared > target.shared_per_cta)
    return too_much_shared(staged_tile(s.tile_m, s.tile_n, s.stages), shared, target);
  return {};
}

}  // namespace flashjit

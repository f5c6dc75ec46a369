// Family simt: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "generator/recipe.hpp"

namespace flashjit {
namespace {

// What follows from problem and schedule: a thread's share of the tile, and the places in shared memory, in
// floats.
struct Layout {
  int threads, rows, keys, columns, handed;
  int stride_qk, stride_p;
  int k_at, v_at, p_at, floats;
};

Layout layout_of(const Problem& problem, const SimtSchedule& s) {
  Layout layout{};
  layout.threads = 32 * s.warps;
  layout.rows = s.tile_m * s.lanes / layout.threads;
  layout.keys = s.tile_n / s.lanes;
  layout.columns = problem.value_dim() / s.lanes;
  layout.handed = std::min(layout.keys, 4);
  // 16 bytes of padding put neighbouring rows of Q and K into different banks, head_dim being a multiple
  // of 8.
  layout.stride_qk = problem.head_dim + 4;
  // Two neighbouring rows of P are stored at once, so they lie 16 banks apart where a row fills all 32 banks.
  const int width = s.lanes * layout.handed;
  layout.stride_p = width + (width % 32 == 0 ? 16 : 4);
  layout.k_at = s.tile_m * layout.stride_qk;
  const int k_floats = s.tile_n * layout.stride_qk;
  const int v_floats = s.tile_n * problem.value_dim();
  layout.v_at = s.stages == 1 ? layout.k_at : layout.k_at + k_floats;
  layout.p_at = s.stages == 1 ? layout.k_at + std::max(k_floats, v_floats) : layout.v_at + v_floats;
  layout.floats = layout.p_at + s.tile_m * layout.stride_p;
  return layout;
}

// Columns of Q and K in one step of S: kBlock of parts/simt/scores.cuh.
constexpr int kBlock = 8;

constexpr int kMostRows = 8;  // of a thread

// Found by compiling the search space: with at most kMostRows rows and 8 keys per thread, ptxas does not
// spill what this admits.
int registers_needed(const SimtSchedule& s, const Layout& layout, const Target& target, bool careful) {
  const int ahead = s.prefetch != 0 || s.unroll > 1 ? 2 : 1;  // ptxas moves the loads of the next step up
  // Half of what is loaded ahead for S belongs to Q.
  int products_qk = layout.rows * kBlock / 2 * (1 + ahead) + kBlock + layout.rows;
  int products_pv = layout.rows * layout.handed * ahead + layout.columns;
  if (careful) products_qk += layout.rows * layout.keys, products_pv += layout.rows * layout.columns;
  int others = 20 + layout.keys;
  if (s.min_ctas >= 3) others += 28;  // ptxas packs worse where it has to
  // From Blackwell on ptxas spills 50 to 650 bytes where a thread has 32 columns or more.
  if (target.capability >= 100 && layout.columns >= 32) others += 16;
  return layout.rows * (layout.keys + layout.columns + 2) + std::max(products_qk, products_pv) + others;
}

int registers_granted(const SimtSchedule& s, const Layout& layout, const Target& target) {
  return registers_for(layout.threads * std::max(s.min_ctas, 1), target);
}

// What the count above lets pass although on some arch it takes more registers than there are. Found by
// compiling each of them for each arch: some tiles with 4 rows and 8 keys per thread, one with 8 rows and 4
// keys, and, on archs from Blackwell on, a few tiles with 8 rows, 8 keys and 8 value columns, which take all
// 255 registers.
bool known_to_spill(const Problem& problem, const SimtSchedule& s, const Layout& layout,
                    const Target& target) {
  if (layout.rows == 4 && layout.keys == 8 && layout.columns >= 24) {
    if (layout.columns == 24) return problem.causal && s.prefetch != 0;
    if (problem.causal) return s.stages == 1 || s.lanes == 4;
    return layout.columns > 32 && (s.stages == 1 || s.warps == 8);
  }
  if (layout.rows == 8 && layout.keys == 4 && layout.columns == 12) return s.warps == 4 && s.stages == 2;
  if (layout.rows * layout.keys != 64 || layout.columns != 8) return false;
  const std::string name = to_string(Schedule{s});
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (target.capability >= 120) {
    return problem.causal ? is_one_of({"simt:m64n64w2s1", "simt:m32n128w2s1l16"})
                          : is_one_of({"simt:m64n64w2s2", "simt:m128n64w4s1"});
  }
  if (target.capability < 100) return false;
  return is_one_of({"simt:m256n64w8s2", "simt:m64n128w4s1l16", "simt:m64n128w4s2l16", "simt:m128n128w8s1l16",
                    "simt:m32n128w2s1l16", "simt:m32n128w2s2l16"}) ||
         (!problem.causal && is_one_of({"simt:m128n64w4s1", "simt:m64n64w2s1", "simt:m64n64w2s2"}));
}

bool power_of_two(int x) {
  return x > 0 && (x & (x - 1)) == 0;
}

}  // namespace

Legality legal_simt(const Problem& problem, const SimtSchedule& s, const Target& target) {
  if (s.lanes != 4 && s.lanes != 8 && s.lanes != 16)
    return {fmt::format("lanes is {}, may be 4, 8 or 16", s.lanes)};
  if (s.min_ctas == 1) return {"min_ctas 1 is what 0 says, too; leave it at 0"};
  if (problem.value_dim() % s.lanes != 0) {
    return {fmt::format("{} lanes cannot share {} value columns evenly; use 8 or 4", s.lanes,
                        problem.value_dim())};
  }
  const int rows_per_step = s.warps * 32 / s.lanes;
  if (s.tile_m % rows_per_step != 0 || s.tile_m / rows_per_step > kMostRows) {
    return {
        fmt::format("{} warps with {} lanes across the keys cover {} rows at a time: tile_m is {}, may be 1 "
                    "to {} times that",
                    s.warps, s.lanes, rows_per_step, s.tile_m, kMostRows)};
  }
  const Layout layout = layout_of(problem, s);
  if (s.tile_n % s.lanes != 0 || !power_of_two(layout.keys) || layout.keys > 8) {
    return {fmt::format("{} lanes across the keys: tile_n is {}, may be {} times 1, 2, 4 or 8", s.lanes,
                        s.tile_n, s.lanes)};
  }
  const int widest = std::max(problem.head_dim, problem.value_dim());
  if (layout.threads < widest / 4) {
    return {fmt::format("{} warps copy less than one row of {} floats at a time, use {} or more", s.warps,
                        widest, (widest + 127) / 128)};
  }
  if (layout.rows * layout.keys == 64 && layout.columns < 8 &&
      (s.stages == 1 || (s.prefetch != 0 && s.lanes == 16) ||
       (problem.causal && (s.prefetch != 0 || s.unroll > 1)))) {
    return {fmt::format(
        "8 rows x 8 keys and {} value columns a thread spill a few registers, use 2 stages and no more than "
        "8 lanes with prefetch; under a mask neither prefetch nor unroll",
        layout.columns)};
  }
  if (known_to_spill(problem, s, layout, target)) {
    return {fmt::format("tile {}x{} spills a few bytes on {}, as compiling it showed", s.tile_m, s.tile_n,
                        target.arch)};
  }
  const int needed = registers_needed(s, layout, target, false);
  const int granted = registers_granted(s, layout, target);
  if (needed > granted) {
    return {fmt::format(
        "{} rows x {} keys and {} columns a thread need about {} registers, {} warps x {} CTAs leave {}",
        layout.rows, layout.keys, layout.columns, needed, s.warps, std::max(s.min_ctas, 1), granted)};
  }
  const int bytes = layout.floats * 4;
  const std::string tile = staged_tile(s.tile_m, s.tile_n, s.stages);
  if (bytes > target.shared_per_cta) return too_much_shared(tile, bytes, target);
  return room_for_ctas(tile, bytes, s.min_ctas, target);
}

Geometry geometry_simt(const Problem& problem, const SimtSchedule& s) {
  const Layout layout = layout_of(problem, s);
  return {.tile_m = s.tile_m, .threads = layout.threads, .shared_bytes = layout.floats * 4};
}

std::vector<Recipe> recipes_simt(const Problem& problem, const SimtSchedule& s, const Target& target) {
  const Layout layout = layout_of(problem, s);
  // Tiles of so few rows wait for memory, not for arithmetic. And with few rows the plain computation, by
  // which ours is judged, may happen to be almost exact.
  const bool careful =
      layout.rows <= 2 && registers_needed(s, layout, target, true) <= registers_granted(s, layout, target);
  Recipe recipe;
  recipe.kernel = "kernels/forward_simt.cu";
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of Q and K"),
      number("kHeadDimV", problem.value_dim(), "columns of V and O"),
      flag("kCausal", problem.causal, "bottom-right aligned"),
      number("kTileM", s.tile_m, "query rows per CTA"),
      number("kTileN", s.tile_n, "keys per step"),
      number("kWarps", s.warps, "per CTA"),
      number("kThreads", layout.threads, "per CTA"),
      number("kMinCtas", std::max(s.min_ctas, 1), "per multiprocessor, that registers must allow"),
      number("kStages", s.stages, "1: K and V take turns in one buffer, 2: one each"),
      number("kUnroll", s.unroll, "steps of each product per turn of its loop"),
      flag("kPrefetch", s.prefetch != 0, "load the next step's fragments of Q and P ahead"),
      number("kLanes", s.lanes, "of a warp side by side across the keys; the others go down the rows"),
      number("kRows", layout.rows, "of S and O per thread"),
      number("kKeys", layout.keys, "columns of S per thread"),
      number("kColumns", layout.columns, "of O per thread"),
      number("kHanded", layout.handed, "weights that a thread hands over side by side"),
      flag("kCareful", careful, "sums to S and O lose less"),
      number("kStrideQk", layout.stride_qk, "floats from row to row of Q and K in shared memory"),
      number("kStrideP", layout.stride_p, "floats from row to row of P"),
      number("kSharedK", layout.k_at, "where K begins in shared memory, in floats"),
      number("kSharedV", layout.v_at, "V"),
      number("kSharedP", layout.p_at, "P"),
  };
  recipe.sections = {{"causal", problem.causal}, {"lse", problem.lse}, {"cp_async", target.capability >= 80}};
  recipe.geometry = geometry_simt(problem, s);
  return {recipe};
}

}  // namespace flashjit

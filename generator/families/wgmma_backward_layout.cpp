// Who sums up what, and how much shared memory it takes.
#include "generator/families/wgmma_backward_layout.hpp"

#include <algorithm>

namespace flashjit::wgmma_backward {
namespace {

constexpr int kMostSlots = 6;  // of the ring of K and V

// Of K and V together.
int panels(const Problem& problem) {
  return panels_of(problem.head_dim) + panels_of(problem.value_dim());
}

// Whether the CTAs of a pair share one of K's panels: each sums dQ of one and a half.
bool shares_a_panel(const Problem& problem) {
  return panels_of(problem.head_dim) == 3;
}

}  // namespace

bool sums_apart(const WgmmaBackwardSchedule& s) {
  return s.tile_n == 64;
}

bool adds_dq(const WgmmaBackwardSchedule& s) {
  return s.dq != static_cast<int>(DqWay::own_pass);
}

bool is_pair(const WgmmaBackwardSchedule& s) {
  return sums_apart(s) && adds_dq(s);
}

int ctas_per_tile(const WgmmaBackwardSchedule& s) {
  return is_pair(s) ? 2 : 1;
}

int dq_rest(const Problem& problem) {
  return shares_a_panel(problem) ? kPanelColumns / 2 : kPanelColumns;
}

bool sums_dq(const WgmmaBackwardSchedule& s) {
  return s.dq == static_cast<int>(DqWay::atomic);
}

bool is_ordered(const WgmmaBackwardSchedule& s) {
  return s.dq == static_cast<int>(DqWay::ordered);
}

bool rotates(const Problem& problem, const WgmmaBackwardSchedule& s) {
  return adds_dq(s) && !problem.causal;
}

bool waits_for_later(const Problem& problem, const WgmmaBackwardSchedule& s) {
  return is_ordered(s) && rotates(problem, s);
}

bool divides_tiles(const Problem& problem, const WgmmaBackwardSchedule& s) {
  const bool registers = panels_of(problem.value_dim()) <= 2 && (s.tile_m != 128 || s.turns > 0);
  return sums_dq(s) && !is_pair(s) && s.splits == 1 && !problem.causal && registers;
}

bool transposes_dq(const WgmmaBackwardSchedule& s) {
  return s.tile_m == 80;
}

bool stages_dq(const Problem& problem, const WgmmaBackwardSchedule& s) {
  if (s.staged > 0) return true;
  // Beside so many panels there is room for 24 and 32 KB.
  if (is_pair(s)) return panels(problem) <= (shares_a_panel(problem) ? 7 : 6);
  if (transposes_dq(s)) return !problem.causal;
  return sums_dq(s) && s.tile_m == 128 && s.turns > 0 && panels_of(problem.value_dim()) == 1;
}

bool forms_ds_under_dv(const Problem& problem, const WgmmaBackwardSchedule& s) {
  constexpr int kWide = 192;  // columns of K and V: as timed on an H200, from here on it pays
  return transposes_dq(s) ||
         (s.staged > 0 && !problem.causal && problem.head_dim + problem.value_dim() > kWide);
}

WgmmaProduct dq_product(const Problem& problem, const WgmmaBackwardSchedule& s) {
  WgmmaProduct product{.a_transposed = true, .b_transposed = !transposes_dq(s)};
  product.columns = transposes_dq(s)                       ? s.tile_m
                    : s.tile_m == 128                      ? problem.head_dim
                    : is_pair(s) && !stages_dq(problem, s) ? kPairPanels * kPanelColumns
                                                           : kPanelColumns;
  return product;
}

int share_stages(const Problem& problem, const WgmmaBackwardSchedule& s) {
  if (!stages_dq(problem, s)) return 0;
  return is_pair(s) && shares_a_panel(problem) && panels(problem) <= 6 ? 2 : 1;  // 24 KB more
}

int exchange_stages(const Problem& problem, const WgmmaBackwardSchedule& s) {
  if (is_pair(s)) return panels(problem) <= 5 ? 2 : 1;  // 8 KB more
  return adds_dq(s) || sums_apart(s) ? 2 : 0;
}

int owners_bytes(const Problem& problem, const WgmmaBackwardSchedule& s, int key_stages) {
  const int exchanges = exchange_stages(problem, s), shares = share_stages(problem, s);
  const int tiles = (key_stages * s.tile_n + 2 * s.tile_m) * panels(problem) * kRowBytes;
  // A pair's CTA also has a copy of the other CTA's dS, and those columns of the other's keys that its dQ
  // takes.
  const int other = is_pair(s) ? kPairPanels * s.tile_n * kRowBytes : 0;
  const int exchange = (exchanges + (is_pair(s) ? 1 : 0)) * s.tile_n * s.tile_m * 2;
  const int statistics = 2 * 2 * 4 * s.tile_m;
  const int of_dq = shares > 0 ? 4 * shares : adds_dq(s) ? 5 : 0;
  const int of_pair = is_pair(s) ? 3 + exchanges : 0;
  const int of_keys = 5 * key_stages + (divides_tiles(problem, s) ? 3 : 0);
  const int barriers = 8 * (of_keys + 8 + 2 * exchanges + 2 + of_dq + of_pair) + kTicketBytes;
  // One part of a share for each of two warpgroups, or the two parts that one has.
  const int columns = dq_product(problem, s).columns;
  const int share = shares * 4 * 64 * (columns + (is_pair(s) ? dq_rest(problem) : columns));
  return tiles + other + exchange + share + statistics + barriers;
}

int key_stages(const Problem& problem, const WgmmaBackwardSchedule& s, const Target& target) {
  return !sums_apart(s) && owners_bytes(problem, s, 2) <= target.shared_per_cta ? 2 : 1;
}

int ring_bytes(const Problem& problem, int slots) {
  const int qk = panels_of(problem.head_dim) * kRowBytes, v = panels_of(problem.value_dim()) * kRowBytes;
  return kDqRows * (qk + v) + slots * (kDqKeys * std::max(qk, v) + 16) + 8 * 4 * (kDqRows / 64) +
         kTicketBytes;
}

int ring_slots(const Problem& problem, const Target& target) {
  int slots = kMostSlots;
  while (slots > 3 && ring_bytes(problem, slots) > target.shared_per_cta) --slots;
  return slots;
}

}  // namespace flashjit::wgmma_backward

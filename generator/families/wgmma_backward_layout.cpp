// Who sums up what, and how much shared memory it takes.
#include "generator/families/wgmma_backward_layout.hpp"

#include <algorithm>

namespace flashjit::wgmma_backward {
namespace {

constexpr int kMostSlots = 6;  // of the ring of K and V

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

int dq_panels(const Problem& problem) {
  return (panels_of(problem.head_dim) + 1) / 2;
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

bool transposes_dq(const WgmmaBackwardSchedule& s) {
  return s.tile_m == 80;
}

bool stages_dq(const Problem& problem, const WgmmaBackwardSchedule& s) {
  constexpr int kPanels = 6;  // of K and V together, beside which a pair has room
  if (is_pair(s)) return panels_of(problem.head_dim) + panels_of(problem.value_dim()) <= kPanels;
  return !problem.causal &&
         (transposes_dq(s) || (sums_dq(s) && s.tile_m == 128 && panels_of(problem.value_dim()) == 1));
}

WgmmaProduct dq_product(const Problem& problem, const WgmmaBackwardSchedule& s) {
  WgmmaProduct product{.a_transposed = true, .b_transposed = !transposes_dq(s)};
  product.columns = transposes_dq(s)  ? s.tile_m
                    : s.tile_m == 128 ? problem.head_dim
                    : is_pair(s)      ? 64 * dq_panels(problem)
                                      : 64;
  return product;
}

int exchange_stages(const WgmmaBackwardSchedule& s) {
  if (is_pair(s)) return 1;
  return adds_dq(s) || sums_apart(s) ? 2 : 0;
}

int owners_bytes(const Problem& problem, const WgmmaBackwardSchedule& s, int key_stages) {
  const int panels = panels_of(problem.head_dim) + panels_of(problem.value_dim());
  const int tiles = (key_stages * s.tile_n + 2 * s.tile_m) * panels * kRowBytes;
  // A pair's CTA also has a copy of the other CTA's dS, and those columns of the other's keys that its dQ
  // takes.
  const int other = is_pair(s) ? dq_panels(problem) * s.tile_n * kRowBytes : 0;
  const int exchange = (exchange_stages(s) + (is_pair(s) ? 1 : 0)) * s.tile_n * s.tile_m * 2;
  const int statistics = 2 * 2 * 4 * s.tile_m;
  const int barriers =
      8 * (5 * key_stages + 8 + 2 * exchange_stages(s) + 2 + (adds_dq(s) ? 5 : 0) + (is_pair(s) ? 3 : 0)) +
      kTicketBytes;
  const int share_columns = is_pair(s) ? dq_panels(problem) * kPanelColumns : problem.head_dim;
  const int share = stages_dq(problem, s) ? 4 * s.tile_m * share_columns : 0;
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

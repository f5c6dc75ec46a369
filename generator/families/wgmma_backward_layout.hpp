// How family wgmma's backward pass works under a schedule: who sums up what, and how much shared memory it
// takes.
#pragma once

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/families/wgmma_lists.hpp"
#include "generator/families/wgmma_panels.hpp"
#include "generator/schedule.hpp"

namespace flashjit::wgmma_backward {

using namespace wgmma;

constexpr int kDqRows = 128;    // per CTA of the kernel that owns rows of dQ
constexpr int kDqKeys = 64;     // per step of that kernel
constexpr int kPairPanels = 2;  // of K's columns that one CTA of a pair sums dQ from

// Whether different warpgroups sum dK and dV. With tile_n 128, two warpgroups own 64 keys each; with tile_n
// 64, one owns dV and one owns dK.
bool sums_apart(const WgmmaBackwardSchedule& s);
bool adds_dq(const WgmmaBackwardSchedule& s);
// Whether two CTAs work on a tile. Where dK and dV are summed apart, adding dQ takes a third warpgroup, and
// its sums have to cover a second CTA's keys, or L2 could not take them.
bool is_pair(const WgmmaBackwardSchedule& s);
int ctas_per_tile(const WgmmaBackwardSchedule& s);
// Columns whose dQ a CTA of a pair sums up beside those of a panel, where dQ is staged: of three panels both
// have half of the middle one.
int dq_rest(const Problem& problem);
bool sums_dq(const WgmmaBackwardSchedule& s);
bool is_ordered(const WgmmaBackwardSchedule& s);
// Whether each tile of keys begins at other queries, so that a tile that adds to dQ after others seldom waits
// for them.
bool rotates(const Problem& problem, const WgmmaBackwardSchedule& s);
// Whether tiles may wait for tiles that are taken later, so that all of a head's have to be at work.
bool waits_for_later(const Problem& problem, const WgmmaBackwardSchedule& s);
// Whether a grid's last tiles may be divided in two: where tiles have one length, and CTAs add dQ in any
// order. 128 queries without turns, and three panels of V, have no register left for it.
bool divides_tiles(const Problem& problem, const WgmmaBackwardSchedule& s);
// Whether the transposed dQ is summed up: 80 queries do not fill the 64 rows of products, but K's columns do.
bool transposes_dq(const WgmmaBackwardSchedule& s);
// Whether dQ leaves through shared memory: where the schedule says so; that of pairs which have the room;
// that of 128 queries beside one panel of V, with turns (without turns they lose by it); and the transposed
// one without a mask, where dP is issued beside S, too (under one that takes too many registers).
bool stages_dq(const Problem& problem, const WgmmaBackwardSchedule& s);
// Whether dS is formed while dV runs, and dQ of the step before comes with dK, not with dV: where registers
// or time (with wide heads that stage dQ and have no mask) say so.
bool forms_ds_under_dv(const Problem& problem, const WgmmaBackwardSchedule& s);
// How many steps' shares of dQ have room in shared memory.
int share_stages(const Problem& problem, const WgmmaBackwardSchedule& s);
WgmmaProduct dq_product(const Problem& problem, const WgmmaBackwardSchedule& s);
// Stages of what the warpgroups of a tile of keys exchange: dS for dQ, or P, or first P and then dS.
int exchange_stages(const Problem& problem, const WgmmaBackwardSchedule& s);
// Bytes of what templates/parts/wgmma_backward/layout.cuh lays out, which asserts that it fits.
int owners_bytes(const Problem& problem, const WgmmaBackwardSchedule& s, int key_stages);
int key_stages(const Problem& problem, const WgmmaBackwardSchedule& s, const Target& target);
// Bytes of what templates/parts/wgmma_backward/dq_layout.cuh lays out, which asserts that it fits.
int ring_bytes(const Problem& problem, int slots);
int ring_slots(const Problem& problem, const Target& target);

}  // namespace flashjit::wgmma_backward

// The products of family wgmma's forward pass in fp32, each of which is six of bf16.
#pragma once

#include "generator/recipe.hpp"

namespace flashjit::wgmma_fp32 {

// What a CTA has of the columns: all, or an even share where `splits` CTAs have a tile's rows. All that
// follows is asked with this share.
Problem share_of(const Problem& problem, const WgmmaSchedule& schedule);

// Columns of V that one product has: a panel's, or half of them where registers are short.
int columns_at_once(const Problem& problem, const WgmmaSchedule& schedule);
int q_register_parts(const WgmmaSchedule& schedule);  // how many of Q's parts live in registers
// Whether one product of a part of Q has two parts of K, for which it takes two more sums of the scores.
bool pairs_parts(const Problem& problem, const WgmmaSchedule& schedule);
int score_sums(const Problem& problem, const WgmmaSchedule& schedule);  // registers of a thread
// How often a block's scores read a part of Q from shared memory.
int q_reads(const Problem& problem, const WgmmaSchedule& schedule);

// Fills in the lists of templates/parts/wgmma_fp32/products.cuh.
void list_products(Recipe& recipe, const Problem& problem, const WgmmaSchedule& schedule);

}  // namespace flashjit::wgmma_fp32

// Products of fp32 numbers by family wgmma, in both passes: each is the sum of products of the numbers' bf16
// parts.
#pragma once

#include <array>
#include <span>

#include "generator/families/wgmma_lists.hpp"

namespace flashjit::wgmma_fp32 {

// What is multiplied, 64 rows of A with B. Tiles in shared memory are SplitTile of
// templates/parts/wgmma_fp32/split_tile.cuh.
struct SplitProduct {
  int columns = 0;
  int steps = 0;             // of 16
  int a_register_parts = 0;  // the first so many parts of A are in registers, the others in shared memory
  int a_rows = 0;            // of a part of A's tile
  int b_rows = 0;            // of a part of B's tile
  bool b_transposed = false;
  bool adds = false;  // to the sums as they are; else they begin anew
};

// A part of A with parts of B that lie side by side, the first of which is b.
struct Term {
  int a = 0, b = 0;
  int first = 0;  // accumulator, in multiples of the product's columns / 2
  int parts_of_b = 1;
};

// A whole product in one sum: of nine products of parts, the six that reach the last bit of the whole, the
// smallest first.
constexpr std::array<Term, 6> kOneSum{{{0, 2}, {1, 1}, {2, 0}, {0, 1}, {1, 0}, {0, 0}}};

// The terms as one asm statement: a fence, the products and a commit. Operands: the accumulators; A's
// registers, step by step and part by part; the lower half of A's descriptor, where parts of it are in shared
// memory; the lower half of B's; and the upper half of both.
Lines split_statement(const SplitProduct& product, int sums, std::span<const Term> terms);

// Fragments of A in registers, which a statement reads.
Lines split_fragments(const char* name, int steps, int parts);

}  // namespace flashjit::wgmma_fp32

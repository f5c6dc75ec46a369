// The order of tiles under a mask: longest first, among the heads of a section, all of whose tiles can be at
// work at once. So short tiles fill the gaps at the end, and what runs together finds its rows in L2.
#pragma once
#include "params/backward.h"
#include "parts/anew_divisor.cuh"
#include "parts/divide.cuh"

struct PlaceInOrder {
  int batch_head;  // counted through all batches
  int longer;      // tiles of the head that are longer
};

__device__ __forceinline__ PlaceInOrder place_at(int index, const BackwardParams& p) {
  const int section = anew(p.section);
  const int first = divide(index, anew(p.by_section_tiles)) * section;
  const bool last = first == anew(p.last_section);
  const int inside = index - first * anew(p.tiles);
  const int longer = divide(inside, last ? anew(p.by_last_pairs) : anew(p.by_section));
  return {first + inside - longer * (last ? anew(p.last_pairs) : section), longer};
}

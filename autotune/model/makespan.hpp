// How long tiles of different lengths keep the GPU busy, where a multiprocessor takes the next tile when it
// is done.
#pragma once

#include <vector>

namespace flashjit::autotune {

// Time until the last of `workers` has finished, which draw tiles of these lengths in this order. Exact, in
// lengths.size() * log(workers) steps.
double makespan(const std::vector<double>& lengths, int workers);

}  // namespace flashjit::autotune

// How long tiles of unlike lengths keep the GPU, where a multiprocessor that is done takes the next.
#pragma once

#include <vector>

namespace flashjit::autotune {

// Until the last of `workers` has finished, which draw tiles of these lengths in this order. Exact, in
// lengths.size() * log(workers) steps.
double makespan(const std::vector<double>& lengths, int workers);

}  // namespace flashjit::autotune

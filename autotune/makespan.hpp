// How long tiles of unlike lengths keep the GPU, where a multiprocessor that is done takes the longest left.
#pragma once

#include <cstdint>
#include <vector>

namespace flashjit::autotune {

// Until the last of `workers` has finished: `each` tiles of every length in `lengths`, which fall. Exact, in
// each * lengths.size() * log(workers) steps.
double makespan(const std::vector<double>& lengths, std::int64_t each, int workers);

}  // namespace flashjit::autotune

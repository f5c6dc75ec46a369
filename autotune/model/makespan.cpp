#include "autotune/model/makespan.hpp"

#include <algorithm>
#include <functional>

namespace flashjit::autotune {

double makespan(const std::vector<double>& lengths, int workers) {
  std::vector<double> busy_until(workers, 0.0);  // a heap, whose front is free first
  double end = 0;
  for (const double length : lengths) {
    std::pop_heap(busy_until.begin(), busy_until.end(), std::greater<>());
    busy_until.back() += length;
    end = std::max(end, busy_until.back());
    std::push_heap(busy_until.begin(), busy_until.end(), std::greater<>());
  }
  return end;
}

}  // namespace flashjit::autotune

// Which problems count as the same question.
#pragma once

#include "flashjit/problem.hpp"

namespace flashjit::autotune {

// Of all problems that ask for the same kernels, the one that stands for all: fields that its pass does not
// look at have their defaults. Kernels are compiled, cached, tuned and remembered for this problem.
inline Problem canonical(Problem problem) {
  if (problem.head_dim_v == problem.head_dim) problem.head_dim_v = 0;
  if (problem.pass == Pass::forward) {
    problem.deterministic = false;
  } else {
    problem.lse = true;
  }
  return problem;
}

}  // namespace flashjit::autotune

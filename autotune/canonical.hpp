// Which problems are one question.
#pragma once

#include "flashjit/problem.hpp"

namespace flashjit::autotune {

// Of the problems that ask for the same kernels the one that stands for all: what its pass does not look at
// has its default. What is compiled, cached, tuned or remembered is so for this one.
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

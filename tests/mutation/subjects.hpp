// Which kernels are mutated, and with which case each runs.
#pragma once

#include <vector>

#include "tests/mutation/harness.hpp"

namespace flashjit::test {

// Every family, and each of its ways to synchronise.
std::vector<Subject> sync_subjects();

// Cases that the templates' mutants are run with: what the emulated grid has too, made small.
std::vector<Subject> template_subjects();

}  // namespace flashjit::test

// What a test cannot do without, or a test that says that it skipped.
#pragma once

#include <fmt/format.h>

#include <cstdlib>

#include "flashjit/error.hpp"

namespace flashjit::test {

// What `find` returns. Where it throws the whole program ends with 77, which is what ctest calls skipped:
// aborting the test case would look like a pass with no test run.
template <class Find>
auto found_or_skip(const Find& find) {
  try {
    return find();
  } catch (const Error& error) {
    fmt::print("SKIPPED: {}\n", error.what());
    std::exit(77);
  }
}

}  // namespace flashjit::test

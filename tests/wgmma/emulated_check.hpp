// A schedule of family wgmma on the emulator, with all checks on.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"

namespace flashjit::test {

inline void check(const std::string& schedule, const AttentionCase& one) {
  CAPTURE(schedule);
  CAPTURE(describe(one));
  const autotune::Check result = Attention(one).run(emulated_sm_90a(), {.schedule = schedule});
  CHECK_MESSAGE(result.ok, result.message);
}

}  // namespace flashjit::test

// Runs a call that must throw flashjit::Error, and gives the error to look at.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "flashjit/error.hpp"
#include "tests/support/contains.hpp"

namespace flashjit::test {

template <class Call>
Error error_of(Call&& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return error;
  }
  FAIL("nothing was thrown");
  return {ErrorCode::internal, ""};
}

}  // namespace flashjit::test

// Runs the C program, and checks from C++ what C cannot: messages are per thread.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "flashjit/flashjit.h"

extern "C" int run_c_abi_checks();

TEST_CASE("the C interface from C11") {
  CHECK(run_c_abi_checks() == 0);
}

TEST_CASE("each thread has its own last error") {
  CHECK(flashjit_engine_create(nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  const std::string mine = flashjit_last_error();
  CHECK(mine.find("engine is null") != std::string::npos);
  std::thread([] {
    CHECK(std::string(flashjit_last_error()).empty());
    CHECK(flashjit_forward(nullptr, nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
    CHECK(std::string(flashjit_last_error()).find("plan is null") != std::string::npos);
  }).join();
  CHECK(flashjit_last_error() == mine);
}

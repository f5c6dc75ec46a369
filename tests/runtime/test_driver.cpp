// What is said where there is no driver, or no such GPU. Runs anywhere.
#include <doctest/doctest.h>

#include <string>

#include "flashjit/error.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/dynamic_library.hpp"
#include "tests/runtime/expect_error.hpp"

using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::runtime::cuda_status;
using flashjit::runtime::DynamicLibrary;
using flashjit::runtime::open_cuda_device;
using flashjit::test::contains;
using flashjit::test::error_of;

TEST_CASE("a device name is read strictly, driver or not") {
  for (const char* name : {"", "cud", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "emulated:sm_90a"}) {
    CAPTURE(name);
    const Error error = error_of([name] { return open_cuda_device(name); });
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(contains(error.message(), "may be cuda, cuda:N or emulated:sm_XX"));
  }
  for (const std::string name : {"cuda:2147483648", "cuda:99999999999999999999"}) {
    const Error large = error_of([&] { return open_cuda_device(name); });
    CHECK(large.code() == ErrorCode::invalid_argument);
    CHECK(large.message() == "device is \"" + name + "\", whose number is too large for any");
  }
}

TEST_CASE("no driver: the message says so, the hint what works without") {
  if (DynamicLibrary("libcuda.so.1")) return;  // the gpu tests' machine
  for (int round = 0; round < 2; ++round) {    // a failure is not remembered, and does not change
    const Error error = error_of([] { return open_cuda_device("cuda"); });
    CHECK(error.code() == ErrorCode::not_found);
    CHECK(contains(error.message(), "no NVIDIA driver here: libcuda.so.1"));
    CHECK(contains(error.hint(), "emulated:sm_90a"));
  }
  CHECK(error_of([] { return cuda_status(); }).code() == ErrorCode::not_found);
}

TEST_CASE("an opened library says where it is and what it lacks") {
  const DynamicLibrary libc("libc.so.6");
  REQUIRE(libc);
  CHECK(contains(libc.path(), "libc.so.6"));
  int (*getpid_of_libc)() = nullptr;
  CHECK(libc.resolve(getpid_of_libc, "getpid"));
  CHECK_FALSE(libc.resolve(getpid_of_libc, "no_such_symbol"));
  CHECK_FALSE(static_cast<bool>(getpid_of_libc));
  const DynamicLibrary none("libnothing.so.0");
  CHECK_FALSE(none);
  CHECK(contains(none.error(), "libnothing.so.0"));
  CHECK(none.path().empty());
}

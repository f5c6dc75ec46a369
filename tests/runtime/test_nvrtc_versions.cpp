// NVRTCs that this machine does not have, played by fake_nvrtc.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "tests/runtime/expect_error.hpp"
#include "tests/runtime/scratch.hpp"
#include "tests/runtime/sources.hpp"

namespace fs = std::filesystem;
using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::target_of;
using flashjit::runtime::Compiled;
using flashjit::runtime::load_nvrtc;
using flashjit::runtime::load_nvrtc_for;
using flashjit::test::contains;
using flashjit::test::EnvironmentChange;
using flashjit::test::error_of;
using flashjit::test::ScratchDirectory;

namespace {

// A copy each, because a library is asked only once per process.
fs::path copy_of_fake(const ScratchDirectory& scratch) {
  fs::path copy = scratch.path() / "libnvrtc.so.12";
  fs::copy_file(FAKE_NVRTC_PATH, copy);
  return copy;
}

}  // namespace

TEST_CASE("too old: the version is named, and what is needed") {
  const ScratchDirectory scratch;
  const fs::path path = copy_of_fake(scratch);
  const EnvironmentChange chosen("FLASHJIT_NVRTC", path.c_str());
  const EnvironmentChange behaviour("FAKE_NVRTC", "old");
  const Error error = error_of([] { return load_nvrtc()->archs(); });
  CHECK(error.code() == ErrorCode::not_found);
  CHECK(contains(error.message(), path.string() + " is version 11.8, need 12.0 or later"));
  CHECK(contains(error.hint(), "pip install nvidia-cuda-nvrtc"));
}

TEST_CASE("missing builtins are named, by the build id and by a compile") {
  const ScratchDirectory scratch;
  const EnvironmentChange chosen("FLASHJIT_NVRTC", copy_of_fake(scratch).c_str());
  const EnvironmentChange behaviour("FAKE_NVRTC", "builtins");
  const Error asked = error_of([] { return load_nvrtc()->build_id(); });
  CHECK(asked.code() == ErrorCode::not_found);
  CHECK(contains(asked.message(), "libnvrtc-builtins.so.12.0"));
  CHECK(contains(asked.hint(), "beside libnvrtc"));
  const Error compiled = error_of([] {
    return load_nvrtc()->compile(flashjit::test::axpy(), target_of("sm_80"), std::chrono::milliseconds(0));
  });
  CHECK(contains(compiled.message(), "stage \"builtins\""));
  CHECK(contains(compiled.message(), "libnvrtc-builtins.so.12.0"));
}

TEST_CASE("without a build id a library has no stamp, in whatever use") {
  const ScratchDirectory scratch;
  const EnvironmentChange chosen("FLASHJIT_NVRTC", copy_of_fake(scratch).c_str());
  CHECK(load_nvrtc()->stamp().empty());
  CHECK(load_nvrtc_for({.line_info = true, .ptx_only = true})->stamp().empty());
}

TEST_CASE("a 12.0 gets no option that it lacks, and a deadline does it no harm") {
  const ScratchDirectory scratch;
  const EnvironmentChange chosen("FLASHJIT_NVRTC", copy_of_fake(scratch).c_str());
  const EnvironmentChange behaviour("FAKE_NVRTC", "plain");
  const auto compiler = load_nvrtc();
  CHECK(compiler->build_id() == "CL-1 V12.0.1");
  // It is older than an H100: PTX for the newest arch that it knows.
  CHECK_FALSE(compiler->makes_cubin(target_of("sm_90a")));
  const Compiled compiled =
      compiler->compile(flashjit::test::axpy(), target_of("sm_90a"), std::chrono::milliseconds(1));
  CHECK(contains(compiled.ptx, "--gpu-architecture=compute_80"));
  CHECK(!contains(compiled.ptx, "--no-cache"));
  CHECK(!contains(compiled.ptx, "--minimal"));
  CHECK(compiled.cubin.empty());
}

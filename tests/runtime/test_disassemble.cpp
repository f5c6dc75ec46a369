// nvdisasm: found, missing, and run.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "runtime/disassemble.hpp"
#include "tests/runtime/expect_error.hpp"
#include "tests/runtime/scratch.hpp"
#include "tests/runtime/sources.hpp"

namespace fs = std::filesystem;
using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::runtime::disassemble;
using flashjit::runtime::find_nvdisasm;
using flashjit::test::contains;
using flashjit::test::EnvironmentChange;
using flashjit::test::error_of;
using flashjit::test::ScratchDirectory;

namespace {

fs::path program(const ScratchDirectory& scratch, const std::string& name, const std::string& script) {
  fs::path path = scratch.write(name, "#!/bin/sh\n" + script);
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

}  // namespace

TEST_CASE("the places are tried in order") {
  const ScratchDirectory scratch;
  const fs::path given = program(scratch, "given/nvdisasm", "");
  const fs::path toolkit = program(scratch, "toolkit/bin/nvdisasm", "");
  const fs::path triton =
      program(scratch, "venv/lib/python3.11/site-packages/triton/backends/nvidia/bin/nvdisasm", "");
  const fs::path wheel = program(scratch, "site/nvidia/cu13/bin/nvdisasm", "");
  const EnvironmentChange path("PATH", "/nowhere");
  const EnvironmentChange home("HOME", "/nowhere");
  const EnvironmentChange cuda_home("CUDA_HOME", nullptr);
  {
    const EnvironmentChange file("FLASHJIT_NVDISASM", given.c_str());
    CHECK(find_nvdisasm() == given);
    const EnvironmentChange directory("FLASHJIT_NVDISASM", given.parent_path().c_str());
    CHECK(find_nvdisasm() == given);
    const EnvironmentChange wrong("FLASHJIT_NVDISASM", "/nowhere");
    CHECK(contains(error_of([] { return find_nvdisasm(); }).message(), "FLASHJIT_NVDISASM is \"/nowhere\""));
  }
  const EnvironmentChange none("FLASHJIT_NVDISASM", nullptr);
  {
    const EnvironmentChange on_path("PATH", given.parent_path().c_str());
    CHECK(find_nvdisasm() == given);
    const EnvironmentChange off_path("PATH", "/nowhere");
    const EnvironmentChange cuda("CUDA_PATH", (scratch.path() / "toolkit").c_str());
    CHECK(find_nvdisasm() == toolkit);
    const fs::path before = fs::current_path();
    fs::current_path(scratch.path());
    const EnvironmentChange here("PATH", "given");
    CHECK(find_nvdisasm() == toolkit);  // a relative folder of PATH is the working directory's
    fs::current_path(before);
  }
  if (fs::exists("/usr/local/cuda/bin/nvdisasm")) return;  // comes before what follows
  const EnvironmentChange cuda("CUDA_PATH", nullptr);
  const EnvironmentChange python_path("PYTHONPATH", (scratch.path() / "site").c_str());
  {
    const EnvironmentChange venv("VIRTUAL_ENV", (scratch.path() / "venv").c_str());
    CHECK(find_nvdisasm() == triton);
  }
  CHECK(find_nvdisasm() == wheel);
  const EnvironmentChange no_python_path("PYTHONPATH", nullptr);
  const Error error = error_of([] { return find_nvdisasm(); });
  CHECK(error.code() == ErrorCode::not_found);
  CHECK(contains(error.message(), "/usr/local/cuda/bin"));
  CHECK(contains(error.hint(), "pip install nvidia-cuda-nvdisasm"));
}

TEST_CASE("its output comes back whole, its failure in its own words") {
  const ScratchDirectory scratch;
  // A megabyte: more than a pipe holds.
  const fs::path talks = program(scratch, "talks", "cat \"$2\"; head -c 1000000 /dev/zero\n");
  const std::string text = disassemble("the cubin", talks);
  CHECK(text.size() == 1000009);
  CHECK(text.substr(0, 9) == "the cubin");

  const fs::path fails = program(scratch, "fails", "echo 'not a cubin' >&2; exit 3\n");
  const Error error = error_of([&] { return disassemble("x", fails); });
  CHECK(error.code() == ErrorCode::io);
  CHECK(contains(error.message(), "not a cubin"));
  CHECK(error_of([&] { return disassemble("x", scratch.path() / "missing"); }).code() == ErrorCode::io);
}

TEST_CASE("it works where nobody hears of a child's end") {
  const ScratchDirectory scratch;
  const fs::path talks = program(scratch, "talks", "sleep 0.1; cat \"$2\"\n");
  const fs::path fails = program(scratch, "fails", "echo 'not a cubin' >&2; exit 3\n");
  auto* const before = std::signal(SIGCHLD, SIG_IGN);
  CHECK(disassemble("the cubin", talks) == "the cubin");
  const Error error = error_of([&] { return disassemble("x", fails); });
  std::signal(SIGCHLD, before);
  CHECK(contains(error.message(), "not a cubin"));
}

TEST_CASE("a temporary directory that is none is named, and what names it") {
  const EnvironmentChange wrong("TMPDIR", "/nonexistent");
  const Error error = error_of([] { return disassemble("x", "/bin/true"); });
  CHECK(error.code() == ErrorCode::io);
  CHECK(contains(error.message(), "TMPDIR is \"/nonexistent\", may be a directory"));
}

TEST_CASE("real SASS of a real kernel") {
  fs::path tool;
  try {
    tool = find_nvdisasm();
  } catch (const Error& error) {
    std::printf("not checked, no nvdisasm here: %s\n", error.hint().c_str());
    return;
  }
  const auto compiled = flashjit::runtime::load_nvrtc()->compile(
      flashjit::test::axpy(), flashjit::target_of("sm_90a"), std::chrono::milliseconds(0));
  const std::string sass = disassemble(compiled.cubin, tool);
  CHECK(contains(sass, ".text.axpy"));
  CHECK(contains(sass, "FFMA"));
  CHECK(contains(sass, "EXIT"));
}

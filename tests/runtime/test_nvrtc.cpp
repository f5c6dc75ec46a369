// NVRTC itself: what a compile gives, refuses, and how it ends early.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "runtime/dynamic_library.hpp"
#include "tests/runtime/expect_error.hpp"
#include "tests/runtime/scratch.hpp"
#include "tests/runtime/sources.hpp"

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::KernelSource;
using flashjit::Target;
using flashjit::target_of;
using flashjit::runtime::Compiled;
using flashjit::runtime::load_nvrtc;
using flashjit::runtime::load_nvrtc_for;
using flashjit::test::contains;
using flashjit::test::EnvironmentChange;
using flashjit::test::error_of;
using flashjit::test::ScratchDirectory;
using flashjit::test::source_of;

TEST_CASE("one compile gives PTX, a cubin and what ptxas said, on every arch") {
  const auto compiler = load_nvrtc();
  for (const std::string& arch : compiler->archs()) {
    if (!flashjit::test::is_target(arch)) continue;
    CAPTURE(arch);
    const Compiled compiled = compiler->compile(flashjit::test::axpy(), target_of(arch), 0ms);
    CHECK(contains(compiled.ptx, ".target " + arch));
    CHECK(compiled.cubin.substr(0, 4) == "\177ELF");
    CHECK(compiled.resources.registers >= 6);
    CHECK(compiled.resources.spill_stores == 0);
    CHECK(compiled.resources.code_bytes > 0);
    CHECK(compiled.resources.warnings.empty());
    CHECK(compiled.milliseconds > 0);
  }
}

TEST_CASE("line info and PTX alone change the code in nothing") {
  const flashjit::KernelSource source{
      .entry = "scale",
      .text = "extern \"C\" __global__ void scale(float* x) {\n  x[threadIdx.x] *= 2;\n}\n"};
  const Target target = target_of("sm_90a");
  const auto plain = load_nvrtc()->compile(source, target, {});
  const auto lined = load_nvrtc_for({.line_info = true});
  const auto with_lines = lined->compile(source, target, {});
  CHECK(!contains(plain.ptx, ".loc"));
  CHECK(contains(with_lines.ptx, ".loc"));
  for (const std::string* made : {&with_lines.ptx, &with_lines.cubin})
    CHECK(!contains(*made, fs::current_path().string()));
  CHECK(with_lines.resources.code_bytes == plain.resources.code_bytes);
  CHECK(lined->options(target) != load_nvrtc()->options(target));
  CHECK(lined->stamp() != load_nvrtc()->stamp());
  const auto ptx_only = load_nvrtc_for({.ptx_only = true});
  CHECK(!ptx_only->makes_cubin(target));
  const auto no_cubin = ptx_only->compile(source, target, {});
  CHECK(no_cubin.cubin.empty());
  CHECK(no_cubin.ptx == plain.ptx);
}

TEST_CASE("the library is identified exactly, once per process") {
  const auto compiler = load_nvrtc();
  CHECK(compiler == load_nvrtc());
  const std::string id = compiler->build_id();
  const std::string bytes = flashjit::runtime::gnu_build_id(compiler->path());  // 13.2 gives no other name
  CHECK((id.substr(0, 3) == "CL-" || (bytes.size() >= 32 && id.substr(0, bytes.size()) == bytes)));
  CHECK(contains(id, " V1"));
  CHECK(compiler->compile(flashjit::test::axpy(), target_of("sm_80"), 0ms).build_id == id);
  CHECK(fs::exists(compiler->path()));
  const std::vector<std::string> archs = compiler->archs();
  CHECK(std::count(archs.begin(), archs.end(), "sm_90a") == 1);
}

TEST_CASE("options are canonical, and NVRTC's hidden one is known") {
  const auto compiler = load_nvrtc();
  const std::vector<std::string> options = compiler->options(target_of("sm_90a"));
  REQUIRE(!options.empty());
  CHECK(options.front() == "--gpu-architecture=sm_90a");
  CHECK(options == compiler->options(target_of("sm_90a")));
  const EnvironmentChange flags("NVRTC_APPEND_FLAGS", "--fmad=false");
  CHECK(flashjit::runtime::nvrtc_append_flags() == "--fmad=false");
}

TEST_CASE("the same source gives the same bytes") {
  const auto compiler = load_nvrtc();
  const Compiled a = compiler->compile(flashjit::test::axpy(), target_of("sm_80"), 0ms);
  const Compiled b = compiler->compile(flashjit::test::axpy(), target_of("sm_80"), 0ms);
  CHECK(a.ptx == b.ptx);
  CHECK(a.cubin == b.cubin);
}

TEST_CASE("a source says how much ptxas optimizes it") {
  KernelSource source = source_of("walk",
                                  "extern \"C\" __global__ void walk(const float* x, float* y, int n) {\n"
                                  "  for (int i = 0; i < n; ++i) y[i * 3] = x[i * 5] * y[i];\n"
                                  "}\n");
  const auto compiler = load_nvrtc();
  const Compiled third = compiler->compile(source, target_of("sm_90a"), 0ms);
  source.ptxas = 1;
  const Compiled first = compiler->compile(source, target_of("sm_90a"), 0ms);
  CHECK(first.ptx == third.ptx);
  CHECK(first.cubin != third.cubin);
}

TEST_CASE("a GPU newer than NVRTC gets PTX of the newest arch that NVRTC knows, and no cubin") {
  const auto compiler = load_nvrtc();
  Target future = target_of("sm_121");
  future.arch = "sm_199";
  future.capability = 199;
  CHECK(!compiler->makes_cubin(future));
  CHECK(compiler->makes_cubin(target_of("sm_90a")));
  const Compiled compiled = compiler->compile(flashjit::test::axpy(), future, 0ms);
  CHECK(compiled.cubin.empty());
  CHECK(contains(compiled.ptx, ".target " + compiler->archs().back()));

  Target ancient = target_of("sm_75");
  ancient.arch = "sm_30";
  const Error error = error_of([&] { return compiler->compile(flashjit::test::axpy(), ancient, 0ms); });
  CHECK(error.code() == ErrorCode::unsupported);
  CHECK(contains(error.message(), "sm_30"));
  CHECK(contains(error.message(), "oldest arch is " + compiler->archs().front()));
}

TEST_CASE("an error shows stage, kernel, header, numbered lines and template, and leaves the source behind") {
  const ScratchDirectory scratch;
  const EnvironmentChange dump("FLASHJIT_DUMP_DIR", (scratch.path() / "dumps").c_str());
  // A compiler of its own, since the dump directory is chosen once per compiler.
  const fs::path link = scratch.path() / "libnvrtc.so.13";
  fs::copy_file(load_nvrtc()->path(), link);
  for (const auto& entry : fs::directory_iterator(fs::path(load_nvrtc()->path()).parent_path())) {
    if (contains(entry.path().filename(), "libnvrtc-builtins")) {
      fs::create_symlink(entry.path(), scratch.path() / entry.path().filename());
    }
  }
  const EnvironmentChange own("FLASHJIT_NVRTC", link.c_str());

  KernelSource source = source_of("broken",
                                  "// Problem: forward bf16 d128\n"
                                  "// Schedule: mma:m128n64w4s2\n"
                                  "extern \"C\" __global__ void broken(float* x) {\n"
                                  "  x[0] = nonsense;\n"
                                  "}\n");
  source.origins = {{}, {}, {"kernels/broken.cu", 10}, {"parts/nonsense.cuh", 27}, {"kernels/broken.cu", 12}};
  const Error error = error_of([&] { return load_nvrtc()->compile(source, target_of("sm_86"), 0ms); });
  CHECK(error.code() == ErrorCode::compile_failed);
  CHECK(contains(error.message(), "compiling broken for sm_86 failed in stage \"front end\""));
  CHECK(contains(error.message(), "// Schedule: mma:m128n64w4s2"));
  CHECK(contains(error.message(), "identifier \"nonsense\" is undefined"));
  CHECK(contains(error.message(), ">     4 |   x[0] = nonsense;"));
  CHECK(contains(error.message(), "templates/parts/nonsense.cuh:27"));
  const fs::path left = scratch.path() / "dumps/broken.cu";
  CHECK(contains(error.hint(), left.string()));
  std::ostringstream text;
  text << std::ifstream(left).rdbuf();
  CHECK(text.str() == source.text);
  struct stat status {};
  REQUIRE(stat(left.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("ptxas's errors show the lines of PTX") {
  const KernelSource source = source_of("bad_asm",
                                        "extern \"C\" __global__ void bad_asm(float* x) {\n"
                                        "  asm volatile(\"setmaxnreg.inc.sync.aligned.u32 7;\");\n"
                                        "}\n");
  const Error error = error_of([&] { return load_nvrtc()->compile(source, target_of("sm_90a"), 0ms); });
  CHECK(contains(error.message(), "stage \"ptxas\""));
  CHECK(contains(error.message(), "| \tsetmaxnreg.inc.sync.aligned.u32 7;"));
  CHECK(contains(error.hint(), "flashjit-"));
}

TEST_CASE("a source whose kernel has another name is refused") {
  const Error error = error_of([] {
    return load_nvrtc()->compile(source_of("expected", "extern \"C\" __global__ void other() {}"),
                                 target_of("sm_80"), 0ms);
  });
  CHECK(error.code() == ErrorCode::internal);
  CHECK(contains(error.message(), "expected"));
}

TEST_CASE("a deadline ends a long compile, near the deadline") {
  const auto start = std::chrono::steady_clock::now();
  const Error error = error_of(
      [] { return load_nvrtc()->compile(flashjit::test::slow_to_compile(), target_of("sm_90a"), 200ms); });
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(error.code() == ErrorCode::compile_failed);
  CHECK(contains(error.message(), "stage \"deadline\""));
  CHECK(contains(error.message(), "200 ms"));
  CHECK(took >= 200ms);
  CHECK(took < 10s);  // 0.25 s on an idle machine
}

TEST_CASE("many threads compile at once") {
  const auto compiler = load_nvrtc();
  std::vector<std::string> cubins(8);
  std::vector<std::thread> threads;
  threads.reserve(cubins.size());
  for (std::string& cubin : cubins) {
    threads.emplace_back(
        [&] { cubin = compiler->compile(flashjit::test::axpy(), target_of("sm_90a"), 0ms).cubin; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& cubin : cubins) CHECK(cubin == cubins.front());
}

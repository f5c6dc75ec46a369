// What flashjit costs the host on a GPU: a first plan with a cold and with a warm cache, each in a fresh
// process, and a launch beside a bare cuLaunchKernel of an empty kernel with as many parameter bytes. Prints
// JSON lines.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "api/engine_state.hpp"
#include "flashjit/flashjit.hpp"
#include "runtime/compile.hpp"
#include "runtime/cuda/context.hpp"
#include "templates/params/forward.h"

namespace {

using flashjit::Problem;
using flashjit::Shape;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

constexpr Problem kProblem{.dtype = flashjit::DType::bf16, .head_dim = 128, .causal = true};
constexpr Shape kShape{.batch = 4, .heads = 16, .seqlen_q = 4096, .seqlen_k = 4096};

// In a process of its own: how long after the context is made is the plan there?
int child(const std::string& family) {
  const double start = now_ms();
  const auto context = flashjit::runtime::Context::open("cuda");
  context->driver().check(context->driver().set_current(context->handle()), "cuCtxSetCurrent");
  const double with_context = now_ms();
  flashjit::Engine engine;
  const flashjit::Plan plan = engine.plan(kProblem, kShape, {.family = family});
  const double with_plan = now_ms();
  fmt::print(
      "{{\"what\": \"first plan\", \"family\": \"{}\", \"context_ms\": {:.1f}, \"plan_ms\": {:.1f}, "
      "\"schedule\": \"{}\", "
      "\"code\": \"{}\"}}\n",
      family, with_context - start, with_plan - with_context, plan.origin().schedule, plan.origin().code);
  return 0;
}

void run_child(const char* self, const std::string& family) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    execl(self, self, "--child", family.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) fmt::print(stderr, "the child failed with status {}\n", status);
}

// Host microseconds of one call, while the GPU keeps up: few calls between synchronisations.
template <class Call>
double call_us(flashjit::Engine& engine, const Call& call) {
  constexpr int kBatch = 100;
  engine.synchronize();
  const double start = now_ms();
  for (int i = 0; i < kBatch; ++i) call();
  const double stop = now_ms();
  engine.synchronize();
  return (stop - start) * 1e3 / kBatch;
}

void launch_cost(const flashjit::runtime::Context& context, const std::string& family, int maps) {
  flashjit::Engine engine;
  const Shape tiny{.batch = 1, .heads = 1, .seqlen_q = 64, .seqlen_k = 64};
  const flashjit::Plan plan = engine.plan(kProblem, tiny, {.family = family});
  constexpr std::size_t kBytes = std::size_t{64} * 128 * 2;  // of 64 rows
  const flashjit::Buffer q = engine.allocate(kBytes), k = engine.allocate(kBytes),
                         v = engine.allocate(kBytes), o = engine.allocate(kBytes);

  const std::size_t bytes = sizeof(ForwardParams) + 128 * static_cast<std::size_t>(maps);
  flashjit::KernelSource source;
  source.entry = "empty";
  source.text = fmt::format(
      "struct alignas(8) Bytes {{ unsigned char b[{}]; }};\nextern \"C\" __global__ void empty(const "
      "__grid_constant__ Bytes p) {{}}\n",
      bytes);
  const auto compiled = flashjit::runtime::load_nvrtc()->compile(source, engine.target(), {});
  const auto& driver = context.driver();
  CUlibrary library{};
  driver.check(driver.library_load(&library, compiled.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
               "cuLibraryLoadData");
  CUkernel kernel{};
  driver.check(driver.library_kernel(&kernel, library, "empty"), "cuLibraryGetKernel");
  CUfunction function{};
  driver.check(driver.kernel_function(&function, kernel), "cuKernelGetFunction");
  std::vector<unsigned char> parameter(bytes);
  void* parameters[] = {parameter.data()};

  const auto bare = [&] {
    driver.check(driver.launch(function, 1, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr),
                 "cuLaunchKernel");
  };
  const auto ours = [&] { plan.forward({.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data()}); };
  std::vector<double> bare_us, ours_us;
  for (int round = 0; round < 60; ++round) {
    const double b = call_us(engine, bare), f = call_us(engine, ours);
    if (round < 10) continue;
    bare_us.push_back(b);
    ours_us.push_back(f);
  }
  fmt::print(
      "{{\"what\": \"launch\", \"family\": \"{}\", \"parameter_bytes\": {}, \"bare_us\": {:.3f}, "
      "\"forward_us\": {:.3f}, \"ratio\": {:.3f}}}\n",
      family, bytes, median(bare_us), median(ours_us), median(ours_us) / median(bare_us));
  driver.check(driver.library_unload(library), "cuLibraryUnload");
}

int parent(const char* self) {
  namespace fs = std::filesystem;
  std::string dir = (fs::temp_directory_path() / "flashjit-startup-XXXXXX").string();
  if (mkdtemp(dir.data()) == nullptr)
    throw flashjit::Error(flashjit::ErrorCode::io, "no temporary directory can be made");
  setenv("FLASHJIT_CACHE_DIR", dir.c_str(), 1);
  for (const char* family : {"mma", "wgmma"}) {
    for (int i = 0; i < 4; ++i) run_child(self, family);  // the first finds an empty cache
  }
  const auto context = flashjit::runtime::Context::open("cuda");
  context->driver().check(context->driver().set_current(context->handle()), "cuCtxSetCurrent");
  launch_cost(*context, "mma", 0);
  launch_cost(*context, "wgmma", 4);
  fs::remove_all(dir);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc == 3 && std::string(argv[1]) == "--child" ? child(argv[2]) : parent(argv[0]);
  } catch (const flashjit::Error& error) {
    fmt::print(stderr, "flashjit_startup: {}\n", error.what());
    return 1;
  }
}

// What the tests' cases and the tuner poison before a call, the emulator knows to be unwritten: who reads it
// is found, even if what is read changes no result.
#include <doctest/doctest.h>

#include "autotune/runner.hpp"
#include "tests/emulator/support.hpp"
#include "tests/support/emulated_engine.hpp"
#include "tests/support/on_device.hpp"

using namespace flashjit;

namespace {

constexpr const char* kReads = "reads global memory that nothing wrote";

// A kernel that reads what it is given.
class Reader {
 public:
  explicit Reader(runtime::Device& device)
      : device_(device),
        kernel_(device.load(
            {.entry = "test",
             .ptx = emulator::tests::kernel_text("ld.global.u32 %r1, [%d30];\nst.global.u32 [%d31], %r1;"),
             .cubin = {}})) {}
  void read(void* memory) {
    void* params[] = {&memory, &memory};
    device_.launch(*kernel_, {.grid = 1, .threads = 1}, params, nullptr);
  }

 private:
  runtime::Device& device_;
  std::unique_ptr<runtime::Kernel> kernel_;
};

}  // namespace

TEST_CASE("a case's workspace and outputs are unwritten, its inputs are not") {
  Engine& engine = test::emulated_sm_90a();
  Reader reader(EngineAccess::state(engine).device());
  const test::Extent extent{1, 4, 1, 8};
  const autotune::HostTensor host = autotune::poisoned(DType::fp32, 1, 4, 1, 8);
  const test::OnDevice input(engine, DType::fp32, host, extent, false);
  CHECK_NOTHROW(reader.read(input.data()));
  const test::OnDevice output(engine, DType::fp32, host, extent, false, test::OnDevice::Role::output);
  CHECK_THROWS_WITH_AS(reader.read(output.data()), doctest::Contains(kReads), Error);
  const Buffer workspace = test::poisoned_memory(engine, 128);
  CHECK_THROWS_WITH_AS(reader.read(workspace.data()), doctest::Contains(kReads), Error);
}

TEST_CASE("the tuner's workspace is unwritten at every call") {
  auto device = emulator::open_emulated_device({.arch = "sm_90a"});
  Reader reader(*device);
  Problem problem;
  problem.pass = Pass::backward;
  problem.head_dim = 64;
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 16, .seqlen_k = 16};
  int calls = 0;
  const auto runner =
      autotune::make_local_runner(*device, problem, shape,
                                  [&](const Schedule&, std::chrono::milliseconds) {
                                    autotune::Built built;
                                    built.workspace_bytes = [](const Shape&) { return std::size_t{128}; };
                                    built.backward = [&](const BackwardArgs& args, runtime::Stream) {
                                      // The first call writes what the second one reads.
                                      if (calls++ == 0)
                                        device->fill(args.workspace, 0, 128, nullptr);
                                      else
                                        reader.read(args.workspace);
                                    };
                                    return built;
                                  },
                                  {});
  const Schedule schedule = parse_schedule("simt:m32n32w4");
  runner->build(std::span(&schedule, 1), std::chrono::milliseconds(0), [](auto, const auto&, const auto&) {});
  CHECK_NOTHROW((void)runner->verify(schedule));
  CHECK(calls == 1);
  CHECK_THROWS_WITH_AS((void)runner->verify(schedule), doctest::Contains(kReads), Error);
}

// The launch path allocates nothing: this program counts what operator new is asked for.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "api/single_flight.hpp"
#include "tests/api/support.hpp"

namespace {
std::atomic<long> allocations{0};
std::atomic<bool> fails_next{false};
bool memory_is_gone = false;
}  // namespace

// Not inlined: g++ 12 would see one half of a pair inlined, and warn of memory that new gave and free takes.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (fails_next.exchange(false)) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace flashjit::test {
namespace {

// Does nothing with a launch, not even write it down.
struct IdleDevice : FakeDevice {
  void launch(const runtime::Kernel&, const runtime::Launch&, std::span<void* const>,
              runtime::Stream) override {}
};

TEST_CASE("forward allocates nothing") {
  IdleDevice device;
  auto plan = std::make_shared<api::LoadedPlan>();
  api::KernelCode code;
  code.source.entry = "test";
  code.source.geometry = {
      .tile_m = 64, .threads = 384, .persistent = true, .dynamic = true, .section_bytes = 1 << 25};
  for (const Operand operand : {Operand::q, Operand::k, Operand::v, Operand::o}) {
    code.source.maps.push_back({.operand = operand, .box_rows = 64, .panels = 1});
  }
  plan->problem = kProblem;
  plan->kernels.push_back({.code = std::make_shared<const api::KernelCode>(std::move(code)),
                           .kernel = device.load({.entry = "test", .ptx = {}, .cubin = {}, .origins = {}})});
  const api::Launcher launcher(device, plan);

  Pointers pointers;
  ForwardArgs args = pointers.args();
  launcher.forward(kShape, args, nullptr);  // a thread's first launch sets up its table of tensor maps
  const long before = allocations;
  for (int i = 0; i < 100; ++i) {
    Shape shape = kShape;
    shape.seqlen_k += i;  // maps are encoded again
    args.scale = 1.0F + static_cast<float>(i);
    launcher.forward(shape, args, nullptr);
  }
  CHECK(allocations == before);
}

TEST_CASE("memory beside a counter that could not be kept is lent to nobody") {
  struct Hostile : IdleDevice {
    bool armed = false;
    void* allocate(std::size_t bytes) override {
      void* const given = IdleDevice::allocate(bytes);
      fails_next = armed;  // what keeps the memory finds none of the host's
      return given;
    }
  } device;
  api::TileCounters counters(device, {.zeros = 2, .bytes = 4096});
  const std::size_t before = device.bytes_alive();
  device.armed = true;
  CHECK_THROWS_AS(static_cast<void>(counters.for_launch(nullptr)), std::bad_alloc);
  device.armed = false;
  CHECK(device.bytes_alive() == before);
  CHECK(counters.for_launch(nullptr).memory != nullptr);
  CHECK(device.bytes_alive() == before + 4096);
}

// As a Hash that prints what it hashes.
struct NeedsMemory {
  std::size_t operator()(int key) const {
    if (memory_is_gone) throw std::bad_alloc();
    return static_cast<std::size_t>(key);
  }
};

TEST_CASE("what could not be made because memory ran out is made by the next who asks") {
  api::SingleFlight<int, std::shared_ptr<int>, NeedsMemory> table;
  const auto fail = []() -> std::shared_ptr<int> {
    memory_is_gone = true;
    throw std::bad_alloc();
  };
  CHECK_THROWS_AS(static_cast<void>(table.get(1, fail)), std::bad_alloc);
  memory_is_gone = false;
  CHECK(*table.get(1, [] { return std::make_shared<int>(7); }) == 7);
}

TEST_CASE("backward with a workspace of the caller's allocates nothing") {
  IdleDevice device;
  auto plan = std::make_shared<api::LoadedPlan>();
  plan->problem = kProblem;
  plan->problem.pass = Pass::backward;
  plan->schedule = WgmmaBackwardSchedule{};
  for (const Grid grid : {Grid::query_tiles, Grid::key_tiles}) {
    api::KernelCode code;
    code.source.entry = "test";
    code.source.geometry = {.grid = grid, .tile_m = 64, .tile_n = 128, .threads = 384};
    for (const Operand operand : {Operand::q, Operand::k, Operand::dout, Operand::dv})
      code.source.maps.push_back({.operand = operand, .box_rows = 64, .panels = 1});
    plan->kernels.push_back(
        {.code = std::make_shared<const api::KernelCode>(std::move(code)),
         .kernel = device.load({.entry = "test", .ptx = {}, .cubin = {}, .origins = {}})});
  }
  const api::Launcher launcher(device, plan);
  alignas(256) static std::byte memory[10][256];
  BackwardArgs args{.q = memory[0],
                    .k = memory[1],
                    .v = memory[2],
                    .o = memory[3],
                    .dout = memory[4],
                    .lse = reinterpret_cast<const float*>(memory[5]),
                    .dq = memory[6],
                    .dk = memory[7],
                    .dv = memory[8],
                    .workspace = memory[9]};
  launcher.backward(kShape, args, nullptr);
  const long before = allocations;
  for (int i = 0; i < 100; ++i) {
    Shape shape = kShape;
    shape.seqlen_k += i;
    launcher.backward(shape, args, nullptr);
  }
  CHECK(allocations == before);
}

}  // namespace
}  // namespace flashjit::test

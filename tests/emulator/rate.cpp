// How fast the emulator is: warp instructions a second on one thread, with no checks and with all, on kernels
// through the front door; and a causal forward pass with all checks on every core, from PTX text.
//
//   emulator_rate [REPEATS]
//
// A rate is that of the fastest of REPEATS (5) launches, in the thread's own CPU time, so that a busy machine
// matters little; the pass at the end is in the time that one waits for it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "api/engine_state.hpp"
#include "autotune/inputs.hpp"
#include "emulator/emulated_device.hpp"
#include "flashjit/error.hpp"

namespace {

using namespace flashjit;

struct Case {
  const char *name, *arch, *schedule;
  int head_dim, heads;
  bool causal;
};
constexpr Case kCases[] = {
    {"mma d64 causal", "sm_80", "mma:m64n64w4s2", 64, 4, true},
    {"mma d128", "sm_80", "mma:m128n64w8s2", 128, 2, false},
    {"wgmma d64", "sm_90a", "wgmma:m128n128s2", 64, 2, false},
    {"wgmma d128", "sm_90a", "wgmma:m128n128s2", 128, 2, false},
};

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A forward pass on an emulated device of its own.
class Pass {
 public:
  Pass(const Case& one, int seqlen, const emulator::EmulatorOptions& how, const std::filesystem::path& cache)
      : problem_{.head_dim = one.head_dim, .causal = one.causal},
        shape_{.batch = 1, .heads = one.heads, .heads_kv = one.heads, .seqlen_q = seqlen, .seqlen_k = seqlen},
        schedule_(one.schedule) {
    const EngineOptions options{.device = fmt::format("emulated:{}", one.arch), .cache_dir = cache.string()};
    EngineState::Parts parts = EngineState::parts_from_environment(options, [](std::string_view) {});
    auto device = emulator::open_emulated_device(how);
    device_ = device.get();
    parts.device = std::move(device);
    engine_ = std::make_unique<Engine>(
        EngineAccess::make(std::make_shared<EngineState>(options, std::move(parts))));
    const autotune::Inputs inputs = autotune::make_inputs(problem_, shape_, autotune::InputKind::normal, 1);
    for (const autotune::HostTensor* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
      buffers_.push_back(engine_->allocate(tensor->bytes.size()));
      engine_->upload(buffers_.back(), tensor->bytes.data(), tensor->bytes.size());
    }
    buffers_.push_back(engine_->allocate(inputs.q.bytes.size()));
  }

  [[nodiscard]] Plan plan() { return engine_->plan(problem_, shape_, {.schedule = schedule_}); }
  void run(const Plan& plan) {
    plan.forward(
        {.q = buffers_[0].data(), .k = buffers_[1].data(), .v = buffers_[2].data(), .o = buffers_[3].data()});
  }
  [[nodiscard]] double instructions() const { return static_cast<double>(device_->profile().instructions); }

 private:
  Problem problem_;
  Shape shape_;
  std::string schedule_;
  emulator::EmulatedDevice* device_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::vector<Buffer> buffers_;
};

void measure_rates(const Case& one, int repeats, const std::filesystem::path& cache) {
  constexpr int kSeqlen = 1024;
  const auto pass = [&](emulator::Checks checks, bool counts) {
    return Pass(one, kSeqlen,
                {.arch = one.arch, .checks = checks, .threads = 1, .counts = counts, .sm_count = 4}, cache);
  };
  Pass counted = pass(emulator::Checks::off, true);
  counted.run(counted.plan());
  const double instructions = counted.instructions();
  double rate[2];
  for (int checked = 0; checked < 2; ++checked) {
    Pass timed = pass(checked != 0 ? emulator::Checks::all : emulator::Checks::off, false);
    const Plan plan = timed.plan();
    double best = 1e9;
    for (int k = 0; k < repeats; ++k) {
      const double start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
      timed.run(plan);
      best = std::min(best, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start);
    }
    rate[checked] = instructions / best / 1e6;
  }
  fmt::print("{:16} {:20} {:6.2f} M instructions: {:5.1f} M/s, with all checks {:5.1f} M/s\n", one.name,
             one.schedule, instructions / 1e6, rate[0], rate[1]);
}

// From the entry in the cache: its PTX is read and decoded in the time that is measured.
void measure_pass(int repeats, const std::filesystem::path& cache) {
  constexpr Case kPass{"", "sm_80", "mma:m128n64w4s2", 64, 4, true};
  double best = 1e9;
  for (int k = 0; k < repeats; ++k) {
    Pass pass(kPass, 2048, {.arch = kPass.arch}, cache);
    if (k == 0) static_cast<void>(Pass(kPass, 2048, {.arch = kPass.arch}, cache).plan());
    const double start = seconds_of(CLOCK_MONOTONIC);
    pass.run(pass.plan());
    best = std::min(best, seconds_of(CLOCK_MONOTONIC) - start);
  }
  fmt::print("causal forward, bf16, 1 x 4 heads x 2048 x 2048 x d 64, all checks, every core: {:.2f} s\n",
             best);
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path cache =
      std::filesystem::temp_directory_path() / fmt::format("flashjit-rate-{}", getpid());
  int status = 0;
  try {
    const int repeats = argc > 1 ? std::max(1, std::stoi(argv[1])) : 5;
    std::filesystem::create_directory(cache);
    for (const Case& one : kCases) measure_rates(one, repeats, cache);
    measure_pass(repeats, cache);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    status = 1;
  }
  std::filesystem::remove_all(cache);
  return status;
}

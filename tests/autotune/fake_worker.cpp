// A worker for tests: it speaks the protocol through serve(), and comes to grief on command. The schedule is
// the command: tile_m 16 crashes when it runs, 32 hangs, 48 reports a device error and ends, 80 crashes the
// compiler, 96 is wrong, 144 and 160 find no memory. FAKE_WORKER_FAREWELL names a file to leave behind in an
// orderly end.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>

#include "autotune/worker.hpp"
#include "flashjit/error.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

namespace {

class Griever : public Runner {
 public:
  Griever() = default;
  ~Griever() override {
    if (const char* farewell = std::getenv("FAKE_WORKER_FAREWELL")) std::ofstream(farewell) << "farewell\n";
  }
  Griever(const Griever&) = delete;
  Griever& operator=(const Griever&) = delete;

  void build(std::span<const Schedule> schedules, std::chrono::milliseconds, const BuildDone& done) override {
    for (std::size_t i = 0; i < schedules.size(); ++i) {
      if (tile_m_of(schedules[i]) == 80) std::abort();
      runtime::Resources resources;
      resources.registers = 100 + static_cast<int>(i);
      resources.warnings = {"a warning"};
      done(i, resources, tile_m_of(schedules[i]) == 112 ? "no registers left" : "");
    }
  }

  Check verify(const Schedule& schedule) override {
    switch (tile_m_of(schedule)) {
      case 16:
        std::fprintf(stderr, "about to crash\n");
        ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would make it an exit code
        ::raise(SIGSEGV);
        break;
      case 32:
        ::pause();
        break;
      case 48:
        throw Error(ErrorCode::device, "illegal address", "a hint");
      case 144:
        throw std::bad_alloc();
      case 160:
        throw std::length_error("vector");
      default:
        break;
    }
    Check check;
    check.ok = tile_m_of(schedule) != 96;
    if (!check.ok) {
      check.message = "output differs";
      check.max_error = 1.0 / 0.0;
    }
    check.rows = 7;
    return check;
  }

  Timing time(const Schedule& schedule, const MeasureOptions& options) override {
    Timing timing;
    timing.median_ms = timing.fastest_ms = get(schedule, "tile_n") / 16.0;
    timing.spread = 0.01;
    timing.clock_mhz = 1755;
    timing.samples = 5;
    timing.launches = 12;
    timing.gave_up = options.give_up_above_ms > 0 && timing.median_ms > options.give_up_above_ms;
    return timing;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::string(argv[1]) != "worker") return 2;
  const char* version = std::getenv("FAKE_WORKER_VERSION");
  return serve(0, 1, version != nullptr ? version : "1.2.3", [](const Job& job) -> std::unique_ptr<Runner> {
    if (job.device == "cuda:9") throw Error(ErrorCode::device, "there is no device 9");
    if (job.device == "cuda:8") throw std::bad_alloc();
    return std::make_unique<Griever>();
  });
}

// Timing a launch: cold caches, adaptive repeats, a pause against heat, the median and the spread.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/device.hpp"

namespace flashjit::autotune {

// Time as the tuner sees it; tests have a clock of their own.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual double seconds() = 0;  // from any origin, never backwards
  virtual void sleep(double seconds) = 0;
  static Clock& real();
};

struct MeasureOptions {
  // Idle time before the first launch. A GPU's power limit takes 10 % and more off what comes after a busy
  // stretch, so that without pauses the order of the candidates would decide which wins (docs/performance.md,
  // "How we time").
  double pause_seconds = 0.1;
  double seconds = 0.03;        // of launches, about; long ones take more, but a few of them at most
  double give_up_above_ms = 0;  // first launches slower than this end the timing: hopeless; 0: never
};

struct Timing {
  double median_ms = 0;  // of one launch
  double spread = 0;     // (p90 - p10) / median over the samples
  double fastest_ms = 0;
  double clock_mhz = 0;  // SM clock right after the launches; 0: unknown
  int samples = 0;
  int launches = 0;      // in all, warm-up included
  bool gave_up = false;  // median_ms is then that of the first launches
};

// How long measure() takes for launches of so many milliseconds, pause included.
double expected_seconds(const MeasureOptions& options, double launch_ms);

// `launch(i)` enqueues launch number i on the stream. It should use different buffers for neighbouring i,
// more of them than L2 holds.
Timing measure(runtime::Device& device, runtime::Stream stream,
               const std::function<void(std::int64_t)>& launch, const MeasureOptions& options,
               Clock& clock = Clock::real());

}  // namespace flashjit::autotune

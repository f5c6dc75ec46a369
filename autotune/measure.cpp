// Timing by a pair of marks around a few launches at a time, as many as the time allowed holds.
#include "autotune/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

namespace flashjit::autotune {
namespace {

class RealClock : public Clock {
 public:
  double seconds() override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void sleep(double seconds) override { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
};

constexpr double kLongMs = 1000;   // of one launch: one says enough, and a worker has seconds for a timing
constexpr double kSampleMs = 0.2;  // at least: a pair of marks is accurate to about half a percent of this
constexpr int kMostSamples = 60;
constexpr int kWarmUps = 2;  // launches before the samples

// The fewest samples of a launch: five, but no more of a long one than ten times the time allowed holds.
int least_samples(const MeasureOptions& options, double launch_ms) {
  constexpr double kLeast = 5, kOver = 10;
  return static_cast<int>(
      std::clamp(kOver * options.seconds * 1000 / std::max(launch_ms, 1e-4), 1.0, kLeast));
}

// The value below which `share` of the sorted samples lie.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

Clock& Clock::real() {
  static RealClock clock;
  return clock;
}

double expected_seconds(const MeasureOptions& options, double launch_ms) {
  const int launches = launch_ms < kLongMs ? kWarmUps + least_samples(options, launch_ms) : 1;
  return options.pause_seconds + std::max(options.seconds, launches * launch_ms / 1000);
}

Timing measure(runtime::Device& device, runtime::Stream stream,
               const std::function<void(std::int64_t)>& launch, const MeasureOptions& options, Clock& clock) {
  Timing timing;
  const auto timer = device.make_timer();
  device.synchronize(stream);
  if (options.pause_seconds > 0) clock.sleep(options.pause_seconds);

  std::int64_t next = 0;
  const auto sample = [&](int launches) {
    timer->start(stream);
    for (int i = 0; i < launches; ++i) launch(next++);
    timer->stop(stream);
    timing.launches += launches;
    return timer->milliseconds() / launches;
  };

  // The first launch pays for whatever is lazy; the second says how long one takes. In a short sample the
  // pair of marks is the larger part, so several launches in a row are timed next. Before a launch is given
  // up they are timed once more, since the host may have had a hiccup.
  const double sample_ms = std::max(kSampleMs, options.seconds * 1000 / kMostSamples);
  const auto launches_in = [sample_ms](double each) {
    return static_cast<int>(std::clamp(std::ceil(sample_ms / std::max(each, 1e-4)), 1.0, 1000.0));
  };
  double once = sample(1);
  if (once < kLongMs) once = std::min(once, sample(1));
  const auto hopeless = [&] { return options.give_up_above_ms > 0 && once > options.give_up_above_ms; };
  const auto sample_a_row = [&] {
    if (launches_in(once) > 1) once = std::min(once, sample(launches_in(once)));
  };
  sample_a_row();
  if (hopeless()) sample_a_row();
  timing.gave_up = hopeless();
  if (timing.gave_up || once >= kLongMs) {
    timing.median_ms = timing.fastest_ms = once;
    timing.samples = 1;
    return timing;
  }
  const int per_sample = launches_in(once);
  const double wanted = options.seconds * 1000 / std::max(once * per_sample, 1e-4);
  const int samples =
      std::max(least_samples(options, once), static_cast<int>(std::min(wanted, double{kMostSamples})));

  std::vector<double> taken;
  taken.reserve(static_cast<std::size_t>(samples));
  for (int i = 0; i < samples; ++i) taken.push_back(sample(per_sample));
  timing.clock_mhz = device.clock_mhz();
  std::sort(taken.begin(), taken.end());
  timing.samples = samples;
  timing.median_ms = quantile(taken, 0.5);
  timing.fastest_ms = taken.front();
  timing.spread = timing.median_ms > 0 ? (quantile(taken, 0.9) - quantile(taken, 0.1)) / timing.median_ms : 0;
  return timing;
}

}  // namespace flashjit::autotune

// Runs a launch: hands clusters to threads.
#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "emulator/machine/cluster_runner.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {

void run_launch(LaunchContext& launch, u32 threads, Counters* profile,
                const std::function<void(u64, u64)>& progress) {
  const u64 clusters = u64{launch.grid[0]} / launch.cluster * launch.grid[1] * launch.grid[2];
  std::atomic<u64> next{0}, done{0};
  std::mutex mutex;
  std::exception_ptr error;
  auto work = [&] {
    try {
      Counters counters;
      counters.resize(launch.program->code.size());
      ClusterRunner runner(launch, &counters);
      for (u64 index; !launch.stopped && (index = next++) < clusters;) {
        runner.run(index);
        counters.ctas += launch.cluster;
        const u64 now = ++done;
        if (progress) {
          std::lock_guard lock(mutex);
          progress(now * launch.cluster, clusters * launch.cluster);
        }
      }
      if (profile != nullptr) {
        std::lock_guard lock(mutex);
        profile->add(counters);
      }
    } catch (const Stop&) {
      launch.stopped = true;
    } catch (...) {
      std::lock_guard lock(mutex);
      launch.stopped = true;
      error = std::current_exception();
    }
    --launch.at_work;
  };
  const u64 wanted = std::min<u64>(std::max<u32>(threads, 1), clusters);
  launch.at_work = static_cast<u32>(wanted);
  std::vector<std::jthread> others;  // joined even by an exception
  others.reserve(wanted - 1);
  try {
    for (u64 k = 1; k < wanted; ++k) others.emplace_back(work);
  } catch (const std::exception& failure) {
    // Fewer threads would do for some launches, but not if clusters wait for each other.
    launch.stopped = true;
    if (dynamic_cast<const std::system_error*>(&failure) == nullptr) throw;  // no memory for a thread's state
    throw Error(ErrorCode::io,
                fmt::format("can't start thread {} of {} of the emulator: {}", others.size() + 2, wanted,
                            failure.what()),
                "fewer threads will do (flashjit check --threads), or a higher limit (ulimit -u)");
  }
  work();
  others.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace flashjit::emulator

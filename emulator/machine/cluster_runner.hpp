// Runs one cluster after another: the seed decides which of its warps runs next, and for how long.
#pragma once

#include <chrono>

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

class ClusterRunner {
 public:
  ClusterRunner(LaunchContext& launch, Counters* counters);

  // Throws Stop if the launch cannot go on.
  void run(u64 index);

 private:
  // cluster_start.cpp
  void start(u64 index);
  void start(Cta& cta, u32 index, u32 agent);
  void choose_pace();

  Warp* choose();
  Warp* poll_again();
  void wait_for_others(Warp& poller);
  void execute(Warp& warp);
  template <bool Checked, bool Counted>
  void loop(Warp& warp);
  void inspect(Warp& warp, const Ins& ins, u32 mask);
  void check_in_flight(Warp& warp, const Ins& ins, u32 mask);
  bool may_go_on(Warp& warp);
  void finished(Warp& warp);

  LaunchContext& launch_;
  const Program& program_;
  Cluster cluster_;
  u32 threads_ = 0;
  u32 live_ = 0;
  bool ordered_ = false;
  enum class Pace : u8 { fair, favourite, straggler } pace_ = Pace::fair;
  u32 single_first_ = 0, single_count_ = 1;  // the warps that are favoured or held back
  u64 turns_ = 0;                            // of all clusters, at this one's last wait for another cluster
  u32 naps_ = 0;                             // since then
  std::chrono::steady_clock::time_point asleep_since_;
  bool all_impatient_ = false;
};

}  // namespace flashjit::emulator

// What the tuner asks of the place where kernels run: this process, or a worker process that may die of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "autotune/measure.hpp"
#include "autotune/reference.hpp"
#include "flashjit/error.hpp"
#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"
#include "generator/schedule.hpp"
#include "runtime/compile.hpp"
#include "runtime/device.hpp"

namespace flashjit::autotune {

// A compiled and loaded schedule.
struct Built {
  runtime::Resources resources;
  // Each enqueues one pass of the problem's kind, and any shape is legal. They keep the kernels loaded while
  // they live.
  std::function<void(const ForwardArgs& args, runtime::Stream stream)> forward;
  std::function<void(const BackwardArgs& args, runtime::Stream stream)> backward;
  std::function<std::size_t(const Shape& shape)> workspace_bytes;  // of a backward call
};

// Compiles (or finds in a cache) and loads. Called from several threads at once; throws Error. deadline 0:
// none.
using Build = std::function<Built(const Schedule& schedule, std::chrono::milliseconds deadline)>;

// `error` is empty when the schedule was built.
using BuildDone =
    std::function<void(std::size_t index, const runtime::Resources& resources, const std::string& error)>;

// Whether an error is the candidate's own: compile_failed, unsupported, device or wrong_result. Any other
// code means that the runner itself cannot go on.
bool is_the_candidates(ErrorCode code);

class Runner {
 public:
  virtual ~Runner() = default;
  // Prepares what the first request would otherwise wait for. This does not count against the tuning budget.
  virtual void prepare() {}
  // Builds all that it can in the given time, in order, in parallel; `done` hears of each once, from this
  // thread. What a cache has is built without NVRTC, so an error that is not a candidate's own is thrown only
  // if all had such errors.
  virtual void build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
                     const BuildDone& done) = 0;
  // Runs the schedule on poisoned outputs and compares them with the reference. Builds it first if need be,
  // as time() does.
  virtual Check verify(const Schedule& schedule) = 0;
  virtual Timing time(const Schedule& schedule, const MeasureOptions& options) = 0;
};

// What std::bad_alloc and std::length_error of a run mean, in words.
Error host_memory_error();

struct LocalOptions {
  std::uint64_t seed = 1;
  int threads = 0;  // of compiling and of the reference; 0: as many as the machine has
  std::chrono::milliseconds compile_deadline{20'000};
  Clock* clock = nullptr;  // null: the real one
};

// Runs on this device, in this process. The device must outlive it.
std::unique_ptr<Runner> make_local_runner(runtime::Device& device, const Problem& problem, const Shape& shape,
                                          Build build, const LocalOptions& options = {});

}  // namespace flashjit::autotune

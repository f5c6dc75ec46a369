// A pair of CUDA events around the work to be timed.
#pragma once

#include <memory>
#include <utility>

#include "runtime/cuda/context.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/device.hpp"

namespace flashjit::runtime {

class CudaTimer final : public Timer {
 public:
  explicit CudaTimer(std::shared_ptr<const Context> context) : context_(std::move(context)) {
    const Driver& driver = context_->driver();
    const ContextScope scope(*context_);
    driver.check(driver.event_create(&start_, CU_EVENT_DEFAULT), "cuEventCreate");
    if (const CUresult result = driver.event_create(&stop_, CU_EVENT_DEFAULT); result != CUDA_SUCCESS) {
      static_cast<void>(driver.event_destroy(start_));
      driver.fail(result, "cuEventCreate");
    }
  }
  ~CudaTimer() override {
    // If these fail, the driver ended before us, at exit, or the context is broken: nothing is left to
    // destroy.
    static_cast<void>(context_->driver().event_destroy(start_));
    static_cast<void>(context_->driver().event_destroy(stop_));
  }
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  void start(Stream stream) override { record(start_, stream); }
  void stop(Stream stream) override { record(stop_, stream); }
  double milliseconds() override {
    const Driver& driver = context_->driver();
    const ContextScope scope(*context_);
    driver.check(driver.event_synchronize(stop_), "waiting for a timer (cuEventSynchronize)");
    float elapsed = 0;
    driver.check(driver.event_elapsed(&elapsed, start_, stop_), "cuEventElapsedTime");
    return elapsed;
  }

 private:
  void record(CUevent event, Stream stream) {
    const ContextScope scope(*context_);
    context_->driver().check(context_->driver().event_record(event, stream), "cuEventRecord");
  }

  std::shared_ptr<const Context> context_;
  CUevent start_ = nullptr;
  CUevent stop_ = nullptr;
};

}  // namespace flashjit::runtime

// The four NVML calls that a clock needs, declared here since building flashjit does not need NVML's header.
#include "runtime/cuda/clock.hpp"

#include "runtime/dynamic_library.hpp"

namespace flashjit::runtime {
namespace {

constexpr int kSuccess = 0;       // NVML_SUCCESS
constexpr unsigned kSmClock = 1;  // NVML_CLOCK_SM

}  // namespace

void SmClock::open() {
  opened_ = true;
  const DynamicLibrary nvml("libnvidia-ml.so.1");
  int (*init)() = nullptr;
  int (*find)(const char*, void**) = nullptr;
  decltype(clock_) clock = nullptr;
  decltype(shutdown_) shutdown = nullptr;
  if (!nvml.resolve(init, "nvmlInit_v2") || !nvml.resolve(find, "nvmlDeviceGetHandleByPciBusId_v2") ||
      !nvml.resolve(clock, "nvmlDeviceGetClockInfo") || !nvml.resolve(shutdown, "nvmlShutdown") ||
      init() != kSuccess) {
    return;
  }
  shutdown_ = shutdown;
  if (find(pci_bus_id_.c_str(), &device_) == kSuccess) clock_ = clock;
}

double SmClock::mhz() {
  const std::lock_guard lock(mutex_);
  if (!opened_) open();
  unsigned value = 0;
  return clock_ != nullptr && clock_(device_, kSmClock, &value) == kSuccess ? value : 0;
}

SmClock::~SmClock() {
  // NVML counts its initialisations. If the last shutdown fails at exit, nothing depends on it.
  if (shutdown_ != nullptr) static_cast<void>(shutdown_());
}

}  // namespace flashjit::runtime

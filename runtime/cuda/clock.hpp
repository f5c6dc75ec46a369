// The clock rate of a GPU's multiprocessors, from NVML.
#pragma once

#include <mutex>
#include <string>
#include <utility>

namespace flashjit::runtime {

// Loads libnvidia-ml at first need. May be used from many threads.
class SmClock {
 public:
  explicit SmClock(std::string pci_bus_id) : pci_bus_id_(std::move(pci_bus_id)) {}
  ~SmClock();
  SmClock(const SmClock&) = delete;
  SmClock& operator=(const SmClock&) = delete;

  // 0 if there is no NVML, or if NVML does not say (some virtual GPUs).
  [[nodiscard]] double mhz();

 private:
  void open();

  std::string pci_bus_id_;  // identifies the GPU, since NVML counts GPUs in another order than CUDA
  std::mutex mutex_;
  bool opened_ = false;
  void* device_ = nullptr;                              // nvmlDevice_t
  int (*clock_)(void*, unsigned, unsigned*) = nullptr;  // null: the clock cannot be asked for
  int (*shutdown_)() = nullptr;
};

}  // namespace flashjit::runtime

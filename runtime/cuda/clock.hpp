// The clock that a GPU's multiprocessors run at, by NVML.
#pragma once

#include <mutex>
#include <string>
#include <utility>

namespace flashjit::runtime {

// Loads libnvidia-ml on first need. Safe from many threads.
class SmClock {
 public:
  explicit SmClock(std::string pci_bus_id) : pci_bus_id_(std::move(pci_bus_id)) {}
  ~SmClock();
  SmClock(const SmClock&) = delete;
  SmClock& operator=(const SmClock&) = delete;

  // 0 where there is no NVML, or it does not say (some virtual GPUs).
  [[nodiscard]] double mhz();

 private:
  void open();

  std::string pci_bus_id_;  // NVML counts GPUs in another order than CUDA
  std::mutex mutex_;
  bool opened_ = false;
  void* device_ = nullptr;                              // nvmlDevice_t
  int (*clock_)(void*, unsigned, unsigned*) = nullptr;  // null: it can not be asked
  int (*shutdown_)() = nullptr;
};

}  // namespace flashjit::runtime

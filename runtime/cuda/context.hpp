// Which GPU and which context to use, and making the context current during a call.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "flashjit/target.hpp"
#include "runtime/cuda/driver.hpp"

namespace flashjit::runtime {

// A context to work in: the current one if it belongs to the wanted device, else the device's primary
// context, which the CUDA runtime and every library that uses the runtime share. Never a context of our own.
class Context {
 public:
  // "cuda": the device of the current context, else device 0; or "cuda:N". Throws Error{invalid_argument,
  // not_found, device}.
  static std::shared_ptr<const Context> open(std::string_view name);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const Driver& driver() const { return *driver_; }
  [[nodiscard]] CUcontext handle() const { return context_; }
  [[nodiscard]] CUdevice device() const { return device_; }
  [[nodiscard]] int index() const { return device_; }  // a CUdevice is its ordinal

 private:
  Context() = default;

  const Driver* driver_ = nullptr;
  CUcontext context_ = nullptr;
  CUdevice device_ = 0;
  bool retained_ = false;
};

// Makes the context current for a scope, and restores the previous one. Costs one call if the context is
// current already.
class ContextScope {
 public:
  explicit ContextScope(const Context& context) : driver_(context.driver()) {
    driver_.check(driver_.current(&before_), "cuCtxGetCurrent");
    if (before_ == context.handle()) return;
    driver_.check(driver_.set_current(context.handle()), "cuCtxSetCurrent");
    changed_ = true;
  }
  ~ContextScope() {
    // If this fails, the driver has ended or the caller's context is gone: nothing can be done.
    if (changed_) static_cast<void>(driver_.set_current(before_));
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  CUcontext before_ = nullptr;
  bool changed_ = false;
};

// Allows calls that a capture forbids (load, unload, allocate, free) while another thread captures in global
// mode. They don't break that capture, since they use none of its streams.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  // Swaps the thread's mode with mode_. Fails only after the driver has ended, when everything fails.
  void exchange() { static_cast<void>(driver_.exchange_capture_mode(&mode_)); }
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

int capability_of_device(const Driver& driver, CUdevice device);  // 90 for 9.0
// "sm_86", "sm_90a": only the arch-specific 90a has wgmma, and its code runs on every GPU of capability 9.0.
std::string arch_of_capability(int capability);
// What the driver says about a device. Needs no context. Throws Error{unsupported} for a GPU before Turing.
Target target_of_device(const Driver& driver, CUdevice device);
std::string name_of_device(const Driver& driver, CUdevice device);        // "NVIDIA H200"
std::string pci_bus_id_of_device(const Driver& driver, CUdevice device);  // "0000:3b:00.0"

}  // namespace flashjit::runtime

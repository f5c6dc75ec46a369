// A Device of host memory and a scripted clock, for tests of everything above the runtime. It runs no code: a
// test says what a launch does and how long it takes, and reads afterwards what was launched.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "flashjit/error.hpp"
#include "flashjit/target.hpp"
#include "runtime/device.hpp"

namespace flashjit::test {

class FakeDevice : public runtime::Device {
 public:
  struct Loaded : runtime::Kernel {
    explicit Loaded(const runtime::KernelImage& image)
        : entry(image.entry), shared_bytes(image.shared_bytes) {}

    std::string entry;
    int shared_bytes;
  };

  struct Record {
    std::string entry;
    runtime::Launch launch;
    runtime::Stream stream = nullptr;
  };

  explicit FakeDevice(Target target = target_of("sm_80")) : target_(std::move(target)) {}
  ~FakeDevice() override {
    for (const auto& [pointer, bytes] : allocations_) ::operator delete (pointer, std::align_val_t{256});
  }
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // The script. Set it before use; each may throw, as a real device would.
  std::function<double(const std::string& entry, const runtime::Launch&)>
      milliseconds;  // of a launch; 1 by default
  std::function<void(const std::string& entry, const runtime::Launch&, std::span<void* const> params)>
      execute;
  std::function<void(const runtime::KernelImage&)> on_load;
  double marks_take = 0;  // milliseconds that a pair of marks adds to what is between them
  std::function<int(const std::string& entry, int threads, int shared_bytes)>
      ctas;                       // occupancy; 1 by default
  bool captures = false;          // what capturing() says
  std::size_t memory = SIZE_MAX;  // bytes that allocate() may give out in all

  // The record.
  [[nodiscard]] std::vector<Record> launches() const {
    const std::lock_guard lock(mutex_);
    return launches_;
  }
  [[nodiscard]] int loads() const {
    const std::lock_guard lock(mutex_);
    return loads_;
  }
  [[nodiscard]] int ordered_allocations() const {
    const std::lock_guard lock(mutex_);
    return ordered_;
  }
  [[nodiscard]] std::size_t bytes_alive() const {
    const std::lock_guard lock(mutex_);
    return bytes_alive_;
  }
  [[nodiscard]] double clock() const {  // milliseconds of launches so far
    const std::lock_guard lock(mutex_);
    return clock_;
  }

  [[nodiscard]] const Target& target() const override { return target_; }
  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] std::string description() const override { return "fake device, " + target_.arch; }

  std::unique_ptr<runtime::Kernel> load(const runtime::KernelImage& image) override {
    if (on_load) on_load(image);
    {
      const std::lock_guard lock(mutex_);
      ++loads_;
    }
    return std::make_unique<Loaded>(image);
  }

  int occupancy(const runtime::Kernel& kernel, int threads, int shared_bytes) override {
    return ctas ? ctas(entry_of(kernel), threads, shared_bytes) : 1;
  }

  void launch(const runtime::Kernel& kernel, const runtime::Launch& launch, std::span<void* const> params,
              runtime::Stream stream) override {
    const std::string& entry = entry_of(kernel);
    if (execute) execute(entry, launch, params);
    const double cost = milliseconds ? milliseconds(entry, launch) : 1.0;
    const std::lock_guard lock(mutex_);
    launches_.push_back({.entry = entry, .launch = launch, .stream = stream});
    clock_ += cost;
  }

  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (bytes > memory - bytes_alive_) {
      throw Error(ErrorCode::device, "fake device: out of memory", "set FakeDevice::memory");
    }
    void* pointer = ::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{256});
    allocations_.emplace(pointer, bytes);
    bytes_alive_ += bytes;
    return pointer;
  }

  bool release(void* pointer) override {
    if (pointer == nullptr) return true;
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(pointer);
    if (found == allocations_.end()) return false;
    bytes_alive_ -= found->second;
    allocations_.erase(found);
    ::operator delete (pointer, std::align_val_t{256});
    return true;
  }

  void* allocate_ordered(std::size_t bytes, runtime::Stream) override {
    {
      const std::lock_guard lock(mutex_);
      ++ordered_;
    }
    return allocate(bytes);
  }
  void free_ordered(void* pointer, runtime::Stream) override { free(pointer); }

  void copy_to_device(void* to, const void* from, std::size_t bytes, runtime::Stream) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, runtime::Stream) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void fill(void* to, std::uint8_t value, std::size_t bytes, runtime::Stream) override {
    if (bytes != 0) std::memset(to, value, bytes);
  }
  void synchronize(runtime::Stream) override {}
  [[nodiscard]] bool capturing(runtime::Stream) const override { return captures; }

  runtime::TensorMap encode(const runtime::TensorMapRequest& request) override {
    runtime::TensorMap map;
    map.opaque[0] = reinterpret_cast<std::uintptr_t>(request.base);
    return map;
  }

  std::unique_ptr<runtime::Timer> make_timer() override {
    struct FakeTimer : runtime::Timer {
      explicit FakeTimer(FakeDevice& owner) : device(owner) {}
      void start(runtime::Stream) override { begin = device.clock(); }
      void stop(runtime::Stream) override { end = device.clock(); }
      double milliseconds() override { return end - begin + device.marks_take; }
      FakeDevice& device;
      double begin = 0;
      double end = 0;
    };
    return std::make_unique<FakeTimer>(*this);
  }

 private:
  static const std::string& entry_of(const runtime::Kernel& kernel) {
    return static_cast<const Loaded&>(kernel).entry;
  }

  Target target_;
  mutable std::mutex mutex_;
  std::vector<Record> launches_;
  std::map<void*, std::size_t> allocations_;
  std::size_t bytes_alive_ = 0;
  int loads_ = 0;
  int ordered_ = 0;
  double clock_ = 0;
};

}  // namespace flashjit::test

// A host tensor's twin on an engine's device, strides, gaps and all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/engine_state.hpp"
#include "autotune/inputs.hpp"
#include "flashjit/flashjit.hpp"
#include "runtime/device.hpp"

namespace flashjit::test {

// A tensor's extent between the first and the last element of one batch, in elements.
struct Extent {
  int batch, rows, heads, columns;
};

inline std::int64_t elements_of_batch(const Extent& e, const Strides& s) {
  return e.rows == 0 ? 0 : (e.rows - 1) * s.row + (e.heads - 1) * s.head + e.columns;
}

// Whether the device's fresh memory is poison, as an emulator's is. There an upload would count as a write,
// and reads of what no kernel wrote go unnoticed.
inline bool poisons(Engine& engine) {
  return EngineAccess::state(engine).device().estimates_time();
}

inline Buffer poisoned_memory(Engine& engine, std::size_t bytes) {
  Buffer made = engine.allocate(bytes);
  const std::vector<std::byte> poison(poisons(engine) ? 0 : bytes, std::byte{0xff});
  engine.upload(made, poison.data(), poison.size());
  return made;
}

// A host tensor on the device, with its batches as far apart there as asked for.
class OnDevice {
 public:
  enum class Role { input, output };
  OnDevice(Engine& engine, DType dtype, const autotune::HostTensor& host, const Extent& extent, bool far,
           Role role = Role::input)
      : device_(EngineAccess::state(engine).device()),
        extent_(extent),
        host_(host.strides),
        there_(host.strides) {
    bytes_ = static_cast<std::size_t>(size_of(dtype));
    if (far) there_.batch = (std::int64_t{1} << 31) + 8;
    slice_ = static_cast<std::size_t>(elements_of_batch(extent, host_)) * bytes_;
    const auto distance = static_cast<std::size_t>(there_.batch) * bytes_;
    if (slice_ != 0 && extent.batch != 0) {
      buffer_ = engine.allocate(distance * static_cast<std::size_t>(extent.batch - 1) + slice_);
      const bool ready = role == Role::output && poisons(engine);
      for (int b = 0; b < extent.batch && !ready; ++b)
        device_.copy_to_device(at(b), &host.bytes[offset(b)], slice_, nullptr);
    }
  }

  [[nodiscard]] void* data() const { return buffer_.data(); }
  [[nodiscard]] const Strides& strides() const { return there_; }
  void download(autotune::HostTensor& to) const {
    if (slice_ == 0) return;
    for (int b = 0; b < extent_.batch; ++b)
      device_.copy_to_host(&to.bytes[offset(b)], at(b), slice_, nullptr);
  }

 private:
  [[nodiscard]] std::byte* at(int batch) const {
    return static_cast<std::byte*>(buffer_.data()) + static_cast<std::size_t>(batch * there_.batch) * bytes_;
  }
  [[nodiscard]] std::size_t offset(int batch) const {
    return static_cast<std::size_t>(batch * host_.batch) * bytes_;
  }

  runtime::Device& device_;
  Extent extent_;
  Strides host_, there_;
  std::size_t bytes_ = 0, slice_ = 0;
  Buffer buffer_;
};

// What the kernel may not have touched: every byte of a tensor that is between its rows.
inline bool gaps_untouched(const autotune::HostTensor& before, const autotune::HostTensor& after,
                           const Extent& e, std::size_t bytes) {
  std::vector<bool> written(before.bytes.size(), false);
  for (int b = 0; b < e.batch; ++b) {
    for (int h = 0; h < e.heads; ++h) {
      for (int i = 0; i < e.rows; ++i) {
        const auto first = static_cast<std::size_t>(b * before.strides.batch + h * before.strides.head +
                                                    i * before.strides.row) *
                           bytes;
        std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(first),
                    static_cast<std::size_t>(e.columns) * bytes, true);
      }
    }
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (!written[i] && before.bytes[i] != after.bytes[i]) return false;
  }
  return true;
}

}  // namespace flashjit::test

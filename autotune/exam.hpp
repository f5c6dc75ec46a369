// One call's tensors in device memory, and what a candidate's results there are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "autotune/backward/reference.hpp"
#include "autotune/inputs.hpp"
#include "autotune/reference.hpp"
#include "autotune/runner.hpp"
#include "flashjit/problem.hpp"
#include "runtime/device.hpp"

namespace flashjit::autotune {

// Device memory that frees itself.
class Memory {
 public:
  Memory(runtime::Device& device, std::size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~Memory() { device_.free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(data_) + offset; }

 private:
  runtime::Device& device_;
  void* data_;
};

// Where the packed tensors of one call lie: first those that it reads, then its outputs, with a guard after
// each output.
struct CallLayout {
  enum class Rows { queries, keys, lse };
  struct Output {
    const char* name;
    Rows rows;
    std::size_t at, bytes;
  };
  std::size_t q = 0, k = 0, v = 0, dout = 0, o = 0, lse = 0, dq = 0, dk = 0, dv = 0;
  std::size_t input_bytes = 0, bytes = 0;
  std::vector<Output> outputs;

  CallLayout(const Problem& problem, const Shape& shape);
};

// Writes to `image` what a timed call reads: standard normal numbers. A backward call's o and lse are not
// those of a forward pass, but each row of its P sums to about 1, as it should.
void fill_inputs(const Problem& problem, const Shape& shape, const CallLayout& layout, std::uint64_t seed,
                 std::byte* image);
// Writes what a checked call reads: inputs of the kind, and for a backward call a forward pass's results.
void fill_inputs(const Problem& problem, const Shape& shape, const CallLayout& layout, InputKind kind,
                 std::uint64_t seed, std::byte* image);

// Enqueues one pass over the tensors at `set`.
void launch(const Built& built, const Problem& problem, const Shape& shape, const CallLayout& layout,
            std::byte* set, void* workspace);

// One shape that candidates are checked at.
class Exam {
 public:
  // The inputs are in `image` on the host and at `set` on the device. blocks 0: every row is compared, and so
  // are the guards after the outputs; otherwise a sample of about this many blocks is compared.
  Exam(const Problem& problem, const Shape& shape, const std::byte* image, std::byte* set, int blocks,
       std::uint64_t seed, int threads);

  [[nodiscard]] const Shape& shape() const { return shape_; }

  // Runs the kernel on poisoned outputs and compares them with the reference.
  Check examine(runtime::Device& device, const Built& built, void* workspace);

 private:
  // Copies an output to the host. Returns what is wrong with it even before it is compared; empty if nothing
  // is.
  std::string fetch(runtime::Device& device, const CallLayout::Output& output);
  [[nodiscard]] Check compare() const;
  [[nodiscard]] const std::byte* result(std::size_t at) const {
    return host_.data() + (at - layout_.input_bytes);
  }

  Problem problem_;
  Shape shape_;
  CallLayout layout_;
  std::byte* set_;
  bool whole_;
  HostBackward call_;  // a forward pass uses its attention alone
  GradientBlocks blocks_;
  HostResult expected_, simple_;
  HostGradients expected_gradients_, simple_gradients_;
  std::vector<std::byte> host_;  // all that lies after the inputs
};

}  // namespace flashjit::autotune

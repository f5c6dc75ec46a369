// Small kernels for the emulator's tests: PTX around a few instructions, and a device with arrays.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/emulated_device.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator::tests {

// A kernel `test(in, out)` whose body has registers %r (32 bits), %f (fp32), %h (16 bits), %d (64 bits), %q
// (fp64) and %p; %d30 and %d31 hold in and out, %r30 the thread's index, %r28 and %r27 its warp and lane,
// %r29 the address of dynamic shared memory. `outer` stands before the kernel, `inner` at its start.
inline std::string kernel_text(std::string_view body, std::string_view target = "sm_90a",
                               std::string_view outer = "", std::string_view directives = "") {
  return fmt::format(
      ".version 8.7\n.target {}\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n{}\n.visible "
      ".entry test(.param .u64 in, .param .u64 out)\n{}\n{{\n"
      ".reg .b32 %r<64>;\n.reg .f32 %f<64>;\n.reg .b16 %h<32>;\n.reg .b64 %d<64>;\n.reg .f64 %q<16>;\n.reg "
      ".pred %p<32>;\n"
      "ld.param.u64 %d30, [in];\nld.param.u64 %d31, [out];\nmov.u32 %r30, %tid.x;\nshr.u32 %r28, %r30, "
      "5;\nand.b32 %r27, %r30, 31;\n"
      "mov.u32 %r29, smem;\n{}\nret;\n}}\n",
      target, outer, directives, body);
}

struct RunOptions {
  std::uint32_t grid = 1, threads = 32, shared = 0, cluster = 1;
  std::uint64_t seed = 1;
  std::string arch = "sm_90a";
  bool counts = false;
  Checks checks = Checks::all;
};

// Runs kernel_text-like PTX on arrays of 32-bit words and returns what `out` holds then.
class Bench {
 public:
  explicit Bench(const RunOptions& options = {}) : options_(options) {
    device_ = open_emulated_device(
        {.arch = options.arch, .seed = options.seed, .threads = 2, .counts = options.counts});
    device_->set_checks(options.checks);
  }
  EmulatedDevice& device() { return *device_; }

  std::vector<std::uint32_t> run(const std::string& ptx, const std::vector<std::uint32_t>& in,
                                 std::size_t out_words) {
    auto kernel = device_->load({.entry = "test", .ptx = ptx, .cubin = {}});
    void* from = device_->allocate(in.size() * 4);
    void* to = device_->allocate(out_words * 4);
    device_->copy_to_device(from, in.data(), in.size() * 4, nullptr);
    void* params[] = {&from, &to};
    device_->launch(*kernel,
                    {.grid = options_.grid,
                     .threads = options_.threads,
                     .shared_bytes = options_.shared,
                     .cluster = options_.cluster},
                    params, nullptr);
    std::vector<std::uint32_t> out(out_words);
    device_->copy_to_host(out.data(), to, out_words * 4, nullptr);
    device_->free(from);
    device_->free(to);
    return out;
  }

 private:
  RunOptions options_;
  std::unique_ptr<EmulatedDevice> device_;
};

}  // namespace flashjit::emulator::tests

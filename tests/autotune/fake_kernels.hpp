// Kernels for a FakeDevice: each schedule computes attention on the host, at a speed and with the bugs that a
// test asks for.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autotune/numeric.hpp"
#include "autotune/reference.hpp"
#include "autotune/runner.hpp"
#include "flashjit/error.hpp"
#include "tests/support/fake_device.hpp"

namespace flashjit::test {

// Time that passes when kernels run and when somebody sleeps, and at no other time.
class FakeClock : public autotune::Clock {
 public:
  explicit FakeClock(const FakeDevice& device) : device_(device) {}
  double seconds() override { return slept + device_.clock() / 1000; }
  void sleep(double seconds) override { slept += seconds; }
  double slept = 0;

 private:
  const FakeDevice& device_;
};

enum class Bug { none, no_mask, leaves_poison, writes_past_end, dies };

struct FakeKernels {
  explicit FakeKernels(Problem what, int l2_bytes = 1 << 18) : device(target_with(l2_bytes)), problem(what) {
    device.milliseconds = [this](const std::string& entry, const runtime::Launch&) {
      const auto found = milliseconds.find(entry);
      return (found == milliseconds.end() ? usual : found->second) * (noise ? noise() : 1.0);
    };
  }

  // Built by this, a schedule's kernel is named as the schedule.
  autotune::Build build() {
    return [this](const Schedule& schedule, std::chrono::milliseconds) {
      const std::string name = to_string(schedule);
      if (refuses && refuses(name)) throw Error(ErrorCode::compile_failed, "ptxas says no");
      autotune::Built built;
      if (spills.contains(name)) built.resources.spill_stores = spills.at(name);
      std::shared_ptr<runtime::Kernel> kernel = device.load({.entry = name});
      built.forward = [this, name, kernel](const ForwardArgs& args, runtime::Stream stream) {
        device.launch(*kernel, {}, {}, stream);
        compute(bugs.contains(name) ? bugs.at(name) : Bug::none, args);
      };
      return built;
    };
  }

  static Target target_with(int l2_bytes) {
    Target target = target_of("sm_80");
    target.l2_bytes = l2_bytes;  // small, so that the sets of buffers are few
    return target;
  }

  FakeDevice device;
  FakeClock clock{device};
  Problem problem;
  double usual = 2.0;                          // milliseconds of a kernel that nothing else is said of
  std::map<std::string, double> milliseconds;  // by schedule
  std::map<std::string, Bug> bugs;             // by schedule
  std::map<std::string, int> spills;           // bytes by schedule
  std::function<bool(const std::string&)> refuses;
  std::function<double()> noise;
  bool computes = true;  // false: launches only take their time

 private:
  void compute(Bug bug, const ForwardArgs& args) {
    if (bug == Bug::dies) throw Error(ErrorCode::device, "illegal address");
    const Shape shape = *args.shape;
    if (!computes) return;
    autotune::HostAttention a{.problem = problem, .shape = shape, .q = args.q, .k = args.k, .v = args.v};
    if (bug == Bug::no_mask) a.problem.causal = false;
    const auto blocks = autotune::all_rows(shape);
    const auto result = autotune::plain(a, blocks, 2);
    const auto exact = autotune::reference(a, blocks, 2);  // plain() rounds scores, which LSE shows
    const int dv = problem.value_dim();
    const Strides os = autotune::strides_or_packed({}, shape.seqlen_q, shape.heads, dv);
    std::size_t at = 0;
    for (const autotune::RowBlock& block : blocks) {
      for (int r = 0; r < block.count; ++r, ++at) {
        const int row = block.first + r;
        if (bug == Bug::leaves_poison && row == shape.seqlen_q - 1) continue;
        for (int x = 0; x < dv; ++x) {
          autotune::store_element(problem.dtype, args.o,
                                  block.batch * os.batch + row * os.row + block.head * os.head + x,
                                  static_cast<float>(result.out[at * dv + x]));
        }
        if (args.lse != nullptr) {
          args.lse[(static_cast<std::size_t>(block.batch) * shape.heads + block.head) * shape.seqlen_q +
                   row] = static_cast<float>(exact.lse[at]);
        }
      }
    }
    if (bug == Bug::writes_past_end) {
      autotune::store_element(problem.dtype, args.o, shape.batch * os.batch, 0.0f);
    }
  }
};

}  // namespace flashjit::test

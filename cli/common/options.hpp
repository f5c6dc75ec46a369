// The flags that all verbs share: which problem, which sizes, which device.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "flashjit/engine.hpp"
#include "flashjit/error.hpp"
#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"

namespace flashjit::cli {

// Throws Error{invalid_argument} if one of `flags` was given although `beside` makes it useless: "--export
// does nothing beside --dry-run: WHY".
void refuse_ignored(const CLI::App& verb, std::initializer_list<const char*> flags, std::string_view beside,
                    std::string_view why);

// --pass --dtype --head-dim --head-dim-v --causal --no-lse --deterministic
class ProblemOptions {
 public:
  void add_to(CLI::App& verb);
  [[nodiscard]] Problem problem() const;  // validated; throws Error{invalid_argument}

 private:
  const CLI::App* verb_ = nullptr;
  std::string pass_ = "forward";
  std::string dtype_ = "bf16";
  int head_dim_ = 128;
  int head_dim_v_ = 0;
  bool causal_ = false;
  bool no_lse_ = false;
  bool deterministic_ = false;
};

// --batch --heads --heads-kv --seqlen-q --seqlen-k
class ShapeOptions {
 public:
  void add_to(CLI::App& verb);
  // Validated. Sizes that were not given are large enough to keep a GPU busy, or small if every instruction
  // is emulated.
  [[nodiscard]] Shape shape(bool emulated) const;
  // The same for verbs that must launch: throws Error{invalid_argument} for sizes that need no launch.
  [[nodiscard]] Shape shape_to_launch(bool emulated) const;

 private:
  std::optional<int> batch_;
  std::optional<int> heads_;
  int heads_kv_ = 0;
  std::optional<int> seqlen_q_;
  std::optional<int> seqlen_k_;
};

// --device cuda|cuda:N|emulated:sm_XX, or --arch sm_XX if nothing has to run
class DeviceOptions {
 public:
  void add_to(CLI::App& verb);
  void add_arch_to(CLI::App& verb);
  [[nodiscard]] const std::string& device() const { return device_; }
  // Whether --device was given; no other device may replace it.
  [[nodiscard]] bool given() const;
  // Empty if --arch was not given. Throws Error{invalid_argument} if --device names another arch.
  [[nodiscard]] const std::string& arch() const;
  [[nodiscard]] bool emulated() const { return device_.starts_with("emulated"); }
  static constexpr const char* kStandIn = "emulated:sm_90a";
  // Whether the emulator of sm_90a stands in for a device that cannot be opened: for a GPU that is missing,
  // or whose driver fails, but for no device that was given.
  [[nodiscard]] bool emulator_stands_in(const Error& error) const;
  // For verbs that only render and compile. Returns what `use` makes of a device's name: the emulator of
  // --arch, whose kernels have the same keys as the GPU's, else --device, else the GPU, else what stands in
  // for it.
  template <class Use>
  auto with_device(const Use& use) const {
    if (!arch().empty()) return use("emulated:" + arch_);
    try {
      return use(device_);
    } catch (const Error& error) {
      if (!emulator_stands_in(error)) throw;
      return use(kStandIn);
    }
  }
  [[nodiscard]] Target target() const;  // of the device that with_device finds

 private:
  const CLI::App* verb_ = nullptr;
  std::string device_ = "cuda";
  std::string arch_;
};

// Checks that a flag has a text of its own: an empty one, as of a variable that is not set, would count as
// not given, and where it is missing, as in `--out= --json`, CLI11 takes the next flag for it.
CLI::Validator has_text();

// Checks that a flag is a number from `least` to `most`.
CLI::Validator number_between(double least, double most);

// Checks that a flag is a whole number from `least` to `most`, in digits. CLI11 itself reads an empty value
// as 0, and a number that is too large as the largest one.
CLI::Validator whole_number(std::uint64_t least = 0, std::uint64_t most = std::numeric_limits<int>::max());

// --seed; the description says what it seeds
void add_seed_to(CLI::App& verb, std::uint64_t& seed, const std::string& description);

// --schedule SCHEDULE, --family simt|mma|wgmma
void add_schedule_to(CLI::App& verb, std::string& schedule);
void add_family_to(CLI::App& verb, std::string& family);

// --tune off|quick|full
void add_tune_to(CLI::App& verb, Tuning& tuning);
// Refuses --schedule if --tune is to find one.
void refuse_tuned_schedule(const CLI::App& verb, Tuning tuning);

}  // namespace flashjit::cli

// The flags that all verbs share.
#include "cli/common/options.hpp"

#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <cstdlib>
#include <system_error>

#include "api/engine_state.hpp"
#include "autotune/json.hpp"
#include "flashjit/error.hpp"
#include "runtime/cuda_device.hpp"

namespace flashjit::cli {

void refuse_ignored(const CLI::App& verb, std::initializer_list<const char*> flags, std::string_view beside,
                    std::string_view why) {
  for (const char* flag : flags) {
    if (verb.count(flag) == 0) continue;
    throw Error(ErrorCode::invalid_argument, fmt::format("{} does nothing beside {}: {}", flag, beside, why));
  }
}

void ProblemOptions::add_to(CLI::App& verb) {
  verb_ = &verb;
  verb.add_option("--pass", pass_, "forward or backward")->capture_default_str()->group("Problem");
  verb.add_option("--dtype", dtype_, "of q, k, v and o: fp16, bf16 or fp32")
      ->capture_default_str()
      ->group("Problem");
  verb.add_option("--head-dim", head_dim_, "of q and k: a multiple of 8, 8 to 256")
      ->check(whole_number())
      ->capture_default_str()
      ->group("Problem");
  verb.add_option("--head-dim-v", head_dim_v_, "of v and o; 0: the same")
      ->check(whole_number())
      ->capture_default_str()
      ->group("Problem");
  verb.add_flag("--causal", causal_, "query i sees keys 0 .. i + seqlen_k - seqlen_q")->group("Problem");
  verb.add_flag("--no-lse", no_lse_, "a kernel that cannot write the log-sum-exp")->group("Problem");
  verb.add_flag("--deterministic", deterministic_, "backward: bit-equal gradients from run to run")
      ->group("Problem");
}

Problem ProblemOptions::problem() const {
  const Problem problem{.pass = parse_pass(pass_),
                        .dtype = parse_dtype(dtype_),
                        .head_dim = head_dim_,
                        .head_dim_v = head_dim_v_,
                        .causal = causal_,
                        .lse = !no_lse_,
                        .deterministic = deterministic_};
  validate(problem);
  if (problem.pass == Pass::forward) {
    refuse_ignored(*verb_, {"--deterministic"}, "--pass forward",
                   "the forward pass gives the same bits from run to run as it is");
  } else {
    refuse_ignored(*verb_, {"--no-lse"}, "--pass backward", "the backward pass writes no log-sum-exp");
  }
  return problem;
}

void ShapeOptions::add_to(CLI::App& verb) {
  verb.add_option("--batch", batch_, "sequences; 4 by default, 1 where they run emulated")
      ->check(whole_number())
      ->group("Sizes");
  verb.add_option("--heads", heads_, "query heads; 16 by default, 2 where they run emulated")
      ->check(whole_number())
      ->group("Sizes");
  verb.add_option("--heads-kv", heads_kv_, "key and value heads (GQA, MQA); 0: as many as --heads")
      ->check(whole_number())
      ->group("Sizes");
  verb.add_option("--seqlen-q", seqlen_q_, "queries; 4096 by default, 200 where they run emulated")
      ->check(whole_number())
      ->group("Sizes");
  verb.add_option("--seqlen-k", seqlen_k_, "keys; as many as --seqlen-q by default")
      ->check(whole_number())
      ->group("Sizes");
}

Shape ShapeOptions::shape(bool emulated) const {
  Shape shape{.batch = batch_.value_or(emulated ? 1 : 4),
              .heads = heads_.value_or(emulated ? 2 : 16),
              .heads_kv = heads_kv_,
              .seqlen_q = seqlen_q_.value_or(emulated ? 200 : 4096)};
  shape.seqlen_k = seqlen_k_.value_or(shape.seqlen_q);
  validate(shape);
  return shape;
}

Shape ShapeOptions::shape_to_launch(bool emulated) const {
  const Shape sizes = shape(emulated);
  for (const auto& [flag, size] : {std::pair{"--batch", sizes.batch}, {"--seqlen-q", sizes.seqlen_q}}) {
    if (size == 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is 0, of which nothing is launched; may be 1 or more here", flag));
  }
  return sizes;
}

void DeviceOptions::add_to(CLI::App& verb) {
  verb_ = &verb;
  verb.add_option("--device", device_, "cuda, cuda:N, or emulated:sm_XX, which needs no GPU")
      ->capture_default_str()
      ->group("Device");
}

void DeviceOptions::add_arch_to(CLI::App& verb) {
  add_to(verb);
  verb.add_option("--arch", arch_, "sm_75 … sm_121, sm_90a; the GPU's by default, sm_90a without one")
      ->check(has_text())
      ->group("Device");
}

bool DeviceOptions::given() const {
  return verb_->count("--device") != 0;
}

bool DeviceOptions::emulator_stands_in(const Error& error) const {
  return !given() && (error.code() == ErrorCode::not_found || error.code() == ErrorCode::device);
}

const std::string& DeviceOptions::arch() const {
  if (!arch_.empty() && given() && device_ != "emulated:" + arch_) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--arch {} and --device {} are two devices: give one of them", arch_, device_));
  }
  return arch_;
}

Target DeviceOptions::target() const {
  return with_device([](const std::string& device) {
    constexpr std::string_view kEmulated = "emulated:";
    if (device.starts_with(kEmulated)) return target_of(device.substr(kEmulated.size()));
    if (device != "cuda" && !device.starts_with("cuda:")) api::refuse_device(device);
    return runtime::open_cuda_device(device)->target();
  });
}

CLI::Validator has_text() {
  const auto refusal = [](const std::string& text) -> std::string {
    if (text.empty()) return "may not be empty";
    if (!text.starts_with("--")) return {};
    return fmt::format("is \"{}\", the next flag; may be a text of its own", text);
  };
  return CLI::Validator(refusal, "");
}

CLI::Validator number_between(double least, double most) {
  const std::string range = fmt::format("{} to {}", least, most);
  const auto refusal = [=](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    // CLI11's own range check accepts NaN.
    const bool in = !text.empty() && *end == '\0' && value >= least && value <= most;
    return in ? std::string() : fmt::format("is \"{}\", may be {}", text, range);
  };
  return CLI::Validator(refusal, range);
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const auto refusal = [=](const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    // Only the usual spelling: CLI11 reads 010 as 8.
    const bool in = error == std::errc() && text == std::to_string(value) && value >= least && value <= most;
    return in ? std::string()
              : fmt::format("is \"{}\", may be a whole number from {} to {}", text, least, most);
  };
  return CLI::Validator(refusal, "");
}

void add_seed_to(CLI::App& verb, std::uint64_t& seed, const std::string& description) {
  verb.add_option("--seed", seed, description)
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str()
      ->group("Data");
}

void add_schedule_to(CLI::App& verb, std::string& schedule) {
  verb.add_option("--schedule", schedule,
                  "this one and no other, such as mma:m64n64w4s2; by default what a plan would take")
      ->check(has_text());
}

void add_family_to(CLI::App& verb, std::string& family) {
  verb.add_option("--family", family, "simt, mma or wgmma only")
      ->check(CLI::IsMember({"simt", "mma", "wgmma"}));
}

void add_tune_to(CLI::App& verb, Tuning& tuning) {
  verb.add_option_function<std::string>(
          "--tune", [&tuning](const std::string& text) { tuning = autotune::effort_of(text); },
          "off (wisdom, else the model), quick or full")
      ->check(CLI::IsMember({"off", "quick", "full"}))
      ->default_str(autotune::to_string(tuning));
}

void refuse_tuned_schedule(const CLI::App& verb, Tuning tuning) {
  if (tuning == Tuning::off || verb.count("--schedule") == 0) return;
  refuse_ignored(verb, {"--tune"}, "--schedule", "there is nothing left to choose");
}

}  // namespace flashjit::cli

#include "api/c_structs.hpp"

#include <array>
#include <chrono>

#include "api/tuning.hpp"

namespace flashjit::c {
namespace {

template <class Enum, std::size_t n>
Enum choose(std::int32_t value, const std::array<Enum, n>& values, const char* name, const char* may_be) {
  if (value < 0 || value >= static_cast<std::int32_t>(n))
    refuse(fmt::format("{} is {}, may be {}", name, value, may_be));
  return values[static_cast<std::size_t>(value)];
}

void check_reserved(std::int32_t value, const char* name) {
  if (value != 0) refuse(fmt::format("{} is {}, may be 0", name, value));
}

std::string text(const char* given) {
  return given == nullptr ? std::string() : std::string(given);
}

Tuning tuning_of(std::int32_t value) {
  return choose(value, std::array{Tuning::off, Tuning::quick, Tuning::full}, "tuning",
                "FLASHJIT_TUNING_OFF (0), _QUICK (1) or _FULL (2)");
}

Strides convert(const flashjit_strides& from) {
  return {.batch = from.batch, .head = from.head, .row = from.row};
}

}  // namespace

void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) refuse(fmt::format("{} is null, must not be", name));
}

EngineOptions convert(const flashjit_engine_options& from) {
  check_reserved(from.reserved, "engine_options.reserved");
  if (from.tuning_budget_ms < 0 || from.tuning_budget_ms > flashjit::api::kLongestBudget.count()) {
    refuse(fmt::format("tuning_budget_ms is {}, may be 0 to {}, a day", from.tuning_budget_ms,
                       flashjit::api::kLongestBudget.count()));
  }
  EngineOptions options;
  if (from.device != nullptr) options.device = from.device;
  options.tuning = tuning_of(from.tuning);
  options.tuning_budget = std::chrono::milliseconds(from.tuning_budget_ms);
  options.cache_dir = text(from.cache_dir);
  options.use_cache = from.no_cache == 0;
  if (from.on_message != nullptr) {
    options.on_message = [call = from.on_message, context = from.context](std::string_view line) {
      call(context, std::string(line).c_str());
    };
  }
  return options;
}

Problem convert(const flashjit_problem& from) {
  check_reserved(from.reserved, "problem.reserved");
  return {.pass = choose(from.pass, std::array{Pass::forward, Pass::backward}, "pass",
                         "FLASHJIT_FORWARD (0) or FLASHJIT_BACKWARD (1)"),
          .dtype = choose(from.dtype, std::array{DType::bf16, DType::fp16, DType::fp32}, "dtype",
                          "FLASHJIT_BF16 (0), FLASHJIT_FP16 (1) or FLASHJIT_FP32 (2)"),
          .head_dim = from.head_dim,
          .head_dim_v = from.head_dim_v,
          .causal = from.causal != 0,
          .lse = from.no_lse == 0,
          .deterministic = from.deterministic != 0};
}

Shape convert(const flashjit_shape& from) {
  check_reserved(from.reserved, "shape.reserved");
  return {.batch = from.batch,
          .heads = from.heads,
          .heads_kv = from.heads_kv,
          .seqlen_q = from.seqlen_q,
          .seqlen_k = from.seqlen_k};
}

PlanOptions convert(const flashjit_plan_options& from) {
  check_reserved(from.reserved, "plan_options.reserved");
  return {.schedule = text(from.schedule),
          .family = text(from.family),
          .tuning = tuning_of(from.tuning),
          .stream = stream_of(from.stream)};
}

ForwardArgs convert(const flashjit_forward_args& from) {
  check_reserved(from.reserved, "forward_args.reserved");
  ForwardArgs args{.q = from.q,
                   .k = from.k,
                   .v = from.v,
                   .o = from.o,
                   .lse = from.lse,
                   .q_strides = convert(from.q_strides),
                   .k_strides = convert(from.k_strides),
                   .v_strides = convert(from.v_strides),
                   .o_strides = convert(from.o_strides)};
  if (from.scale != 0) args.scale = from.scale;
  if (from.shape != nullptr) args.shape = convert(read(from.shape, "flashjit_shape"));
  return args;
}

BackwardArgs convert(const flashjit_backward_args& from) {
  check_reserved(from.reserved, "backward_args.reserved");
  BackwardArgs args{.q = from.q,
                    .k = from.k,
                    .v = from.v,
                    .o = from.o,
                    .dout = from.dout,
                    .lse = from.lse,
                    .dq = from.dq,
                    .dk = from.dk,
                    .dv = from.dv,
                    .q_strides = convert(from.q_strides),
                    .k_strides = convert(from.k_strides),
                    .v_strides = convert(from.v_strides),
                    .o_strides = convert(from.o_strides),
                    .dout_strides = convert(from.dout_strides),
                    .dq_strides = convert(from.dq_strides),
                    .dk_strides = convert(from.dk_strides),
                    .dv_strides = convert(from.dv_strides),
                    .workspace = from.workspace};
  if (from.scale != 0) args.scale = from.scale;
  if (from.shape != nullptr) args.shape = convert(read(from.shape, "flashjit_shape"));
  return args;
}

}  // namespace flashjit::c

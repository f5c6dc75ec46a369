// The C interface on top of Engine and Plan: structs checked by their size, exceptions turned into a status
// and a message.
#include "flashjit/flashjit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "api/engine_state.hpp"
#include "flashjit/flashjit.hpp"

struct flashjit_engine {
  std::shared_ptr<flashjit::EngineState> state;
  flashjit::Engine engine;
  std::string device, description;
};

struct flashjit_plan {
  flashjit::Plan plan;
  std::string kernel;
  std::vector<flashjit::KernelView> kernels;  // of strings, so that each ends in a zero
};

namespace {

using flashjit::Error;
using flashjit::ErrorCode;

std::string& last_error() {
  thread_local std::string text;
  return text;
}

flashjit_status fail(flashjit_status status, const char* what) {
  try {
    last_error() = what;
  } catch (const std::bad_alloc&) {
    last_error().clear();  // no room for words: the status has to do
  }
  return status;
}

// Runs a call's body; nothing that it throws crosses into C.
template <class Body>
flashjit_status guarded(const Body& body) {
  try {
    body();
    return FLASHJIT_OK;
  } catch (const Error& error) {
    return fail(static_cast<flashjit_status>(error.code()), error.what());
  } catch (const std::exception& error) {
    return fail(FLASHJIT_INTERNAL, error.what());
  } catch (...) {
    return fail(FLASHJIT_INTERNAL, "an exception that is no std::exception");
  }
}
static_assert(static_cast<int>(ErrorCode::invalid_argument) == FLASHJIT_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::unsupported) == FLASHJIT_UNSUPPORTED);
static_assert(static_cast<int>(ErrorCode::not_found) == FLASHJIT_NOT_FOUND);
static_assert(static_cast<int>(ErrorCode::compile_failed) == FLASHJIT_COMPILE_FAILED);
static_assert(static_cast<int>(ErrorCode::device) == FLASHJIT_DEVICE);
static_assert(static_cast<int>(ErrorCode::io) == FLASHJIT_IO);
static_assert(static_cast<int>(ErrorCode::wrong_result) == FLASHJIT_WRONG_RESULT);
static_assert(static_cast<int>(ErrorCode::internal) == FLASHJIT_INTERNAL);

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) refuse(fmt::format("{} is null", name));
}

// A caller's struct as this library knows it. A shorter one is of an older version: what it lacks is zero,
// its default. A longer one is of a newer version, and fine as long as it asks for nothing that we do not
// know.
template <class Struct>
Struct read(const Struct* given, const char* name) {
  require(given, name);
  Struct known{};
  const std::size_t size = given->size;
  constexpr std::size_t kMost = 1 << 16;
  if (size < sizeof(std::size_t) * 2 || size > kMost) {
    refuse(fmt::format("{}.size is {}, may be sizeof(struct {})", name, size, name));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  std::memcpy(&known, bytes, std::min(size, sizeof known));
  if (size > sizeof known &&
      std::any_of(bytes + sizeof known, bytes + size, [](unsigned char b) { return b != 0; })) {
    refuse(fmt::format(
        "{}.size is {}, and it sets a field that this version (flashjit {}, {} bytes) does not know", name,
        size, FLASHJIT_VERSION, sizeof known));
  }
  known.size = sizeof known;
  return known;
}

template <class Struct>
Struct read_or_default(const Struct* given, const char* name) {
  return given == nullptr ? Struct{} : read(given, name);
}

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

flashjit::Stream stream_of(void* stream) {
  return static_cast<flashjit::Stream>(stream);
}

flashjit::Tuning tuning_of(std::int32_t value) {
  using flashjit::Tuning;
  return choose(value, std::array{Tuning::off, Tuning::quick, Tuning::full}, "tuning",
                "FLASHJIT_TUNING_OFF (0), _QUICK (1) or _FULL (2)");
}

flashjit::EngineOptions convert(const flashjit_engine_options& from) {
  check_reserved(from.reserved, "engine_options.reserved");
  if (from.tuning_budget_ms < 0)
    refuse(fmt::format("tuning_budget_ms is {}, may be 0 or more", from.tuning_budget_ms));
  flashjit::EngineOptions options;
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

flashjit::Problem convert(const flashjit_problem& from) {
  using flashjit::DType;
  using flashjit::Pass;
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

flashjit::Shape convert(const flashjit_shape& from) {
  check_reserved(from.reserved, "shape.reserved");
  return {.batch = from.batch,
          .heads = from.heads,
          .heads_kv = from.heads_kv,
          .seqlen_q = from.seqlen_q,
          .seqlen_k = from.seqlen_k};
}

flashjit::PlanOptions convert(const flashjit_plan_options& from) {
  check_reserved(from.reserved, "plan_options.reserved");
  return {.schedule = text(from.schedule),
          .family = text(from.family),
          .tuning = tuning_of(from.tuning),
          .stream = stream_of(from.stream)};
}

flashjit::Strides convert(const flashjit_strides& from) {
  return {.batch = from.batch, .head = from.head, .row = from.row};
}

flashjit::ForwardArgs convert(const flashjit_forward_args& from) {
  check_reserved(from.reserved, "forward_args.reserved");
  flashjit::ForwardArgs args{.q = from.q,
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

flashjit::BackwardArgs convert(const flashjit_backward_args& from) {
  check_reserved(from.reserved, "backward_args.reserved");
  flashjit::BackwardArgs args{.q = from.q,
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

// Writes as much of a struct as the caller's size has room for.
template <class Struct>
void answer(Struct* to, Struct known, const char* name) {
  const std::size_t size = to->size;
  if (size < sizeof(std::size_t) * 2)
    refuse(fmt::format("{}.size is {}, may be sizeof(struct {})", name, size, name));
  known.size = size;
  std::memcpy(to, &known, std::min(size, sizeof known));
}

flashjit::Plan make_plan(flashjit_engine* engine, const flashjit_problem* problem,
                         const flashjit_shape* shape, const flashjit_plan_options* options) {
  require(engine, "engine");
  return engine->engine.plan(convert(read(problem, "flashjit_problem")),
                             convert(read(shape, "flashjit_shape")),
                             convert(read_or_default(options, "flashjit_plan_options")));
}

}  // namespace

const char* flashjit_version() {
  return FLASHJIT_VERSION;
}

const char* flashjit_last_error() {
  return last_error().c_str();
}

flashjit_status flashjit_engine_create(const flashjit_engine_options* options, flashjit_engine** engine) {
  return guarded([&] {
    require(engine, "engine");
    *engine = nullptr;
    auto state =
        std::make_shared<flashjit::EngineState>(convert(read_or_default(options, "flashjit_engine_options")));
    flashjit::Engine made = flashjit::EngineAccess::make(state);
    std::string device = made.device_name();
    std::string description = made.device_description();
    *engine =
        new flashjit_engine{std::move(state), std::move(made), std::move(device), std::move(description)};
  });
}

void flashjit_engine_destroy(flashjit_engine* engine) {
  delete engine;
}

flashjit_status flashjit_plan_create(flashjit_engine* engine, const flashjit_problem* problem,
                                     const flashjit_shape* shape, const flashjit_plan_options* options,
                                     flashjit_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    *plan = nullptr;
    flashjit::Plan made = make_plan(engine, problem, shape, options);
    std::string kernel = made.kernel_name();
    std::vector<flashjit::KernelView> kernels = made.kernels();
    *plan = new flashjit_plan{std::move(made), std::move(kernel), std::move(kernels)};
  });
}

void flashjit_plan_destroy(flashjit_plan* plan) {
  delete plan;
}

flashjit_status flashjit_prepare(flashjit_engine* engine, const flashjit_problem* problem,
                                 const flashjit_shape* shape, const flashjit_plan_options* options) {
  return guarded([&] {
    require(engine, "engine");
    engine->engine.prepare(convert(read(problem, "flashjit_problem")), convert(read(shape, "flashjit_shape")),
                           convert(read_or_default(options, "flashjit_plan_options")));
  });
}

flashjit_status flashjit_forward(const flashjit_plan* plan, const flashjit_forward_args* args, void* stream) {
  return guarded([&] {
    require(plan, "plan");
    plan->plan.forward(convert(read(args, "flashjit_forward_args")), stream_of(stream));
  });
}

flashjit_status flashjit_backward(const flashjit_plan* plan, const flashjit_backward_args* args,
                                  void* stream) {
  return guarded([&] {
    require(plan, "plan");
    plan->plan.backward(convert(read(args, "flashjit_backward_args")), stream_of(stream));
  });
}

flashjit_status flashjit_workspace_bytes(const flashjit_plan* plan, const flashjit_shape* shape,
                                         size_t* bytes) {
  return guarded([&] {
    require(plan, "plan");
    require(bytes, "bytes");
    *bytes = 0;
    *bytes = plan->plan.workspace_bytes(shape == nullptr ? plan->plan.shape()
                                                         : convert(read(shape, "flashjit_shape")));
  });
}

flashjit_status flashjit_plan_origin(const flashjit_plan* plan, flashjit_origin* origin) {
  return guarded([&] {
    require(plan, "plan");
    require(origin, "origin");
    const flashjit::Origin& from = plan->plan.origin();
    answer(origin,
           {.schedule = from.schedule.c_str(),
            .choice = from.choice.c_str(),
            .code = from.code.c_str(),
            .note = from.note.c_str(),
            .kernel = plan->kernel.c_str(),
            .kernels = plan->kernels.size(),
            .held_bytes = plan->plan.held_bytes()},
           "flashjit_origin");
  });
}

flashjit_status flashjit_plan_kernel(const flashjit_plan* plan, size_t index, flashjit_kernel* kernel) {
  return guarded([&] {
    require(plan, "plan");
    require(kernel, "kernel");
    if (index >= plan->kernels.size())
      refuse(fmt::format("index is {}, may be 0 to {}", index, plan->kernels.size() - 1));
    const flashjit::KernelView& view = plan->kernels[index];
    answer(kernel, {.name = view.name.data(), .source = view.source.data()}, "flashjit_kernel");
  });
}

const char* flashjit_engine_device(const flashjit_engine* engine) {
  return engine == nullptr ? "" : engine->device.c_str();
}
const char* flashjit_engine_description(const flashjit_engine* engine) {
  return engine == nullptr ? "" : engine->description.c_str();
}
const char* flashjit_engine_arch(const flashjit_engine* engine) {
  return engine == nullptr ? "" : engine->engine.target().arch.c_str();
}

flashjit_status flashjit_allocate(flashjit_engine* engine, size_t bytes, void** memory) {
  return guarded([&] {
    require(engine, "engine");
    require(memory, "memory");
    *memory = bytes == 0 ? nullptr : engine->state->device().allocate(bytes);
  });
}

flashjit_status flashjit_free(flashjit_engine* engine, void* memory) {
  return guarded([&] {
    require(engine, "engine");
    if (memory != nullptr) engine->state->device().free(memory);
  });
}

flashjit_status flashjit_upload(flashjit_engine* engine, void* to, const void* from, size_t bytes,
                                void* stream) {
  return guarded([&] {
    require(engine, "engine");
    if (bytes == 0) return;
    require(to, "to");
    require(from, "from");
    engine->state->device().copy_to_device(to, from, bytes, stream_of(stream));
  });
}

flashjit_status flashjit_download(flashjit_engine* engine, void* to, const void* from, size_t bytes,
                                  void* stream) {
  return guarded([&] {
    require(engine, "engine");
    if (bytes == 0) return;
    require(to, "to");
    require(from, "from");
    engine->state->device().copy_to_host(to, from, bytes, stream_of(stream));
  });
}

flashjit_status flashjit_synchronize(flashjit_engine* engine, void* stream) {
  return guarded([&] {
    require(engine, "engine");
    engine->state->device().synchronize(stream_of(stream));
  });
}

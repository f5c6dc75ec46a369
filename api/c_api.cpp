// The C interface on top of Engine and Plan: exceptions become a status and a message.
#include "flashjit/flashjit.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "api/c_handles.hpp"
#include "api/c_structs.hpp"
#include "api/engine_state.hpp"
#include "api/per_thread.hpp"
#include "flashjit/flashjit.hpp"

namespace {

using flashjit::DType;
using flashjit::Error;
using flashjit::ErrorCode;
using namespace flashjit::c;

struct LastError {
  std::string text;
};
using ThisLastError = flashjit::api::PerThread<LastError>;

flashjit_status fail(flashjit_status status, const char* what) {
  try {
    ThisLastError::get().text = what;
  } catch (const std::bad_alloc&) {
    // No memory for the text: the status has to do.
    if (LastError* const earlier = ThisLastError::find()) earlier->text.clear();
  }
  return status;
}

// Runs the body of a call, so that no exception crosses into C.
template <class Body>
flashjit_status guarded(const Body& body) {
  try {
    body();
    return FLASHJIT_OK;
  } catch (const Error& error) {
    return fail(static_cast<flashjit_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(FLASHJIT_DEVICE, "the host's memory ran out");
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
static_assert(static_cast<int>(DType::bf16) == FLASHJIT_BF16);
static_assert(static_cast<int>(DType::fp16) == FLASHJIT_FP16);
static_assert(static_cast<int>(DType::fp32) == FLASHJIT_FP32);

// What a caller asks a plan for.
struct Question {
  flashjit::Problem problem;
  flashjit::Shape shape;
  flashjit::PlanOptions options;
};

Question question(const flashjit_problem* problem, const flashjit_shape* shape,
                  const flashjit_plan_options* options) {
  Question asked{convert(read(problem, "flashjit_problem")), convert(read(shape, "flashjit_shape")),
                 convert(read_or_default(options, "flashjit_plan_options"))};
  // A call's own shape may have batch 0: nothing is launched then. Here a field was forgotten.
  if (asked.shape.batch == 0) refuse("batch is 0 or left out, may be 1 or more in a plan's shape");
  return asked;
}

}  // namespace

const char* flashjit_version() {
  return FLASHJIT_VERSION;
}

const char* flashjit_last_error() {
  const LastError* const error = ThisLastError::find();
  return error == nullptr ? "" : error->text.c_str();
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
    require(engine, "engine");
    const Question asked = question(problem, shape, options);
    flashjit::Plan made = engine->engine.plan(asked.problem, asked.shape, asked.options);
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
    const Question asked = question(problem, shape, options);
    engine->engine.prepare(asked.problem, asked.shape, asked.options);
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
    *memory = nullptr;
    if (bytes == 0) return;
    flashjit::runtime::Device& device = engine->state->device();
    void* const made = device.allocate(bytes);
    try {
      const std::lock_guard lock(engine->mutex);
      engine->allocated.insert(made);
    } catch (const std::bad_alloc&) {
      device.free(made);
      throw;
    }
    *memory = made;
  });
}

flashjit_status flashjit_free(flashjit_engine* engine, void* pointer) {
  return guarded([&] {
    require(engine, "engine");
    if (pointer == nullptr) return;
    const auto taken = [&] {
      const std::lock_guard lock(engine->mutex);
      return engine->allocated.erase(pointer) != 0;
    };
    if (!taken() || !engine->state->device().release(pointer)) {
      refuse(
          fmt::format("pointer is {}, may be null or what flashjit_allocate gave for this engine and nobody "
                      "has freed yet",
                      fmt::ptr(pointer)));
    }
  });
}

flashjit_status flashjit_upload(flashjit_engine* engine, void* to, const void* from, size_t bytes,
                                void* stream) {
  return guarded([&] {
    require(engine, "engine");
    if (bytes == 0) return;
    require(to, "to");
    require(from, "from");
    engine->state->refuse_in_capture("upload", stream_of(stream));
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
    engine->state->refuse_in_capture("download", stream_of(stream));
    engine->state->device().copy_to_host(to, from, bytes, stream_of(stream));
  });
}

flashjit_status flashjit_synchronize(flashjit_engine* engine, void* stream) {
  return guarded([&] {
    require(engine, "engine");
    engine->state->refuse_in_capture("synchronize", stream_of(stream));
    engine->state->device().synchronize(stream_of(stream));
  });
}

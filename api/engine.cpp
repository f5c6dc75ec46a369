// Engine and Buffer: thin handles on an EngineState.
#include "flashjit/engine.hpp"

#include <fmt/format.h>

#include <utility>

#include "api/engine_state.hpp"
#include "api/plan_state.hpp"
#include "flashjit/error.hpp"

namespace flashjit {
namespace {

EngineOptions on(std::string_view device) {
  EngineOptions options;
  options.device = std::string(device);
  return options;
}

// own: whether the Buffer belongs to this Engine.
void check_copy(const Buffer& buffer, bool own, const char* buffer_name, const void* host,
                const char* host_name, std::size_t bytes) {
  if (bytes > buffer.size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("bytes is {}, may be at most the {} bytes of {}",
                                                         bytes, buffer.size(), buffer_name));
  }
  if (bytes != 0 && !own) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is a Buffer of another Engine, may be one of this", buffer_name));
  }
  if (bytes != 0 && host == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is null, may be {} bytes of host memory", host_name, bytes));
  }
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : state_(std::move(other.state_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) state_->device().free(data_);
}

Engine::Engine(std::string_view device) : Engine(on(device)) {}
Engine::Engine(const EngineOptions& options) : state_(std::make_shared<EngineState>(options)) {}
Engine::Engine(std::shared_ptr<EngineState> state) : state_(std::move(state)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Plan Engine::plan(const Problem& problem, const Shape& shape, const PlanOptions& options) {
  const auto [ready, fresh] = state_->ready(problem, shape, options);
  Origin origin = ready->origin;
  if (!fresh) origin.code = "memory";
  return Plan(std::make_shared<const PlanState>(PlanState{.engine = state_,
                                                          .launcher = ready->launcher,
                                                          .problem = problem,
                                                          .shape = shape,
                                                          .origin = std::move(origin)}));
}

void Engine::prepare(const Problem& problem, const Shape& shape, const PlanOptions& options) {
  state_->ready(problem, shape, options).ready->launcher->replenish();
}

const Target& Engine::target() const {
  return state_->device().target();
}
std::string Engine::device_name() const {
  return state_->device().name();
}
std::string Engine::device_description() const {
  return state_->device().description();
}

Buffer Engine::allocate(std::size_t bytes) {
  Buffer buffer;
  if (bytes != 0) buffer.data_ = state_->device().allocate(bytes);
  buffer.state_ = state_;
  buffer.size_ = bytes;
  return buffer;
}

void Engine::upload(const Buffer& to, const void* from, std::size_t bytes, Stream stream) {
  check_copy(to, to.state_ == state_, "to", from, "from", bytes);
  if (bytes == 0) return;
  state_->refuse_in_capture("upload", stream);
  state_->device().copy_to_device(to.data(), from, bytes, stream);
}

void Engine::download(void* to, const Buffer& from, std::size_t bytes, Stream stream) {
  check_copy(from, from.state_ == state_, "from", to, "to", bytes);
  if (bytes == 0) return;
  state_->refuse_in_capture("download", stream);
  state_->device().copy_to_host(to, from.data(), bytes, stream);
}

void Engine::synchronize(Stream stream) {
  state_->refuse_in_capture("synchronize", stream);
  state_->device().synchronize(stream);
}

}  // namespace flashjit

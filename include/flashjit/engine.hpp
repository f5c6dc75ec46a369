// Engine: a device, a compiler and a cache. Safe to use from many threads. Plans and Buffers keep what they
// need of it alive, and may be used when it is gone. Every thread that may make a plan must have ended before
// exit(), or main's return: a compile that NVRTC is in the midst of then crashes.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"

#pragma GCC visibility push(default)

namespace flashjit {

// How much to spend on choosing a schedule before the first launch. Where there is no flashjit command to
// tune in, this process does it, in the default stream: no stream may be captured beside it.
enum class Tuning { off, quick, full };

struct EngineOptions {
  // "cuda:1"; "cuda": the GPU of the thread's current CUDA context, cuda:0 where it has none; or
  // "emulated:sm_90a", which needs no GPU.
  std::string device = "cuda";
  Tuning tuning = Tuning::off;  // off: wisdom, else the model; costs one compile
  std::chrono::milliseconds tuning_budget{
      0};                   // 0: the mode's own (quick 5 s, full 30 s a problem); at most a day
  std::string cache_dir{};  // empty: FLASHJIT_CACHE_DIR, else $XDG_CACHE_HOME or ~/.cache, flashjit
  bool use_cache = true;    // false: nothing is read from or written to disk
  // Receives warnings and progress, one line each; empty: warnings go to stderr. Called from any thread, by
  // several at once, in the midst of a call of the Engine: it must not call into this Engine, nor wait for
  // who does, and what it throws reaches whoever called.
  std::function<void(std::string_view line)> on_message{};
};

struct PlanOptions {
  std::string schedule{};       // "mma:m128n64w4s2": this one and no other; empty: chosen
  std::string family{};         // "mma": only schedules of this family; empty: all
  Tuning tuning = Tuning::off;  // the higher of this and the Engine's counts
  // The caller's stream, if it may be in capture: a plan that must be compiled, loaded or tuned is then an
  // Error that names Engine::prepare, and the capture stays valid.
  Stream stream = nullptr;
};

// Device memory that frees itself, once the GPU has done what was enqueued before (cuMemFree waits for it).
// Ordinary CUDA memory from anywhere else works just as well on a GPU. Move assignment swaps: what the left
// side held lives on in the right one.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }  // bytes

 private:
  friend class Engine;
  std::shared_ptr<class EngineState> state_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Keeps every kernel and plan that it made, until it and its last Plan and Buffer are gone: a Plan's end
// alone gives nothing back. A CUDA context that the caller made outlives all of these. An Engine that was
// moved from may be destroyed and assigned to, and nothing else. The kernels of a GPU go with it and its last
// Plan: their launches must be done by then. After a fork, the child may launch and plan on an emulated
// device, if no other thread of the parent was in a call of flashjit; a CUDA context does not survive it, nor
// does an Engine on a GPU.
class Engine {
 public:
  // Throw Error: invalid_argument where an option or a variable makes no sense, or there is no such GPU,
  // not_found where there is no driver or one older than 525, unsupported where the GPU is older than sm_75,
  // device, io where the cache directory is none or cannot be trusted.
  explicit Engine(std::string_view device = "cuda");
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // The tuned, compiled, loaded kernel for this problem and sizes like these. Slow the first time, then a
  // lookup. Throws Error: invalid_argument, unsupported, not_found, compile_failed, device; and, as every
  // call here, std::bad_alloc where the host's memory runs out.
  [[nodiscard]] Plan plan(const Problem& problem, const Shape& shape, const PlanOptions& options = {});

  // plan(), for its effect on memory and disk: call it before a stream capture, or to warm a cache. What is
  // ready then are plans for this problem, sizes like these and the same options (but stream).
  void prepare(const Problem& problem, const Shape& shape, const PlanOptions& options = {});

  [[nodiscard]] const Target& target() const;
  [[nodiscard]] std::string device_name() const;         // "cuda:0", "emulated:sm_90a"
  [[nodiscard]] std::string device_description() const;  // "NVIDIA H200, driver 580.159"

  // Copies go to and from a Buffer's start and are ordered with the stream's work; download waits for it.
  // Pinned host memory that is uploaded must stay as it is until the stream has done so; any other is copied
  // on return. Throw Error: device; invalid_argument for more bytes than the Buffer has, or one of another
  // Engine; unsupported in a stream that is being captured, or in the default stream while one that waits for
  // it is.
  [[nodiscard]] Buffer allocate(std::size_t bytes);
  void upload(const Buffer& to, const void* from, std::size_t bytes, Stream stream = nullptr);
  void download(void* to, const Buffer& from, std::size_t bytes, Stream stream = nullptr);
  void synchronize(Stream stream = nullptr);

 private:
  friend struct EngineAccess;  // api/engine_state.hpp: the rooms above look inside
  explicit Engine(std::shared_ptr<class EngineState> state);
  std::shared_ptr<class EngineState> state_;
};

}  // namespace flashjit

#pragma GCC visibility pop

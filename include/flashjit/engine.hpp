// Engine: a device, a compiler and a cache. Any number of threads may use one at once. Plans and Buffers keep
// what they need of their Engine alive, and may be used after the Engine is destroyed. Every thread that may
// make a plan must have ended before exit(), or before main returns: a compile that is still running in NVRTC
// crashes then.
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

// How much time to spend on choosing a schedule before the first launch. Candidates run in a second process,
// the flashjit command. Where no such command of this version is found, they run in this process, in the
// default stream, and no stream may be captured meanwhile.
enum class Tuning { off, quick, full };

struct EngineOptions {
  // "cuda:1": GPU number 1. "cuda": the GPU of the calling thread's current CUDA context, or cuda:0 if there
  // is no current context. "emulated:sm_90a": the emulator of an arch, which needs no GPU.
  std::string device = "cuda";
  Tuning tuning = Tuning::off;  // off: wisdom's schedule, else the model's; costs one compile
  std::chrono::milliseconds tuning_budget{
      0};                   // 0: the mode's own (quick 5 s, full 30 s per problem); at most a day
  std::string cache_dir{};  // empty: FLASHJIT_CACHE_DIR, else $XDG_CACHE_HOME/flashjit, else
                            // ~/.cache/flashjit; a relative one counts from the working directory when the
                            // Engine is made
  bool use_cache = true;    // false: nothing is read from or written to disk
  // Receives warnings and progress, one line per call; empty: the lines go to stderr. Called from any thread,
  // by several threads at once, and in the midst of a call of the Engine. It must not call into this Engine,
  // nor into one that tunes on the same device, and must not block on a thread that does. What it throws
  // reaches whoever made that call.
  std::function<void(std::string_view line)> on_message{};
};

struct PlanOptions {
  std::string schedule{};       // "mma:m128n64w4s2": this one and no other; empty: chosen
  std::string family{};         // "mma": only schedules of this family; empty: all
  Tuning tuning = Tuning::off;  // the higher of this and the Engine's counts
  // The caller's stream, if it may be in capture. While it is, a plan that would have to be compiled, loaded
  // or tuned is refused: plan() throws unsupported and names Engine::prepare, and the capture stays valid.
  Stream stream = nullptr;
};

// Device memory that frees itself; freeing waits for the work that was enqueued before (cuMemFree). On a GPU,
// CUDA memory from anywhere else works just as well. Move assignment swaps: the right-hand Buffer then holds,
// and later frees, what the left-hand one held.
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

// An Engine keeps every kernel and plan that it made. They go with the Engine and its last Plan and Buffer;
// destroying a Plan alone gives nothing back.
// - On a GPU, all launches of these kernels must have finished before the kernels go.
// - A CUDA context that the caller made must outlive the Engine and all its Plans and Buffers.
// - An Engine that was moved from may be destroyed or assigned to, and nothing else.
// - After a fork, the child may plan and launch on an emulated device, if no other thread of the parent was
//   in a call of flashjit. A CUDA context does not survive a fork, and neither does an Engine on a GPU.
class Engine {
 public:
  // Throw Error: invalid_argument if an option or an environment variable makes no sense, or if no GPU has
  // this number; not_found if there is no driver, or one older than 525, if no GPU is visible, or if
  // FLASHJIT_TEMPLATE_DIR is not a directory; unsupported if the GPU is older than sm_75; device; io if the
  // cache directory is not a directory or cannot be trusted, or if a template cannot be read.
  explicit Engine(std::string_view device = "cuda");
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // A plan for this problem and sizes like these: tuned, compiled and loaded the first time, looked up after
  // that. Throws Error: invalid_argument, unsupported, not_found, compile_failed, device, io. Like every call
  // here, it throws std::bad_alloc if the host's memory runs out.
  [[nodiscard]] Plan plan(const Problem& problem, const Shape& shape, const PlanOptions& options = {});

  // Does the work of plan() without returning a plan: call it before a stream capture, or to warm a cache.
  // Plans are then ready for this problem, for sizes like these, and for the same options except stream.
  void prepare(const Problem& problem, const Shape& shape, const PlanOptions& options = {});

  [[nodiscard]] const Target& target() const;
  [[nodiscard]] std::string device_name() const;         // "cuda:0", "emulated:sm_90a"
  [[nodiscard]] std::string device_description() const;  // "NVIDIA H200, driver 580.159"

  // Copies start at the Buffer's first byte and keep the order of the stream's work; download waits for its
  // copy. Pinned host memory that is uploaded must not change until the stream has made the copy; any other
  // has been copied when upload returns. Throw Error: device; invalid_argument for more bytes than the Buffer
  // has, or for a Buffer of another Engine; unsupported in a stream that is being captured, or in the default
  // stream while a stream that waits for it is being captured.
  [[nodiscard]] Buffer allocate(std::size_t bytes);
  void upload(const Buffer& to, const void* from, std::size_t bytes, Stream stream = nullptr);
  void download(void* to, const Buffer& from, std::size_t bytes, Stream stream = nullptr);
  void synchronize(Stream stream = nullptr);

 private:
  friend struct EngineAccess;  // api/engine_state.hpp: for the C interface, cli and tests
  explicit Engine(std::shared_ptr<class EngineState> state);
  std::shared_ptr<class EngineState> state_;
};

}  // namespace flashjit

#pragma GCC visibility pop

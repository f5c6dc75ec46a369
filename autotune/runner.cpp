// The runner of this process: buffers on the device, kernels by schedule, verification and timing.
#include "autotune/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "autotune/exam.hpp"
#include "autotune/inputs.hpp"
#include "autotune/tune.hpp"
#include "flashjit/error.hpp"
#include "runtime/threads.hpp"

namespace flashjit::autotune {
namespace {

// Sizes like the shape's, but small and odd: ragged ends on both sides, and everything is compared. Where
// sequences are short there are more of them: the largest error of few rows is a matter of luck, and now and
// then twice that of another draw.
Shape small_shape(const Shape& shape, bool emulated) {
  constexpr int kRows = 64;
  Shape small = shape;
  const int group = std::min(shape.heads / shape.kv_heads(), 2);
  const int shortest = std::max(1, std::min(shape.seqlen_q, shape.seqlen_k));
  small.batch = (kRows + shortest - 1) / shortest;
  small.heads_kv = std::min(shape.kv_heads(), 2);
  small.heads = small.heads_kv * group;
  small.seqlen_q = std::min(shape.seqlen_q, emulated ? 67 : 197);
  small.seqlen_k = std::min(shape.seqlen_k, emulated ? 133 : 333);
  return small;
}

class LocalRunner : public Runner {
 public:
  LocalRunner(runtime::Device& device, const Problem& problem, const Shape& shape, Build build,
              const LocalOptions& options)
      : device_(device),
        problem_(problem),
        shape_(shape),
        build_(std::move(build)),
        options_(options),
        clock_(options.clock != nullptr ? *options.clock : Clock::real()),
        layout_(problem, shape),
        sets_(sets_of(layout_, device.target())),
        memory_(allocate(device, sets_, layout_.bytes)) {
    upload();
  }

  void build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
             const BuildDone& done) override;
  Check verify(const Schedule& schedule) override;
  Timing time(const Schedule& schedule, const MeasureOptions& options) override;

 private:
  // As many sets of tensors as it takes to push each other out of L2; two where one set is larger than L2.
  static std::size_t sets_of(const CallLayout& layout, const Target& target) {
    const std::size_t l2 = target.l2_bytes > 0 ? target.l2_bytes : 64u << 20;
    return std::clamp<std::size_t>((2 * l2 + layout.bytes - 1) / std::max<std::size_t>(layout.bytes, 1), 2,
                                   4096);
  }

  // Fewer sets where memory is short: one is enough for right results, and where two do not fit in memory,
  // one fits in no cache.
  static std::unique_ptr<Memory> allocate(runtime::Device& device, std::size_t& sets, std::size_t bytes) {
    try {
      return std::make_unique<Memory>(device, sets * bytes);
    } catch (const Error&) {
      sets = 1;
      return std::make_unique<Memory>(device, bytes);
    }
  }

  void upload();
  void prepare_exams();
  void add_small_exam(InputKind kind);
  const Built& built(const Schedule& schedule);
  // Memory for one backward call of the kernel at these sizes, poisoned; null where it needs none.
  void* workspace(const Built& kernel, const Shape& shape);

  runtime::Device& device_;
  const Problem problem_;
  const Shape shape_;
  const Build build_;
  const LocalOptions options_;
  Clock& clock_;
  const CallLayout layout_;
  std::size_t sets_;
  std::unique_ptr<Memory> memory_;
  std::vector<std::byte> image_;  // what every set's call reads
  std::map<std::string, Built> kernels_;
  std::vector<Exam> exams_;
  bool exams_ready_ = false;
  std::vector<std::vector<std::byte>> small_images_;
  std::vector<std::unique_ptr<Memory>> small_memory_;
  std::unique_ptr<Memory> workspace_;
  std::size_t workspace_bytes_ = 0;
};

void LocalRunner::upload() {
  // One host image serves every set: for the caches only addresses matter.
  image_.resize(layout_.input_bytes);
  fill_inputs(problem_, shape_, layout_, options_.seed, image_.data());
  for (std::size_t set = 0; set < sets_; ++set) {
    device_.copy_to_device(memory_->at(set * layout_.bytes), image_.data(), image_.size(), nullptr);
  }
  device_.synchronize(nullptr);
}

void LocalRunner::build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
                        const BuildDone& done) {
  // Made before any thread starts: a thread has nobody to tell that memory ran out for its answer.
  struct Finished {
    Built built;
    bool late = false;
    std::exception_ptr thrown;
  };
  std::vector<Finished> results(schedules.size());
  std::vector<std::size_t> finished;  // which of them are ready and were not heard yet
  finished.reserve(schedules.size());
  const double end = clock_.seconds() + std::chrono::duration<double>(time).count();
  std::mutex mutex;
  std::condition_variable news;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < schedules.size(); i = next++) {
      Finished& result = results[i];
      const double left = end - clock_.seconds();
      result.late = left <= 0;
      if (!result.late) {
        try {
          const std::chrono::milliseconds rest(static_cast<std::int64_t>(left * 1000) + 1);
          result.built = build_(schedules[i], std::min(rest, options_.compile_deadline));
        } catch (...) {
          result.thrown = std::current_exception();
          result.late = clock_.seconds() >= end;
        }
      }
      const std::lock_guard lock(mutex);
      finished.push_back(i);
      news.notify_one();
    }
  };
  // What is wrong with a candidate, if anything. The caller's on_message, which is told of a full disk from
  // here, may throw whatever it likes, and that goes to the caller.
  const auto error_of = [](const Finished& result) -> std::optional<Error> {
    try {
      if (result.thrown) std::rethrow_exception(result.thrown);
    } catch (const Error& error) {
      if (!result.late) return error;
    } catch (const std::bad_alloc&) {
      return host_memory_error();
    } catch (const std::length_error&) {
      return host_memory_error();
    }
    if (!result.late) return std::nullopt;
    return Error(ErrorCode::compile_failed, "there was no time left to compile it");
  };
  const std::size_t wanted = options_.threads > 0 ? static_cast<std::size_t>(options_.threads)
                                                  : std::max(1u, std::thread::hardware_concurrency());
  const auto pool = runtime::start_threads(std::min(wanted, schedules.size()), work);
  if (pool.empty()) work();
  std::optional<Error> ours;  // an error that is not a candidate's own
  bool all_ours = true;
  try {
    for (std::size_t heard = 0; heard < schedules.size(); ++heard) {
      std::size_t index = 0;
      {
        std::unique_lock lock(mutex);
        news.wait(lock, [&] { return !finished.empty(); });
        index = finished.back();
        finished.pop_back();
      }
      Finished& result = results[index];
      const std::optional<Error> error = error_of(result);
      const runtime::Resources resources = result.built.resources;
      if (!error) kernels_[to_string(schedules[index])] = std::move(result.built);
      all_ours = all_ours && error && !is_the_candidates(error->code());
      if (all_ours && !ours) ours.emplace(*error);
      done(index, resources, error ? error->what() : "");
    }
  } catch (...) {  // by the caller's on_message, which done() tells of progress
    next = schedules.size();
    throw;
  }
  if (all_ours && ours) throw Error(*ours);
}

const Built& LocalRunner::built(const Schedule& schedule) {
  const std::string name = to_string(schedule);
  auto found = kernels_.find(name);
  if (found == kernels_.end())
    found = kernels_.emplace(name, build_(schedule, options_.compile_deadline)).first;
  return found->second;
}

void LocalRunner::add_small_exam(InputKind kind) {
  const Shape small = small_shape(shape_, device_.estimates_time());
  const CallLayout layout(problem_, small);
  std::vector<std::byte>& image = small_images_.emplace_back(layout.input_bytes);
  fill_inputs(problem_, small, layout, kind, options_.seed, image.data());
  const Memory& memory = *small_memory_.emplace_back(std::make_unique<Memory>(device_, layout.bytes));
  device_.copy_to_device(memory.at(0), image.data(), image.size(), nullptr);
  exams_.emplace_back(problem_, small, image.data(), memory.at(0), 0, options_.seed, options_.threads);
}

void LocalRunner::prepare_exams() {
  if (exams_ready_) return;
  // What is there comes from an attempt that ran out of memory.
  exams_.clear();
  small_memory_.clear();
  small_images_.clear();
  add_small_exam(InputKind::peaky);
  add_small_exam(InputKind::growing);
  // The shape itself, for which an emulator would take hours: a sample of rows that a CPU computes in a
  // fraction of a second.
  exams_ready_ = device_.estimates_time();
  if (exams_ready_) return;
  const bool backward = problem_.pass == Pass::backward;
  const double group = 1.0 * shape_.heads / shape_.kv_heads();
  const double pairs = std::max(1, shape_.seqlen_k) + (backward ? group * shape_.seqlen_q : 0);
  const double per_row = pairs * (problem_.head_dim + problem_.value_dim()) * (backward ? 2 : 1);
  const int blocks = static_cast<int>(std::clamp(2.5e7 / per_row, 6.0, backward ? 8.0 : 32.0));
  exams_.emplace_back(problem_, shape_, image_.data(), memory_->at(0), blocks, options_.seed,
                      options_.threads);
  exams_ready_ = true;
}

void* LocalRunner::workspace(const Built& kernel, const Shape& shape) {
  if (!kernel.workspace_bytes) return nullptr;
  const std::size_t bytes = kernel.workspace_bytes(shape);
  if (bytes == 0) return nullptr;
  // An emulator poisons fresh memory and notices reads of what nothing wrote; to it, a fill is a write.
  const bool emulated = device_.estimates_time();
  if (emulated || bytes > workspace_bytes_) {
    workspace_.reset();
    workspace_bytes_ = 0;
    workspace_ = std::make_unique<Memory>(device_, bytes);
    workspace_bytes_ = bytes;
  }
  if (!emulated) device_.fill(workspace_->at(0), 0xff, bytes, nullptr);
  return workspace_->at(0);
}

Check LocalRunner::verify(const Schedule& schedule) {
  const Built& kernel = built(schedule);
  prepare_exams();
  Check worst;
  worst.ok = true;
  for (Exam& exam : exams_) {
    Check check = exam.examine(device_, kernel, workspace(kernel, exam.shape()));
    if (!check.ok) {
      check.message += fmt::format(" ({})", describe(exam.shape()));
      return check;
    }
    check.rows += worst.rows;
    worst = check;
  }
  return worst;
}

Timing LocalRunner::time(const Schedule& schedule, const MeasureOptions& options) {
  if (device_.estimates_time()) {
    Timing timing;
    timing.median_ms = timing.fastest_ms = predict(problem_, shape_, schedule, device_.target());
    timing.samples = 1;
    return timing;
  }
  const Built& kernel = built(schedule);
  void* const scratch = workspace(kernel, shape_);
  const auto launch_one = [&](std::int64_t i) {
    std::byte* const set = memory_->at(static_cast<std::size_t>(i) % sets_ * layout_.bytes);
    launch(kernel, problem_, shape_, layout_, set, scratch);
  };
  return measure(device_, nullptr, launch_one, options, clock_);
}

}  // namespace

bool is_the_candidates(ErrorCode code) {
  return code == ErrorCode::compile_failed || code == ErrorCode::unsupported || code == ErrorCode::device ||
         code == ErrorCode::wrong_result;
}

Error host_memory_error() {
  return {ErrorCode::device, "the host's memory is too small for the inputs, or for the reference",
          "A smaller shape needs less of it."};
}

std::unique_ptr<Runner> make_local_runner(runtime::Device& device, const Problem& problem, const Shape& shape,
                                          Build build, const LocalOptions& options) {
  return std::make_unique<LocalRunner>(device, problem, shape, std::move(build), options);
}

}  // namespace flashjit::autotune

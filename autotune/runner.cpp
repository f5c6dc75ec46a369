// The runner of this process: buffers on the device, kernels by schedule, verification and timing.
#include "autotune/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "autotune/inputs.hpp"
#include "autotune/tune.hpp"
#include "flashjit/error.hpp"

namespace flashjit::autotune {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuard = 4096;  // bytes after an output that nobody may touch

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Device memory that frees itself.
class Memory {
 public:
  Memory(runtime::Device& device, std::size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~Memory() { device_.free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(data_) + offset; }

 private:
  runtime::Device& device_;
  void* data_;
};

// Where the tensors of one set lie, from the set's start.
struct Layout {
  std::size_t q = 0, k = 0, v = 0, o = 0, lse = 0, bytes = 0;
  std::size_t o_bytes = 0, lse_bytes = 0;

  Layout(const Problem& problem, const Shape& shape) {
    const auto tokens_q = static_cast<std::size_t>(shape.batch) * shape.seqlen_q * shape.heads;
    const auto tokens_k = static_cast<std::size_t>(shape.batch) * shape.seqlen_k * shape.kv_heads();
    const auto element = static_cast<std::size_t>(size_of(problem.dtype));
    std::size_t end = 0;
    const auto place = [&](std::size_t size, std::size_t guard) {
      return std::exchange(end, end + aligned(size + guard));
    };
    o_bytes = tokens_q * problem.value_dim() * element;
    lse_bytes = tokens_q * sizeof(float);
    q = place(tokens_q * problem.head_dim * element, 0);
    k = place(tokens_k * problem.head_dim * element, 0);
    v = place(tokens_k * problem.value_dim() * element, 0);
    o = place(o_bytes, kGuard);
    lse = place(lse_bytes, kGuard);
    bytes = end;
  }
};

// One shape that candidates are checked at: the inputs on the host, where they lie on the device, and what is
// right.
struct Exam {
  Shape shape;
  Layout layout;
  HostAttention attention;
  std::byte* set = nullptr;  // on the device
  std::vector<RowBlock> blocks;
  HostResult expected, simple;
  bool whole = false;  // every row is compared, and the guards behind the outputs

  Exam(const Problem& problem, const Shape& sizes, const std::byte* image, std::byte* on_device)
      : shape(sizes), layout(problem, sizes), set(on_device) {
    attention.problem = problem;
    attention.shape = sizes;
    attention.q = image + layout.q;
    attention.k = image + layout.k;
    attention.v = image + layout.v;
  }
  void solve(int threads) {
    expected = reference(attention, blocks, threads);
    simple = plain(attention, blocks, threads);
  }
};

// Sizes like the shape's, but small and odd: ragged ends on both sides, and everything is compared.
Shape small_shape(const Shape& shape, bool emulated) {
  Shape small = shape;
  const int group = std::min(shape.heads / shape.kv_heads(), 2);
  small.batch = 1;
  small.heads_kv = std::min(shape.kv_heads(), 2);
  small.heads = small.heads_kv * group;
  small.seqlen_q = std::min(shape.seqlen_q, emulated ? 67 : 197);
  small.seqlen_k = std::min(shape.seqlen_k, emulated ? 133 : 333);
  return small;
}

bool all_poison(const std::byte* data, std::size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte x) { return x == std::byte{0xff}; });
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
  // As many sets of tensors as it takes to push each other out of L2; what is larger than L2 needs two.
  static std::size_t sets_of(const Layout& layout, const Target& target) {
    const std::size_t l2 = target.l2_bytes > 0 ? target.l2_bytes : 64u << 20;
    return std::clamp<std::size_t>((2 * l2 + layout.bytes - 1) / std::max<std::size_t>(layout.bytes, 1), 2,
                                   4096);
  }

  // Fewer sets where memory is short: one is enough to be right, and sizes that leave no room for two are
  // past any cache.
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
  Check examine(const Built& kernel, const Exam& exam);

  [[nodiscard]] ForwardArgs args_at(std::byte* set, const Layout& layout, const Shape& shape) const {
    ForwardArgs args;
    args.q = set + layout.q;
    args.k = set + layout.k;
    args.v = set + layout.v;
    args.o = set + layout.o;
    args.lse = problem_.lse ? reinterpret_cast<float*>(set + layout.lse) : nullptr;
    args.shape = shape;
    return args;
  }

  runtime::Device& device_;
  const Problem problem_;
  const Shape shape_;
  const Build build_;
  const LocalOptions options_;
  Clock& clock_;
  const Layout layout_;
  std::size_t sets_;
  std::unique_ptr<Memory> memory_;
  std::vector<std::byte> image_;  // q, k and v of every set
  std::map<std::string, Built> kernels_;
  std::vector<Exam> exams_;
  std::vector<std::vector<std::byte>> small_images_;
  std::vector<std::unique_ptr<Memory>> small_memory_;
  std::vector<std::byte> host_o_;
  std::vector<float> host_lse_;
};

void LocalRunner::upload() {
  // One host image serves every set: what matters for the caches is the address.
  image_.resize(layout_.o);
  const auto elements = static_cast<std::int64_t>(image_.size() / size_of(problem_.dtype));
  fill_normal(problem_.dtype, image_.data(), elements, options_.seed);
  for (std::size_t set = 0; set < sets_; ++set) {
    device_.copy_to_device(memory_->at(set * layout_.bytes), image_.data(), image_.size(), nullptr);
  }
  device_.synchronize(nullptr);
}

void LocalRunner::build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
                        const BuildDone& done) {
  struct Finished {
    std::size_t index = 0;
    Built built;
    std::string error;
  };
  const double end = clock_.seconds() + std::chrono::duration<double>(time).count();
  std::mutex mutex;
  std::condition_variable news;
  std::vector<Finished> finished;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < schedules.size(); i = next++) {
      Finished result;
      result.index = i;
      const double left = end - clock_.seconds();
      if (left <= 0) {
        result.error = "there was no time left to compile it";
      } else {
        try {
          const std::chrono::milliseconds rest(static_cast<std::int64_t>(left * 1000) + 1);
          result.built = build_(schedules[i], std::min(rest, options_.compile_deadline));
        } catch (const std::exception& error) {
          result.error = error.what();
        }
      }
      const std::lock_guard lock(mutex);
      finished.push_back(std::move(result));
      news.notify_one();
    }
  };
  const std::size_t wanted = options_.threads > 0 ? static_cast<std::size_t>(options_.threads)
                                                  : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> pool;
  for (std::size_t i = 0; i < std::min(wanted, schedules.size()); ++i) pool.emplace_back(work);
  for (std::size_t heard = 0; heard < schedules.size(); ++heard) {
    Finished result;
    {
      std::unique_lock lock(mutex);
      news.wait(lock, [&] { return !finished.empty(); });
      result = std::move(finished.back());
      finished.pop_back();
    }
    const runtime::Resources resources = result.built.resources;
    if (result.error.empty()) kernels_[to_string(schedules[result.index])] = std::move(result.built);
    done(result.index, resources, result.error);
  }
  for (std::thread& thread : pool) thread.join();
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
  const Layout layout(problem_, small);
  const Inputs inputs = make_inputs(problem_, small, kind, options_.seed);
  std::vector<std::byte>& image = small_images_.emplace_back(layout.o);
  const auto copy = [&](const HostTensor& tensor, std::size_t offset) {
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), image.begin() + static_cast<std::ptrdiff_t>(offset));
  };
  copy(inputs.q, layout.q);
  copy(inputs.k, layout.k);
  copy(inputs.v, layout.v);
  const Memory& memory = *small_memory_.emplace_back(std::make_unique<Memory>(device_, layout.bytes));
  device_.copy_to_device(memory.at(0), image.data(), image.size(), nullptr);
  Exam& exam = exams_.emplace_back(problem_, small, image.data(), memory.at(0));
  exam.blocks = all_rows(small, 32);
  exam.whole = true;
  exam.solve(options_.threads);
}

void LocalRunner::prepare_exams() {
  if (!exams_.empty()) return;
  add_small_exam(InputKind::peaky);
  add_small_exam(InputKind::growing);
  // The shape itself, which an emulator would take hours for: a sample of rows that a CPU has in a fraction
  // of a second.
  if (device_.estimates_time()) return;
  constexpr int kRows = 8;
  const double per_block =
      1.0 * kRows * std::max(1, shape_.seqlen_k) * (problem_.head_dim + problem_.value_dim());
  Exam& exam = exams_.emplace_back(problem_, shape_, image_.data(), memory_->at(0));
  exam.blocks =
      sample_rows(shape_, static_cast<int>(std::clamp(2e8 / per_block, 6.0, 32.0)), kRows, options_.seed);
  exam.solve(options_.threads);
}

Check LocalRunner::examine(const Built& kernel, const Exam& exam) {
  const Layout& layout = exam.layout;
  device_.fill(exam.set + layout.o, 0xff, layout.bytes - layout.o, nullptr);  // NaN, the guards included
  kernel.launch(args_at(exam.set, layout, exam.shape), nullptr);
  device_.synchronize(nullptr);

  const auto fetch = [&](void* to, std::size_t offset, std::size_t bytes) {
    device_.copy_to_host(to, exam.set + offset, bytes, nullptr);
  };
  const auto broken = [](std::string message) {
    Check check;
    check.message = std::move(message);
    return check;
  };
  host_o_.resize(std::max(host_o_.size(), layout.o_bytes));
  host_lse_.resize(std::max(host_lse_.size(), layout.lse_bytes / sizeof(float)));
  if (exam.whole) {
    std::vector<std::byte> guard(kGuard);
    for (const auto& [name, end] :
         {std::pair{"output", layout.o + layout.o_bytes}, std::pair{"LSE", layout.lse + layout.lse_bytes}}) {
      fetch(guard.data(), end, guard.size());
      if (!all_poison(guard.data(), guard.size()))
        return broken(fmt::format("it writes past the end of the {}", name));
    }
    fetch(host_o_.data(), layout.o, layout.o_bytes);
    fetch(host_lse_.data(), layout.lse, layout.lse_bytes);
  } else {
    const std::size_t row =
        layout.o_bytes / (static_cast<std::size_t>(exam.shape.batch) * exam.shape.seqlen_q);
    const std::size_t head_row = row / exam.shape.heads;
    for (const RowBlock& block : exam.blocks) {
      const std::size_t first =
          (static_cast<std::size_t>(block.batch) * exam.shape.seqlen_q + block.first) * row;
      fetch(host_o_.data() + first, layout.o + first, block.count * row);
      // The other heads of these rows are not compared, but somebody must have written them.
      for (std::size_t at = first; at < first + block.count * row; at += head_row) {
        if (all_poison(host_o_.data() + at, head_row))
          return broken("it leaves part of the output unwritten");
      }
      const std::size_t lse =
          (static_cast<std::size_t>(block.batch) * exam.shape.heads + block.head) * exam.shape.seqlen_q +
          block.first;
      fetch(host_lse_.data() + lse, layout.lse + lse * sizeof(float), block.count * sizeof(float));
    }
  }
  return acceptable(exam.attention, exam.blocks, exam.expected, exam.simple,
                    {.o = host_o_.data(), .lse = problem_.lse ? host_lse_.data() : nullptr});
}

Check LocalRunner::verify(const Schedule& schedule) {
  const Built& kernel = built(schedule);
  prepare_exams();
  Check worst;
  worst.ok = true;
  for (const Exam& exam : exams_) {
    Check check = examine(kernel, exam);
    if (!check.ok) {
      check.message += fmt::format(" ({})", describe(exam.shape));
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
  std::vector<ForwardArgs> args;
  for (std::size_t set = 0; set < sets_; ++set)
    args.push_back(args_at(memory_->at(set * layout_.bytes), layout_, shape_));
  const auto launch = [&](std::int64_t i) {
    kernel.launch(args[static_cast<std::size_t>(i) % args.size()], nullptr);
  };
  return measure(device_, nullptr, launch, options, clock_);
}

}  // namespace

std::unique_ptr<Runner> make_local_runner(runtime::Device& device, const Problem& problem, const Shape& shape,
                                          Build build, const LocalOptions& options) {
  return std::make_unique<LocalRunner>(device, problem, shape, std::move(build), options);
}

}  // namespace flashjit::autotune

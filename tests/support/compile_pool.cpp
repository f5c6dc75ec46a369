// The threads behind CompilePool.
#include "tests/support/compile_pool.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "flashjit/error.hpp"
#include "runtime/threads.hpp"

namespace flashjit::test {
namespace {

constexpr int kMostThreads = 8;

// Cores that this process may run on; a container or taskset often leaves fewer than the machine has.
int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

CompilePool::CompilePool(int threads) {
  const int count = threads > 0 ? threads : std::clamp(usable_cores(), 1, kMostThreads);
  threads_ = runtime::start_threads(static_cast<std::size_t>(count), [this] { run(); });
  if (threads_.empty()) throw Error(ErrorCode::internal, "no thread could be started to compile in");
}

CompilePool::~CompilePool() {
  std::deque<Job> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    cancelled_ = true;
    dropped.swap(queue_);
    for (const Job& job : dropped) in_flight_.erase(job.key);
  }
  wake_.notify_all();
  for (Job& job : dropped) {
    job.promise.set_exception(std::make_exception_ptr(Error(
        ErrorCode::compile_failed, fmt::format("the compile of {} was cancelled before it began", job.key))));
  }
}

CompilePool::Result CompilePool::submit(const std::string& key, Work work) {
  Result result;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = in_flight_.find(key); found != in_flight_.end()) return found->second;
    Job job{.key = key, .work = std::move(work), .promise = {}};
    result = job.promise.get_future().share();
    in_flight_.emplace(key, result);
    queue_.push_back(std::move(job));
  }
  wake_.notify_one();
  return result;
}

CompilePool::Result CompilePool::submit(const std::string& key, std::shared_ptr<runtime::Compiler> compiler,
                                        KernelSource source, const Target& target) {
  return submit(key, [compiler = std::move(compiler), source = std::move(source),
                      target](const std::atomic<bool>& cancelled) {
    return std::make_shared<const runtime::Compiled>(
        compiler->compile(source, target, std::chrono::minutes(2), &cancelled));
  });
}

void CompilePool::run() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    std::shared_ptr<const runtime::Compiled> compiled;
    std::exception_ptr failure;
    try {
      compiled = job.work(cancelled_);
    } catch (...) {
      failure = std::current_exception();  // travels to whoever asks for the result
    }
    job.work = nullptr;  // what it holds must not outlive the moment when the result is seen
    {
      const std::lock_guard lock(mutex_);
      in_flight_.erase(job.key);
    }
    if (failure) {
      job.promise.set_exception(failure);
    } else {
      job.promise.set_value(std::move(compiled));
    }
  }
}

}  // namespace flashjit::test

// Compiles in parallel, each thing once, for tests of many kernels: threads that run work by key, single
// flight.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/compile.hpp"

namespace flashjit::test {

class CompilePool {
 public:
  // What a thread does for one key: usually look into the cache, compile, store. Passes `cancelled` on to
  // Compiler::compile, so that the pool's end need not wait for a long compile. What it throws, the result
  // throws.
  using Work = std::function<std::shared_ptr<const runtime::Compiled>(const std::atomic<bool>& cancelled)>;
  using Result = std::shared_future<std::shared_ptr<const runtime::Compiled>>;

  // 0 threads: one per core that this process may run on, 8 at most (an NVRTC at work holds a few hundred
  // MB).
  explicit CompilePool(int threads = 0);
  // Cancels: work that has not begun throws Error{compile_failed} from its result, work under way is told to
  // stop and waited for.
  ~CompilePool();
  CompilePool(const CompilePool&) = delete;
  CompilePool& operator=(const CompilePool&) = delete;

  // Work for a key that is queued or under way joins it: one run, one result for all. First come, first
  // served.
  Result submit(const std::string& key, Work work);
  // Compiles this one, in two minutes at most.
  Result submit(const std::string& key, std::shared_ptr<runtime::Compiler> compiler, KernelSource source,
                const Target& target);

  [[nodiscard]] int threads() const { return static_cast<int>(threads_.size()); }

 private:
  struct Job {
    std::string key;
    Work work;
    std::promise<std::shared_ptr<const runtime::Compiled>> promise;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  std::map<std::string, Result> in_flight_;  // queued or under way
  bool stopping_ = false;
  std::atomic<bool> cancelled_{false};
  std::vector<std::jthread> threads_;  // last: joined before all that they use goes
};

}  // namespace flashjit::test

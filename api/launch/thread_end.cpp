// Each thread has its own list of hooks, and runs them when its thread-local variables are destroyed.
#include "api/launch/thread_end.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace flashjit::api {

// Threads that end at the same time do not wait for each other. The destructor, which takes `call` away,
// waits for all of them.
struct ThreadEnd::Hook {
  std::shared_mutex mutex;
  std::function<void()> call;
};

namespace {

thread_local bool ending = false;

// The main thread ends with the process, and so does the one thread of a forked child. Then nobody is left to
// use what it would hand back, and a lock that another thread held during the fork is never released.
bool ends_with_process() {
  return ::gettid() == ::getpid();
}

template <class Hook>
class Asked {
 public:
  Asked() = default;
  ~Asked() {
    ending = true;
    if (ends_with_process()) return;
    for (const std::weak_ptr<Hook>& asked : hooks_) {
      const std::shared_ptr<Hook> hook = asked.lock();
      if (hook == nullptr) continue;
      const std::shared_lock lock(hook->mutex);
      if (hook->call) hook->call();
    }
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  void add(const std::shared_ptr<Hook>& hook) {
    std::erase_if(hooks_, [](const std::weak_ptr<Hook>& asked) { return asked.expired(); });
    if (std::none_of(hooks_.begin(), hooks_.end(),
                     [&](const std::weak_ptr<Hook>& asked) { return asked.lock() == hook; })) {
      hooks_.push_back(hook);
    }
  }

 private:
  std::vector<std::weak_ptr<Hook>> hooks_;
};

}  // namespace

ThreadEnd::ThreadEnd(std::function<void()> call) : hook_(std::make_shared<Hook>()) {
  hook_->call = std::move(call);
}

ThreadEnd::~ThreadEnd() {
  const std::unique_lock lock(hook_->mutex);
  hook_->call = nullptr;
}

void ThreadEnd::ask() {
  if (ending) return;
  thread_local Asked<Hook> asked;
  asked.add(hook_);
}

}  // namespace flashjit::api

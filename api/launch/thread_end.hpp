// Something to do at the end of each thread that asks for it, as long as the ThreadEnd lives.
#pragma once

#include <functional>
#include <memory>

namespace flashjit::api {

class ThreadEnd {
 public:
  // `call` runs in the ending thread, and must not throw.
  explicit ThreadEnd(std::function<void()> call);
  ~ThreadEnd();  // waits for calls that are running; none start afterwards
  ThreadEnd(const ThreadEnd&) = delete;
  ThreadEnd& operator=(const ThreadEnd&) = delete;

  // Makes `call` run once when this thread ends, however often it is asked for. Does nothing in a thread that
  // is already ending, or for threads that end with the process.
  void ask();

 private:
  struct Hook;
  std::shared_ptr<Hook> hook_;
};

}  // namespace flashjit::api

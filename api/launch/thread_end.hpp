// Something to be done at the end of each thread that asks for it, for as long as there is somebody to do it.
#pragma once

#include <functional>
#include <memory>

namespace flashjit::api {

class ThreadEnd {
 public:
  // `call` runs in the thread that ends, and throws nothing.
  explicit ThreadEnd(std::function<void()> call);
  ~ThreadEnd();  // waits for calls at work; there are none afterwards
  ThreadEnd(const ThreadEnd&) = delete;
  ThreadEnd& operator=(const ThreadEnd&) = delete;

  // Has the call run once when this thread ends, however often it is asked for. A thread that is ending has
  // no more of it, and neither have those that the process's end takes along.
  void ask();

 private:
  struct Hook;
  std::shared_ptr<Hook> hook_;
};

}  // namespace flashjit::api

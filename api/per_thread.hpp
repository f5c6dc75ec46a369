// Each thread's own T, made when the thread first asks for it. Unlike a thread_local T it may still be asked
// for at the thread's very end: by the destructors of other thread-local variables, and, after exit() has
// destroyed the main thread's, by atexit handlers and static destructors. A T that is made so late is not
// destroyed any more.
#pragma once

namespace flashjit::api {

template <class T>
class PerThread {
 public:
  static T& get() {
    if (made_ == nullptr) {
      if (!reaped_) {  // control must not pass a thread-local variable that has been destroyed
        thread_local const Reaper reaper;
      }
      made_ = new T;
    }
    return *made_;
  }
  // Null if this thread has none now.
  static T* find() { return made_; }

 private:
  struct Reaper {
    Reaper() = default;
    ~Reaper() {
      delete made_;
      made_ = nullptr;
      reaped_ = true;
    }
    Reaper(const Reaper&) = delete;
    Reaper& operator=(const Reaper&) = delete;
  };

  // Neither has a destructor, so both can be read as long as the thread runs.
  static constinit inline thread_local T* made_ = nullptr;
  static constinit inline thread_local bool reaped_ = false;
};

}  // namespace flashjit::api

// Threads that share one piece of work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace flashjit::runtime {

// Starts up to `count` threads that call `work`: fewer, or even none, if the system has no more to give. They
// are joined when the vector is destroyed, also by an exception.
template <class Work>
std::vector<std::jthread> start_threads(std::size_t count, const Work& work) {
  std::vector<std::jthread> threads;
  threads.reserve(count);
  try {
    while (threads.size() < count) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The threads that were started do the work, or the caller does.
  }
  return threads;
}

// How many threads are meant: 0 stands for as many as the machine has.
inline int meant_threads(int threads) {
  return threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Calls work(0) … work(count - 1) from several threads, and rethrows in the caller what a call throws.
// threads 0: as many as the machine has.
template <class Work>
void parallel_for(std::size_t count, int threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto take = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    const auto most = static_cast<std::size_t>(meant_threads(threads));
    const auto pool = start_threads(std::min(most, std::max<std::size_t>(count, 1)) - 1, take);
    take();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace flashjit::runtime

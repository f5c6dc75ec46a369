// Threads of one piece of work.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace flashjit::runtime {

// Up to `count` threads that call `work`, fewer where the system has no more to give: none at worst. They are
// joined when the vector goes, on the way of an exception too.
template <class Work>
std::vector<std::jthread> start_threads(std::size_t count, const Work& work) {
  std::vector<std::jthread> threads;
  threads.reserve(count);
  try {
    while (threads.size() < count) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // Those that there are do the work, or the caller.
  }
  return threads;
}

}  // namespace flashjit::runtime

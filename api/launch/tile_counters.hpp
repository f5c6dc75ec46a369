// The counters from which persistent CTAs of a dynamic schedule take their tiles, or by which CTAs know that
// they are the last ones at work on a tile (ForwardParams::tile_counter).
//
// A counter is a few zeros that a launch uses and leaves zero again. It may serve any number of launches that
// never overlap.
// - Launches in one stream never overlap, so each stream gets a counter of its own, found again by the
//   stream's handle. CU_STREAM_PER_THREAD is one handle for a different stream in each thread, so its counter
//   is found by handle and thread.
// - The driver keeps a destroyed stream until its work is done, and gives its handle to a new stream only
//   after that.
// - A thread that ends waits for its own stream and hands back what it was lent for that stream; another
//   stream gets it.
// - A captured launch runs whenever, and in whatever stream, its graph is launched. It gets a counter that
//   nothing else is ever given. (Two copies of one graph must not run at once; they would write the same o.)
//
// CTAs that share a tile also exchange data, through memory that is lent along with a stream's counter, since
// memory from the pool would cost about one more launch. A captured launch must take this memory from the
// pool, and the graph then owns it. Launches into further streams than kMostMemories take it from the pool,
// too: nobody reports the end of a stream, so what a stream was lent is held as long as the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "api/launch/thread_end.hpp"
#include "runtime/device.hpp"

namespace flashjit::api {

class TileCounters {
 public:
  struct Lent {
    int* zeros = nullptr;
    void* memory = nullptr;  // null in a capture, past kMostMemories, and where launches need none
  };
  static constexpr std::size_t kMostMemories = 64;

  struct Size {
    int zeros = 0;          // how many a counter has
    std::size_t bytes = 0;  // of the memory lent with it
  };

  // Allocates device memory for counters; the memory lent with them is allocated at each stream's first
  // launch.
  TileCounters(runtime::Device& device, const Size& size);
  TileCounters(const TileCounters&) = delete;
  TileCounters& operator=(const TileCounters&) = delete;

  // What a launch into this stream may use. Takes no lock if plan and stream are among the last eight pairs
  // that this thread had to look up.
  Lent for_launch(runtime::Stream stream);

  // For a launch that threw: the emulator stops a kernel half-way, which then leaves no zeros.
  void clear(int* zeros, runtime::Stream stream) noexcept;

  // Makes room for more captured launches if less than half is left. Must not be called in a capture.
  void replenish();

  [[nodiscard]] std::size_t bytes() const;

 private:
  struct Free {
    runtime::Device* device;
    void operator()(void* memory) const noexcept { device->free(memory); }
  };
  using Chunk = std::unique_ptr<void, Free>;

  int* take();                // the next unused counter; needs the lock
  void grow();                // needs the lock; if it throws, nothing has changed
  void hand_back() noexcept;  // what this thread, which is ending, was lent for its own stream

  runtime::Device& device_;
  const std::size_t zeros_;      // in a counter
  const std::size_t bytes_;      // lent with a counter
  const std::size_t per_chunk_;  // counters
  const std::uint64_t id_;       // tells this object from an earlier one at the same address
  mutable std::mutex mutex_;
  std::vector<Chunk> chunks_;
  std::size_t used_ = 0;         // counters used of the last chunk
  std::vector<Chunk> memories_;  // of streams
  std::map<std::pair<runtime::Stream, std::uint64_t>, Lent>
      by_stream_;                                  // with the thread, where that matters
  std::vector<Lent> spare_;                        // handed back
  ThreadEnd thread_end_{[this] { hand_back(); }};  // the last member: it goes first
};

}  // namespace flashjit::api

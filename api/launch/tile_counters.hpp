// The counters from which persistent CTAs of a dynamic schedule take their tiles, or by which CTAs know that
// they are the last ones at work on a tile (ForwardParams::tile_counter).
//
// A counter is some zeros that a launch uses and leaves zero again, so it may serve any number of launches
// that never overlap, and no two that might. Launches in one stream never overlap: each stream gets a counter
// of its own, found again by its handle (with the thread for CU_STREAM_PER_THREAD, one handle that is a
// different stream in each thread). A handle is not given to a new stream before the old one's work is done,
// since the driver keeps the stream until then. What a thread was lent for its own stream, it hands back when
// it ends, having waited for that stream, and another stream gets it. A captured launch runs whenever, and in
// whatever stream, its graph is launched: it gets a counter that nothing else is ever given. (Two copies of
// one graph must not run at once; they would write the same o.)
//
// CTAs that count so have something to tell each other, through memory that is lent with a stream's counter,
// since the pool's would cost a launch as long again. A captured launch has to take it from the pool, where
// it is the graph's. So have the launches into further streams than kMostMemories: nobody says when a stream
// is destroyed, so that what it was lent is held as long as the plan.
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
    int zeros = 0;          // of a counter
    std::size_t bytes = 0;  // of the memory beside it
  };

  // Allocates device memory for counters; that beside them comes with each stream's first launch.
  TileCounters(runtime::Device& device, const Size& size);
  TileCounters(const TileCounters&) = delete;
  TileCounters& operator=(const TileCounters&) = delete;

  // What a launch into this stream may use. Takes no lock where plan and stream are among the eight
  // pairs that this thread had to look up last.
  Lent for_launch(runtime::Stream stream);

  // Makes room for captured launches again if less than half is left. Not for use in a capture.
  void replenish();

  [[nodiscard]] std::size_t bytes() const;

 private:
  struct Free {
    runtime::Device* device;
    void operator()(void* memory) const noexcept { device->free(memory); }
  };
  using Chunk = std::unique_ptr<void, Free>;

  int* take();                // the next unused counter; the lock is held
  void grow();                // the lock is held; what it throws leaves everything as it was
  void hand_back() noexcept;  // what this thread, which ends, was lent for its own stream

  runtime::Device& device_;
  const std::size_t zeros_;      // of a counter
  const std::size_t bytes_;      // beside it
  const std::size_t per_chunk_;  // counters
  const std::uint64_t id_;       // tells this object from an earlier one at the same address
  mutable std::mutex mutex_;
  std::vector<Chunk> chunks_;
  std::size_t used_ = 0;         // counters of the last chunk
  std::vector<Chunk> memories_;  // of streams
  std::map<std::pair<runtime::Stream, std::uint64_t>, Lent>
      by_stream_;                                  // with the thread, where that matters
  std::vector<Lent> spare_;                        // handed back
  ThreadEnd thread_end_{[this] { hand_back(); }};  // the last member: it goes first
};

}  // namespace flashjit::api

// One counter per stream and one per captured launch, from chunks of zeroed device memory.
#include "api/launch/tile_counters.hpp"

#include <array>
#include <atomic>
#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

// A chunk serves the captures of a large server (60 layers in 60 graphs take 3600) before anyone has to
// replenish.
constexpr std::size_t kCountersPerChunk = 8192;
constexpr std::size_t kCounterBytes = 2 * sizeof(int);

// CU_STREAM_PER_THREAD (cuda.h).
const auto kPerThread =
    reinterpret_cast<runtime::Stream>(std::uintptr_t{2});  // NOLINT(performance-no-int-to-ptr)

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}
const thread_local std::uint64_t this_thread = next_id();

// What this thread launched last: the same few kernels in the same few streams.
struct Recent {
  std::uint64_t id = 0;
  runtime::Stream stream = nullptr;
  int* counter = nullptr;
};
thread_local std::array<Recent, 8> recent{};
thread_local std::size_t oldest = 0;

}  // namespace

TileCounters::TileCounters(runtime::Device& device) : device_(device), id_(next_id()) {
  grow();
}

int* TileCounters::for_launch(runtime::Stream stream) {
  if (device_.capturing(stream)) {
    const std::lock_guard lock(mutex_);
    if (used_ == kCountersPerChunk) {
      throw Error(ErrorCode::unsupported, "this plan has no tile counters left for another captured launch",
                  "Call Engine::prepare for it before the capture, which makes room for thousands more.");
    }
    return take();
  }
  for (const Recent& known : recent) {
    if (known.id == id_ && known.stream == stream) return known.counter;
  }
  int* counter = nullptr;
  {
    const std::lock_guard lock(mutex_);
    int*& mine = by_stream_[{stream, stream == kPerThread ? this_thread : 0}];
    if (mine == nullptr) {
      if (used_ == kCountersPerChunk) grow();
      mine = take();
    }
    counter = mine;
  }
  recent[oldest] = {id_, stream, counter};
  oldest = (oldest + 1) % recent.size();
  return counter;
}

void TileCounters::replenish() {
  const std::lock_guard lock(mutex_);
  if (used_ > kCountersPerChunk / 2) grow();
}

std::size_t TileCounters::bytes() const {
  const std::lock_guard lock(mutex_);
  return chunks_.size() * kCountersPerChunk * kCounterBytes;
}

int* TileCounters::take() {
  return static_cast<int*>(chunks_.back().get()) + 2 * used_++;
}

void TileCounters::grow() {
  Chunk chunk(device_.allocate(kCountersPerChunk * kCounterBytes), {.device = &device_});
  // The counters may be used from any stream at once, so the zeros must be there before anyone gets one. The
  // default stream would not do: its use breaks the capture of any stream that waits for it.
  device_.fill(chunk.get(), 0, kCountersPerChunk * kCounterBytes, kPerThread);
  device_.synchronize(kPerThread);
  chunks_.push_back(std::move(chunk));
  used_ = 0;
}

}  // namespace flashjit::api

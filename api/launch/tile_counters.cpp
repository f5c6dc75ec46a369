// One counter per stream and one per captured launch, from chunks of zeroed device memory.
#include "api/launch/tile_counters.hpp"

#include <array>
#include <exception>
#include <utility>

#include "api/launch/identity.hpp"
#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

// A chunk serves the captures of a large server (60 layers in 60 graphs take 3600) before prepare() must add
// more. If counters are long, it serves some 500 to 2600 captured launches.
constexpr std::size_t kSmallChunk = std::size_t{64} << 10, kLargeChunk = std::size_t{1} << 20;  // bytes
constexpr std::size_t kLongCounter = 64;                                                        // bytes

// CU_STREAM_PER_THREAD (cuda.h).
const auto kPerThread =
    reinterpret_cast<runtime::Stream>(std::uintptr_t{2});  // NOLINT(performance-no-int-to-ptr)

const thread_local std::uint64_t this_thread = next_identity();

// What this thread launched lately: the same few kernels in the same few streams.
struct Recent {
  std::uint64_t id = 0;
  runtime::Stream stream = nullptr;
  TileCounters::Lent lent;
};
thread_local std::array<Recent, 8> recent{};
thread_local std::size_t oldest = 0;

}  // namespace

TileCounters::TileCounters(runtime::Device& device, const Size& size)
    : device_(device),
      zeros_(static_cast<std::size_t>(size.zeros)),
      bytes_(size.bytes),
      per_chunk_((zeros_ * sizeof(int) < kLongCounter ? kSmallChunk : kLargeChunk) / (zeros_ * sizeof(int))),
      id_(next_identity()) {
  grow();
}

TileCounters::Lent TileCounters::for_launch(runtime::Stream stream) {
  if (device_.capturing(stream)) {
    const std::lock_guard lock(mutex_);
    if (used_ == per_chunk_) {
      throw Error(ErrorCode::unsupported, "this plan has no tile counters left for another captured launch",
                  "Call Engine::prepare for it before the capture, which makes room for many more.");
    }
    return {.zeros = take()};
  }
  for (const Recent& known : recent) {
    if (known.id == id_ && known.stream == stream) return known.lent;
  }
  // After the driver was asked about this thread's stream, so that what it keeps for the thread outlives our
  // hook.
  if (stream == kPerThread) thread_end_.ask();
  Lent lent;
  {
    const std::lock_guard lock(mutex_);
    Lent& mine = by_stream_[{stream, stream == kPerThread ? this_thread : 0}];
    if (mine.zeros == nullptr && mine.memory == nullptr && !spare_.empty()) {
      mine = spare_.back();
      spare_.pop_back();
    }
    if (mine.zeros == nullptr) {
      if (bytes_ != 0 && mine.memory == nullptr && memories_.size() < kMostMemories) {
        Chunk memory(device_.allocate(bytes_), {.device = &device_});
        memories_.push_back(std::move(memory));
        mine.memory = memories_.back().get();
      }
      if (used_ == per_chunk_) grow();
      mine.zeros = take();
    }
    lent = mine;
  }
  recent[oldest] = {id_, stream, lent};
  oldest = (oldest + 1) % recent.size();
  return lent;
}

void TileCounters::clear(int* zeros, runtime::Stream stream) noexcept {
  try {
    // Nobody else gets a captured launch's counter, and what is enqueued here would be in the graph.
    if (!device_.capturing(stream)) device_.fill(zeros, 0, zeros_ * sizeof(int), stream);
  } catch (const std::exception&) {
    // The device is broken, and what it says of the launch itself is the error to report.
  }
}

void TileCounters::hand_back() noexcept {
  for (Recent& known : recent) {
    if (known.id == id_ && known.stream == kPerThread) known = {};
  }
  try {
    // A stream in capture cannot be waited for, and work from before the capture may still be running in it.
    // What is not handed back here stays lent to this thread for good. The same goes if the wait fails.
    if (device_.capturing(kPerThread)) return;
    device_.synchronize(kPerThread);
    const std::lock_guard lock(mutex_);
    const auto mine = by_stream_.find({kPerThread, this_thread});
    if (mine == by_stream_.end()) return;
    spare_.push_back(mine->second);
    by_stream_.erase(mine);
  } catch (const std::exception&) {
  }
}

void TileCounters::replenish() {
  const std::lock_guard lock(mutex_);
  if (used_ > per_chunk_ / 2) grow();
}

std::size_t TileCounters::bytes() const {
  const std::lock_guard lock(mutex_);
  return chunks_.size() * per_chunk_ * zeros_ * sizeof(int) + memories_.size() * bytes_;
}

int* TileCounters::take() {
  return static_cast<int*>(chunks_.back().get()) + zeros_ * used_++;
}

void TileCounters::grow() {
  Chunk chunk(device_.allocate(per_chunk_ * zeros_ * sizeof(int)), {.device = &device_});
  // The counters may be used from any stream at once, so they must be zero before any of them is lent.
  device_.clear(chunk.get(), per_chunk_ * zeros_ * sizeof(int));
  chunks_.push_back(std::move(chunk));
  used_ = 0;
}

}  // namespace flashjit::api

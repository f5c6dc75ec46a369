#include "emulator/machine/global_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

constexpr std::size_t kAlign = 256;              // as cudaMalloc promises
constexpr std::size_t kQuarantine = 256u << 20;  // bytes of freed memory kept to detect late uses
constexpr unsigned char kPoison = 0xff;          // NaN in every floating-point type

void release(std::byte* pointer) {
  std::free(pointer);
}  // NOLINT(cppcoreguidelines-no-malloc)

}  // namespace

u64 Allocation::bits(u64 address, u32 count) const {
  u64 first = address - begin;
  // Other threads may mark bytes meanwhile.
  const auto word = [&](u64 index) { return __atomic_load_n(&written[index], __ATOMIC_RELAXED); };
  u64 low = word(first >> 6) >> (first & 63);
  if ((first & 63) + count > 64) low |= word((first >> 6) + 1) << (64 - (first & 63));
  return count == 64 ? low : low & ((1ull << count) - 1);
}

void Allocation::mark(u64 address, u64 count) {
  u64 first = address - begin;
  const u64 last = first + count;
  while (first < last) {
    u64 in_word = std::min<u64>(64 - (first & 63), last - first);
    u64 mask = (in_word == 64 ? ~0ull : (1ull << in_word) - 1) << (first & 63);
    u64* word = &written[first >> 6];
    if ((__atomic_load_n(word, __ATOMIC_RELAXED) & mask) != mask)
      __atomic_fetch_or(word, mask, __ATOMIC_RELAXED);
    first += in_word;
  }
}

void* GlobalMemory::allocate(std::size_t bytes) {
  auto made = std::make_unique<Allocation>();
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const std::size_t rounded = (size + kAlign - 1) / kAlign * kAlign;  // 0 if the sum wraps
  auto* memory = rounded == 0 ? nullptr : static_cast<std::byte*>(std::aligned_alloc(kAlign, rounded));
  if (memory == nullptr)
    throw Error(ErrorCode::device, fmt::format("the emulator has no {} bytes of memory left", bytes));
  std::memset(memory, kPoison, rounded);
  made->bytes = {memory, release};
  made->begin = reinterpret_cast<u64>(memory);
  made->end = made->begin + bytes;
  made->written.assign((size + 63) / 64 + 1, 0);
  std::lock_guard lock(mutex_);
  auto at = std::upper_bound(sorted_.begin(), sorted_.end(), made->begin,
                             [](u64 address, const auto& other) { return address < other->begin; });
  sorted_.insert(at, std::move(made));
  return memory;
}

void GlobalMemory::free(void* pointer) {
  if (pointer == nullptr) return;
  std::lock_guard lock(mutex_);
  auto found = std::find_if(sorted_.begin(), sorted_.end(), [&](const auto& a) {
    return a->begin == reinterpret_cast<u64>(pointer) && !a->freed;
  });
  if (found == sorted_.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("free: {} is no allocation of this device, or was freed before", pointer));
  }
  Allocation* allocation = found->get();
  allocation->freed = true;
  freed_.push_back(allocation);
  freed_bytes_ += allocation->end - allocation->begin;
  while (freed_bytes_ > kQuarantine && freed_.size() > 1) {
    Allocation* oldest = freed_.front();
    freed_.pop_front();
    freed_bytes_ -= oldest->end - oldest->begin;
    sorted_.erase(
        std::find_if(sorted_.begin(), sorted_.end(), [&](const auto& a) { return a.get() == oldest; }));
  }
}

Allocation* GlobalMemory::find(u64 address) const {
  auto after = std::upper_bound(sorted_.begin(), sorted_.end(), address,
                                [](u64 value, const auto& allocation) { return value < allocation->begin; });
  if (after == sorted_.begin()) return nullptr;
  Allocation* candidate = std::prev(after)->get();
  return address < candidate->end ? candidate : nullptr;
}

std::string GlobalMemory::explain(u64 address, u64 bytes) const {
  std::string what = fmt::format("{} bytes at 0x{:x}", bytes, address);
  if (Allocation* inside = find(address); inside != nullptr) {
    const char* state = inside->freed ? " that was freed" : "";
    return fmt::format("{}: bytes {} to {} of an allocation of {} bytes{}", what, address - inside->begin,
                       address - inside->begin + bytes, inside->end - inside->begin, state);
  }
  const Allocation* nearest = nullptr;
  u64 distance = ~0ull;
  for (const auto& allocation : sorted_) {
    u64 gap = address >= allocation->end ? address - allocation->end : allocation->begin - address;
    if (gap < distance) {
      distance = gap;
      nearest = allocation.get();
    }
  }
  if (nearest == nullptr || distance > (1u << 20)) {
    return what + ": inside no allocation of this device, which the host's own memory is none of";
  }
  return fmt::format("{}: {} bytes {} an allocation of {} bytes{}", what, distance,
                     address >= nearest->end ? "past the end of" : "before the start of",
                     nearest->end - nearest->begin, nearest->freed ? " that was freed" : "");
}

void GlobalMemory::check_host(const void* pointer, std::size_t bytes, bool writes, const char* name) {
  if (bytes == 0) return;
  std::lock_guard lock(mutex_);
  const u64 address = reinterpret_cast<u64>(pointer);
  Allocation* allocation = find(address);
  if (allocation == nullptr || bytes > allocation->end - address || allocation->freed) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}", name, explain(address, bytes)));
  }
  if (writes) allocation->mark(address, bytes);
}

}  // namespace flashjit::emulator

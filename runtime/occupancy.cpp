// Occupancy by the rules of the CUDA C++ Programming Guide (hardware multithreading) and Nsight Compute's
// calculator.
#include "runtime/occupancy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace flashjit::runtime {
namespace {

constexpr int kWarp = 32;
constexpr int kSchedulers = 4;       // per multiprocessor, each with a quarter of the registers
constexpr int kRegisterUnit = 256;   // registers are given to a warp in units of this many
constexpr int kMostRegisters = 255;  // the most that a thread can use
constexpr int kMostThreads = 1024;   // the most that a CTA can have

int round_up(int value, int unit) {
  return (value + unit - 1) / unit * unit;
}

// Shared memory is given to a CTA in units of this many bytes.
int shared_unit(const Target& target) {
  return target.capability >= 80 ? 128 : 256;
}

struct Limit {
  const char* name;
  int ctas;
};

}  // namespace

Occupancy occupancy(const Target& target, int registers, int threads, int shared_bytes) {
  Occupancy result;
  result.most_warps = target.threads_per_sm / kWarp;
  const int warps = std::max(1, round_up(threads, kWarp) / kWarp);

  const int registers_of_warp = round_up(std::max(registers, 1) * kWarp, kRegisterUnit);
  const int warps_by_registers = target.registers_per_sm / kSchedulers / registers_of_warp * kSchedulers;
  // A CTA's warps are dealt to the schedulers in turn, so the fullest scheduler must have room for its share.
  const bool fits_registers =
      round_up(warps, kSchedulers) <= warps_by_registers && registers <= kMostRegisters;
  const int shared_of_cta = round_up(shared_bytes + target.shared_reserved, shared_unit(target));
  std::array limits{
      Limit{"shared memory", shared_of_cta == 0                     ? target.ctas_per_sm
                             : shared_bytes > target.shared_per_cta ? 0
                                                                    : target.shared_per_sm / shared_of_cta},
      Limit{"registers", fits_registers ? warps_by_registers / warps : 0},
      Limit{"threads", threads > kMostThreads ? 0 : result.most_warps / warps},
      Limit{"CTAs", target.ctas_per_sm},
  };
  std::stable_sort(limits.begin(), limits.end(),
                   [](const Limit& a, const Limit& b) { return a.ctas < b.ctas; });
  result.ctas = limits[0].ctas;
  result.warps = result.ctas * warps;

  result.limiter = limits[0].name;
  std::size_t next = 1;
  for (; next < limits.size() && limits[next].ctas == limits[0].ctas; ++next) {
    result.limiter += fmt::format(" and {}", limits[next].name);
  }
  if (next < limits.size())
    result.limiter += fmt::format(" (next: {}, at {})", limits[next].name, limits[next].ctas);
  return result;
}

}  // namespace flashjit::runtime

// Occupancy against figures of NVIDIA's own calculator (cuda_occupancy.h of CUDA 13.0, with all of the shared
// memory that the carveout can give).
#include <doctest/doctest.h>

#include "runtime/occupancy.hpp"

using flashjit::target_of;
using flashjit::runtime::Occupancy;
using flashjit::runtime::occupancy;

namespace {

constexpr int KB = 1024;

struct Row {
  const char* arch;
  int registers, threads, shared_bytes;
  int ctas;
  const char* limiter;
};

}  // namespace

TEST_CASE("known figures") {
  const Row rows[] = {
      {"sm_75", 64, 128, 0, 8, "registers and threads (next: shared memory, at 16)"},
      {"sm_75", 128, 256, 32 * KB, 2, "shared memory and registers (next: threads, at 4)"},
      {"sm_75", 255, 128, 64 * KB, 1, "shared memory (next: registers, at 2)"},
      {"sm_80", 168, 128, 80 * KB, 2, "shared memory (next: registers, at 3)"},
      {"sm_80", 255, 256, 100 * KB, 1, "shared memory and registers (next: threads, at 8)"},
      {"sm_80", 32, 32, 0, 32, "CTAs (next: registers, at 64)"},
      {"sm_80", 128, 256, 48 * KB, 2, "registers (next: shared memory, at 3)"},
      {"sm_80", 65, 1024, 0, 0, "registers (next: threads, at 2)"},
      {"sm_86", 168, 128, 48 * KB, 2, "shared memory (next: registers, at 3)"},
      {"sm_86", 255, 128, 24 * KB, 2, "registers (next: shared memory, at 4)"},
      {"sm_87", 40, 192, 20 * KB, 7, "shared memory (next: registers, at 8)"},
      {"sm_89", 96, 256, 49 * KB, 2, "shared memory and registers (next: threads, at 6)"},
      {"sm_89", 24, 64, 1000, 24, "threads and CTAs (next: registers, at 42)"},
      {"sm_90", 168, 384, 227 * KB, 1, "shared memory and registers (next: threads, at 5)"},
      {"sm_90", 168, 384, 112 * KB, 1, "registers (next: shared memory, at 2)"},
      {"sm_90", 64, 1024, 0, 1, "registers (next: threads, at 2)"},
      {"sm_90", 80, 160, 10 * KB, 4, "registers (next: threads, at 12)"},
      {"sm_100", 128, 256, 100 * KB, 2, "shared memory and registers (next: threads, at 8)"},
      {"sm_103", 255, 256, 0, 1, "registers (next: threads, at 8)"},
      {"sm_110", 90, 96, 3000, 6, "registers (next: threads, at 16)"},
      {"sm_120", 168, 128, 40 * KB, 2, "shared memory (next: registers, at 3)"},
      {"sm_121", 200, 224, 99 * KB, 1, "shared memory and registers (next: threads, at 6)"},
      {"sm_90", 168, 128, 228 * KB, 0, "shared memory (next: registers, at 3)"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.arch);
    CAPTURE(row.registers);
    CAPTURE(row.threads);
    CAPTURE(row.shared_bytes);
    const Occupancy result = occupancy(target_of(row.arch), row.registers, row.threads, row.shared_bytes);
    CHECK(result.ctas == row.ctas);
    CHECK(result.limiter == row.limiter);
  }
}

TEST_CASE("warps are counted whole") {
  const Occupancy result = occupancy(target_of("sm_80"), 32, 100, 0);
  CHECK(result.most_warps == 64);
  CHECK(result.warps == result.ctas * 4);
}

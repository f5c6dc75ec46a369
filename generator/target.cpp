// The table of archs that NVRTC 13.0 knows, with the limits of each (CUDA C++ Programming Guide, compute
// capabilities).
#include "flashjit/target.hpp"

#include <fmt/format.h>

#include <array>

#include "flashjit/error.hpp"

namespace flashjit {
namespace {

constexpr int KB = 1024;
constexpr int MB = 1024 * 1024;

struct Row {
  const char* arch;
  int capability, sm_count, shared_per_cta, shared_per_sm, threads_per_sm, ctas_per_sm, l2_bytes, memory_gbps;
};

// The sm_count, L2 and memory are of one well-known part of each arch: T4, A100, RTX 3090, Orin, Drive Orin,
// RTX 4090, H200, B200, B300, Thor, RTX 5090, DGX Spark.
constexpr std::array kRows = std::to_array<Row>({
    {"sm_75", 75, 40, 64 * KB, 64 * KB, 1024, 16, 4 * MB, 320},
    {"sm_80", 80, 108, 163 * KB, 164 * KB, 2048, 32, 40 * MB, 2039},
    {"sm_86", 86, 82, 99 * KB, 100 * KB, 1536, 16, 6 * MB, 936},
    {"sm_87", 87, 16, 163 * KB, 164 * KB, 1536, 16, 4 * MB, 205},
    {"sm_88", 88, 16, 163 * KB, 164 * KB, 1536, 16, 4 * MB, 205},
    {"sm_89", 89, 128, 99 * KB, 100 * KB, 1536, 24, 72 * MB, 1008},
    {"sm_90", 90, 132, 227 * KB, 228 * KB, 2048, 32, 50 * MB, 4917},
    {"sm_90a", 90, 132, 227 * KB, 228 * KB, 2048, 32, 50 * MB, 4917},
    {"sm_100", 100, 148, 227 * KB, 228 * KB, 2048, 32, 126 * MB, 8000},
    {"sm_103", 103, 148, 227 * KB, 228 * KB, 2048, 32, 126 * MB, 8000},
    {"sm_110", 110, 20, 227 * KB, 228 * KB, 1536, 24, 32 * MB, 273},
    {"sm_120", 120, 170, 99 * KB, 100 * KB, 1536, 24, 96 * MB, 1792},
    {"sm_121", 121, 48, 99 * KB, 100 * KB, 1536, 24, 24 * MB, 273},
});

}  // namespace

Target target_of(const std::string& arch) {
  std::string known;
  for (const Row& row : kRows) {
    if (arch == row.arch) {
      Target target;
      target.arch = row.arch;
      target.capability = row.capability;
      target.sm_count = row.sm_count;
      target.shared_per_cta = row.shared_per_cta;
      target.shared_per_sm = row.shared_per_sm;
      target.shared_reserved = row.capability >= 80 ? KB : 0;
      target.threads_per_sm = row.threads_per_sm;
      target.ctas_per_sm = row.ctas_per_sm;
      target.l2_bytes = row.l2_bytes;
      target.memory_gbps = row.memory_gbps;
      return target;
    }
    known += known.empty() ? row.arch : fmt::format(", {}", row.arch);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("arch is \"{}\", may be {}", arch, known));
}

}  // namespace flashjit

// What the checks find: one Finding per broken rule and PTX line, with all that is needed to look it up.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulator/program.hpp"
#include "generator/render.hpp"

namespace flashjit::emulator {

// off: only what protects the host. memory: bounds, alignment, what was written, barriers, aligned
// instructions. all: also races, asynchronous proxies and their fences.
enum class Checks : u8 { off, memory, all };

enum class FindingKind : u8 {
  out_of_bounds,  // an access to global, shared, local or parameter memory outside what is allocated
  misaligned,     // an address that is not a multiple of the access's size
  freed_memory,   // global memory that was freed
  never_written,  // memory that nothing wrote
  race,           // shared-memory accesses that nothing orders
  barrier,        // a barrier used with two counts, by too few threads, or by diverged lanes
  deadlock,       // no warp can run any more
  async_result,   // a result used before the program waited for it
  proxy_fence,    // written by ordinary stores and read by the asynchronous proxy, without a fence between
  wgmma_fence,    // registers of a wgmma touched without a wgmma.fence between
  descriptor,     // a wgmma descriptor or tensor map that does not fit its data
  divergence,     // an aligned instruction, or one with a member mask, reached by other lanes than it names
  illegal,        // anything else that the ISA forbids
};
const char* to_string(FindingKind kind);

struct Finding {
  FindingKind kind = FindingKind::illegal;
  std::string message;  // what is wrong, in words
  u32 cta[3] = {};
  int warp = 0;   // within the CTA
  u32 lanes = 0;  // mask
  int ptx_line = 0;
  std::string ptx_text;
  std::vector<int> source_lines;  // of the rendered source, innermost first, then its callers
  std::vector<std::string>
      origins;  // "templates/parts/mma/softmax.cuh:31", as far as the source lines are known
  u64 seed = 0;
  u64 count = 1;  // how often this finding occurred

  [[nodiscard]] std::string text() const;
};

// Collects findings from all threads of a launch.
class Report {
 public:
  Report(const Program& program, std::span<const LineOrigin> origins, u64 seed)
      : program_(program), origins_(origins), seed_(seed) {}

  // Adds a finding at an instruction. The first of each (kind, PTX line) is kept; further ones are only
  // counted.
  void add(FindingKind kind, const u32 cta[3], int warp, u32 lanes, u32 ins, std::string message);

  [[nodiscard]] std::vector<Finding> findings() const;
  [[nodiscard]] bool empty() const;
  [[nodiscard]] bool full() const;  // enough findings to stop
  // The place of an instruction: "PTX line 53 (st.shared.b32 …), templates/…:12".
  [[nodiscard]] std::string place(u32 ins) const;

 private:
  void locate(Finding& finding, u32 ins) const;

  const Program& program_;
  std::span<const LineOrigin> origins_;
  u64 seed_;
  mutable std::mutex mutex_;
  std::vector<Finding> findings_;
  std::map<std::pair<FindingKind, int>, std::size_t> seen_;
};

// Thrown by a handler that has reported a finding and cannot go on; ends the launch.
struct Stop {};

}  // namespace flashjit::emulator

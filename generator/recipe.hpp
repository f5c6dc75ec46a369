// What a family tells the renderer about one kernel: its template, constants, sections and geometry.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/legality.hpp"
#include "generator/render.hpp"

namespace flashjit {

// One line of the block of constants on top of a rendered kernel.
struct Constant {
  std::string type;  // "int", "bool", "float"
  std::string name;  // "kTileM"
  std::string value;
  std::string comment;  // what it is, with its unit
};

inline Constant number(const char* name, int value, const char* comment) {
  return {"int", name, std::to_string(value), comment};
}
inline Constant flag(const char* name, bool value, const char* comment) {
  return {"bool", name, value ? "true" : "false", comment};
}

struct Recipe {
  std::string kernel;  // "kernels/forward_mma.cu"
  std::string suffix;  // appended to the entry's name where a plan has several kernels
  std::vector<Constant> constants;
  std::map<std::string, bool> sections;  // every section that the kernel's templates use, shown or absent
  std::map<std::string, std::vector<std::map<std::string, std::string>>>
      lists;      // what C++ cannot say: operand lists
  int ptxas = 3;  // as KernelSource::ptxas
  Geometry geometry;
  std::vector<TensorMapSpec> maps;
};

// The most registers that a thread can have where this many threads share a multiprocessor, whose warps are
// dealt to four schedulers with a quarter of the registers each.
inline int registers_for(int threads, const Target& target) {
  const int counted = (threads + 127) / 128 * 128;
  return std::min(255, target.registers_per_sm / counted / 8 * 8);
}

// For Legality's sentences on shared memory: "96 KB", rounded up; "tile 128x64 with 2 stages"; and the
// refusal of what needs too much of it.
inline std::string kilobytes(int bytes) {
  return std::to_string((bytes + 1023) / 1024) + " KB";
}
inline std::string staged_tile(int tile_m, int tile_n, int stages) {
  return fmt::format("tile {}x{} with {} stage{}", tile_m, tile_n, stages, stages == 1 ? "" : "s");
}
inline Legality too_much_shared(std::string_view what, int bytes, const Target& target) {
  return {fmt::format("{} needs {} of shared memory, {} gives {}", what, kilobytes(bytes), target.arch,
                      kilobytes(target.shared_per_cta))};
}

// Whether as many CTAs as min_ctas asks for (0: one) have room on a multiprocessor; else registers would be
// cut for nothing.
inline Legality room_for_ctas(std::string_view what, int bytes, int min_ctas, const Target& target) {
  constexpr int kUnit = 128;  // bytes; CTAs are given shared memory in multiples of this
  if (min_ctas <= 1) return {};
  const int room = target.shared_per_sm / min_ctas / kUnit * kUnit - target.shared_reserved;
  if (bytes <= room) return {};
  return {fmt::format("{} needs {} of shared memory, {} CTAs per multiprocessor have {} each", what,
                      kilobytes(bytes), min_ctas, kilobytes(room))};
}

// Why a thread may not sum up so many exponentials before it looks: the sum would always be taken for an
// overflow.
inline Legality optimism_in_vain(int tile_n, int lazy) {
  return {fmt::format(
      "optimistic 1 sums up {} exponentials before it looks; 2^lazy must be at least twice that, lazy is {}",
      tile_n / 4, lazy)};
}

// One per family, each in a file of its own (families/simt.cpp …). legal_* may assume that the Problem is
// valid.
Legality legal_simt(const Problem& problem, const SimtSchedule& schedule, const Target& target);
Legality legal_mma(const Problem& problem, const MmaSchedule& schedule, const Target& target);
Legality legal_wgmma(const Problem& problem, const WgmmaSchedule& schedule, const Target& target);
std::vector<Recipe> recipes_simt(const Problem& problem, const SimtSchedule& schedule, const Target& target);
std::vector<Recipe> recipes_mma(const Problem& problem, const MmaSchedule& schedule, const Target& target);
std::vector<Recipe> recipes_wgmma(const Problem& problem, const WgmmaSchedule& schedule,
                                  const Target& target);
// Only the geometry of these recipes, in a hundredth of the time.
Geometry geometry_simt(const Problem& problem, const SimtSchedule& schedule);
Geometry geometry_mma(const Problem& problem, const MmaSchedule& schedule, const Target& target);
Geometry geometry_wgmma(const Problem& problem, const WgmmaSchedule& schedule);

// The same for the backward pass (families/simt_backward.cpp …), whose kernels come in launch order.
Legality legal_simt_backward(const Problem& problem, const SimtBackwardSchedule& schedule,
                             const Target& target);
Legality legal_mma_backward(const Problem& problem, const MmaBackwardSchedule& schedule,
                            const Target& target);
Legality legal_wgmma_backward(const Problem& problem, const WgmmaBackwardSchedule& schedule,
                              const Target& target);
std::vector<Recipe> recipes_simt_backward(const Problem& problem, const SimtBackwardSchedule& schedule,
                                          const Target& target);
std::vector<Recipe> recipes_mma_backward(const Problem& problem, const MmaBackwardSchedule& schedule,
                                         const Target& target);
std::vector<Recipe> recipes_wgmma_backward(const Problem& problem, const WgmmaBackwardSchedule& schedule,
                                           const Target& target);

// The kernels around a backward pass (families/backward_common.cpp). The one before the main kernels fills
// BackwardParams::lse_log2 (not in fp32) and delta, and clears those arrays of the workspace that are added
// to; fp32 on tensor cores has one of its own. The one after them turns dq_sum into dQ: simt's sums lie row
// by row, mma's in the layout of its accumulators.
Recipe recipe_preprocess(const Problem& problem, const Schedule& schedule);
Recipe recipe_postprocess(const Problem& problem);
Recipe recipe_mma_sum(const Problem& problem, const Target& target);

// Text with the origin of each of its lines.
struct Rendered {
  std::string text;
  std::vector<LineOrigin> origins;
};

// Fills in the recipe's sections and lists (Mustache between /*% and %*/), pastes each #include "…" of
// another template once, in order, and drops lines that held nothing but tags. Throws Error{internal} that
// names the template and line.
Rendered expand(const Recipe& recipe, const TemplateSet& templates);

}  // namespace flashjit

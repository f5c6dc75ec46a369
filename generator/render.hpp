// From a Problem and a Schedule to the CUDA source of its kernels. Pure: the same input gives the same bytes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"
#include "templates/params/share_row.h"

namespace flashjit {

// Template text by its path under templates/ ("parts/mma/softmax.cuh"). The embedded set is compiled into the
// library; an override (FLASHJIT_TEMPLATE_DIR) is a copy with some texts replaced.
using TemplateSet = std::map<std::string, std::string, std::less<>>;
const TemplateSet& embedded_templates();

// Where a rendered line came from, so that errors and the emulator can name the template.
struct LineOrigin {
  std::string_view
      file;      // a key of the TemplateSet, which must outlive it; "" for lines that the renderer wrote
  int line = 0;  // 1-based
};

// Which of a call's tensors a TMA map describes, and the box that one copy moves. The map has five
// dimensions, {columns, seqlen, panels, heads, batch}, with the call's strides, and zeros outside. The box is
// {columns, box_rows, panels, 1, 1}, in the order of shared memory. There a row takes row_bytes and is
// swizzled over all of them; where the box is narrower, the rest of a row is left as it was.
//   panels > 1:  dimension 0 is one panel of `columns`, dimension 2 counts the whole panels of the head dim;
//   panels == 1: dimension 0 is the whole head dim, so that TMA sees where it ends, and dimension 2 has
//   size 1.
// With `packs`, the heads of a Pack are a dimension instead: the map is {columns, heads of a pack, seqlen,
// packs, batch} and the box {columns, 2^packed, box_rows / 2^packed, 1, 1}, one panel with 2^packed rows per
// token. K and V have heads_kv heads. The map of an empty tensor describes one row of another tensor, since a
// kernel never loads from a tensor without tokens.
enum class Operand { q, k, v, o, dout, dq, dk, dv };
struct TensorMapSpec {
  Operand operand = Operand::q;
  int box_rows = 0;  // tokens per copy
  int panels = 0;    // per copy
  int columns = 64;
  int row_bytes = 128;  // 32, 64 or 128
  bool packs = false;
  friend bool operator==(const TensorMapSpec&, const TensorMapSpec&) = default;
};

// What a kernel's CTAs share out among themselves.
enum class Grid {
  query_tiles,  // ceil(seqlen_q / tile_m) per head and batch
  key_tiles,    // ceil(seqlen_k / tile_n) per K/V head and batch
};

// How many CTAs, and what each needs.
struct Geometry {
  Grid grid = Grid::query_tiles;
  int tile_m = 0;  // query rows per CTA, or per cluster; per step where the grid runs over keys
  int tile_n = 0;  // keys per CTA, or per cluster, where the grid runs over keys; or per block of even shares
  bool pads = false;         // tiles also cover the padding of the workspace's rows
  int threads = 0;           // per CTA
  int shared_bytes = 0;      // dynamic shared memory per CTA
  int cluster = 1;           // CTAs that work on one tile together
  bool persistent = false;   // as many CTAs as run at once, or fewer: each has many tiles
  bool cooperative = false;  // all CTAs are at work at once, since they wait for each other
  bool dynamic = false;      // persistent CTAs take tiles from a counter in device memory (tile_counter)
  bool divides = false;      // of tiles of keys, the last ones may be divided in two (divided_tiles)
  bool packs = false;  // tiles hold rows of several query heads where few queries would leave them empty
  int section_bytes =
      0;  // L2 section of an order that takes the longest tiles first; 0 where it does not apply
  // Where the CTAs of a cluster share out a tile's keys, several clusters may share a tile, too
  // (clusters_of_tile). Or all CTAs have even shares of all tiles' keys (even_shares). For other kernels
  // these are 0.
  int piece_bytes = 0;  // of device memory for each CTA that shares a tile with others
  int counters = 0;     // for each cluster's worth of such CTAs
  int least_keys = 0;   // of a cluster, for sharing to be worth it
  bool even_shares = false;
  int idle_rows = 0;  // rows up to which a CTA waits for memory more than it computes
};

// All or some query heads of a group, whose rows lie side by side in the tiles of kernels with
// Geometry::packs. A query has 2^packed places, one for each of the heads; the last places may stay empty.
struct Pack {
  int heads = 1;
  int packed = 0;
  friend bool operator==(const Pack&, const Pack&) = default;
};
// The pack that fills tiles of tile_m rows best.
Pack pack_of(const Problem& problem, const Shape& shape, int tile_m);
// The pack that a schedule's kernels use; a single head where they pack none.
Pack pack_of(const Problem& problem, const Shape& shape, const Schedule& schedule);
// The shape as tiles see it: packs are heads, and places are queries.
Shape as_tiled(Shape shape, const Pack& pack);

// How many clusters share out a tile's keys where there are fewer tiles than clusters that run at once.
// `tiled` is the shape as tiles see it.
int clusters_of_tile(const Geometry& geometry, const Shape& tiled, int clusters_at_once);

// How many clusters, or CTAs, have even shares of the keys, and of how many tiles. The other tiles fill whole
// waves, and are dealt. `tiled` is the shape as tiles see it, with 2^packed places for a query.
struct EvenShares {
  int clusters = 0, tiles = 0;
  ShareRow row{};  // of these tiles' keys
};
EvenShares even_shares(const Problem& problem, const Geometry& geometry, const Shape& tiled, int packed,
                       int clusters_at_once);

// How many of the clusters, or CTAs, that run at once are dealt tiles, where all tiles have one length: the
// fewest that take no more waves.
long long even_waves(long long tiles, long long clusters_at_once);

// How many tiles of a dynamic order's second wave come from its two halves in turn, where all tiles are one
// section (ForwardParams::riffled).
int riffled_tiles(double tiles, int clusters_at_once);

struct KernelSource {
  std::string entry;                // "flashjit_forward_mma_bf16_d128_causal_m128n64w4s2"
  std::string text;                 // self-contained CUDA C++, without any #include
  std::vector<LineOrigin> origins;  // of each line of text
  int ptxas = 3;                    // the level of ptxas's optimisations; part of the cache's key
  Geometry geometry;
  std::vector<TensorMapSpec> maps;  // kernel parameters: these maps in order, then the params struct
};

// Device memory that one call of a backward plan needs between its kernels (BackwardParams::lse_log2 …).
struct Workspace {
  bool lse_log2 = false;    // beside delta, which is always there
  bool dq_sum = false;      // an fp32 copy of dQ, its rows padded
  bool counters = false;    // one for each kBackwardCounterRows of those rows
  bool narrow = false;      // kernels count padded rows, and quadruples of dq_sum, in 32 bits
  int tile_m = 1;           // padded rows hold whole tiles of this many rows
  int row_parts_bytes = 0;  // of a tile of rows of Q and dO, split; 0 where no kernel has them copied
  int tile_n = 1;           // keys are padded to whole tiles of so many, in tiles of keys
  int key_parts_bytes = 0;  // of a tile of K and V, likewise
  int splits = 1;           // parts, at the most, whose dV and dK are added up in fp32 (query_splits)
  int divided_tiles = 0;    // tiles of keys, at the most, of whose two parts one leaves its dV and dK in fp32
};
Workspace workspace_of(const Problem& problem, const Schedule& schedule);

// The kernels of one plan, in launch order (forward: one). Throws Error{unsupported} with legal()'s sentence.
std::vector<KernelSource> render(const Problem& problem, const Schedule& schedule, const Target& target,
                                 const TemplateSet& templates = embedded_templates());

// "flashjit_forward_mma_bf16_d128_causal_m128n64w4s2": problem and schedule; the same on every arch.
std::string kernel_name(const Problem& problem, const Schedule& schedule);

}  // namespace flashjit

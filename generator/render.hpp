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
// dimensions and zeros outside: {columns, seqlen, panels, heads, batch} with the call's strides, and the box
// {columns, box_rows, panels, 1, 1}, in the order of shared memory. There a row takes row_bytes, over which
// it is swizzled; what a narrower box leaves of them keeps what it held.
//   panels > 1:  dimension 0 is one panel of `columns`, dimension 2 counts the whole panels of the head dim;
//   panels == 1: dimension 0 is the whole head dim, so that TMA sees where it ends, and dimension 2 has
//   size 1.
// With `packs`, the heads of a Pack are a dimension instead: {columns, heads of a pack, seqlen, packs, batch}
// and the box {columns, 2^packed, box_rows / 2^packed, 1, 1}, one panel of 2^packed rows a token. K and V
// have heads_kv heads. An empty tensor's map describes one row of another: a kernel never loads from a tensor
// without tokens.
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

// What a kernel's CTAs share out among them.
enum class Grid {
  query_tiles,  // ceil(seqlen_q / tile_m) per head and batch
  key_tiles,    // ceil(seqlen_k / tile_n) per K/V head and batch
};

// How many CTAs, and what each needs.
struct Geometry {
  Grid grid = Grid::query_tiles;
  int tile_m = 0;  // query rows per CTA, or per cluster; per step where the grid runs over keys
  int tile_n = 0;  // keys per CTA, or per cluster, where the grid runs over keys; of a block of even shares
  bool pads = false;         // the tiles go on over the padding of the workspace's rows
  int threads = 0;           // per CTA
  int shared_bytes = 0;      // dynamic shared memory per CTA
  int cluster = 1;           // CTAs that work on one tile together
  bool persistent = false;   // as many CTAs as run at once, or fewer: each has many tiles
  bool cooperative = false;  // all CTAs are at work at once, since they wait for each other
  bool dynamic = false;      // persistent CTAs take tiles from a counter in device memory (tile_counter)
  bool packs = false;  // tiles hold rows of several query heads where few queries would leave them empty
  int section_bytes =
      0;  // L2 section of an order that takes the longest tiles first; 0 where it does not apply
  // Where CTAs of a cluster share out a tile's keys, several clusters may, too (clusters_of_tile); or all
  // CTAs have even shares of all tiles' keys (even_shares). Else 0.
  int piece_bytes = 0;  // of device memory for each CTA that shares a tile with others
  int counters = 0;     // for each cluster's worth of such CTAs
  int least_keys = 0;   // of a cluster, for it to be worth it
  bool even_shares = false;
  int idle_rows = 0;  // up to which a CTA waits for memory more than it computes
};

// Query heads of a group, all or some, whose rows lie side by side in the tiles of kernels with
// Geometry::packs: a query has 2^packed places, one for each of the heads, and the last ones may stay empty.
struct Pack {
  int heads = 1;
  int packed = 0;
  friend bool operator==(const Pack&, const Pack&) = default;
};
// As fills tiles of so many rows best.
Pack pack_of(const Problem& problem, const Shape& shape, int tile_m);
// As kernels of a schedule do; single heads where they pack none.
Pack pack_of(const Problem& problem, const Shape& shape, const Schedule& schedule);
// As tiles see it: packs are heads, and places are queries.
Shape as_tiled(Shape shape, const Pack& pack);

// How many clusters share out a tile's keys where there are so few tiles that not all clusters that run at
// once would have one. `tiled` is the shape as tiles see it.
int clusters_of_tile(const Geometry& geometry, const Shape& tiled, int clusters_at_once);

// How many clusters, or CTAs, have even shares of the keys of how many tiles; the others fill whole waves,
// and are dealt. `tiled` is the shape as tiles see it, with 2^packed places for a query.
struct EvenShares {
  int clusters = 0, tiles = 0;
  ShareRow row{};  // of these tiles' keys
};
EvenShares even_shares(const Problem& problem, const Geometry& geometry, const Shape& tiled, int packed,
                       int clusters_at_once);

// How many of the clusters, or CTAs, that run at once take tiles of one length that are dealt: as few as make
// as many waves.
long long even_waves(long long tiles, long long clusters_at_once);

// Of a dynamic order's second wave, how many tiles come from its halves in turns, where all are one section
// (ForwardParams::riffled).
int riffled_tiles(double tiles, int clusters_at_once);

struct KernelSource {
  std::string entry;                // "flashjit_forward_mma_bf16_d128_causal_m128n64w4s2"
  std::string text;                 // self-contained CUDA C++, not one #include
  std::vector<LineOrigin> origins;  // of each line of text
  int ptxas = 3;                    // the level of ptxas's optimisations; part of the cache's key
  Geometry geometry;
  std::vector<TensorMapSpec> maps;  // kernel parameters: these maps in order, then the params struct
};

// Device memory that one call of a backward plan needs between its kernels (BackwardParams::lse_log2 …).
struct Workspace {
  bool dq_sum = false;    // an fp32 copy of dQ, its rows padded
  bool counters = false;  // for each kBackwardCounterRows of those rows
  bool narrow = false;    // kernels count padded rows, and quadruples of dq_sum, in 32 bits
  int tile_m = 1;         // padded rows hold whole tiles of these
};
Workspace workspace_of(const Schedule& schedule);

// The kernels of one plan, in launch order (forward: one). Throws Error{unsupported} with legal()'s sentence.
std::vector<KernelSource> render(const Problem& problem, const Schedule& schedule, const Target& target,
                                 const TemplateSet& templates = embedded_templates());

// "flashjit_forward_mma_bf16_d128_causal_m128n64w4s2": problem and schedule; the same on every arch.
std::string kernel_name(const Problem& problem, const Schedule& schedule);

}  // namespace flashjit

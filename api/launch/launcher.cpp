// From a checked call to one Device::launch for each kernel.
#include "api/launch/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "api/launch/backward_call.hpp"
#include "api/launch/divisor.hpp"
#include "api/launch/forward_call.hpp"
#include "flashjit/error.hpp"
#include "generator/sections.hpp"

namespace flashjit::api {
namespace {

constexpr long long kMaxGrid = std::numeric_limits<std::int32_t>::max();  // CTAs in x, on every arch

// How many pairs of head and batch a grid covers.
long long pairs_of(const Shape& shape, Grid grid) {
  return static_cast<long long>(shape.batch) * (grid == Grid::key_tiles ? shape.kv_heads() : shape.heads);
}

std::size_t bytes_of_pieces(const Geometry& geometry, long long clusters) {
  return static_cast<std::size_t>(clusters * geometry.cluster * geometry.piece_bytes);
}

// How many clusters, or CTAs, of a persistent kernel are at work at once.
long long at_once_of(const runtime::Device& device, const LoadedKernel& kernel) {
  return std::max(1LL, static_cast<long long>(device.target().sm_count) * kernel.ctas_per_sm /
                           kernel.code->source.geometry.cluster);
}

// Null if no kernel counts tiles.
std::unique_ptr<TileCounters> counters_of(runtime::Device& device, const LoadedPlan& plan) {
  TileCounters::Size size;
  for (const LoadedKernel& kernel : plan.kernels) {
    const Geometry& geometry = kernel.code->source.geometry;
    if (geometry.dynamic) size.zeros = std::max(size.zeros, 2);
    if (geometry.divides) size.zeros += most_divided_tiles(kMaxGrid, at_once_of(device, kernel));
    if (geometry.piece_bytes == 0) continue;
    size.zeros = std::max(size.zeros, kernel.clusters_at_once * geometry.counters);
    size.bytes = bytes_of_pieces(geometry, kernel.clusters_at_once);
  }
  if (size.zeros == 0) return nullptr;
  return std::make_unique<TileCounters>(device, size);
}

void set_divisors(ForwardParams& params) {
  const int packs = params.places >> params.packed;
  params.by_heads = divisor_of(packs);
  params.by_group = divisor_of(packs / params.heads_kv);
  params.by_tiles = divisor_of(params.tiles_m);
  params.by_section = divisor_of(params.section);
  params.by_last_section = divisor_of(static_cast<long long>(packs) * params.batch - params.last_section);
  params.by_section_tiles = divisor_of(static_cast<long long>(params.section) * params.tiles_m);
  params.by_clusters = divisor_of(params.clusters);
}

// The order of a kernel's tiles, of which `ctas` CTAs (or clusters) work at a time.
void set_order(BackwardParams& params, long long pairs, int group, long long ctas) {
  const Sections sections = sections_at_once(pairs, params.tiles, group, ctas);
  params.section = static_cast<int>(sections.pairs);
  params.last_section = static_cast<int>(sections.last);
  params.last_pairs = static_cast<int>(pairs - sections.last);
  params.by_tiles = divisor_of(params.tiles);
  params.by_pairs = divisor_of(pairs);
  params.by_section = divisor_of(params.section);
  params.by_last_pairs = divisor_of(params.last_pairs);
  params.by_section_tiles = divisor_of(sections.pairs * params.tiles);
}

void set_divided(BackwardParams& params, long long pairs, const DividedTiles& divided) {
  params.divided_tiles = divided.count;
  params.undivided_tiles = static_cast<int>(params.tiles * pairs) - divided.count;
  params.least_steps = divided.least_steps;
  params.more_steps = divided.more_steps;
  params.by_divided_tiles = divisor_of(std::max(1, divided.count));
}

}  // namespace

KernelLauncher::KernelLauncher(runtime::Device& device, const Problem& problem, const LoadedKernel& kernel)
    : device_(device),
      kernel_(kernel),
      geometry_(kernel.code->source.geometry),
      mapper_(device, kernel.code->source.maps, problem) {}

long long KernelLauncher::pairs(const Shape& shape, int parts) const {
  return pairs_of(shape, geometry_.grid) * (geometry_.grid == Grid::key_tiles ? parts : 1);
}

int KernelLauncher::tiles(const Shape& seen, const Shape& given, int parts) const {
  const bool over_keys = geometry_.grid == Grid::key_tiles;
  const int rows = over_keys ? seen.seqlen_k : seen.seqlen_q;
  if (rows == 0) return 0;
  const int tile = over_keys ? geometry_.tile_n : geometry_.tile_m;
  const int tiles = (rows - 1) / tile + 1;
  const long long pairs = this->pairs(seen, parts);
  // The factors are below 2^62 and 2^31, so their product could overflow; the quotient cannot. A kernel steps
  // from tile to tile by the grid's size in 32 bits, so as many again must fit beyond the last tile.
  const long long most = kMaxGrid / 2 / geometry_.cluster;
  if (pairs > most / tiles) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shape {} has {} x {} tiles of {} {}, may have {} in all", describe(given), tiles,
                            pairs, tile, over_keys ? "keys" : "query rows", most),
                "Split the batch over several calls, or make a plan for these sizes.");
  }
  return tiles;
}

long long KernelLauncher::at_once() const {
  return at_once_of(device_, kernel_);
}

DividedTiles KernelLauncher::divided(const Shape& shape, long long tiles) const {
  if (!geometry_.divides || shape.seqlen_q == 0) return {};
  const int steps = (shape.seqlen_q - 1) / geometry_.tile_m + 1;
  return divided_tiles(tiles, shape.heads / shape.kv_heads(), steps, at_once());
}

int KernelLauncher::most_divided(const Shape& shape) const {
  if (!geometry_.divides || shape.seqlen_q == 0 || shape.seqlen_k == 0) return 0;
  const long long tiles = (shape.seqlen_k - 1LL) / geometry_.tile_n + 1;
  return most_divided_tiles(tiles * std::min(kMaxGrid, pairs(shape, 1)), at_once());
}

long long KernelLauncher::share_out(const Problem& problem, const Shape& tiled, ForwardParams& params) const {
  if (geometry_.even_shares) {
    const EvenShares shares = even_shares(problem, geometry_, tiled, params.packed, kernel_.clusters_at_once);
    params.clusters = 1;
    params.shared_tiles = shares.tiles;
    if (shares.tiles != 0) {
      params.cuts = {.row = shares.row,
                     .by_unit = divisor_of(shares.row.unit),
                     .by_all = divisor_of(shares.row.all),
                     .by_shares = divisor_of(shares.clusters)};
    }
    return shares.clusters;
  }
  params.shared_tiles = 0;
  params.clusters = clusters_of_tile(geometry_, tiled, kernel_.clusters_at_once);
  const long long all = params.tiles_m * pairs_of(tiled, Grid::query_tiles) * params.clusters;
  const bool alike = !problem.causal || params.tiles_m == 1;
  return geometry_.persistent && !geometry_.dynamic && alike ? even_waves(all, at_once()) : all;
}

template <class Params>
void KernelLauncher::prepare(const Params& params) const {
  if (mapper_.size() != 0) static_cast<void>(mapper_.maps_for(tensors_of(params)));
}

template <class Params>
void KernelLauncher::launch(Params& params, long long clusters, Stream stream) const {
  std::array<void*, kMaxMaps + 1> pointers{};
  std::size_t count = 0;
  if (mapper_.size() != 0) {
    TensorMaps& maps = mapper_.maps_for(tensors_of(params));
    for (; count < mapper_.size(); ++count) pointers[count] = &maps[count];
  }
  pointers[count++] = &params;
  if (geometry_.persistent) clusters = std::min(clusters, at_once());
  device_.launch(*kernel_.kernel,
                 {.grid = static_cast<std::uint32_t>(clusters * geometry_.cluster),
                  .threads = static_cast<std::uint32_t>(geometry_.threads),
                  .shared_bytes = static_cast<std::uint32_t>(geometry_.shared_bytes),
                  .cluster = static_cast<std::uint32_t>(geometry_.cluster),
                  .cooperative = geometry_.cooperative},
                 std::span(pointers).first(count), stream);
}

Launcher::Launcher(runtime::Device& device, std::shared_ptr<const LoadedPlan> plan)
    : device_(device),
      plan_(std::move(plan)),
      workspace_(workspace_of(plan_->problem, plan_->schedule)),
      counters_(counters_of(device, *plan_)) {
  kernels_.reserve(plan_->kernels.size());
  for (const LoadedKernel& kernel : plan_->kernels) kernels_.emplace_back(device, plan_->problem, kernel);
}

void Launcher::replenish() const {
  if (counters_ != nullptr) counters_->replenish();
}

void Launcher::check_pass(Pass pass) const {
  if (plan_->problem.pass == pass) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("this plan is for the {} pass, may not run a {} one",
                          to_string(plan_->problem.pass), to_string(pass)),
              fmt::format("Ask the Engine for a plan with Problem::pass = Pass::{}.", to_string(pass)));
}

void Launcher::forward(const Shape& shape, const ForwardArgs& args, Stream stream) const {
  check_pass(Pass::forward);
  const Problem& problem = plan_->problem;
  ForwardParams params;
  if (!make_forward_params(problem, shape, args, params)) return;

  const KernelLauncher& kernel = kernels_.front();
  const Geometry& geometry = kernel.geometry();
  const Pack pack = geometry.packs ? pack_of(problem, shape, geometry.tile_m) : Pack{};
  const Shape seen = as_tiled(shape, pack);
  params.packed = pack.packed;
  params.heads_of_pack = pack.heads;
  params.places = seen.heads << pack.packed;
  params.tiles_m = kernel.tiles(seen, shape);
  const Sections sections =
      sections_of(problem, seen, params.tiles_m, geometry.section_bytes, kernel.at_once());
  params.section = static_cast<int>(sections.pairs);
  params.last_section = static_cast<int>(sections.last);
  if (geometry.dynamic && geometry.section_bytes > 0 && sections.last == 0) {
    params.riffled_from = static_cast<int>(kernel.at_once());
    params.riffled = riffled_tiles(1.0 * seen.batch * seen.heads * params.tiles_m, params.riffled_from);
  }
  const long long clusters = kernel.share_out(problem, seen, params);
  set_divisors(params);
  if (!geometry.dynamic && params.shared_tiles == 0 && params.clusters == 1) {
    return kernel.launch(params, clusters, stream);
  }
  const TileCounters::Lent lent = counters_->for_launch(stream);
  const auto run = [&](void* pieces) {
    params.tile_counter = lent.zeros;
    params.pieces = static_cast<float*>(pieces);
    try {
      kernel.launch(params, clusters, stream);
    } catch (...) {
      counters_->clear(lent.zeros, stream);
      throw;
    }
  };
  if (geometry.dynamic || lent.memory != nullptr) return run(lent.memory);
  with_memory(bytes_of_pieces(geometry, clusters), stream, run);
}

template <class Run>
void Launcher::with_memory(std::size_t bytes, Stream stream, const Run& run) const {
  void* memory = device_.allocate_ordered(bytes, stream);
  try {
    run(memory);
  } catch (...) {
    try {
      device_.free_ordered(memory, stream);
    } catch (const Error&) {
      // If the launch broke the stream's capture, freeing fails, too; the launch's own error is the one to
      // report.
    }
    throw;
  }
  device_.free_ordered(memory, stream);
}

Workspace Launcher::workspace_for(const Shape& shape) const {
  Workspace parts = workspace_;
  for (const KernelLauncher& kernel : kernels_) parts.divided_tiles += kernel.most_divided(shape);
  return parts;
}

std::size_t Launcher::workspace_bytes(const Shape& shape) const {
  validate(shape);
  if (plan_->problem.pass == Pass::forward) return 0;
  return WorkspaceLayout(plan_->problem, shape, workspace_for(shape)).bytes;
}

void Launcher::backward(const Shape& shape, const BackwardArgs& args, Stream stream) const {
  check_pass(Pass::backward);
  BackwardParams params;
  if (!make_backward_params(plan_->problem, shape, args, workspace_, params)) return;
  if (counters_ != nullptr)
    params.tile_counter = counters_->for_launch(stream).zeros;  // its kernels use it in turn
  const auto shape_for = [&](const KernelLauncher& kernel) {
    Shape seen = shape;
    if (kernel.geometry().pads) seen.seqlen_q = params.padded_q;
    return seen;
  };
  const int parts = params.head_splits * params.row_splits;
  for (const KernelLauncher& kernel : kernels_) {  // refuse before any of them runs
    if (kernel.tiles(shape_for(kernel), shape, parts) != 0) kernel.prepare(params);
  }

  const Workspace arrays = workspace_for(shape);
  const WorkspaceLayout layout(plan_->problem, shape, arrays);
  const auto run = [&](void* workspace) {
    if (workspace != nullptr) layout.place(workspace, arrays, params);
    try {
      for (const KernelLauncher& kernel : kernels_) {
        params.tiles = kernel.tiles(shape_for(kernel), shape, parts);
        if (params.tiles == 0) continue;
        const bool over_keys = kernel.geometry().grid == Grid::key_tiles;
        const long long pairs = kernel.pairs(shape, parts);
        set_order(params, pairs, over_keys ? params.group : 1, kernel.at_once());
        set_divided(params, pairs, kernel.divided(shape, params.tiles * pairs));
        kernel.launch(params, params.tiles * pairs, stream);
      }
    } catch (...) {
      if (counters_ != nullptr) counters_->clear(params.tile_counter, stream);
      throw;
    }
  };
  if (args.workspace != nullptr || layout.bytes == 0) return run(args.workspace);
  with_memory(layout.bytes, stream, run);
}

}  // namespace flashjit::api

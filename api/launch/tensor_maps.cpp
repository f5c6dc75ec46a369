// A small table per thread, so that a launch takes no lock. Each layer of a model finds its own line in the
// table.
#include "api/launch/tensor_maps.hpp"

#include <fmt/format.h>

#include "api/launch/identity.hpp"
#include "api/per_thread.hpp"
#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

constexpr std::size_t index_of(Operand operand) {
  return static_cast<std::size_t>(operand);
}
static_assert(index_of(Operand::dv) == kOperands - 1);

struct Line {
  std::uint64_t mapper = 0;
  CallTensors of;
  TensorMaps maps;
};
using Lines = std::array<Line, 64>;

Line& line_for(std::uint64_t mapper, const CallTensors& tensors) {
  Lines& lines = PerThread<Lines>::get();
  // Allocations are at least 256 bytes apart and usually a power of two: fold the upper bits of q's and o's
  // addresses into the index.
  auto bits = reinterpret_cast<std::uintptr_t>(tensors.views[index_of(Operand::q)].base) >> 8;
  bits ^= reinterpret_cast<std::uintptr_t>(tensors.views[index_of(Operand::o)].base) >> 8;
  bits ^= bits >> 6 ^ bits >> 12 ^ bits >> 18 ^ mapper;
  return lines[bits % lines.size()];
}

}  // namespace

CallTensors tensors_of(const ForwardParams& p) {
  return {.views = {{{p.q, p.q_batch, p.q_head, p.q_row},
                     {p.k, p.k_batch, p.k_head, p.k_row},
                     {p.v, p.v_batch, p.v_head, p.v_row},
                     {p.o, p.o_batch, p.o_head, p.o_row}}},
          .batch = p.batch,
          .heads = p.heads,
          .heads_kv = p.heads_kv,
          .seqlen_q = p.seqlen_q,
          .seqlen_k = p.seqlen_k,
          .packed = p.packed,
          .heads_of_pack = p.heads_of_pack};
}

CallTensors tensors_of(const BackwardParams& p) {
  return {.views = {{{p.q, p.q_batch, p.q_head, p.q_row},
                     {p.k, p.k_batch, p.k_head, p.k_row},
                     {p.v, p.v_batch, p.v_head, p.v_row},
                     {p.o, p.o_batch, p.o_head, p.o_row},
                     {p.dout, p.dout_batch, p.dout_head, p.dout_row},
                     {p.dq, p.dq_batch, p.dq_head, p.dq_row},
                     {p.dk, p.dk_batch, p.dk_head, p.dk_row},
                     {p.dv, p.dv_batch, p.dv_head, p.dv_row}}},
          .batch = p.batch,
          .heads = p.heads,
          .heads_kv = p.heads_kv,
          .seqlen_q = p.seqlen_q,
          .seqlen_k = p.seqlen_k};
}

TensorMapper::TensorMapper(runtime::Device& device, std::span<const TensorMapSpec> specs,
                           const Problem& problem)
    : device_(device), specs_(specs.begin(), specs.end()), problem_(problem), id_(next_identity()) {
  if (specs_.size() > kMaxMaps) {
    throw Error(ErrorCode::internal,
                fmt::format("a kernel has {} tensor maps, at most {} are handled", specs_.size(), kMaxMaps));
  }
}

namespace {

const char* name_of(Operand operand) {
  constexpr const char* kNames[] = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"};
  return kNames[static_cast<std::size_t>(operand)];
}

}  // namespace

TensorMaps& TensorMapper::maps_for(const CallTensors& tensors) const {
  Line& line = line_for(id_, tensors);
  if (line.mapper == id_ && line.of == tensors) return line.maps;
  line.mapper = 0;  // in case encode throws on the way
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    try {
      line.maps[i] = encode(specs_[i], tensors);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", name_of(specs_[i].operand), error.message()),
                  error.hint());
    }
  }
  line.of = tensors;
  line.mapper = id_;
  return line.maps;
}

// As TensorMapSpec says.
runtime::TensorMap TensorMapper::encode(const TensorMapSpec& spec, const CallTensors& tensors) const {
  const Operand operand = spec.operand;
  const bool of_keys =
      operand == Operand::k || operand == Operand::v || operand == Operand::dk || operand == Operand::dv;
  const bool of_values =
      operand == Operand::v || operand == Operand::o || operand == Operand::dout || operand == Operand::dv;
  const int columns = of_values ? problem_.value_dim() : problem_.head_dim;
  CallTensors::View view = tensors.views[index_of(operand)];
  int rows = of_keys ? tensors.seqlen_k : tensors.seqlen_q;
  int heads = of_keys ? tensors.heads_kv : tensors.heads;
  int batches = tensors.batch;
  if (rows == 0) {
    // A map cannot be empty. Without keys, the kernel copies none, and a row of q stands in for them; without
    // queries, a row of k does.
    view = tensors.views[index_of(of_keys ? Operand::q : Operand::k)];
    view.batch = view.head = view.row;
    rows = heads = batches = 1;
  }
  const auto bytes = static_cast<std::uint64_t>(size_of(problem_.dtype));
  const auto u32 = [](int value) { return static_cast<std::uint32_t>(value); };
  const auto stride = [&](long long elements) { return static_cast<std::uint64_t>(elements) * bytes; };
  if (spec.packs) {
    const int pack = tensors.heads_of_pack;
    return device_.encode({
        .base = view.base,
        .size = {u32(columns), u32(pack), u32(rows), u32(heads / pack), u32(batches)},
        .stride = {stride(view.head), stride(view.row), stride(view.head * pack), stride(view.batch)},
        .box = {u32(spec.columns), 1U << tensors.packed, u32(spec.box_rows >> tensors.packed), 1, 1},
        .element_bytes = static_cast<int>(bytes),
        .bf16 = problem_.dtype == DType::bf16,
        .swizzle_bytes = spec.row_bytes,
    });
  }
  const bool split = spec.panels > 1;  // else one panel is the whole head dim and ends where that ends
  return device_.encode({
      .base = view.base,
      .size = {u32(split ? spec.columns : columns), u32(rows), u32(split ? columns / spec.columns : 1),
               u32(heads), u32(batches)},
      .stride = {stride(view.row), stride(spec.columns), stride(view.head), stride(view.batch)},
      .box = {u32(spec.columns), u32(spec.box_rows), u32(spec.panels), 1, 1},
      .element_bytes = static_cast<int>(bytes),
      .bf16 = problem_.dtype == DType::bf16,
      .swizzle_bytes = spec.row_bytes,
  });
}

}  // namespace flashjit::api

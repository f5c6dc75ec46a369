// A small table per thread, so that the launch path takes no lock; a model's layers each find their own line
// in it.
#include "api/launch/tensor_maps.hpp"

#include <fmt/format.h>

#include <atomic>
#include <memory>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// Everything of a call that its maps depend on.
struct Tensors {
  std::uint64_t mapper = 0;
  std::array<const void*, 4> bases{};
  std::array<long long, 12> strides{};
  std::array<int, 5> sizes{};
  bool operator==(const Tensors&) const = default;
};

struct Line {
  Tensors of;
  TensorMaps maps;
};
constexpr std::size_t kLines = 64;

Line& line_for(const Tensors& tensors) {
  thread_local const auto lines = std::make_unique<std::array<Line, kLines>>();
  // Allocations are at least 256 bytes apart and usually a power of two: fold the upper bits of q and o into
  // the index.
  auto bits = reinterpret_cast<std::uintptr_t>(tensors.bases[0]) >> 8;
  bits ^= reinterpret_cast<std::uintptr_t>(tensors.bases[3]) >> 8;
  bits ^= bits >> 6 ^ bits >> 12 ^ bits >> 18 ^ tensors.mapper;
  return (*lines)[bits % kLines];
}

}  // namespace

TensorMapper::TensorMapper(runtime::Device& device, std::span<const TensorMapSpec> specs,
                           const Problem& problem)
    : device_(device), specs_(specs.begin(), specs.end()), problem_(problem), id_(next_id()) {
  if (specs_.size() > kMaxMaps) {
    throw Error(ErrorCode::internal,
                fmt::format("a kernel has {} tensor maps, at most {} are handled", specs_.size(), kMaxMaps));
  }
}

TensorMaps& TensorMapper::maps_for(const ForwardParams& p) const {
  const Tensors tensors{.mapper = id_,
                        .bases = {p.q, p.k, p.v, p.o},
                        .strides = {p.q_batch, p.q_head, p.q_row, p.k_batch, p.k_head, p.k_row, p.v_batch,
                                    p.v_head, p.v_row, p.o_batch, p.o_head, p.o_row},
                        .sizes = {p.batch, p.heads, p.heads_kv, p.seqlen_q, p.seqlen_k}};
  Line& line = line_for(tensors);
  if (line.of == tensors) return line.maps;
  line.of = {};  // in case encode throws half-way
  for (std::size_t i = 0; i < specs_.size(); ++i) line.maps[i] = encode(specs_[i], p);
  line.of = tensors;
  return line.maps;
}

// As TensorMapSpec lays down.
runtime::TensorMap TensorMapper::encode(const TensorMapSpec& spec, const ForwardParams& p) const {
  struct View {
    const void* base;
    long long batch, head, row;
    int rows, heads, batches, columns;
  };
  View view = [&]() -> View {
    const int value_columns = problem_.value_dim();
    switch (spec.operand) {
      case Operand::q:
        return {p.q, p.q_batch, p.q_head, p.q_row, p.seqlen_q, p.heads, p.batch, problem_.head_dim};
      case Operand::k:
        return {p.k, p.k_batch, p.k_head, p.k_row, p.seqlen_k, p.heads_kv, p.batch, problem_.head_dim};
      case Operand::v:
        return {p.v, p.v_batch, p.v_head, p.v_row, p.seqlen_k, p.heads_kv, p.batch, value_columns};
      case Operand::o:
        return {p.o, p.o_batch, p.o_head, p.o_row, p.seqlen_q, p.heads, p.batch, value_columns};
      case Operand::dout:
      case Operand::dq:
      case Operand::dk:
      case Operand::dv:
        break;  // no forward kernel has gradients
    }
    throw Error(ErrorCode::internal, "a tensor map of an unknown operand");
  }();
  // A map cannot be empty. Where there are no keys, the kernel copies none, and a row of q stands in for
  // them.
  if (view.rows == 0) view = {p.q, p.q_row, p.q_row, p.q_row, 1, 1, 1, view.columns};
  const auto bytes = static_cast<std::uint64_t>(size_of(problem_.dtype));
  const auto u32 = [](int value) { return static_cast<std::uint32_t>(value); };
  const auto stride = [&](long long elements) { return static_cast<std::uint64_t>(elements) * bytes; };
  const bool split = spec.panels > 1;  // into panels; else the whole head dim is one, and ends where it ends
  return device_.encode({
      .base = view.base,
      .size = {u32(split ? spec.panel_columns : view.columns), u32(view.rows),
               u32(split ? view.columns / spec.panel_columns : 1), u32(view.heads), u32(view.batches)},
      .stride = {stride(view.row), stride(spec.panel_columns), stride(view.head), stride(view.batch)},
      .box = {u32(spec.panel_columns), u32(spec.box_rows), u32(spec.panels), 1, 1},
      .element_bytes = static_cast<int>(bytes),
      .bf16 = problem_.dtype == DType::bf16,
  });
}

}  // namespace flashjit::api

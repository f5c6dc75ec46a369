// The checks of one backward call, in the same order as in forward_call.cpp.
#include "api/launch/backward_call.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>

#include "api/launch/divisor.hpp"
#include "api/launch/tensor_checks.hpp"
#include "generator/splits.hpp"

namespace flashjit::api {
namespace {

struct Named {
  const char* name;
  const void* pointer;
};

// Rounds up to whole tiles, and to a multiple of kBackwardRowPadding.
int padded(int seqlen_q, Workspace parts) {
  const auto up = [](int rows, int multiple) { return (rows + multiple - 1) / multiple * multiple; };
  return up(up(seqlen_q, parts.tile_m), kBackwardRowPadding);
}

}  // namespace

bool make_backward_params(const Problem& problem, const Shape& shape, const BackwardArgs& args,
                          Workspace parts, BackwardParams& params) {
  validate(shape);
  params = {};
  params.scale = resolve_scale(problem, args.scale);
  params.scale_log2 = params.scale * kLog2E;
  params.padded_q = padded(shape.seqlen_q, parts);

  const int bytes = size_of(problem.dtype);
  const auto of_queries = [&](const char* name, const Strides& strides, int columns, Access access) {
    return resolve_strides({name, strides, shape.batch, shape.heads, shape.seqlen_q, columns}, access, bytes);
  };
  const auto of_keys = [&](const char* name, const Strides& strides, int columns, Access access) {
    return resolve_strides({name, strides, shape.batch, shape.kv_heads(), shape.seqlen_k, columns}, access,
                           bytes);
  };
  const int columns = problem.head_dim;
  const int value_columns = problem.value_dim();
  const Strides q = of_queries("q", args.q_strides, columns, Access::read);
  const Strides k = of_keys("k", args.k_strides, columns, Access::read);
  const Strides v = of_keys("v", args.v_strides, value_columns, Access::read);
  const Strides o = of_queries("o", args.o_strides, value_columns, Access::read);
  const Strides dout = of_queries("dout", args.dout_strides, value_columns, Access::read);
  const Strides dq = of_queries("dq", args.dq_strides, columns, Access::written);
  const Strides dk = of_keys("dk", args.dk_strides, columns, Access::written);
  const Strides dv = of_keys("dv", args.dv_strides, value_columns, Access::written);

  if (shape.batch == 0 || (shape.seqlen_q == 0 && shape.seqlen_k == 0)) return false;
  if (shape.seqlen_q != 0) {
    for (const auto& [name, pointer] :
         {Named{"q", args.q}, {"o", args.o}, {"dout", args.dout}, {"dq", args.dq}}) {
      check_pointer(name, pointer);
    }
    check_pointer("lse", args.lse, alignof(float));
  }
  if (shape.seqlen_k != 0) {
    for (const auto& [name, pointer] :
         {Named{"k", args.k}, {"v", args.v}, {"dk", args.dk}, {"dv", args.dv}}) {
      check_pointer(name, pointer);
    }
  }
  if (args.workspace != nullptr) check_pointer("workspace", args.workspace, kWorkspaceAlignment);

  // Each result, and the workspace, must be memory of its own.
  const int rows = shape.seqlen_q, keys = shape.seqlen_k;
  const std::array<Named, 10> all{{{"dq", address_of(rows, args.dq)},
                                   {"dk", address_of(keys, args.dk)},
                                   {"dv", address_of(keys, args.dv)},
                                   {"workspace", args.workspace},
                                   {"q", address_of(rows, args.q)},
                                   {"k", address_of(keys, args.k)},
                                   {"v", address_of(keys, args.v)},
                                   {"o", address_of(rows, args.o)},
                                   {"dout", address_of(rows, args.dout)},
                                   {"lse", address_of(rows, args.lse)}}};
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      if (all[i].pointer != nullptr && all[i].pointer == all[j].pointer) {
        refuse_argument(
            fmt::format("{} is the same memory as {}, may be memory of its own", all[i].name, all[j].name));
      }
    }
  }

  params.q = args.q;
  params.k = args.k;
  params.v = args.v;
  params.o = args.o;
  params.dout = args.dout;
  params.lse = args.lse;
  params.dq = args.dq;
  params.dk = args.dk;
  params.dv = args.dv;
  params.q_batch = q.batch, params.q_head = q.head, params.q_row = q.row;
  params.k_batch = k.batch, params.k_head = k.head, params.k_row = k.row;
  params.v_batch = v.batch, params.v_head = v.head, params.v_row = v.row;
  params.o_batch = o.batch, params.o_head = o.head, params.o_row = o.row;
  params.dout_batch = dout.batch, params.dout_head = dout.head, params.dout_row = dout.row;
  params.dq_batch = dq.batch, params.dq_head = dq.head, params.dq_row = dq.row;
  params.dk_batch = dk.batch, params.dk_head = dk.head, params.dk_row = dk.row;
  params.dv_batch = dv.batch, params.dv_head = dv.head, params.dv_row = dv.row;
  params.batch = shape.batch;
  params.heads = shape.heads;
  params.heads_kv = shape.kv_heads();
  const QuerySplits splits = query_splits(problem, shape, parts.splits, parts.tile_m);
  params.head_splits = splits.heads;
  params.row_splits = splits.rows;
  params.head_parts = params.heads_kv * splits.heads;
  params.group = params.heads / params.head_parts;
  params.by_heads = divisor_of(params.heads);
  params.by_heads_kv = divisor_of(params.heads_kv);
  params.by_head_splits = divisor_of(params.head_splits);
  params.by_row_splits = divisor_of(params.row_splits);
  params.by_head_parts = divisor_of(params.head_parts);
  params.by_group = divisor_of(params.group);
  params.seqlen_q = shape.seqlen_q;
  params.seqlen_k = shape.seqlen_k;
  return true;
}

WorkspaceLayout::WorkspaceLayout(const Problem& problem, const Shape& shape, Workspace parts) {
  const auto times = [&](std::size_t x, std::size_t y) {
    std::size_t product = 0;
    // Each of seven arrays may take an eighth of the address space, so that their sum cannot overflow.
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 8;
    if (__builtin_mul_overflow(x, y, &product) || product > kMost) {
      refuse_argument(
          fmt::format("shape is {}, may need at most {} bytes of workspace for each of its arrays",
                      describe(shape), kMost));
    }
    return product;
  };
  // Rows are padded to a multiple of kBackwardRowPadding, so that each array ends where the next one may
  // start.
  const std::size_t rows =
      times(times(static_cast<std::size_t>(shape.batch), static_cast<std::size_t>(shape.heads)),
            static_cast<std::size_t>(padded(shape.seqlen_q, parts)));
  const std::size_t quadruples = parts.dq_sum ? static_cast<std::size_t>(problem.head_dim) / 4 : 1;
  if (parts.narrow && times(rows, quadruples) > std::numeric_limits<std::uint32_t>::max()) {
    refuse_argument(fmt::format(
        "shape is {}, which makes {} rows for sums of dq, may make {} at head_dim {}; "
        "split the batch over several calls",
        describe(shape), rows, std::numeric_limits<std::uint32_t>::max() / quadruples, problem.head_dim));
  }
  const std::size_t row_bytes = times(rows, sizeof(float));  // of an array with a number for each row
  delta = parts.lse_log2 ? row_bytes : 0;
  dq_sum = delta + row_bytes;
  row_parts = dq_sum;
  if (parts.dq_sum) row_parts += times(row_bytes, static_cast<std::size_t>(problem.head_dim));
  key_parts = row_parts + times(rows / parts.tile_m, static_cast<std::size_t>(parts.row_parts_bytes));
  const std::size_t key_tiles =
      times(times(static_cast<std::size_t>(shape.batch), static_cast<std::size_t>(shape.kv_heads())),
            static_cast<std::size_t>((shape.seqlen_k + parts.tile_n - 1) / parts.tile_n));
  counters = key_parts + times(key_tiles, static_cast<std::size_t>(parts.key_parts_bytes));
  key_sums = counters;
  if (parts.counters) key_sums += times(rows / kBackwardCounterRows, sizeof(int));
  bytes = key_sums;
  const std::size_t columns = std::size_t{0} + problem.head_dim + problem.value_dim();
  const std::size_t summed = parts.splits > 1 ? key_tiles : static_cast<std::size_t>(parts.divided_tiles);
  bytes += times(times(summed, static_cast<std::size_t>(parts.tile_n)), times(columns, sizeof(float)));
}

void WorkspaceLayout::place(void* workspace, Workspace parts, BackwardParams& params) const {
  auto* const base = static_cast<std::byte*>(workspace);
  if (parts.lse_log2) params.lse_log2 = reinterpret_cast<float*>(base);
  params.delta = reinterpret_cast<float*>(base + delta);
  if (parts.dq_sum) params.dq_sum = reinterpret_cast<float*>(base + dq_sum);
  if (parts.row_parts_bytes > 0) params.row_parts = reinterpret_cast<unsigned char*>(base + row_parts);
  if (parts.key_parts_bytes > 0) params.key_parts = reinterpret_cast<unsigned char*>(base + key_parts);
  if (parts.counters) params.counters = reinterpret_cast<int*>(base + counters);
  if (bytes > key_sums) params.key_sums = reinterpret_cast<float*>(base + key_sums);
}

}  // namespace flashjit::api

// The checks of one forward call, the cheapest first, in the order in which a user would want to see them.
#include "api/launch/forward_call.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "api/launch/tensor_checks.hpp"

namespace flashjit::api {

bool make_forward_params(const Problem& problem, const Shape& shape, const ForwardArgs& args,
                         ForwardParams& params) {
  validate(shape);
  if (args.lse != nullptr && !problem.lse) {
    refuse_argument("lse is given, but this plan's problem has lse = false, may be null",
                    "Make a plan with lse = true, or leave lse out.");
  }
  params = {};
  params.scale_log2 = resolve_scale(problem, args.scale) * kLog2E;

  const std::int64_t columns = problem.head_dim;
  const std::int64_t value_columns = problem.value_dim();
  const int bytes = size_of(problem.dtype);
  const Strides q = resolve_strides({"q", args.q_strides, shape.batch, shape.heads, shape.seqlen_q, columns},
                                    Access::read, bytes);
  const Strides k = resolve_strides(
      {"k", args.k_strides, shape.batch, shape.kv_heads(), shape.seqlen_k, columns}, Access::read, bytes);
  const Strides v =
      resolve_strides({"v", args.v_strides, shape.batch, shape.kv_heads(), shape.seqlen_k, value_columns},
                      Access::read, bytes);
  const Strides o = resolve_strides(
      {"o", args.o_strides, shape.batch, shape.heads, shape.seqlen_q, value_columns}, Access::written, bytes);

  if (shape.batch == 0 || shape.seqlen_q == 0) return false;
  check_pointer("q", args.q);
  check_pointer("o", args.o);
  if (shape.seqlen_k != 0) {
    check_pointer("k", args.k);
    check_pointer("v", args.v);
  }
  if (args.lse != nullptr) check_pointer("lse", args.lse, alignof(float));

  // Each result must be memory of its own.
  const std::array<std::pair<const char*, const void*>, 5> all{{{"lse", args.lse},
                                                                {"o", args.o},
                                                                {"q", args.q},
                                                                {"k", address_of(shape.seqlen_k, args.k)},
                                                                {"v", address_of(shape.seqlen_k, args.v)}}};
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      if (all[i].second != nullptr && all[i].second == all[j].second) {
        refuse_argument(
            fmt::format("{} is the same memory as {}, may be memory of its own", all[i].first, all[j].first));
      }
    }
  }

  params.q = args.q;
  params.k = args.k;
  params.v = args.v;
  params.o = args.o;
  params.lse = args.lse;
  params.q_batch = q.batch, params.q_head = q.head, params.q_row = q.row;
  params.k_batch = k.batch, params.k_head = k.head, params.k_row = k.row;
  params.v_batch = v.batch, params.v_head = v.head, params.v_row = v.row;
  params.o_batch = o.batch, params.o_head = o.head, params.o_row = o.row;
  params.batch = shape.batch;
  params.heads = shape.heads;
  params.heads_kv = shape.kv_heads();
  params.seqlen_q = shape.seqlen_q;
  params.seqlen_k = shape.seqlen_k;
  return true;
}

}  // namespace flashjit::api

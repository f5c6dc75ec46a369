// The checks of one forward call, cheapest first, in the order in which a user would want to hear of them.
#include "api/launch/forward_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

constexpr std::int64_t kAlignment =
    16;  // bytes: one vector load or cp.async, and what TMA asks of a base and a stride

[[noreturn]] void refuse(std::string message, std::string hint = {}) {
  throw Error(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}

void check_pointer(const char* name, const void* pointer, std::int64_t alignment) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
  if (pointer == nullptr || address % alignment != 0) {
    refuse(fmt::format("{} is {}, may be a device pointer that is a multiple of {} bytes", name, pointer,
                       alignment));
  }
}

// One of q, k, v, o as the call describes it.
struct Tensor {
  const char* name;
  const Strides& strides;
  std::int64_t batch, heads, rows, columns;
};

[[noreturn]] void refuse_stride(const Tensor& tensor, std::string_view which, std::int64_t was,
                                std::string_view may_be) {
  refuse(fmt::format("{}_strides.{} is {}, may be {}", tensor.name, which, was, may_be),
         "Strides are in elements; all three zero means packed (batch, seqlen, heads, head_dim).");
}

void check_stride(const Tensor& tensor, const char* which, std::int64_t stride, std::int64_t size,
                  bool may_share, int element_bytes) {
  if (size <= 1) return;  // nothing is ever a stride away
  const std::int64_t multiple = kAlignment / element_bytes;
  if (stride % multiple != 0 || (stride < tensor.columns && !(may_share && stride == 0))) {
    refuse_stride(tensor, which, stride,
                  fmt::format("a multiple of {} (16 bytes) from {} up{}", multiple, tensor.columns,
                              may_share ? ", or 0 to share one tensor" : ""));
  }
}

// The distance between the first and the last element's end along the dimensions so far must fit into the
// next stride.
void check_no_overlap(const Tensor& tensor) {
  std::array<std::pair<std::int64_t, std::int64_t>, 3> order{{{tensor.strides.row, tensor.rows},
                                                              {tensor.strides.head, tensor.heads},
                                                              {tensor.strides.batch, tensor.batch}}};
  std::sort(order.begin(), order.end());
  std::int64_t extent = tensor.columns;
  for (const auto& [stride, size] : order) {
    if (size <= 1) continue;
    std::int64_t span = 0;
    if (stride < extent || __builtin_mul_overflow(stride, size - 1, &span) ||
        __builtin_add_overflow(extent, span, &extent)) {
      refuse(fmt::format(
                 "{}_strides are {{batch {}, head {}, row {}}}, so elements of {} overlap at {}x{}x{}x{}",
                 tensor.name, tensor.strides.batch, tensor.strides.head, tensor.strides.row, tensor.name,
                 tensor.batch, tensor.rows, tensor.heads, tensor.columns),
             "Strides are in elements; all three zero means packed (batch, seqlen, heads, head_dim).");
    }
  }
}

Strides packed(const Tensor& tensor) {
  Strides strides{.head = tensor.columns};
  if (__builtin_mul_overflow(tensor.heads, tensor.columns, &strides.row) ||
      __builtin_mul_overflow(tensor.rows, strides.row, &strides.batch)) {
    refuse(fmt::format("shape is too large: {} has more than 2^63 elements", tensor.name));
  }
  return strides;
}

// The strides that the kernel gets: as given where they matter, as packed where a dimension has one element
// or none.
Strides resolve(const Tensor& tensor, bool written, int element_bytes) {
  Strides strides = packed(tensor);
  const Strides& given = tensor.strides;
  if (given.batch == 0 && given.head == 0 && given.row == 0) return strides;
  if (tensor.batch == 0 || tensor.rows == 0) return strides;  // without elements, nothing is a stride away
  check_stride(tensor, "batch", given.batch, tensor.batch, !written, element_bytes);
  check_stride(tensor, "head", given.head, tensor.heads, !written, element_bytes);
  check_stride(tensor, "row", given.row, tensor.rows, false, element_bytes);
  if (written) check_no_overlap(tensor);
  if (tensor.batch > 1) strides.batch = given.batch;
  if (tensor.heads > 1) strides.head = given.head;
  if (tensor.rows > 1) strides.row = given.row;
  return strides;
}

float scale_of(const Problem& problem, const ForwardArgs& args) {
  if (!args.scale.has_value()) return 1.0F / std::sqrt(static_cast<float>(problem.head_dim));
  // A masked logit is -inf, and -inf * 0 is NaN: the product with log2(e) must stay a normal number.
  const float scale = *args.scale;
  constexpr float kSmallest = std::numeric_limits<float>::min();
  if (!(scale >= kSmallest && scale <= std::numeric_limits<float>::max() / 2)) {
    refuse(fmt::format("scale is {}, may be a number from {} to {}", scale, kSmallest,
                       std::numeric_limits<float>::max() / 2),
           "Leave it out for 1 / sqrt(head_dim).");
  }
  return scale;
}

}  // namespace

bool make_forward_params(const Problem& problem, const Shape& shape, const ForwardArgs& args,
                         ForwardParams& params) {
  validate(shape);
  if (args.lse != nullptr && !problem.lse) {
    refuse("lse is given, but this plan's problem has lse = false, may be null",
           "Make a plan with lse = true, or leave lse out.");
  }
  params = {};
  params.scale = scale_of(problem, args);
  params.scale_log2 = params.scale * 1.44269504088896340736F;  // log2(e)

  const std::int64_t columns = problem.head_dim;
  const std::int64_t value_columns = problem.value_dim();
  const int bytes = size_of(problem.dtype);
  const Strides q =
      resolve({"q", args.q_strides, shape.batch, shape.heads, shape.seqlen_q, columns}, false, bytes);
  const Strides k =
      resolve({"k", args.k_strides, shape.batch, shape.kv_heads(), shape.seqlen_k, columns}, false, bytes);
  const Strides v = resolve(
      {"v", args.v_strides, shape.batch, shape.kv_heads(), shape.seqlen_k, value_columns}, false, bytes);
  const Strides o =
      resolve({"o", args.o_strides, shape.batch, shape.heads, shape.seqlen_q, value_columns}, true, bytes);

  if (shape.batch == 0 || shape.seqlen_q == 0) return false;
  check_pointer("q", args.q, kAlignment);
  check_pointer("o", args.o, kAlignment);
  if (shape.seqlen_k != 0) {
    check_pointer("k", args.k, kAlignment);
    check_pointer("v", args.v, kAlignment);
  }
  if (args.lse != nullptr) check_pointer("lse", args.lse, alignof(float));
  for (const auto& [name, input] : {std::pair{"q", args.q}, {"k", args.k}, {"v", args.v}}) {
    if (args.o == input) refuse(fmt::format("o is the same memory as {}, may be memory of its own", name));
  }
  if (args.lse != nullptr && args.o == args.lse)
    refuse("lse is the same memory as o, may be memory of its own");

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
  params.group = shape.heads / shape.kv_heads();
  params.seqlen_q = shape.seqlen_q;
  params.seqlen_k = shape.seqlen_k;
  return true;
}

}  // namespace flashjit::api

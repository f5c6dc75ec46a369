// What a kernel may be given. Messages name the argument, its value and what it may be.
#include "api/launch/tensor_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::api {
namespace {

[[noreturn]] void refuse_stride(const Tensor& tensor, std::string_view which, std::int64_t was,
                                std::string_view may_be) {
  refuse_argument(fmt::format("{}_strides.{} is {}, may be {}", tensor.name, which, was, may_be),
                  "Strides are in elements; all three zero means packed (batch, seqlen, heads, head_dim).");
}

void check_stride(const Tensor& tensor, const char* which, std::int64_t stride, std::int64_t size,
                  bool may_share, int element_bytes) {
  if (size <= 1) return;  // no element is a stride away from another
  // TMA's limit; no GPU has as much memory.
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
  const std::int64_t multiple = kTensorAlignment / element_bytes;
  const std::int64_t most = kMostBytes / element_bytes - multiple;
  if (stride % multiple != 0 || stride > most || (stride < tensor.columns && !(may_share && stride == 0))) {
    refuse_stride(tensor, which, stride,
                  fmt::format("a multiple of {} (16 bytes) from {} to {}{}", multiple, tensor.columns, most,
                              may_share ? ", or 0 to share one tensor" : ""));
  }
}

// Along the dimensions so far, the distance from the first element to the end of the last one must fit into
// the next stride.
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
      refuse_argument(
          fmt::format(
              "{}_strides are {{batch {}, head {}, row {}}}, so elements of {} may overlap at {}x{}x{}x{}",
              tensor.name, tensor.strides.batch, tensor.strides.head, tensor.strides.row, tensor.name,
              tensor.batch, tensor.rows, tensor.heads, tensor.columns),
          "Each stride is at least all that the smaller ones span, in elements; all three zero means packed "
          "(batch, seqlen, heads, head_dim).");
    }
  }
}

Strides packed(const Tensor& tensor) {
  Strides strides{.head = tensor.columns};
  if (__builtin_mul_overflow(tensor.heads, tensor.columns, &strides.row) ||
      __builtin_mul_overflow(tensor.rows, strides.row, &strides.batch)) {
    refuse_argument(fmt::format("shape is too large: {} is {}x{}x{}x{}, may have at most 2^63 elements",
                                tensor.name, tensor.batch, tensor.rows, tensor.heads, tensor.columns));
  }
  return strides;
}

}  // namespace

void refuse_argument(std::string message, std::string hint) {
  throw Error(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}

void check_pointer(const char* name, const void* pointer, std::int64_t alignment) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
  if (pointer == nullptr || address % alignment != 0) {
    refuse_argument(fmt::format("{} is {}, may be a device pointer that is a multiple of {} bytes", name,
                                pointer, alignment));
  }
}

Strides resolve_strides(const Tensor& tensor, Access access, int element_bytes) {
  const bool written = access == Access::written;
  const Strides& given = tensor.strides;
  const bool all_zero = given.batch == 0 && given.head == 0 && given.row == 0;
  // Without elements, strides do not matter. Without batches nothing is launched, and those of a packed
  // tensor may be more than 64 bits can count.
  if (tensor.batch == 0) return given;
  if (all_zero || tensor.rows == 0) return packed(tensor);
  check_stride(tensor, "batch", given.batch, tensor.batch, !written, element_bytes);
  check_stride(tensor, "head", given.head, tensor.heads, !written, element_bytes);
  check_stride(tensor, "row", given.row, tensor.rows, false, element_bytes);
  if (written) check_no_overlap(tensor);
  const auto of = [&](std::int64_t stride, std::int64_t size) { return size > 1 ? stride : tensor.columns; };
  return {.batch = of(given.batch, tensor.batch),
          .head = of(given.head, tensor.heads),
          .row = of(given.row, tensor.rows)};
}

float resolve_scale(const Problem& problem, const std::optional<float>& given) {
  if (!given.has_value()) return 1.0F / std::sqrt(static_cast<float>(problem.head_dim));
  // A masked logit is -inf, and -inf * 0 is NaN, so the product with log2(e) must stay a normal number.
  const float scale = *given;
  constexpr float kSmallest = std::numeric_limits<float>::min();
  if (!(scale >= kSmallest && scale <= std::numeric_limits<float>::max() / 2)) {
    refuse_argument(fmt::format("scale is {}, may be a number from {} to {}", scale, kSmallest,
                                std::numeric_limits<float>::max() / 2),
                    "Leave it out for 1 / sqrt(head_dim).");
  }
  return scale;
}

}  // namespace flashjit::api

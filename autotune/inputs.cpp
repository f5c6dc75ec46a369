// A counter-based generator: a hash of (seed, index) picks a quantile of the normal distribution.
#include "autotune/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <thread>

#include "autotune/numeric.hpp"
#include "flashjit/error.hpp"
#include "runtime/threads.hpp"

namespace flashjit::autotune {
namespace {

// SplitMix64's output function (Steele, Lea, Flood 2014) over a Weyl sequence: a good hash of a counter.
std::uint64_t hash(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The inverse of the normal distribution function, by Acklam's rational approximation (relative
// error 1.2e-9).
double normal_quantile(double p) {
  constexpr std::array a = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                            1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array b = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                            6.680131188771972e+01, -1.328068155288572e+01};
  constexpr std::array c = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                            -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array d = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                            3.754408661907416e+00};
  if (p > 0.5) return -normal_quantile(1 - p);
  if (p < 0.02425) {
    const double q = std::sqrt(-2 * std::log(p));
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  }
  const double q = p - 0.5;
  const double r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

// 65,536 quantiles, each in the middle of its slice: sixteen random bits make one normal number, of up to 4.3
// deviations.
struct NormalTable {
  std::vector<float> value;
  std::vector<std::uint16_t> fp16, bf16;

  NormalTable() : value(65536), fp16(65536), bf16(65536) {
    for (int i = 0; i < 65536; ++i) {
      value[i] = static_cast<float>(normal_quantile((i + 0.5) / 65536));
      fp16[i] = to_fp16(value[i]);
      bf16[i] = to_bf16(value[i]);
    }
  }
};

const NormalTable& normal_table() {
  static const NormalTable table;
  return table;
}

// Number `index` of a stream. Other bits of the hash blur the quantile, so that fp32's mantissas are full.
float normal(std::uint64_t seed, std::int64_t index) {
  const std::uint64_t word = hash(seed, static_cast<std::uint64_t>(index) / 4);
  const auto slice = static_cast<std::uint16_t>(word >> (16 * (index % 4)));
  const auto blur = static_cast<std::uint16_t>(word >> (16 * ((index + 1) % 4)));
  return normal_table().value[slice] * (1 + (static_cast<float>(blur) - 32768) * 0x1p-32f);
}

// A tensor whose element (b, i, h, x) is number ((b * rows + i) * heads + h) * dim + x of its stream, changed
// by `change`.
template <class Change>
HostTensor random_tensor(DType dtype, int batch, int rows, int heads, int dim, const Strides& layout,
                         std::uint64_t seed, Change change) {
  HostTensor tensor = poisoned(dtype, batch, rows, heads, dim, layout);
  if (tensor.bytes.empty()) return tensor;  // batches without rows may be very many
  std::int64_t index = 0;
  for (int b = 0; b < batch; ++b) {
    for (int i = 0; i < rows; ++i) {
      for (int h = 0; h < heads; ++h) {
        const std::int64_t base = b * tensor.strides.batch + i * tensor.strides.row + h * tensor.strides.head;
        for (int x = 0; x < dim; ++x, ++index) {
          store_element(dtype, tensor.bytes.data(), base + x, change(normal(seed, index), i, x));
        }
      }
    }
  }
  return tensor;
}

}  // namespace

const char* to_string(InputKind kind) {
  switch (kind) {
    case InputKind::normal:
      return "normal";
    case InputKind::peaky:
      return "peaky";
    case InputKind::growing:
      return "growing";
    case InputKind::late_giant:
      return "late-giant";
    case InputKind::crowd:
      return "crowd";
    case InputKind::tiny:
      return "tiny";
  }
  return "?";
}

std::string input_kind_names() {
  std::string names;
  for (const InputKind kind : kInputKinds) {
    if (kind != kInputKinds.front()) names += kind == kInputKinds.back() ? " or " : ", ";
    names += to_string(kind);
  }
  return names;
}

InputKind parse_input_kind(const std::string& text) {
  for (const InputKind kind : kInputKinds) {
    if (text == to_string(kind)) return kind;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("inputs is \"{}\", may be {}", text, input_kind_names()));
}

HostTensor poisoned(DType dtype, int batch, int rows, int heads, int dim, const Strides& strides) {
  // In floating point, which does not wrap around: counted in 64 bits, a giant tensor could seem a small one.
  const double needed = 1.0 * batch * rows * heads * dim * size_of(dtype);
  constexpr double kMost = 0x1p63;  // the most that a difference of pointers can express
  if (needed >= kMost) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a {} tensor of batch {}, {} rows, {} heads and {} columns needs {:.3g} bytes, "
                            "may need less than {:.3g}",
                            to_string(dtype), batch, rows, heads, dim, needed, kMost));
  }
  HostTensor tensor{.bytes = {}, .strides = strides};
  if (batch == 0) return tensor;  // packed strides, which nothing needs, may be more than 64 bits can count
  tensor.strides = strides_or_packed(strides, rows, heads, dim);
  std::int64_t elements = 0;
  if (rows > 0) {
    elements = (batch - 1) * tensor.strides.batch + (rows - 1) * tensor.strides.row +
               (heads - 1) * tensor.strides.head + dim;
  }
  tensor.bytes.assign(static_cast<std::size_t>(elements * size_of(dtype)),
                      std::byte{0xff});  // NaN in every dtype
  return tensor;
}

Inputs make_inputs(const Problem& problem, const Shape& shape, InputKind kind, std::uint64_t seed,
                   const InputLayout& layout) {
  const int d = problem.head_dim;
  const float direction = std::sqrt(static_cast<float>(d));  // undone by the scale of the logits
  const int giant = shape.seqlen_k - 1 - shape.seqlen_k / 8;
  const auto q = [=](float z, int, int x) {
    switch (kind) {
      case InputKind::peaky:
        return 6 * z;
      case InputKind::growing:
      case InputKind::late_giant:
        return x == 0 ? direction : z;
      case InputKind::crowd:
        // Rows differ and no column outweighs the others, since a maximum over few numbers is a poor measure.
        return x == 0 ? (1 + z / 8) * direction / 16 : z;
      case InputKind::tiny:
        return z * 0x1p-10f;
      case InputKind::normal:
        break;
    }
    return z;
  };
  const auto k = [=](float z, int row, int x) {
    if (kind == InputKind::tiny) return z * 0x1p-10f;
    if (x != 0) return kind == InputKind::crowd ? 0 : z;
    if (kind == InputKind::growing)
      return 56.0f * static_cast<float>(row) / static_cast<float>(shape.seqlen_k);
    if (kind == InputKind::late_giant) return row == giant ? 100.0f : 0.0f;
    if (kind == InputKind::crowd) return row == giant ? 16 * 14.0f : row < giant ? 16 * 7.4140625f : 0.0f;
    return z;
  };
  const auto v = [=](float z, int, int) {
    if (kind == InputKind::crowd) return 1 + z / 8;  // rounding errors of equal weights add up
    return kind == InputKind::tiny ? z * 0x1p-10f : z;
  };
  const std::uint64_t stream = hash(seed, 0);
  Inputs inputs;
  inputs.q =
      random_tensor(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, d, layout.q, stream + 1, q);
  inputs.k =
      random_tensor(problem.dtype, shape.batch, shape.seqlen_k, shape.kv_heads(), d, layout.k, stream + 2, k);
  inputs.v = random_tensor(problem.dtype, shape.batch, shape.seqlen_k, shape.kv_heads(), problem.value_dim(),
                           layout.v, stream + 3, v);
  return inputs;
}

HostAttention host_attention(const Problem& problem, const Shape& shape, const Inputs& inputs) {
  HostAttention attention;
  attention.problem = problem;
  attention.shape = shape;
  attention.q = inputs.q.bytes.data();
  attention.k = inputs.k.bytes.data();
  attention.v = inputs.v.bytes.data();
  attention.q_strides = inputs.q.strides;
  attention.k_strides = inputs.k.strides;
  attention.v_strides = inputs.v.strides;
  return attention;
}

void fill_normal(DType dtype, void* to, std::int64_t count, std::uint64_t seed) {
  const NormalTable& table = normal_table();
  const auto fill = [&](std::int64_t first, std::int64_t last) {
    if (dtype == DType::fp32) {
      for (std::int64_t i = first; i < last; ++i) store_element(dtype, to, i, normal(seed, i));
      return;
    }
    const auto& bits = dtype == DType::fp16 ? table.fp16 : table.bf16;
    auto* out = static_cast<std::uint16_t*>(to);
    std::uint64_t word = 0;
    for (std::int64_t i = first; i < last; ++i) {
      if (i == first || i % 4 == 0) word = hash(seed, static_cast<std::uint64_t>(i) / 4);
      out[i] = bits[static_cast<std::uint16_t>(word >> (16 * (i % 4)))];
    }
  };
  const std::int64_t per_thread =
      std::max<std::int64_t>(1 << 20, count / std::max(1u, std::thread::hardware_concurrency()));
  const std::int64_t parts = (count + per_thread - 1) / per_thread;
  runtime::parallel_for(static_cast<std::size_t>(parts), 0, [&](std::size_t part) {
    const auto first = static_cast<std::int64_t>(part) * per_thread;
    fill(first, std::min(count, first + per_thread));
  });
}

}  // namespace flashjit::autotune

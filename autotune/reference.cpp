// Attention on the CPU, spread over threads by blocks of rows.
#include "autotune/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "autotune/numeric.hpp"
#include "autotune/reference_parts.hpp"
#include "runtime/threads.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The rows [0, keys) of one head of K or V as packed numbers of type T, each changed by `change`.
template <class T, class Change>
std::vector<T> gather(const HostAttention& a, const void* data, const Strides& strides, const RowBlock& block,
                      int dim, std::int64_t keys, Change change) {
  const int kv_head = block.head / (a.shape.heads / a.shape.kv_heads());
  std::vector<T> out(static_cast<std::size_t>(keys * dim));
  for (std::int64_t j = 0; j < keys; ++j) {
    const std::int64_t base = block.batch * strides.batch + kv_head * strides.head + j * strides.row;
    for (int x = 0; x < dim; ++x) out[j * dim + x] = change(load_element(a.problem.dtype, data, base + x));
  }
  return out;
}

// One block of rows in precision T. `round` is what storing an intermediate in the working precision does to
// it.
template <class T, class Round>
void attend(const HostAttention& a, const RowBlock& block, bool scale_k, Round round, double* out,
            double* lse) {
  const int d = a.problem.head_dim;
  const int dv = a.problem.value_dim();
  const T scale = static_cast<T>(scale_of(a));
  const Strides qs = strides_or_packed(a.q_strides, a.shape.seqlen_q, a.shape.heads, d);
  const Strides ks = strides_or_packed(a.k_strides, a.shape.seqlen_k, a.shape.kv_heads(), d);
  const Strides vs = strides_or_packed(a.v_strides, a.shape.seqlen_k, a.shape.kv_heads(), dv);
  const std::int64_t most = keys_seen(a, block.first + block.count - 1);
  const auto k = gather<T>(a, a.k, ks, block, d, most, [&](float x) {
    return scale_k ? round(static_cast<T>(x) * scale) : static_cast<T>(x);
  });
  const auto v = gather<T>(a, a.v, vs, block, dv, most, [](float x) { return static_cast<T>(x); });
  std::vector<T> q(d);
  std::vector<T> p(static_cast<std::size_t>(most));
  std::vector<T> o(dv);
  for (int r = 0; r < block.count; ++r, out += dv, ++lse) {
    const int row = block.first + r;
    const std::int64_t keys = keys_seen(a, row);
    std::fill_n(out, dv, 0.0);
    *lse = -kInfinity;
    if (keys == 0) continue;
    for (int x = 0; x < d; ++x) {
      const auto value = static_cast<T>(load_element(
          a.problem.dtype, a.q, block.batch * qs.batch + block.head * qs.head + row * qs.row + x));
      q[x] = scale_k ? value : value * scale;
    }
    T largest = -std::numeric_limits<T>::infinity();
    for (std::int64_t j = 0; j < keys; ++j) {
      p[j] = round(dot(q.data(), k.data() + j * d, d));
      if (p[j] > largest || std::isnan(p[j])) largest = p[j];  // a NaN stays: nothing is above it
    }
    if (largest == -std::numeric_limits<T>::infinity())
      continue;  // every score is -infinity: as good as masked
    T total = 0;
    for (std::int64_t j = 0; j < keys; ++j) total += p[j] = std::exp(p[j] - largest);
    std::fill(o.begin(), o.end(), T{0});
    for (std::int64_t j = 0; j < keys; ++j) {
      const T weight = round(p[j] / total);
      const T* vj = v.data() + j * dv;
      for (int x = 0; x < dv; ++x) o[x] += weight * vj[x];
    }
    for (int x = 0; x < dv; ++x) out[x] = static_cast<double>(round(o[x]));
    *lse = static_cast<double>(largest) + std::log(static_cast<double>(total));
  }
}

// Calls work(block, out, lse) for every block, from several threads.
template <class Work>
HostResult over_blocks(const HostAttention& a, std::span<const RowBlock> blocks, int threads, Work work) {
  const int dv = a.problem.value_dim();
  std::vector<std::size_t> first_row(blocks.size() + 1, 0);
  for (std::size_t i = 0; i < blocks.size(); ++i) first_row[i + 1] = first_row[i] + blocks[i].count;
  HostResult result;
  result.out.resize(first_row.back() * dv);
  result.lse.resize(first_row.back());
  runtime::parallel_for(blocks.size(), threads, [&](std::size_t i) {
    if (blocks[i].count > 0)
      work(blocks[i], result.out.data() + first_row[i] * dv, result.lse.data() + first_row[i]);
  });
  return result;
}

}  // namespace

Strides strides_or_packed(const Strides& given, int rows, int heads, int dim) {
  if (given.batch != 0 || given.head != 0 || given.row != 0) return given;
  const std::int64_t row = static_cast<std::int64_t>(heads) * dim;
  return {.batch = rows * row, .head = dim, .row = row};
}

std::vector<RowBlock> all_rows(const Shape& shape, int rows) {
  std::vector<RowBlock> blocks;
  if (shape.seqlen_q == 0) return blocks;  // heads without rows may be too many to look at
  for (int b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.heads; ++h) {
      for (int first = 0; first < shape.seqlen_q; first += rows) {
        blocks.push_back({b, h, first, std::min(rows, shape.seqlen_q - first)});
      }
    }
  }
  return blocks;
}

std::vector<RowBlock> sample_rows(const Shape& shape, int blocks, int rows, std::uint64_t seed) {
  rows = std::min(rows, shape.seqlen_q);
  if (shape.batch == 0 || rows <= 0) return {};
  const std::int64_t everything =
      static_cast<std::int64_t>(shape.batch) * shape.heads * ((shape.seqlen_q + rows - 1) / rows);
  if (everything <= blocks) return all_rows(shape, rows);
  const int last = shape.seqlen_q - rows;
  std::vector<RowBlock> chosen = {{0, 0, 0, rows},
                                  {0, 0, last, rows},
                                  {shape.batch - 1, shape.heads - 1, 0, rows},
                                  {shape.batch - 1, shape.heads - 1, last, rows}};
  std::mt19937_64 random(
      seed);  // the standard fixes its sequence, but not those of the distributions, so % serves
  while (static_cast<int>(chosen.size()) < blocks) {
    chosen.push_back({static_cast<int>(random() % static_cast<unsigned>(shape.batch)),
                      static_cast<int>(random() % static_cast<unsigned>(shape.heads)),
                      static_cast<int>(random() % static_cast<unsigned>(last + 1)), rows});
  }
  return chosen;
}

HostResult reference(const HostAttention& a, std::span<const RowBlock> blocks, int threads) {
  return over_blocks(a, blocks, threads, [&](const RowBlock& block, double* out, double* lse) {
    attend<double>(
        a, block, false, [](double x) { return x; }, out, lse);
  });
}

HostResult plain(const HostAttention& a, std::span<const RowBlock> blocks, int threads) {
  const DType dtype = a.problem.dtype;
  return over_blocks(a, blocks, threads, [&](const RowBlock& block, double* out, double* lse) {
    attend<float>(
        a, block, true, [dtype](float x) { return round_to(dtype, x); }, out, lse);
  });
}

// One tensor's part of a check.
Check compare(DType dtype, const char* name, std::span<const RowBlock> blocks, int dim, const void* got,
              const Strides& strides, std::span<const double> expected, std::span<const double> simple) {
  Check check;
  Comparison comparison(dtype);
  RowBlock worst{};
  int worst_column = 0;
  std::size_t at = 0;
  for (const RowBlock& block : blocks) {
    for (int r = 0; r < block.count; ++r, ++at) {
      const int row = block.first + r;
      const std::int64_t base = block.batch * strides.batch + block.head * strides.head + row * strides.row;
      for (int x = 0; x < dim; ++x) {
        const std::size_t i = at * dim + x;
        if (comparison.add(load_element(dtype, got, base + x), expected[i], simple[i])) {
          worst = {block.batch, block.head, row, 1};
          worst_column = x;
        }
      }
    }
  }
  check.rows = static_cast<std::int64_t>(at);
  comparison.conclude(check);
  check.ok = check.max_error <= check.allowed;
  if (!check.ok) {
    check.message = fmt::format(
        "{} differs from float64 by {:.3g} where {:.3g} is allowed, at batch {} head {} row {} column {}",
        name, check.max_error, check.allowed, worst.batch, worst.head, worst.first, worst_column);
  }
  return check;
}

Check acceptable(const HostAttention& a, std::span<const RowBlock> blocks, const HostResult& expected,
                 const HostResult& simple, const HostOutput& output) {
  const int dv = a.problem.value_dim();
  Check check = compare(a.problem.dtype, "output", blocks, dv, output.o,
                        strides_or_packed(output.o_strides, a.shape.seqlen_q, a.shape.heads, dv),
                        expected.out, simple.out);
  if (output.lse == nullptr) return check;
  RowBlock worst{};
  std::size_t at = 0;
  for (const RowBlock& block : blocks) {
    for (int r = 0; r < block.count; ++r, ++at) {
      const int row = block.first + r;
      const std::int64_t index =
          (static_cast<std::int64_t>(block.batch) * a.shape.heads + block.head) * a.shape.seqlen_q + row;
      const double want = expected.lse[at];
      const double error =
          distance(output.lse[index], want) / std::max(1.0, std::isinf(want) ? 1.0 : std::abs(want));
      if (error > check.lse_error) {
        check.lse_error = error;
        worst = {block.batch, block.head, row, 1};
      }
    }
  }
  if (check.ok && !(check.lse_error <= check.lse_allowed)) {
    check.message = fmt::format(
        "LSE differs from float64 by {:.3g} (relative) where {:.3g} is allowed, at batch {} head {} row {}",
        check.lse_error, check.lse_allowed, worst.batch, worst.head, worst.first);
    check.ok = false;
  }
  return check;
}

Check acceptable(const HostAttention& a, std::span<const RowBlock> blocks, const HostOutput& output) {
  return acceptable(a, blocks, reference(a, blocks), plain(a, blocks), output);
}

}  // namespace flashjit::autotune

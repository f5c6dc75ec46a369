// Gradients on the CPU, head by head, the rows and then the keys of a head spread over threads.
#include "autotune/backward/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autotune/numeric.hpp"
#include "autotune/reference_parts.hpp"
#include "runtime/threads.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What a row's keys have in common: P[i][j] = exp(S[i][j] - lse), dS[i][j] = P[i][j] * (dP[i][j] - delta).
template <class T>
struct RowState {
  T lse = 0;
  T delta = 0;
  bool blind = true;  // sees no key
};

// One query head in precision T, and its gradients. `round` is what storing an intermediate in the working
// precision does to it; `plainly`, whether K is scaled instead of S, and dK at the end.
template <class T, class Round>
class Head {
 public:
  Head(const HostBackward& from, int batch, int head, bool plainly, Round round)
      : a_(from.attention),
        given_(from.lse != nullptr),
        plainly_(plainly),
        round_(round),
        d_(a_.problem.head_dim),
        dv_(a_.problem.value_dim()),
        scale_(static_cast<T>(scale_of(a_))),
        rows_(static_cast<std::size_t>(a_.shape.seqlen_q)) {
    const Shape& shape = a_.shape;
    const int kv_head = head / (shape.heads / shape.kv_heads());
    const auto load = [&](const void* data, const Strides& given, int rows, int heads, int which, int dim) {
      const Strides strides = strides_or_packed(given, rows, heads, dim);
      std::vector<T> out(static_cast<std::size_t>(rows) * dim);
      for (int i = 0; i < rows; ++i) {
        const std::int64_t base = batch * strides.batch + which * strides.head + i * strides.row;
        for (int x = 0; x < dim; ++x) {
          out[static_cast<std::size_t>(i) * dim + x] =
              static_cast<T>(load_element(a_.problem.dtype, data, base + x));
        }
      }
      return out;
    };
    q_ = load(a_.q, a_.q_strides, shape.seqlen_q, shape.heads, head, d_);
    k_ = load(a_.k, a_.k_strides, shape.seqlen_k, shape.kv_heads(), kv_head, d_);
    v_ = load(a_.v, a_.v_strides, shape.seqlen_k, shape.kv_heads(), kv_head, dv_);
    dout_ = load(from.dout, from.dout_strides, shape.seqlen_q, shape.heads, head, dv_);
    if (plainly_) {
      for (T& x : k_) x = round_(x * scale_);
    }
    if (!given_) return;
    const auto o = load(from.o, from.o_strides, shape.seqlen_q, shape.heads, head, dv_);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const float lse = from.lse[(static_cast<std::size_t>(batch) * shape.heads + head) * rows_.size() + i];
      rows_[i].lse = static_cast<T>(lse);
      rows_[i].blind = lse == -std::numeric_limits<float>::infinity();
      rows_[i].delta = dot(dout_.data() + i * dv_, o.data() + i * dv_, dv_);
    }
  }

  // dQ of one row, and the row's state, which the keys need.
  void query(int row, std::vector<T>& dq) {
    const std::int64_t keys = keys_seen(a_, row);
    RowState<T>& state = rows_[row];
    std::vector<T> s(static_cast<std::size_t>(keys)), dp(static_cast<std::size_t>(keys));
    for (std::int64_t j = 0; j < keys; ++j) {
      s[j] = score(row, j);
      dp[j] = weight_gradient(row, j);
    }
    if (!given_) {
      const T largest =
          keys == 0 ? -std::numeric_limits<T>::infinity() : *std::max_element(s.begin(), s.end());
      if (largest == -std::numeric_limits<T>::infinity()) return;  // every score is -inf: as good as masked
      state.lse = lse(row, s, largest);
      state.blind = false;
      for (std::int64_t j = 0; j < keys; ++j) state.delta += weight(state, s[j]) * dp[j];
      if (plainly_) state.delta += handed_down(row, state, s);
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      const T ds = round_(weight(state, s[j]) * (dp[j] - state.delta));
      const T* key = k_.data() + j * d_;
      for (int x = 0; x < d_; ++x) dq[x] += ds * key[x];
    }
    for (T& x : dq) x = round_(plainly_ ? x : x * scale_);
  }

  // This head's share of dK and dV of one key, once query() has run for every row (or o and lse were given).
  void key(std::int64_t j, std::vector<T>& dk, std::vector<T>& dv) const {
    for (int row = 0; row < a_.shape.seqlen_q; ++row) {
      if (j >= keys_seen(a_, row)) continue;
      const T p = weight(rows_[row], score(row, j));
      const T ds = round_(p * (weight_gradient(row, j) - rows_[row].delta));
      const T* query = q_.data() + static_cast<std::size_t>(row) * d_;
      for (int x = 0; x < d_; ++x) dk[x] += ds * query[x];
      for (int x = 0; x < dv_; ++x) dv[x] += p * dout(row)[x];
    }
    for (T& x : dk) x = round_(round_(x) * scale_);
    for (T& x : dv) x = round_(x);
  }

 private:
  [[nodiscard]] const T* dout(int row) const { return dout_.data() + static_cast<std::size_t>(row) * dv_; }

  [[nodiscard]] T score(int row, std::int64_t j) const {
    const T product = dot(q_.data() + static_cast<std::size_t>(row) * d_, k_.data() + j * d_, d_);
    return plainly_ ? round_(product) : product * scale_;
  }

  // A backward pass is handed an LSE in fp32 from another kernel, which added its products in another order.
  // In 16 bits this difference drowns in the roundings of the scores; in fp32 it is the larger part of P's
  // error.
  [[nodiscard]] T lse(int row, const std::vector<T>& s, T largest) const {
    double total = 0;
    if (!plainly_ || a_.problem.dtype != DType::fp32) {
      for (const T x : s) total += std::exp(static_cast<double>(x) - largest);
    } else {
      for (std::size_t j = 0; j < s.size(); ++j) {
        double exact = 0;
        for (int x = 0; x < d_; ++x)
          exact += static_cast<double>(q_[static_cast<std::size_t>(row) * d_ + x]) * k_[j * d_ + x];
        total += std::exp(exact - largest);
      }
    }
    return static_cast<T>(largest + std::log(total));
  }

  // The error that delta has because the pass computes it from the O that it is handed, delta = sum(dO * O)
  // (FlashAttention-2, algorithm 2, line 4): O was rounded when it was stored, and the sum is rounded in fp32
  // by itself. Where one key has nearly all the weight, sum(P * dP) would cancel dP to the last bit, which no
  // pass that is given O can do.
  [[nodiscard]] T handed_down(int row, const RowState<T>& state, const std::vector<T>& s) const {
    std::vector<T> stored(static_cast<std::size_t>(dv_));
    double exact = 0;
    for (int x = 0; x < dv_; ++x) {
      double o = 0;
      for (std::size_t j = 0; j < s.size(); ++j)
        o += static_cast<double>(weight(state, s[j])) * v_[j * dv_ + x];
      stored[x] = round_(static_cast<T>(o));
      exact += dout(row)[x] * o;
    }
    return static_cast<T>(dot(dout(row), stored.data(), dv_) - exact);
  }

  // P of a score, and the gradient of P.
  [[nodiscard]] T weight(const RowState<T>& state, T score) const {
    return state.blind ? T{0} : round_(std::exp(score - state.lse));
  }
  [[nodiscard]] T weight_gradient(int row, std::int64_t j) const {
    return round_(dot(dout(row), v_.data() + j * dv_, dv_));
  }

  const HostAttention& a_;
  const bool given_, plainly_;
  const Round round_;
  const int d_, dv_;
  const T scale_;
  std::vector<T> q_, k_, v_, dout_;  // packed; K scaled if plainly
  std::vector<RowState<T>> rows_;
};

// A row of one head, and its place in the results.
struct Place {
  int row;
  std::size_t at;
};
// The rows of `blocks`, by batch and head: head h of batch b is at b * heads + h.
std::vector<std::vector<Place>> rows_by_head(std::span<const RowBlock> blocks, int batch, int heads) {
  std::vector<std::vector<Place>> places(static_cast<std::size_t>(batch) * static_cast<std::size_t>(heads));
  std::size_t at = 0;
  for (const RowBlock& block : blocks) {
    auto& of_head = places[static_cast<std::size_t>(block.batch) * heads + block.head];
    for (int r = 0; r < block.count; ++r, ++at) of_head.push_back({block.first + r, at});
  }
  return places;
}

// How many of `threads` are worth starting for so many rows, each of which multiplies `row_work` numbers.
int worthwhile(int threads, std::size_t rows, double row_work) {
  constexpr double kWork = 1e5;  // takes longer than a thread to start
  const double most = 1 + static_cast<double>(rows) * row_work / kWork;
  return static_cast<int>(std::min<double>(most, runtime::meant_threads(threads)));
}

std::size_t count_rows(std::span<const RowBlock> blocks) {
  std::size_t rows = 0;
  for (const RowBlock& block : blocks) rows += static_cast<std::size_t>(block.count);
  return rows;
}

template <class T, class Round>
HostGradients gradients(const HostBackward& from, const GradientBlocks& blocks, int threads, bool plainly,
                        Round round) {
  const HostAttention& a = from.attention;
  const std::size_t d = a.problem.head_dim;
  const std::size_t dv = a.problem.value_dim();
  HostGradients result;
  result.dq.resize(count_rows(blocks.queries) * d);
  result.dk.resize(count_rows(blocks.keys) * d);
  result.dv.resize(count_rows(blocks.keys) * dv);
  const int heads = a.shape.heads, kv_heads = a.shape.kv_heads(), group = heads / kv_heads;
  auto queries_by_head = rows_by_head(blocks.queries, a.shape.batch, heads);
  const auto keys_by_head = rows_by_head(blocks.keys, a.shape.batch, kv_heads);
  const double per_query = static_cast<double>(a.shape.seqlen_k) * static_cast<double>(d + dv);
  const double per_key = static_cast<double>(a.shape.seqlen_q) * static_cast<double>(d + dv);
  for (int b = 0; b < a.shape.batch; ++b) {
    for (int h = 0; h < heads; ++h) {
      std::vector<Place>& queries = queries_by_head[static_cast<std::size_t>(b) * heads + h];
      const std::vector<Place>& keys = keys_by_head[static_cast<std::size_t>(b) * kv_heads + h / group];
      if (queries.empty() && keys.empty()) continue;
      Head<T, Round> head(from, b, h, plainly, round);
      if (!keys.empty() && from.lse == nullptr) {  // keys need the state of every row, wanted or not
        constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
        std::vector<std::size_t> place(static_cast<std::size_t>(a.shape.seqlen_q), kNowhere);
        for (const Place& query : queries) place[query.row] = query.at;
        queries.clear();
        for (int row = 0; row < a.shape.seqlen_q; ++row) queries.push_back({row, place[row]});
      }
      runtime::parallel_for(queries.size(), worthwhile(threads, queries.size(), per_query),
                            [&](std::size_t i) {
                              std::vector<T> dq(d);
                              head.query(queries[i].row, dq);
                              if (queries[i].at < result.dq.size() / d)
                                std::copy(dq.begin(), dq.end(), &result.dq[queries[i].at * d]);
                            });
      runtime::parallel_for(keys.size(), worthwhile(threads, keys.size(), per_key), [&](std::size_t i) {
        std::vector<T> dk(d), value(dv);
        head.key(keys[i].row, dk, value);
        // One head after the other adds its share; the last leaves the sum as a tensor would hold it.
        const auto sum = [&](std::vector<T>& share, double* to) {
          for (std::size_t x = 0; x < share.size(); ++x) {
            const T total = static_cast<T>(to[x]) + share[x];
            to[x] = static_cast<double>(h % group == group - 1 ? round(total) : total);
          }
        };
        sum(dk, &result.dk[keys[i].at * d]);
        sum(value, &result.dv[keys[i].at * dv]);
      });
    }
  }
  return result;
}

Shape of_keys(const Shape& shape) {
  return {.batch = shape.batch, .heads = shape.kv_heads(), .seqlen_q = shape.seqlen_k};
}

}  // namespace

GradientBlocks all_gradients(const Shape& shape, int rows) {
  return {all_rows(shape, rows), all_rows(of_keys(shape), rows)};
}

GradientBlocks sample_gradients(const Shape& shape, int blocks, int rows, std::uint64_t seed) {
  return {sample_rows(shape, blocks, rows, seed), sample_rows(of_keys(shape), blocks, rows, seed + 1)};
}

HostGradients reference_gradients(const HostBackward& from, const GradientBlocks& blocks, int threads) {
  return gradients<double>(from, blocks, threads, false, [](double x) { return x; });
}

HostGradients plain_gradients(const HostBackward& from, const GradientBlocks& blocks, int threads) {
  const DType dtype = from.attention.problem.dtype;
  return gradients<float>(from, blocks, threads, true, [dtype](float x) { return round_to(dtype, x); });
}

const Check& GradientCheck::worst() const {
  const auto excess = [](const Check& check) {
    if (check.rows == 0) return -1.0;  // nothing to be wrong in
    return check.allowed > 0 ? check.max_error / check.allowed : check.max_error > 0 ? kInfinity : 0.0;
  };
  const Check& keys = excess(dv) > excess(dk) ? dv : dk;
  return excess(keys) > excess(dq) ? keys : dq;
}

GradientCheck acceptable_gradients(const HostBackward& from, const GradientBlocks& blocks,
                                   const HostGradients& expected, const HostGradients& simple,
                                   const HostGradientOutput& output) {
  const HostAttention& a = from.attention;
  const DType dtype = a.problem.dtype;
  const int d = a.problem.head_dim;
  const int dv = a.problem.value_dim();
  const Shape& s = a.shape;
  return {.dq = compare(dtype, "dq", blocks.queries, d, output.dq,
                        strides_or_packed(output.dq_strides, s.seqlen_q, s.heads, d), expected.dq, simple.dq),
          .dk = compare(dtype, "dk", blocks.keys, d, output.dk,
                        strides_or_packed(output.dk_strides, s.seqlen_k, s.kv_heads(), d), expected.dk,
                        simple.dk),
          .dv = compare(dtype, "dv", blocks.keys, dv, output.dv,
                        strides_or_packed(output.dv_strides, s.seqlen_k, s.kv_heads(), dv), expected.dv,
                        simple.dv)};
}

GradientCheck acceptable_gradients(const HostBackward& from, const GradientBlocks& blocks,
                                   const HostGradientOutput& output) {
  return acceptable_gradients(from, blocks, reference_gradients(from, blocks), plain_gradients(from, blocks),
                              output);
}

}  // namespace flashjit::autotune

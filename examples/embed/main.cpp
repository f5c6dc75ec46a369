// Attention from C++ through flashjit: get a plan, run it, see where it came from, compare with a loop.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "flashjit/flashjit.hpp"

namespace {

using flashjit::Problem;
using flashjit::Shape;

std::size_t elements(int batch, int rows, int heads, int columns) {
  return static_cast<std::size_t>(batch) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) *
         static_cast<std::size_t>(columns);
}

std::vector<float> random_tensor(std::size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  std::generate(values.begin(), values.end(), [&] { return normal(generator); });
  return values;
}

// softmax(scale * Q K^T) V, one row at a time; tensors are (batch, seqlen, heads, head_dim).
std::vector<float> attention(const Problem& problem, const Shape& shape, const std::vector<float>& q,
                             const std::vector<float>& k, const std::vector<float>& v) {
  const int d = problem.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  std::vector<float> o(elements(shape.batch, shape.seqlen_q, shape.heads, d));
  for (int b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.heads; ++h) {
      const int h_kv = h / (shape.heads / shape.kv_heads());
      for (int i = 0; i < shape.seqlen_q; ++i) {
        const auto row = [d](const std::vector<float>& tensor, int batch, int rows, int heads, int r,
                             int head) {
          return &tensor[elements(batch, rows, heads, d) + elements(1, r, heads, d) +
                         elements(1, 1, head, d)];
        };
        const float* const query = row(q, b, shape.seqlen_q, shape.heads, i, h);
        const int last = problem.causal ? i + shape.seqlen_k - shape.seqlen_q : shape.seqlen_k - 1;
        std::vector<double> weights;
        double peak = -HUGE_VAL;
        for (int j = 0; j <= last; ++j) {
          const float* const key = row(k, b, shape.seqlen_k, shape.kv_heads(), j, h_kv);
          double dot = 0;
          for (int x = 0; x < d; ++x) dot += static_cast<double>(query[x]) * key[x];
          weights.push_back(scale * dot);
          peak = std::max(peak, weights.back());
        }
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - peak);
        std::vector<double> out(static_cast<std::size_t>(d), 0.0);
        for (int j = 0; j <= last; ++j) {
          const float* const value = row(v, b, shape.seqlen_k, shape.kv_heads(), j, h_kv);
          for (int x = 0; x < d; ++x)
            out[static_cast<std::size_t>(x)] += weights[static_cast<std::size_t>(j)] / sum * value[x];
        }
        std::copy(out.begin(), out.end(),
                  &o[elements(b, shape.seqlen_q, shape.heads, d) + elements(1, i, shape.heads, d) +
                     elements(1, 1, h, d)]);
      }
    }
  }
  return o;
}

int run(const std::string& device) {
  flashjit::Engine engine(device);
  std::printf("device   %s (%s)\n", engine.device_name().c_str(), engine.device_description().c_str());

  const Problem problem{.dtype = flashjit::DType::fp32, .head_dim = 64, .causal = true};
  const Shape shape{.batch = 1, .heads = 4, .heads_kv = 2, .seqlen_q = 100, .seqlen_k = 150};
  const flashjit::Plan plan = engine.plan(problem, shape);
  const flashjit::Origin& origin = plan.origin();
  std::printf("kernel   %s\nschedule %s (%s)\ncode     %s\n", plan.kernel_name().c_str(),
              origin.schedule.c_str(), origin.choice.c_str(), origin.code.c_str());
  if (!origin.note.empty()) std::printf("note     %s\n", origin.note.c_str());

  const auto q = random_tensor(elements(shape.batch, shape.seqlen_q, shape.heads, problem.head_dim), 1);
  const auto k = random_tensor(elements(shape.batch, shape.seqlen_k, shape.kv_heads(), problem.head_dim), 2);
  const auto v = random_tensor(elements(shape.batch, shape.seqlen_k, shape.kv_heads(), problem.head_dim), 3);
  const auto uploaded = [&engine](const std::vector<float>& tensor) {
    flashjit::Buffer buffer = engine.allocate(tensor.size() * sizeof(float));
    engine.upload(buffer, tensor.data(), buffer.size());
    return buffer;
  };
  const flashjit::Buffer q_there = uploaded(q);
  const flashjit::Buffer k_there = uploaded(k);
  const flashjit::Buffer v_there = uploaded(v);
  const flashjit::Buffer o_there = engine.allocate(q_there.size());

  plan.forward({.q = q_there.data(), .k = k_there.data(), .v = v_there.data(), .o = o_there.data()});

  std::vector<float> o(q.size());
  engine.download(o.data(), o_there, o_there.size());
  const std::vector<float> expected = attention(problem, shape, q, k, v);
  double error = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    const double difference = std::abs(static_cast<double>(o[i]) - expected[i]);
    if (!(difference <= error)) error = difference;  // a NaN counts
  }
  const bool right = error < 1e-5;
  std::printf("error    %.2g, %s\n", error, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "cuda");
  } catch (const flashjit::Error& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 2;
  }
}

// Random tensors for tests, tuning and benchmarks: the same numbers everywhere for the same seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "autotune/reference.hpp"
#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"

namespace flashjit::autotune {

// What kind of attention the numbers make. All but `normal` are there to provoke errors.
enum class InputKind {
  normal,      // q, k and v are standard normal
  peaky,       // q is six times larger: each row attends to few keys
  growing,     // scores rise steadily with the key, by 56 in all: the running maximum never rests
  late_giant,  // one key near the end outweighs all before it by 100
  crowd,       // a key near the end outweighs each earlier one, all equal, some 2^9 times; many outweigh it
  tiny,        // everything is scaled by 2^-10: softmax is almost uniform
};
inline constexpr std::array kInputKinds = {InputKind::normal,     InputKind::peaky, InputKind::growing,
                                           InputKind::late_giant, InputKind::crowd, InputKind::tiny};
const char* to_string(InputKind kind);
std::string input_kind_names();                       // all of them, in words: "normal, peaky, … or tiny"
InputKind parse_input_kind(const std::string& text);  // throws Error{invalid_argument}

// A (batch, rows, heads, dim) tensor in host memory. Elements that its strides skip hold NaN, so that a stray
// read shows.
struct HostTensor {
  std::vector<std::byte> bytes;
  Strides strides;
};

// Memory for the tensor and nothing else, every element NaN. strides all zero: packed.
HostTensor poisoned(DType dtype, int batch, int rows, int heads, int dim, const Strides& strides = {});

// q, k and v of one problem.
struct Inputs {
  HostTensor q, k, v;
};
struct InputLayout {
  Strides q{}, k{}, v{};  // all zero: packed
};
Inputs make_inputs(const Problem& problem, const Shape& shape, InputKind kind, std::uint64_t seed,
                   const InputLayout& layout = {});

// The inputs as the reference takes them.
HostAttention host_attention(const Problem& problem, const Shape& shape, const Inputs& inputs);

// Writes standard normal numbers as packed elements: number i depends on seed and i alone.
void fill_normal(DType dtype, void* to, std::int64_t count, std::uint64_t seed);

}  // namespace flashjit::autotune

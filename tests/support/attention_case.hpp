// One attention problem with its inputs and its reference, to be run through the front door and judged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autotune/inputs.hpp"
#include "autotune/reference.hpp"
#include "flashjit/flashjit.hpp"

namespace flashjit::test {

enum class Layout {
  packed,   // (batch, seqlen, heads, head_dim)
  strided,  // q and o as (batch, heads, seqlen, head_dim) with padded rows, k and v as slices of one row of
            // both
  shared,   // packed, but for one k and one v that all batches and heads share
  far,      // packed, but for 2^31 elements and more between the batches of k, v and o
};
const char* to_string(Layout layout);

struct AttentionCase {
  Problem problem;
  Shape shape;
  Layout layout = Layout::packed;
  autotune::InputKind inputs = autotune::InputKind::normal;
  std::optional<float> scale{};
  std::uint64_t seed = 1;
  int silent = 0;          // the last so many keys score -infinity: in their first column they have that,
  float silent_query = 1;  // and queries have this
  int low = 0;             // the last so many keys score 7.7 bits less than all others, which are alike
  int value_exponent = 0;  // v, which is packed, is 2^this as large
  int endless = 0;         // the first column of the last so many keys' values is infinite
  int blind = 0;           // where o and lse are made up: the first so many rows have an LSE of -infinity
  int endless_rows = 0;    // likewise, packed: the first column of the first so many rows of q is infinite
};
std::string describe(const AttentionCase& one);  // "bf16 d64 causal 2x4/2x130x200 strided peaky seed 7"

class Attention {
 public:
  // Makes inputs and reference; rows > 0 checks that many rows alone, for problems that are large.
  explicit Attention(const AttentionCase& one, int rows = 0, int reference_threads = 1);

  // Runs the plan on the engine's device, from poisoned outputs. Beyond the rule, what lies between the rows
  // of a strided o must be untouched.
  [[nodiscard]] autotune::Check run(Engine& engine, const PlanOptions& options,
                                    std::string* schedule = nullptr) const;

 private:
  AttentionCase case_;
  autotune::Inputs inputs_;
  autotune::HostTensor poison_;  // o before the launch
  std::vector<autotune::RowBlock> blocks_;
  autotune::HostResult reference_, plain_;
};

}  // namespace flashjit::test

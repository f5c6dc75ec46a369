// Rendered kernels hold only what their problem needs: nothing is declared in them that nothing names.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/tune.hpp"
#include "generator/render.hpp"

using namespace flashjit;

namespace {

// Names and single characters of C++ without comments.
std::vector<std::string> tokens_of(std::string_view text) {
  const auto in_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text.substr(i, 2) == "//") {
      end = std::min(text.find('\n', i), text.size());
    } else if (in_name(text[i])) {
      while (end < text.size() && in_name(text[end])) ++end;
      tokens.emplace_back(text.substr(i, end - i));
    } else if (std::isspace(static_cast<unsigned char>(text[i])) == 0) {
      tokens.emplace_back(1, text[i]);
    }
    i = end;
  }
  return tokens;
}

// The constants, functions, structs and aliases that nothing names but their declaration.
std::vector<std::string> unused(std::string_view source) {
  const std::vector<std::string> tokens = tokens_of(source);
  std::map<std::string, int> times;
  for (const std::string& token : tokens) ++times[token];
  std::vector<std::string> found;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool value = tokens[i] == "constexpr" || tokens[i] == "__forceinline__";
    if (!value && tokens[i] != "struct" && tokens[i] != "using") continue;
    std::size_t end = i + 1;  // behind the name
    while (end < tokens.size() && tokens[end] != "=" && tokens[end] != "{" && tokens[end] != ";" &&
           !(value && tokens[end] == "(")) {
      ++end;
    }
    if (times[tokens[end - 1]] == 1) found.push_back(tokens[end - 1]);
  }
  return found;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const int dim : {40, 64, 128, 136, 256}) {
    for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
      for (const bool causal : {false, true}) {
        all.push_back({.dtype = dtype, .head_dim = dim, .causal = causal});
        all.push_back({.pass = Pass::backward, .dtype = dtype, .head_dim = dim, .causal = causal});
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("what counts as unused") {
  const auto only = [](const char* source) {
    const std::vector<std::string> found = unused(source);
    return found.size() == 1 ? found.front() : std::to_string(found.size());
  };
  CHECK(only("constexpr int kTile = 4, kUsed = 3;  // kTile") == "kTile");
  CHECK(only("constexpr int kTile = 4; int x = kTile;") == "0");
  CHECK(only("__device__ __forceinline__ float half(float x) { return x / 2; }") == "half");
  CHECK(only("struct alignas(16) Four { float x; };") == "Four");
  CHECK(only("using Pair = float2;") == "Pair");
}

TEST_CASE("rendered kernels declare nothing in vain") {
  constexpr int kEvery = 11;  // schedules
  int kernels = 0, turn = 0;
  for (const char* arch : {"sm_75", "sm_80", "sm_90a"}) {
    const Target target = target_of(arch);
    for (const Problem& problem : problems()) {
      for (const autotune::Candidate& candidate : autotune::search_space(problem, target)) {
        if (!candidate.pruned.empty() || turn++ % kEvery != 0) continue;
        for (const KernelSource& kernel : render(problem, candidate.schedule, target)) {
          CAPTURE(kernel.entry);
          CHECK(fmt::format("{}", fmt::join(unused(kernel.text), ", ")) == "");
          ++kernels;
        }
      }
    }
  }
  CHECK(kernels > 300);
}

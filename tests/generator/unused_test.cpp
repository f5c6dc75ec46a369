// Rendered kernels hold only what their problem needs: nothing is declared in them that nothing names.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/tune.hpp"
#include "generator/render.hpp"

using namespace flashjit;

namespace {

bool in_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

bool is_name(std::string_view token) {
  return in_name(token.front());
}

// Names and single characters of C++ without comments.
std::vector<std::string> tokens_of(std::string_view text) {
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

bool is_type(std::string_view token) {
  return token == "bool" || token == "int" || token == "unsigned" || token == "float" || token == "auto";
}

// What a declaration's name is followed by.
bool ends_name(std::string_view token) {
  return token == "=" || token == ";" || token == "," || token == "[" || token == ")";
}

// Behind the bracket that closes the one at `open`.
std::size_t behind(const std::vector<std::string>& tokens, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < tokens.size(); ++i) {
    depth += tokens[i] == "(" || tokens[i] == "{" ? 1 : 0;
    depth -= tokens[i] == ")" || tokens[i] == "}" ? 1 : 0;
    if (depth == 0) return i + 1;
  }
  return tokens.size();
}

// The parameters that their function does not name, of the function or lambda whose parameters begin at
// `open`.
void add_unused_parameters(const std::vector<std::string>& tokens, std::size_t open,
                           std::vector<std::string>& found) {
  const std::size_t close = behind(tokens, open) - 1;
  std::size_t body = close;
  while (tokens[body] != "{") ++body;
  const auto behind_parameters = std::span(tokens).subspan(close, behind(tokens, body) - close);
  for (std::size_t i = open + 1; i < close; ++i) {
    const std::string& name = tokens[i];
    const bool named = is_name(name) &&
                       (is_name(tokens[i - 1]) || tokens[i - 1] == "&" || tokens[i - 1] == "*") &&
                       ends_name(tokens[i + 1]) && !is_type(name);
    if (named &&
        std::find(behind_parameters.begin(), behind_parameters.end(), name) == behind_parameters.end())
      found.push_back(name);
  }
}

// The constants, functions, structs and aliases, and the variables and members of simple types, that nothing
// names but their declaration; and the parameters that their function or lambda does not name.
std::vector<std::string> unused(std::string_view source) {
  const std::vector<std::string> tokens = tokens_of(source);
  std::map<std::string, int> times;
  for (const std::string& token : tokens) ++times[token];
  // What comes before the first function is laid out for all kernels (params/).
  const std::size_t layouts =
      static_cast<std::size_t>(std::find(tokens.begin(), tokens.end(), "__device__") - tokens.begin());
  std::vector<std::string> found;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool value = tokens[i] == "constexpr" || tokens[i] == "__forceinline__";
    if (!value && tokens[i] != "struct" && tokens[i] != "using") {
      const bool variable = i > layouts && is_type(tokens[i]) && i + 2 < tokens.size() &&
                            is_name(tokens[i + 1]) &&
                            (tokens[i + 2] == "=" || tokens[i + 2] == ";" || tokens[i + 2] == "[");
      if (variable && times[tokens[i + 1]] == 1) found.push_back(tokens[i + 1]);
      const bool lambda = tokens[i] == "]" && i + 1 < tokens.size() && tokens[i + 1] == "(";
      if (lambda) add_unused_parameters(tokens, i + 1, found);
      continue;
    }
    std::size_t end = i + 1;  // behind the name
    while (end < tokens.size() && tokens[end] != "=" && tokens[end] != "{" && tokens[end] != ";" &&
           !(value && tokens[end] == "(")) {
      ++end;
    }
    if (times[tokens[end - 1]] == 1) found.push_back(tokens[end - 1]);
    if (tokens[i] == "__forceinline__") add_unused_parameters(tokens, end, found);
  }
  return found;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const int dim : {40, 64, 128, 136, 256}) {
    for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
      for (const bool causal : {false, true}) {
        all.push_back({.dtype = dtype, .head_dim = dim, .causal = causal});
        all.push_back({.dtype = dtype, .head_dim = dim, .causal = causal, .lse = false});
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
  CHECK(only("struct Params { int x; }; __device__ struct Four { float y; int rest = 0; }; g(Params(), "
             "Four().y);") == "rest");
  CHECK(only("__device__ __forceinline__ float half(float x, int n) { return x / 2; } half(n);") == "n");
  CHECK(only("__device__ __forceinline__ float half(float x, int) { return x / 2; } half();") == "0");
  CHECK(only("__device__ __forceinline__ void set(float (&to)[2], const Tile& at) { to[0] = 1; } set(at);") ==
        "at");
  CHECK(only("const auto twice = [&](int n) { return 2; }; twice(n);") == "n");
  CHECK(only("const auto twice = [&](int n) { return 2 * n; }; twice(n);") == "0");
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

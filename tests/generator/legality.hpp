// What legal() says, for the tests of it.
#pragma once

#include <string>

#include "generator/legality.hpp"

namespace flashjit::test {

// Why a schedule may not serve a problem; empty if it may.
inline std::string reason(const Problem& problem, const std::string& schedule, const std::string& arch) {
  return legal(problem, parse_schedule(schedule), target_of(arch)).reason;
}

inline constexpr Problem kFp32{.dtype = DType::fp32, .head_dim = 64};
inline constexpr Problem kFp16{.dtype = DType::fp16, .head_dim = 64};
inline constexpr Problem kBf16{.dtype = DType::bf16, .head_dim = 64};

}  // namespace flashjit::test

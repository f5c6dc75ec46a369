// Legality that does not depend on a family's insides: dtypes, archs, passes.
#include "generator/legality.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/recipe.hpp"

namespace flashjit {
namespace {

// Measured: most of the error of a narrow head's score is the one rounding of its sum on a tensor core.
Legality legal_width(const Problem& problem, Family family) {
  if (problem.dtype != DType::fp32 || problem.head_dim >= 24) return {};
  return {
      fmt::format("family {} computes fp32 from head_dim 24 on, narrower ones less precisely than FMA does, "
                  "this is {}; use simt",
                  to_string(family), problem.head_dim)};
}

// Registers have no room for the sums of wider gradients in fp32.
Legality legal_gradients_by_wgmma(const Problem& problem) {
  constexpr int kWidest = 128;
  const int widest = std::max(problem.head_dim, problem.value_dim());
  if (problem.dtype != DType::fp32 || problem.pass == Pass::forward || widest <= kWidest) return {};
  return {
      fmt::format("family wgmma computes gradients of fp32 up to head_dim {}, this is {}; use mma or simt",
                  kWidest, widest)};
}

}  // namespace

Legality legal(const Problem& problem, Family family, const Target& target) {
  switch (family) {
    case Family::simt:
      if (problem.dtype != DType::fp32) {
        return {fmt::format("family simt computes in fp32 only, dtype is {}; use mma, or dtype fp32",
                            to_string(problem.dtype))};
      }
      return {};
    case Family::mma:
      if (problem.dtype == DType::fp32 && target.capability < 80) {
        return {
            fmt::format("family mma computes fp32 by products of bf16, which came with sm_80, this is {}; "
                        "use simt",
                        target.arch)};
      }
      if (Legality narrow = legal_width(problem, family); !narrow) return narrow;
      if (problem.dtype == DType::bf16 && target.capability < 80) {
        return {fmt::format("bf16 needs tensor cores of sm_80 or later, this is {}; use dtype fp16",
                            target.arch)};
      }
      return {};
    case Family::wgmma:
      if (target.arch != "sm_90a") {
        return {fmt::format("family wgmma needs sm_90a (Hopper), this is {}; use {}mma", target.arch,
                            target.arch == "sm_90" ? "sm_90a, or " : "")};
      }
      if (Legality narrow = legal_width(problem, family); !narrow) return narrow;
      return legal_gradients_by_wgmma(problem);
  }
  return {"unknown family"};
}

Legality legal(const Problem& problem, const Schedule& schedule, const Target& target) {
  if (pass_of(schedule) != problem.pass) {
    return {fmt::format("schedule {} is for the {} pass, the problem asks for {}", to_string(schedule),
                        to_string(pass_of(schedule)), to_string(problem.pass))};
  }
  if (Legality family = legal(problem, family_of(schedule), target); !family) return family;
  if (problem.deterministic && problem.pass == Pass::backward &&
      !is_deterministic(static_cast<DqWay>(get(schedule, "dq")))) {
    const bool in_order = family_of(schedule) == Family::wgmma && problem.dtype != DType::fp32;
    return {fmt::format("deterministic gradients forbid atomic additions to dQ (dq{}); use dq0{}",
                        get(schedule, "dq"), in_order ? " or dq2" : "")};
  }
  struct Visitor {
    const Problem& problem;
    const Target& target;
    Legality operator()(const SimtSchedule& s) const { return legal_simt(problem, s, target); }
    Legality operator()(const MmaSchedule& s) const { return legal_mma(problem, s, target); }
    Legality operator()(const WgmmaSchedule& s) const { return legal_wgmma(problem, s, target); }
    Legality operator()(const SimtBackwardSchedule& s) const {
      return legal_simt_backward(problem, s, target);
    }
    Legality operator()(const MmaBackwardSchedule& s) const { return legal_mma_backward(problem, s, target); }
    Legality operator()(const WgmmaBackwardSchedule& s) const {
      return legal_wgmma_backward(problem, s, target);
    }
  };
  return std::visit(Visitor{problem, target}, schedule);
}

}  // namespace flashjit

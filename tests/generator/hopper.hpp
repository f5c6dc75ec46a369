// What Hopper's schedules are refused for, and the kernels that they become.
#pragma once

#include <string>

#include "generator/render.hpp"
#include "tests/generator/legality.hpp"

namespace flashjit::test {

inline const Target& hopper() {
  static const Target target = target_of("sm_90a");
  return target;
}

inline std::string reason(const Problem& problem, const std::string& schedule) {
  return reason(problem, "wgmma:" + schedule, "sm_90a");
}

inline KernelSource rendered(const Problem& problem, const std::string& schedule) {
  return render(problem, parse_schedule("wgmma:" + schedule), hopper()).at(0);
}

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace flashjit::test

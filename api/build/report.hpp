// The "report" section of a cache entry, as JSON: what ptxas said of the kernel, and its problem and
// schedule.
#pragma once

#include <string>
#include <string_view>

#include "runtime/compile.hpp"

namespace flashjit::api {

struct Report {
  std::string entry;     // the kernel's name
  std::string problem;   // describe(problem)
  std::string schedule;  // "mma:m128n64w4s2"
  std::string arch;      // "sm_90a"
  std::string nvrtc;     // the build id
  double compile_ms = 0;
  runtime::Resources resources;
};

std::string to_json(const Report& report);
// What cannot be read keeps its default: a report is only informative.
Report parse_report(std::string_view json);

}  // namespace flashjit::api

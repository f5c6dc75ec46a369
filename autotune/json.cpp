// Strict reading and writing of the vocabulary as JSON.
#include "autotune/json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "autotune/canonical.hpp"
#include "flashjit/error.hpp"

namespace flashjit::autotune {
namespace {

[[noreturn]] void refuse(const char* name, const char* wanted) {
  throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is not {}", name, wanted));
}

int int_of(const Json& object, const char* name) {
  return static_cast<int>(integer_of(object, name, 0, kIntMax));
}

}  // namespace

const Json& member(const Json& object, const char* name) {
  if (!object.is_object())
    throw Error(ErrorCode::invalid_argument, fmt::format("no object to find \"{}\" in", name));
  const auto found = object.find(name);
  if (found == object.end()) throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is missing", name));
  return *found;
}

std::string text_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_string()) refuse(name, "a string");
  return value.get<std::string>();
}

std::int64_t integer_of(const Json& object, const char* name, std::int64_t minimum, std::int64_t maximum) {
  const Json& value = member(object, name);
  if (!value.is_number_integer()) refuse(name, "an integer");
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse(name, "in range");
  }
  const auto number = value.get<std::int64_t>();
  if (number < minimum || number > maximum) refuse(name, "in range");
  return number;
}

double number_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_number()) refuse(name, "a number");
  const auto number = value.get<double>();
  if (!std::isfinite(number) || number < 0) refuse(name, "0 or more, and finite");
  return number;
}

bool flag_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_boolean()) refuse(name, "true or false");
  return value.get<bool>();
}

Json to_json(const Problem& problem) {
  return {{"pass", flashjit::to_string(problem.pass)},
          {"dtype", flashjit::to_string(problem.dtype)},
          {"head_dim", problem.head_dim},
          {"head_dim_v", problem.value_dim()},
          {"causal", problem.causal},
          {"lse", problem.lse},
          {"deterministic", problem.deterministic}};
}

Problem problem_of(const Json& json) {
  Problem problem;
  problem.pass = parse_pass(text_of(json, "pass"));
  problem.dtype = parse_dtype(text_of(json, "dtype"));
  problem.head_dim = int_of(json, "head_dim");
  problem.head_dim_v = int_of(json, "head_dim_v");
  problem.causal = flag_of(json, "causal");
  problem.lse = flag_of(json, "lse");
  problem.deterministic = flag_of(json, "deterministic");
  validate(problem);
  return canonical(problem);
}

Json to_json(const Shape& shape) {
  return {{"batch", shape.batch},
          {"heads", shape.heads},
          {"heads_kv", shape.kv_heads()},
          {"seqlen_q", shape.seqlen_q},
          {"seqlen_k", shape.seqlen_k}};
}

Shape shape_of(const Json& json) {
  Shape shape;
  shape.batch = int_of(json, "batch");
  shape.heads = int_of(json, "heads");
  shape.heads_kv = int_of(json, "heads_kv");
  shape.seqlen_q = int_of(json, "seqlen_q");
  shape.seqlen_k = int_of(json, "seqlen_k");
  validate(shape);
  return shape;
}

Json to_json(const runtime::Resources& resources) {
  return {{"registers", resources.registers},       {"spill_stores", resources.spill_stores},
          {"spill_loads", resources.spill_loads},   {"stack", resources.stack},
          {"shared_bytes", resources.shared_bytes}, {"barriers", resources.barriers},
          {"code_bytes", resources.code_bytes},     {"warnings", resources.warnings}};
}

runtime::Resources resources_of(const Json& json) {
  runtime::Resources resources;
  resources.registers = int_of(json, "registers");
  resources.spill_stores = int_of(json, "spill_stores");
  resources.spill_loads = int_of(json, "spill_loads");
  resources.stack = int_of(json, "stack");
  resources.shared_bytes = int_of(json, "shared_bytes");
  resources.barriers = int_of(json, "barriers");
  resources.code_bytes = int_of(json, "code_bytes");
  for (const Json& warning : member(json, "warnings")) {
    if (warning.is_string()) resources.warnings.push_back(warning.get<std::string>());
  }
  return resources;
}

const char* to_string(Tuning effort) {
  switch (effort) {
    case Tuning::off:
      return "off";
    case Tuning::quick:
      return "quick";
    case Tuning::full:
      return "full";
  }
  return "?";
}

Tuning effort_of(const std::string& text) {
  for (const Tuning effort : {Tuning::off, Tuning::quick, Tuning::full}) {
    if (text == to_string(effort)) return effort;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("effort is \"{}\", may be off, quick or full", text));
}

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json from_line(std::string_view line) {
  return Json::parse(line, nullptr, /*allow_exceptions=*/false);
}

}  // namespace flashjit::autotune

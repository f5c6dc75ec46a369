// JSON of the vocabulary, for wisdom and for the worker's protocol. Only for .cpp files: nlohmann's header is
// heavy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "flashjit/engine.hpp"
#include "flashjit/problem.hpp"
#include "generator/schedule.hpp"
#include "runtime/compile.hpp"

namespace flashjit::autotune {

using Json = nlohmann::json;

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();
constexpr std::size_t kLongestLine = 1 << 20;  // the longest that is read

// Members of an object, strictly: what is missing, of another type or out of range throws
// Error{invalid_argument} that names it. (nlohmann's own conversions turn 1e300 into an int without a word.)
const Json& member(const Json& object, const char* name);
std::string text_of(const Json& object, const char* name);
std::int64_t integer_of(const Json& object, const char* name, std::int64_t minimum, std::int64_t maximum);
double number_of(const Json& object, const char* name);  // 0 or more, and finite
bool flag_of(const Json& object, const char* name);

Json to_json(const Problem& problem);
Json to_json(const Shape& shape);
Json to_json(const runtime::Resources& resources);
Problem problem_of(const Json& json);  // validated and canonical
Shape shape_of(const Json& json);      // validated
runtime::Resources resources_of(const Json& json);

const char* to_string(Tuning effort);  // "off", "quick", "full"
Tuning effort_of(const std::string& text);

// One line; bytes that are not UTF-8 are replaced.
std::string to_line(const Json& json);
Json from_line(std::string_view line);  // discarded if the line is not one whole JSON value

}  // namespace flashjit::autotune

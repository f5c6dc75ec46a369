// The protocol's structs as JSON and back.
#include "autotune/worker/protocol.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace flashjit::autotune {
namespace {

// An error may be infinite (a NaN in the output). JSON has no number for that, so null stands for it.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}
double number_or_infinity(const Json& json, const char* name) {
  return member(json, name).is_null() ? std::numeric_limits<double>::infinity() : number_of(json, name);
}

// A path is bytes, and need not be text.
Json bytes(const std::string& text) {
  return std::vector<std::uint8_t>(text.begin(), text.end());
}
std::string bytes_of(const Json& json, const char* name) {
  const Json& array = member(json, name);
  const auto is_byte = [](const Json& one) {
    return one.is_number_unsigned() && one.get<std::uint64_t>() <= 0xff;
  };
  if (!array.is_array() || !std::all_of(array.begin(), array.end(), is_byte))
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is not an array of bytes", name));
  std::string text;
  for (const Json& byte : array) text.push_back(static_cast<char>(byte.get<std::uint8_t>()));
  return text;
}

}  // namespace

Json to_json(const Job& job) {
  return {{"op", "open"},
          {"version", job.version},
          {"device", job.device},
          {"problem", to_json(job.problem)},
          {"shape", to_json(job.shape)},
          {"cache_dir", bytes(job.cache_dir)},
          {"use_cache", job.use_cache}};
}

Job job_of(const Json& json) {
  Job job;
  job.version = text_of(json, "version");
  job.device = text_of(json, "device");
  job.problem = problem_of(member(json, "problem"));
  job.shape = shape_of(member(json, "shape"));
  job.cache_dir = bytes_of(json, "cache_dir");
  job.use_cache = flag_of(json, "use_cache");
  return job;
}

Json to_json(const Check& check) {
  return {{"op", "verified"},
          {"ok", check.ok},
          {"message", check.message},
          {"max_error", number(check.max_error)},
          {"plain_error", number(check.plain_error)},
          {"allowed", number(check.allowed)},
          {"lse_error", number(check.lse_error)},
          {"rows", check.rows}};
}

Check check_of(const Json& json) {
  Check check;
  check.ok = flag_of(json, "ok");
  check.message = text_of(json, "message");
  check.max_error = number_or_infinity(json, "max_error");
  check.plain_error = number_or_infinity(json, "plain_error");
  check.allowed = number_or_infinity(json, "allowed");
  check.lse_error = number_or_infinity(json, "lse_error");
  check.rows = integer_of(json, "rows", 0, std::numeric_limits<std::int64_t>::max());
  return check;
}

Json to_json(const MeasureOptions& options) {
  return {
      {"pause", options.pause_seconds}, {"seconds", options.seconds}, {"give_up", options.give_up_above_ms}};
}

MeasureOptions measure_options_of(const Json& json) {
  return {.pause_seconds = number_of(json, "pause"),
          .seconds = number_of(json, "seconds"),
          .give_up_above_ms = number_of(json, "give_up")};
}

Json to_json(const Timing& timing) {
  return {{"op", "timed"},
          {"median", timing.median_ms},
          {"spread", timing.spread},
          {"fastest", timing.fastest_ms},
          {"clock", timing.clock_mhz},
          {"samples", timing.samples},
          {"launches", timing.launches},
          {"gave_up", timing.gave_up}};
}

Timing timing_of(const Json& json) {
  Timing timing;
  timing.median_ms = number_of(json, "median");
  timing.spread = number_of(json, "spread");
  timing.fastest_ms = number_of(json, "fastest");
  timing.clock_mhz = number_of(json, "clock");
  timing.samples = static_cast<int>(integer_of(json, "samples", 0, kIntMax));
  timing.launches = static_cast<int>(integer_of(json, "launches", 0, kIntMax));
  timing.gave_up = flag_of(json, "gave_up");
  return timing;
}

Json to_json(const Error& error) {
  return {{"op", "error"},
          {"code", static_cast<int>(error.code())},
          {"message", error.message()},
          {"hint", error.hint()}};
}

Error error_of(const Json& json) {
  const auto code = integer_of(json, "code", static_cast<int>(ErrorCode::invalid_argument),
                               static_cast<int>(ErrorCode::internal));
  return {static_cast<ErrorCode>(code), text_of(json, "message"), text_of(json, "hint")};
}

}  // namespace flashjit::autotune

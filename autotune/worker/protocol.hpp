// The words that a tuning process and its worker exchange: one JSON object per line, a request and its
// replies.
//
//   open {version, device, problem, shape, cache_dir, use_cache}; cache_dir is an array of bytes
//                               → opened, or other_version {version}
//   build {schedules, milliseconds}
//                               → built {index, resources | error} for each, then done
//   verify {schedule}           → verified {ok, message, max_error, …}
//   time {schedule, options}    → timed {median, spread, …}; options are {pause, seconds, give_up}
//   anything may be answered by → error {code, message, hint}
#pragma once

#include "autotune/json.hpp"
#include "autotune/worker.hpp"
#include "flashjit/error.hpp"

namespace flashjit::autotune {

Json to_json(const Job& job);
Job job_of(const Json& json);
Json to_json(const Check& check);
Check check_of(const Json& json);
Json to_json(const MeasureOptions& options);
MeasureOptions measure_options_of(const Json& json);
Json to_json(const Timing& timing);
Timing timing_of(const Json& json);
Json to_json(const Error& error);
Error error_of(const Json& json);

}  // namespace flashjit::autotune

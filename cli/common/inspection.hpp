// What is known about a schedule's kernels without running them, for `flashjit inspect`.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/build/kernel_builder.hpp"
#include "api/engine_state.hpp"
#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "runtime/occupancy.hpp"

namespace flashjit::cli {

// One kernel.
struct Inspection {
  Target target;
  std::string schedule;  // "mma:m128n64w4s2"
  std::string choice;    // why this schedule: "given", "model" …
  std::string note;      // as in Origin: what else a user should know, such as what was passed over
  api::KernelCodePointer code;
  bool has_cubin = false;  // false: the driver makes the machine code, and the fields below are not known
  runtime::Occupancy occupancy;
};

// Compiles the kernels of a plan with these options, or takes them from the cache; in launch order. Never
// tunes.
std::vector<Inspection> inspect(EngineState& state, const Problem& problem, const Shape& shape,
                                const PlanOptions& options);

// The kernels of the schedule that the options give, before they are compiled: NVRTC is not needed, and
// emit() has only their source and schedule.
std::vector<Inspection> sketch(EngineState& state, const Problem& problem, const Shape& shape,
                               const PlanOptions& options);

// The kernel that `kernel` names: by its number from 0, its name, or the end of its name ("preprocess").
// Throws Error{invalid_argument} that lists the kernels.
const Inspection& find_kernel(const std::vector<Inspection>& inspections, const std::string& kernel);

// What a user reads, as (label, value).
std::vector<std::pair<std::string, std::string>> rows(const Inspection& inspection);
nlohmann::json to_json(const Inspection& inspection);

// The artefacts that --emit names; emit() returns the bytes of one. Throws Error{invalid_argument} for
// another name, {not_found} for SASS without nvdisasm, {unsupported} for machine code if only the driver
// makes it.
inline constexpr std::string_view kArtefacts = "source, ptx, sass, cubin, log, key or schedule";
void check_artefact(const std::string& artefact);  // throws for an unknown name, as emit() would
std::string emit(const Inspection& inspection, const std::string& artefact);

}  // namespace flashjit::cli

// What is known of one schedule's kernels without running them: behind `flashjit inspect`.
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
  std::string choice;    // why this one: "given", "model" …
  std::string note;      // what else a user should know, as Origin has it: such as what was passed over
  api::KernelCodePointer code;
  bool has_cubin = false;  // else the driver makes the machine code, and what follows is not known
  runtime::Occupancy occupancy;
};

// Compiles, or takes from the cache, the kernels of a plan with these options, in launch order; nothing is
// tuned.
std::vector<Inspection> inspect(EngineState& state, const Problem& problem, const Shape& shape,
                                const PlanOptions& options);

// Those of the schedule that the options give, as they are before anything compiles them: no NVRTC is needed,
// and emit() has their source and schedule alone.
std::vector<Inspection> sketch(EngineState& state, const Problem& problem, const Shape& shape,
                               const PlanOptions& options);

// The one that `kernel` names: its number from 0, its name, or the end of that ("preprocess"). Throws
// Error{invalid_argument} that lists them.
const Inspection& find_kernel(const std::vector<Inspection>& inspections, const std::string& kernel);

// What a person reads, as (what, value).
std::vector<std::pair<std::string, std::string>> rows(const Inspection& inspection);
nlohmann::json to_json(const Inspection& inspection);

// The artefacts that --emit names; the bytes of one. Throws Error{invalid_argument} for another name,
// {not_found} for SASS without nvdisasm, {unsupported} for machine code that only the driver makes.
inline constexpr std::string_view kArtefacts = "source, ptx, sass, cubin, log, key or schedule";
void check_artefact(const std::string& artefact);  // throws for another name, as emit() would
std::string emit(const Inspection& inspection, const std::string& artefact);

}  // namespace flashjit::cli

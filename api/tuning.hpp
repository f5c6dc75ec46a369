// The Engine's side of autotune: it knows how to build and launch, and where a tuning run may live.
#pragma once

#include <chrono>
#include <string>

#include "autotune/runner.hpp"
#include "autotune/tuner.hpp"
#include "flashjit/engine.hpp"
#include "flashjit/problem.hpp"
#include "generator/templates.hpp"

namespace flashjit {

class EngineState;

namespace api {

// Deadlines are points in time, which "no limit" would overflow.
inline constexpr std::chrono::milliseconds kLongestBudget = std::chrono::hours(24);

// Builds schedules for this problem out of the Engine's cache, and launches them with the checks and the
// parameters of Plan::forward. The state must outlive what is built.
autotune::Build build_with(EngineState& state, const Problem& problem);

// What a parent and its worker must have in common: what either renders has one meaning in wisdom.
std::string worker_version(const TemplateSet& templates);

// Tunes in a worker process, so that a bad kernel ends the worker and not the program; in this process where
// kernels are emulated, or, with a message, where there is no worker to be found. A worker that was there and
// starts no more is an Error: what ended it may be a kernel. The incumbent is what wisdom knows. The result
// is not filed yet.
autotune::TuneResult tune(EngineState& state, const Problem& problem, const Shape& shape,
                          autotune::TuneOptions options);

}  // namespace api
}  // namespace flashjit

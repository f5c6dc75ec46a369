// The Engine's part of tuning: how to build and launch, and in which process to tune.
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

// A limit, because the deadline is a point in time and would overflow.
inline constexpr std::chrono::milliseconds kLongestBudget = std::chrono::hours(24);

// Builds schedules for this problem by way of the Engine's cache, and launches them with the checks and
// parameters of Plan::forward. The state must outlive everything that is built.
autotune::Build build_with(EngineState& state, const Problem& problem);

// What a parent and its worker must have in common, so that wisdom means the same to both.
std::string worker_version(const TemplateSet& templates);

// Tunes in a worker process, so that a bad kernel ends the worker and not the program. On an emulated device,
// or if no worker is found (which is reported), tunes in this process. Throws Error if a worker has run and
// cannot be started again, since a kernel may have ended it. The incumbent is wisdom's schedule. The result
// is not kept yet.
autotune::TuneResult tune(EngineState& state, const Problem& problem, const Shape& shape,
                          autotune::TuneOptions options);

}  // namespace api
}  // namespace flashjit

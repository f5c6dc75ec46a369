// The process that tuning runs in: an illegal address, a hang or an out-of-memory ends it, and not its
// parent.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "autotune/runner.hpp"
#include "flashjit/problem.hpp"

namespace flashjit::autotune {

// What the worker is to work on: enough for it to make an engine like its parent's.
struct Job {
  std::string version;  // of flashjit; parent and worker must agree
  std::string device;   // "cuda:0"
  Problem problem;
  Shape shape;
  std::string cache_dir;
  bool use_cache = true;
};

// `flashjit` as named by FLASHJIT_WORKER, else beside the running program, else beside the library it was
// loaded from (or in ../bin), else in PATH. nullopt: none of these exists.
std::optional<std::filesystem::path> find_worker();

struct WorkerOptions {
  std::filesystem::path executable;                   // runs as `executable worker`
  std::chrono::milliseconds start_deadline{30'000};   // to create a context and upload the inputs
  std::chrono::milliseconds verify_deadline{20'000};  // building it included
  std::chrono::milliseconds time_deadline{10'000};    // beyond what the measurement was asked to take
};

// Starts the worker with the first request, and again after each death. A request that killed the worker or
// ran out of time throws Error{device}; a worker that cannot be started, or speaks another version,
// Error{not_found}.
std::unique_ptr<Runner> make_worker_runner(Job job, const WorkerOptions& options);

// The worker's side: serves requests from file descriptor `in` to `out` until the parent closes them or dies.
// Returns the exit code. `open` makes the runner for the job; what it throws goes to the parent.
int serve(int in, int out, const std::string& version,
          const std::function<std::unique_ptr<Runner>(const Job&)>& open);

}  // namespace flashjit::autotune

// The process that tuning runs in: an illegal address, a hang or a shortage of memory ends it, and not its
// parent.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "autotune/runner.hpp"
#include "flashjit/error.hpp"
#include "flashjit/problem.hpp"

namespace flashjit::autotune {

// What the worker is to work on: enough for it to make an engine like its parent's.
struct Job {
  std::string version;  // of flashjit and its templates; parent and worker must agree
  std::string device;   // "cuda:0"
  Problem problem;
  Shape shape;
  std::string cache_dir;
  bool use_cache = true;
};

// There is no worker, or what is named as one is another version or another program. Nothing has run yet, and
// tuning may go on in this process.
class NoWorker : public Error {
 public:
  explicit NoWorker(std::string message)
      : Error(ErrorCode::not_found, std::move(message),
              "Set FLASHJIT_WORKER to the flashjit command of this version.") {}
};

// `flashjit` as named by FLASHJIT_WORKER, else beside the running program, else beside the library it was
// loaded from (or in ../bin), else in PATH. Throws NoWorker where none of these exists.
std::filesystem::path find_worker();

struct WorkerOptions {
  std::filesystem::path executable;                   // runs as `executable worker`
  std::chrono::milliseconds start_deadline{30'000};   // to create a context; inputs add time by their bytes
  std::chrono::milliseconds verify_deadline{20'000};  // building it included
  std::chrono::milliseconds time_deadline{10'000};    // beyond what the measurement was asked to take
};

// Starts the worker with the first request, and again after each death. A request that killed the worker or
// ran out of time throws Error{device}. The first start throws NoWorker, what opening the job threw in the
// worker, or Error{io} where the worker was killed or gave no answer. A later start throws Error{io} for all
// of these.
std::unique_ptr<Runner> make_worker_runner(Job job, const WorkerOptions& options);

// The worker's side: serves requests from file descriptor `in` to `out` until the parent closes them or dies.
// Returns the exit code. `open` makes the runner for the job; what it throws goes to the parent.
int serve(int in, int out, const std::string& version,
          const std::function<std::unique_ptr<Runner>(const Job&)>& open);

}  // namespace flashjit::autotune

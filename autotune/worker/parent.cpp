// The parent's side of the worker: finds it, starts it, asks it, and starts it again when it dies.
#include "autotune/worker.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "autotune/exam.hpp"
#include "autotune/worker/child.hpp"
#include "autotune/worker/protocol.hpp"
#include "flashjit/error.hpp"
#include "runtime/places.hpp"

namespace flashjit::autotune {
namespace {

// What the worker threw. A request that the worker does not understand is an error between the two, and not
// an argument of the caller's.
Error thrown_by_worker(const Json& json) {
  Error error = error_of(json);
  if (error.code() != ErrorCode::invalid_argument) return error;
  return {ErrorCode::io, "the tuning worker refused a request: " + error.message(), error.hint()};
}

class WorkerRunner : public Runner {
 public:
  WorkerRunner(Job job, const WorkerOptions& options) : job_(std::move(job)), options_(options) {}

  void prepare() override { start(); }
  void build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
             const BuildDone& done) override;
  Check verify(const Schedule& schedule) override {
    return check_of(ask({{"op", "verify"}, {"schedule", to_string(schedule)}}, options_.verify_deadline));
  }
  Timing time(const Schedule& schedule, const MeasureOptions& options) override {
    const std::chrono::milliseconds asked(
        static_cast<std::int64_t>(1000 * (options.pause_seconds + options.seconds)));
    return timing_of(ask({{"op", "time"}, {"schedule", to_string(schedule)}, {"options", to_json(options)}},
                         options_.time_deadline + asked));
  }

 private:
  // Starts the worker unless it runs. Once it has run, what keeps it from running again is not reported as a
  // lack of a worker.
  void start();
  void open();
  // The next reply. Throws what the worker threw, or an error that says how it ended.
  Json reply(SteadyTime deadline);
  Json ask(const Json& request, std::chrono::milliseconds patience);

  const Job job_;
  const WorkerOptions options_;
  std::unique_ptr<Child> child_;
  bool opened_ = false;  // ever
};

void WorkerRunner::start() {
  if (child_) return;
  try {
    open();
  } catch (const Error& error) {
    child_.reset();
    if (!opened_) throw;
    throw Error(ErrorCode::io, "the tuning worker did not start again: " + error.message(), error.hint());
  }
  opened_ = true;
}

void WorkerRunner::open() {
  child_ = std::make_unique<Child>(options_.executable);
  child_->send(to_json(job_));
  // The worker also draws the inputs, at 64 MB a second at worst.
  const std::chrono::milliseconds inputs(CallLayout(job_.problem, job_.shape).input_bytes >> 16);
  const auto opened = child_->receive(std::chrono::steady_clock::now() + options_.start_deadline + inputs);
  const bool speaks = opened && opened->contains("op") && opened->at("op").is_string();
  const std::string op = speaks ? text_of(*opened, "op") : "";
  if (op == "opened") return;
  if (op == "error") throw thrown_by_worker(*opened);
  const std::string path = options_.executable.string();
  if (op == "other_version") {
    throw NoWorker(fmt::format("the tuning worker {} is flashjit {}, its parent {}", path,
                               text_of(*opened, "version"), job_.version));
  }
  if (opened) throw NoWorker(fmt::format("{} does not speak the tuning worker's protocol", path));
  const Ending ending = child_->ending();
  const std::string words = fmt::format("the tuning worker {} did not start: {}", path, ending.words);
  // A worker of ours answers before it ends. What kills it, or keeps it from answering, may do so in this
  // process, too.
  if (ending.exited || ending.garbled) throw NoWorker(words);
  throw Error(ErrorCode::io, words);
}

Json WorkerRunner::reply(SteadyTime deadline) {
  std::optional<Json> json = child_->receive(deadline);
  if (!json) {
    const Ending ending = child_->ending();
    child_.reset();
    throw Error(ErrorCode::device, fmt::format("the worker died of it: {}", ending.words));
  }
  if (text_of(*json, "op") == "error") {
    const Error error = thrown_by_worker(*json);
    if (error.code() == ErrorCode::device) child_.reset();  // the worker ends itself after these
    throw error;
  }
  return std::move(*json);
}

Json WorkerRunner::ask(const Json& request, std::chrono::milliseconds patience) {
  start();
  child_->send(request);  // a worker that is gone shows when it does not reply
  return reply(std::chrono::steady_clock::now() + patience);
}

void WorkerRunner::build(std::span<const Schedule> schedules, std::chrono::milliseconds time,
                         const BuildDone& done) {
  start();
  Json names = Json::array();
  for (const Schedule& schedule : schedules) names.push_back(to_string(schedule));
  child_->send({{"op", "build"}, {"schedules", names}, {"milliseconds", time.count()}});
  std::vector<bool> heard(schedules.size(), false);
  const auto deadline = std::chrono::steady_clock::now() + time + options_.verify_deadline;
  try {
    for (;;) {
      const Json json = reply(deadline);
      if (text_of(json, "op") == "done") return;
      const auto index = static_cast<std::size_t>(
          integer_of(json, "index", 0, static_cast<std::int64_t>(schedules.size()) - 1));
      if (heard[index]) continue;
      heard[index] = true;
      done(index, resources_of(member(json, "resources")), text_of(json, "error"));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::device) throw;
    // The compiler took the process down: schedules not heard of yet are suspects, and are out.
    for (std::size_t i = 0; i < heard.size(); ++i) {
      if (!heard[i]) done(i, {}, error.message());
    }
  }
}

}  // namespace

std::filesystem::path find_worker() {
  if (const std::string named = runtime::environment("FLASHJIT_WORKER"); !named.empty()) {
    if (runtime::runnable(named)) return named;
    // Whoever names a worker wants that one.
    throw NoWorker(fmt::format("FLASHJIT_WORKER is \"{}\", may be the path of a flashjit command", named));
  }
  std::vector<std::filesystem::path> places;
  std::error_code error;
  if (const auto self = std::filesystem::read_symlink("/proc/self/exe", error); !error) {
    places.push_back(self.parent_path() / "flashjit");
  }
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&find_worker), &library) != 0 && library.dli_fname != nullptr) {
    const auto folder = std::filesystem::path(library.dli_fname).parent_path();
    // For a static library this is what the program was called by: for plain "app" it would be the working
    // directory.
    if (folder.is_absolute()) {
      places.push_back(folder / "flashjit");
      places.push_back(folder / ".." / "bin" / "flashjit");
      places.push_back(folder / ".." / ".." / "bin" / "flashjit");  // from Debian's lib/x86_64-linux-gnu
    }
  }
  for (const auto& folder : runtime::path_directories()) places.push_back(folder / "flashjit");
  for (const auto& place : places) {
    if (runtime::runnable(place)) return place;
  }
  throw NoWorker(
      "there is no flashjit executable beside the program, beside the library or in PATH (FLASHJIT_WORKER "
      "names one)");
}

std::unique_ptr<Runner> make_worker_runner(Job job, const WorkerOptions& options) {
  return std::make_unique<WorkerRunner>(std::move(job), options);
}

}  // namespace flashjit::autotune

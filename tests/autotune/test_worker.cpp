// The worker process: crashes, hangs and errors of a candidate end the worker, and the run goes on.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "autotune/tuner.hpp"
#include "autotune/worker.hpp"
#include "flashjit/error.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace std::chrono_literals;

namespace {

const Problem kProblem{.dtype = DType::bf16, .head_dim = 64};
const Shape kShape{.batch = 1, .heads = 2, .seqlen_q = 64, .seqlen_k = 64};
const Job kJob{
    .version = "1.2.3", .device = "cuda:0", .problem = kProblem, .shape = kShape, .cache_dir = "/x \"y\"\n"};

WorkerOptions options(const char* executable = FAKE_WORKER) {
  return {.executable = executable, .start_deadline = 10s, .verify_deadline = 700ms, .time_deadline = 700ms};
}

std::string message_of(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.message();
  }
  FAIL("it should have thrown");
  return {};
}

Schedule tile(int m, int n = 64) {
  return MmaSchedule{.tile_m = m, .tile_n = n};
}

// Sets a variable for the length of a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace

TEST_CASE("requests and replies survive the way there and back") {
  const auto runner = make_worker_runner(kJob, options());
  const Check good = runner->verify(tile(64));
  CHECK(good.ok);
  CHECK(good.rows == 7);
  const Check bad = runner->verify(tile(96));
  CHECK_FALSE(bad.ok);
  CHECK(bad.message == "output differs");
  CHECK(std::isinf(bad.max_error));
  const Timing timing = runner->time(tile(64, 32), {.give_up_above_ms = 1.5});
  CHECK(timing.median_ms == 2.0);
  CHECK(timing.clock_mhz == 1755);
  CHECK(timing.launches == 12);
  CHECK(timing.gave_up);
}

TEST_CASE("a crash, a hang and a device error are the candidate's, and the next one finds a new worker") {
  const auto runner = make_worker_runner(kJob, options());
  const std::string crash = message_of([&] { runner->verify(tile(16)); }, ErrorCode::device);
  CHECK(crash.find("signal 11") != std::string::npos);
  CHECK(crash.find("about to crash") != std::string::npos);
  CHECK(runner->verify(tile(64)).ok);
  const auto before = std::chrono::steady_clock::now();
  const std::string hang = message_of([&] { runner->verify(tile(32)); }, ErrorCode::device);
  CHECK(hang.find("did not answer in time") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - before < 5s);
  CHECK(runner->verify(tile(64)).ok);
  CHECK(message_of([&] { runner->verify(tile(48)); }, ErrorCode::device) == "illegal address");
  CHECK(runner->verify(tile(64)).ok);
}

TEST_CASE("a compiler that takes the worker down puts out those it had not built, and no others") {
  const auto runner = make_worker_runner(kJob, options());
  std::vector<std::string> errors(4, "unheard");
  const std::vector<Schedule> schedules = {tile(64), tile(112), tile(80), tile(128)};
  runner->build(schedules, 5s,
                [&](std::size_t i, const runtime::Resources& resources, const std::string& error) {
                  errors.at(i) = error;
                  if (i == 0) {
                    CHECK(resources.registers == 100);
                    CHECK(resources.warnings.size() == 1);
                  }
                });
  CHECK(errors[0].empty());
  CHECK(errors[1] == "no registers left");
  CHECK(errors[2].find("signal 6") != std::string::npos);
  CHECK(errors[3].find("signal 6") != std::string::npos);
  CHECK(runner->verify(tile(64)).ok);
}

TEST_CASE("a whole tuning run in a worker, with casualties") {
  const auto runner = make_worker_runner(kJob, options());
  TuneOptions tuning;
  tuning.effort = Tuning::quick;
  tuning.budget = 20s;
  const Shape few{
      .batch = 4, .heads = 8, .seqlen_q = 16, .seqlen_k = 512};  // small tiles are predicted to be best
  const TuneResult result = tune(kProblem, few, target_of("sm_80"), *runner, tuning);
  bool crashed = false;
  for (const Candidate& candidate : result.candidates)
    crashed |= candidate.pruned.find("signal 11") != std::string::npos;
  CHECK(crashed);
  CHECK(tile_m_of(result.best) >= 64);
  CHECK(result.best_ms > 0);
}

TEST_CASE("what cannot be started, or is another version, is not found, with the way out") {
  const auto missing = make_worker_runner(kJob, options("/nonexistent/flashjit"));
  CHECK(message_of([&] { missing->verify(tile(64)); }, ErrorCode::not_found).find("/nonexistent/flashjit") !=
        std::string::npos);
  const auto silent = make_worker_runner(kJob, options("/bin/true"));
  CHECK(message_of([&] { silent->verify(tile(64)); }, ErrorCode::not_found).find("exit code 0") !=
        std::string::npos);
  Job other = kJob;
  other.version = "9.9.9";
  const auto newer = make_worker_runner(other, options());
  CHECK(message_of([&] { newer->verify(tile(64)); }, ErrorCode::not_found).find("1.2.3") !=
        std::string::npos);
  Job nowhere = kJob;
  nowhere.device = "cuda:9";
  const auto lost = make_worker_runner(nowhere, options());
  CHECK(message_of([&] { lost->verify(tile(64)); }, ErrorCode::device) == "there is no device 9");
}

TEST_CASE("the worker ends with its parent") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t parent = ::fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    // The write end stays open in the worker too: the reader sees its end when both are gone.
    const auto runner = make_worker_runner(kJob, options());
    const bool well = runner->verify(tile(64)).ok;
    ::_exit(well ? 0 : 1);  // no destructor, as after SIGKILL
  }
  ::close(ends[1]);
  int status = 0;
  REQUIRE(::waitpid(parent, &status, 0) == parent);
  CHECK(WEXITSTATUS(status) == 0);
  char byte = 0;
  CHECK(::read(ends[0], &byte, 1) == 0);  // hangs if a worker lives on; ctest's timeout would tell
  ::close(ends[0]);
}

TEST_CASE("where a worker is looked for") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("flashjit-worker-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto executable = folder / "flashjit";
  std::ofstream(executable) << "#!/bin/true\n";
  {
    const Environment path("PATH", "relative:" + folder.string());
    const Environment named("FLASHJIT_WORKER", "");
    CHECK(find_worker() != executable);  // it may not be executed
    ::chmod(executable.c_str(), 0755);
    CHECK(find_worker() == executable);
  }
  {
    const Environment named("FLASHJIT_WORKER", FAKE_WORKER);
    CHECK(find_worker() == std::filesystem::path(FAKE_WORKER));
  }
  {
    const Environment named("FLASHJIT_WORKER", "/nonexistent");
    CHECK_FALSE(find_worker().has_value());
  }
  std::filesystem::remove_all(folder);
}

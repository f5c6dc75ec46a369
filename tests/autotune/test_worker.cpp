// The worker process: crashes, hangs and errors of a candidate end the worker, and the run goes on.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "autotune/tuner.hpp"
#include "autotune/worker.hpp"
#include "autotune/worker/protocol.hpp"
#include "flashjit/error.hpp"
#include "tests/autotune/worker_support.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace std::chrono_literals;
using test::Environment;
using test::Folder;
using test::lack_of_worker;

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
    CHECK(dynamic_cast<const NoWorker*>(&error) == nullptr);
    return error.message();
  }
  FAIL("it should have thrown");
  return {};
}

Schedule tile(int m, int n = 64) {
  return MmaSchedule{.tile_m = m, .tile_n = n};
}

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

TEST_CASE("a worker hears of the very directory, whatever bytes its name has") {
  Job job = kJob;
  job.cache_dir = "/caf\xe9/\xc3\xa9";
  CHECK(job_of(from_line(to_line(to_json(job)))).cache_dir == job.cache_dir);
  Json garbled = to_json(job);
  for (const Json& bytes : {Json("/tmp"), Json{47, 256}, Json{-1}, Json(), Json(47), Json::object()}) {
    garbled["cache_dir"] = bytes;
    CHECK(message_of([&] { job_of(garbled); }, ErrorCode::invalid_argument) ==
          "\"cache_dir\" is not an array of bytes");
  }
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

TEST_CASE("what cannot be started, or is another version or program, is no worker, with the way out") {
  const Folder folder;
  const auto missing = make_worker_runner(kJob, options("/nonexistent/flashjit"));
  CHECK(lack_of_worker([&] { missing->verify(tile(64)); }).find("/nonexistent/flashjit") !=
        std::string::npos);
  const auto silent = make_worker_runner(kJob, options("/bin/true"));
  CHECK(lack_of_worker([&] { silent->verify(tile(64)); }).find("exit code 0") != std::string::npos);
  const auto stranger = make_worker_runner(kJob, options(folder.script("stranger", "exec yes").c_str()));
  CHECK(lack_of_worker([&] { stranger->verify(tile(64)); }).find("not JSON") != std::string::npos);
  const auto polite = make_worker_runner(kJob, options(folder.script("polite", "echo '{\"a\":1}'").c_str()));
  CHECK(lack_of_worker([&] { polite->verify(tile(64)); }).find("protocol") != std::string::npos);
  Job other = kJob;
  other.version = "9.9.9";
  const auto newer = make_worker_runner(other, options());
  CHECK(lack_of_worker([&] { newer->verify(tile(64)); }).find("is flashjit 1.2.3, its parent 9.9.9") !=
        std::string::npos);
}

TEST_CASE("a worker that is killed or hangs while it starts is no lack of a worker") {
  const Folder folder;
  const auto killed =
      make_worker_runner(kJob, options(folder.script("killed", "read line; kill -9 $$").c_str()));
  CHECK(message_of([&] { killed->verify(tile(64)); }, ErrorCode::io).find("signal 9") != std::string::npos);
  WorkerOptions hurried = options();
  hurried.executable = folder.script("slow", "exec sleep 60");
  hurried.start_deadline = 200ms;
  const auto slow = make_worker_runner(kJob, hurried);
  CHECK(message_of([&] { slow->verify(tile(64)); }, ErrorCode::io).find("did not answer in time") !=
        std::string::npos);
  Job nowhere = kJob;
  nowhere.device = "cuda:9";
  const auto lost = make_worker_runner(nowhere, options());
  CHECK(message_of([&] { lost->verify(tile(64)); }, ErrorCode::device) == "there is no device 9");
}

TEST_CASE("a worker that ran and starts no more ends the run, whatever keeps it") {
  const Folder folder;
  const std::string once =
      "mkdir '" + folder.path().string() + "/began' 2>/dev/null && exec '" FAKE_WORKER "' worker\n";
  for (const char* then : {"exit 3", "kill -9 $$", "rm \"$0\"; exit 3"}) {
    CAPTURE(then);
    std::filesystem::remove(folder.path() / "began");
    const auto runner = make_worker_runner(kJob, options(folder.script("once", once + then).c_str()));
    CHECK(runner->verify(tile(64)).ok);
    message_of([&] { runner->verify(tile(16)); }, ErrorCode::device);
    for (int i = 0; i < 2; ++i) {
      CHECK(message_of([&] { runner->verify(tile(64)); }, ErrorCode::io).find("did not start again") !=
            std::string::npos);
    }
  }
}

TEST_CASE("a shortage of the host's memory is told in words, and the next one finds a new worker") {
  Job large = kJob;
  large.device = "cuda:8";
  const auto runner = make_worker_runner(large, options());
  CHECK(message_of([&] { runner->verify(tile(64)); }, ErrorCode::device).find("host's memory is too small") ==
        4);
  const auto other = make_worker_runner(kJob, options());
  for (const int rows : {144, 160}) {
    CHECK(message_of([&] { other->verify(tile(rows)); }, ErrorCode::device).find("host's memory") == 4);
    CHECK(other->verify(tile(64)).ok);
  }
}

TEST_CASE("where nobody hears of a child's end, the worker's is told without a guess") {
  auto* const before = ::signal(SIGCHLD, SIG_IGN);
  {
    const auto runner = make_worker_runner(kJob, options());
    const std::string crash = message_of([&] { runner->verify(tile(16)); }, ErrorCode::device);
    CHECK(crash.find("SIGCHLD") != std::string::npos);
    CHECK(crash.find("exit code") == std::string::npos);
    CHECK(crash.find("about to crash") != std::string::npos);
    CHECK(runner->verify(tile(64)).ok);
    CHECK(message_of([&] { runner->verify(tile(32)); }, ErrorCode::device).find("in time") !=
          std::string::npos);
  }
  ::signal(SIGCHLD, before);
}

TEST_CASE("a worker that is done with ends by itself") {
  const Folder folder;
  const auto farewell = folder.path() / "farewell";
  const Environment named("FAKE_WORKER_FAREWELL", farewell.string());
  CHECK(make_worker_runner(kJob, options())->verify(tile(64)).ok);
  CHECK(std::filesystem::exists(farewell));
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

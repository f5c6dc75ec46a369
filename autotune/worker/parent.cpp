// The parent's side of the worker: finds it, starts it, talks to it with deadlines, and starts it again when
// it dies.
#include "autotune/worker.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "autotune/worker/protocol.hpp"
#include "flashjit/error.hpp"

namespace flashjit::autotune {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kLastWords = 2000;  // characters of a dying worker's stderr worth quoting

// A child process, its line of talk and its stderr. Destroying it kills it.
class Child {
 public:
  explicit Child(const std::filesystem::path& executable);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool send(const Json& json);
  // nullopt when the child closed its end or the deadline passed; then ending() says what happened.
  std::optional<Json> receive(SteadyTime deadline);
  // Kills what is left of it, and says how it ended.
  std::string ending();

 private:
  pid_t pid_ = -1;
  int talk_ = -1;
  int errors_ = -1;
  bool late_ = false;
  std::string buffer_, words_;
};

void close_if_open(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

Child::Child(const std::filesystem::path& executable) {
  int talk[2] = {-1, -1};
  int errors[2] = {-1, -1};
  // A socket and not pipes: writing to a dead worker must not raise SIGPIPE in somebody's program.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) != 0 || ::pipe2(errors, O_CLOEXEC) != 0) {
    const int error = errno;
    close_if_open(talk[0]);
    close_if_open(talk[1]);
    throw Error(ErrorCode::io, fmt::format("no socket for a tuning worker: {}", std::strerror(error)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, talk[1], 0);
  posix_spawn_file_actions_adddup2(&actions, talk[1], 1);
  posix_spawn_file_actions_adddup2(&actions, errors[1], 2);
  const std::string path = executable.string();
  std::string name = "flashjit", verb = "worker";
  char* const arguments[] = {name.data(), verb.data(), nullptr};
  const int error = ::posix_spawn(&pid_, path.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(talk[1]);
  ::close(errors[1]);
  talk_ = talk[0];
  errors_ = errors[0];
  if (error != 0) {
    pid_ = -1;
    close_if_open(talk_);
    close_if_open(errors_);
    throw Error(ErrorCode::not_found,
                fmt::format("the tuning worker {} could not be started: {}", path, std::strerror(error)),
                "Set FLASHJIT_WORKER to the flashjit command of this version.");
  }
}

Child::~Child() {
  if (pid_ > 0) ending();
  close_if_open(talk_);
  close_if_open(errors_);
}

bool Child::send(const Json& json) {
  const std::string line = to_line(json) + "\n";
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t put = ::send(talk_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

std::optional<Json> Child::receive(SteadyTime deadline) {
  for (;;) {
    if (const auto end = buffer_.find('\n'); end != std::string::npos) {
      Json json = from_line(std::string_view(buffer_).substr(0, end));
      buffer_.erase(0, end + 1);
      if (json.is_object()) return json;
      words_ += "(it wrote a line that is not JSON)";
      return std::nullopt;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
            .count();
    if (left <= 0) {
      late_ = true;
      return std::nullopt;
    }
    pollfd ends[2] = {{.fd = talk_, .events = POLLIN, .revents = 0},
                      {.fd = errors_, .events = POLLIN, .revents = 0}};
    if (::poll(ends, 2, static_cast<int>(std::min<long>(left, 1000))) < 0 && errno != EINTR)
      return std::nullopt;
    char bytes[4096];
    if (ends[1].revents != 0) {
      const ssize_t got = ::read(errors_, bytes, sizeof bytes);
      if (got > 0) words_.append(bytes, static_cast<std::size_t>(got));
      if (got == 0) close_if_open(errors_);  // poll leaves out a negative descriptor
      if (words_.size() > 2 * kLastWords) words_.erase(0, words_.size() - kLastWords);
    }
    if (ends[0].revents != 0) {
      const ssize_t got = ::read(talk_, bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return std::nullopt;
      buffer_.append(bytes, static_cast<std::size_t>(got));
    }
  }
}

std::string Child::ending() {
  if (pid_ <= 0) return "it is gone";
  // It closed its end: a moment to end by itself tells its own way from ours.
  int status = 0;
  pid_t ended = 0;
  for (int wait_ms = 0; !late_ && wait_ms < 200 && ended == 0; wait_ms += 10) {
    ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == 0) ::usleep(10'000);
  }
  if (ended <= 0) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  std::string how = late_ ? "it did not answer in time and was killed"
                    : WIFSIGNALED(status)
                        ? fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                        : fmt::format("exit code {}", WEXITSTATUS(status));
  char bytes[4096];
  if (errors_ >= 0) {
    pollfd end = {.fd = errors_, .events = POLLIN, .revents = 0};
    while (::poll(&end, 1, 0) > 0) {
      const ssize_t got = ::read(errors_, bytes, sizeof bytes);
      if (got <= 0) break;
      words_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  while (!words_.empty() && words_.back() == '\n') words_.pop_back();
  if (words_.size() > kLastWords) words_.erase(0, words_.size() - kLastWords);
  if (!words_.empty()) how += ": " + words_;
  return how;
}

class WorkerRunner : public Runner {
 public:
  WorkerRunner(Job job, const WorkerOptions& options) : job_(std::move(job)), options_(options) {}

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
  void start();
  // The next reply; throws what the worker threw, or how it ended.
  Json reply(SteadyTime deadline);
  Json ask(const Json& request, std::chrono::milliseconds patience);

  const Job job_;
  const WorkerOptions options_;
  std::unique_ptr<Child> child_;
};

void WorkerRunner::start() {
  if (child_) return;
  child_ = std::make_unique<Child>(options_.executable);
  child_->send(to_json(job_));
  const auto opened = child_->receive(std::chrono::steady_clock::now() + options_.start_deadline);
  std::string why;
  if (opened && text_of(*opened, "op") == "opened") return;
  if (opened && text_of(*opened, "op") == "error") {
    child_.reset();
    throw error_of(*opened);
  }
  why = opened ? "it does not speak the worker's protocol" : child_->ending();
  child_.reset();
  throw Error(ErrorCode::not_found,
              fmt::format("the tuning worker {} did not start: {}", options_.executable.string(), why),
              "Set FLASHJIT_WORKER to the flashjit command of this version.");
}

Json WorkerRunner::reply(SteadyTime deadline) {
  std::optional<Json> json = child_->receive(deadline);
  if (!json) {
    const std::string how = child_->ending();
    child_.reset();
    throw Error(ErrorCode::device, fmt::format("the worker died of it: {}", how));
  }
  if (text_of(*json, "op") == "error") {
    const Error error = error_of(*json);
    if (error.code() == ErrorCode::device) child_.reset();  // it ends itself after these
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
    // A compiler that takes the process down: those not heard of yet are suspects, and are out.
    for (std::size_t i = 0; i < heard.size(); ++i) {
      if (!heard[i]) done(i, {}, error.message());
    }
  }
}

bool runnable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::optional<std::filesystem::path> find_worker() {
  if (const char* named = std::getenv("FLASHJIT_WORKER"); named != nullptr && *named != '\0') {
    if (runnable(named)) return named;
    return std::nullopt;  // who names one wants that one
  }
  std::vector<std::filesystem::path> places;
  std::error_code error;
  if (const auto self = std::filesystem::read_symlink("/proc/self/exe", error); !error) {
    places.push_back(self.parent_path() / "flashjit");
  }
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&find_worker), &library) != 0 && library.dli_fname != nullptr) {
    const auto folder = std::filesystem::path(library.dli_fname).parent_path();
    places.push_back(folder / "flashjit");
    places.push_back(folder / ".." / "bin" / "flashjit");
  }
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path != nullptr ? path : ""; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    if (folder.starts_with('/'))
      places.push_back(std::filesystem::path(folder) / "flashjit");  // never the working directory
  }
  for (const auto& place : places) {
    if (runnable(place)) return place;
  }
  return std::nullopt;
}

std::unique_ptr<Runner> make_worker_runner(Job job, const WorkerOptions& options) {
  return std::make_unique<WorkerRunner>(std::move(job), options);
}

}  // namespace flashjit::autotune

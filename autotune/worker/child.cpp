// Starts a worker, talks to it with deadlines, and finds out how it ended.
#include "autotune/worker/child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "autotune/worker.hpp"
#include "flashjit/error.hpp"
#include "runtime/spawn.hpp"

namespace flashjit::autotune {
namespace {

constexpr std::size_t kLastWords = 2000;  // characters of a dying worker's stderr worth quoting
constexpr int kFarewellMs = 200;          // for a worker that closed its end, or lost ours, to end by itself

void close_if_open(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

// What waitpid says, whatever interrupts it: the process; 0 while it runs (with WNOHANG); or -1 where both
// the process and its status are gone, because this program ignores SIGCHLD or waits for every child.
pid_t await(pid_t process, int& status, int options) {
  pid_t ended = -1;
  do {
    ended = ::waitpid(process, &status, options);
  } while (ended < 0 && errno == EINTR);
  return ended;
}

}  // namespace

Child::Child(const std::filesystem::path& executable) {
  int talk[2] = {-1, -1};
  int errors[2] = {-1, -1};
  // A socket and not pipes: writing to a dead worker must not raise SIGPIPE in the caller's program.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) != 0 || ::pipe2(errors, O_CLOEXEC) != 0) {
    const int error = errno;
    close_if_open(talk[0]);
    close_if_open(talk[1]);
    throw Error(ErrorCode::io, fmt::format("no socket for a tuning worker: {}", std::strerror(error)));
  }
  runtime::Spawn spawn;
  spawn.duplicate(talk[1], STDIN_FILENO);
  spawn.duplicate(talk[1], STDOUT_FILENO);
  spawn.duplicate(errors[1], STDERR_FILENO);
  const std::string path = executable.string();
  const int error = spawn.start(pid_, path, {"flashjit", "worker"});
  ::close(talk[1]);
  ::close(errors[1]);
  talk_ = talk[0];
  errors_ = errors[0];
  if (error != 0) {
    pid_ = -1;
    close_if_open(talk_);
    close_if_open(errors_);
    const std::string words =
        fmt::format("the tuning worker {} could not be started: {}", path, std::strerror(error));
    if (error == EAGAIN || error == ENOMEM) throw Error(ErrorCode::io, words);
    throw NoWorker(words);
  }
}

Child::~Child() {
  close_if_open(talk_);  // first: the worker ends when its input does
  if (pid_ > 0) ending();
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
      garbled_ = true;
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
      if (got == 0) close_if_open(errors_);  // poll ignores a negative descriptor
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

Ending Child::ending() {
  if (pid_ <= 0) return {.words = "it is gone"};
  // The worker closed its end. It gets a moment to end by itself, which tells its own ending from ours.
  int status = 0;
  pid_t ended = 0;
  for (int wait_ms = 0; !late_ && wait_ms < kFarewellMs && ended == 0; wait_ms += 10) {
    ended = await(pid_, status, WNOHANG);
    if (ended == 0) ::usleep(10'000);
  }
  const bool killed = ended == 0;  // the id of a process that is gone may be another's by now
  if (killed) {
    ::kill(pid_, SIGKILL);
    ended = await(pid_, status, 0);
  }
  pid_ = -1;
  Ending ending{.words = {}, .exited = !killed && ended > 0 && WIFEXITED(status), .garbled = garbled_};
  std::string& how = ending.words;
  if (late_) {
    how = "it did not answer in time and was killed";
  } else if (garbled_) {
    how = "it wrote a line that is not JSON";
  } else if (killed) {
    how = "it closed its end and was killed";
  } else if (ended < 0) {
    how = "how, nobody can say: this program ignores SIGCHLD, or waits for all its children";
  } else if (WIFSIGNALED(status)) {
    how = fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  } else {
    how = fmt::format("exit code {}", WEXITSTATUS(status));
  }
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
  return ending;
}

}  // namespace flashjit::autotune

// The worker's side: reads requests, works on a runner, answers. A worker dies with its parent, or of its
// kernels.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <vector>

#include "autotune/worker/protocol.hpp"

namespace flashjit::autotune {
namespace {

// The next line, without its end; false at the end of input, or when a line is longer than any request.
bool next_line(int in, std::string& buffer, std::string& line) {
  for (;;) {
    if (const auto end = buffer.find('\n'); end != std::string::npos) {
      line = buffer.substr(0, end);
      buffer.erase(0, end + 1);
      return true;
    }
    if (buffer.size() > kLongestLine) return false;
    char bytes[4096];
    const ssize_t got = ::read(in, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    buffer.append(bytes, static_cast<std::size_t>(got));
  }
}

bool answer(int out, const Json& json) {
  std::string line = to_line(json) + "\n";
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t put = ::write(out, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;  // the parent is gone
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

std::vector<Schedule> schedules_of(const Json& json) {
  std::vector<Schedule> schedules;
  for (const Json& text : member(json, "schedules")) {
    if (!text.is_string()) throw Error(ErrorCode::invalid_argument, "a schedule is not a string");
    schedules.push_back(parse_schedule(text.get<std::string>()));
  }
  return schedules;
}

// After an illegal address every call on the context fails, and after a shortage of memory anything may be
// half made. So this worker ends, and the next one starts afresh.
void refuse(int out, const Error& error) {
  answer(out, to_json(error));
  if (error.code() == ErrorCode::device) ::_exit(1);
}

}  // namespace

int serve(int in, int out, const std::string& version,
          const std::function<std::unique_ptr<Runner>(const Job&)>& open) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);  // a parent that is gone shows as a failed write
  std::unique_ptr<Runner> runner;
  std::string buffer, line;
  while (next_line(in, buffer, line)) {
    try {
      const Json request = from_line(line);
      const std::string op = text_of(request, "op");
      if (op == "open") {
        if (text_of(request, "version") != version) {  // its other fields may differ, too
          if (!answer(out, {{"op", "other_version"}, {"version", version}})) return 0;
          continue;
        }
        runner = open(job_of(request));
        if (!answer(out, {{"op", "opened"}, {"version", version}})) return 0;
        continue;
      }
      if (!runner) throw Error(ErrorCode::invalid_argument, "\"" + op + "\" before \"open\"");
      if (op == "build") {
        const auto schedules = schedules_of(request);
        const std::chrono::milliseconds time(integer_of(request, "milliseconds", 0, 1 << 30));
        runner->build(
            schedules, time,
            [&](std::size_t index, const runtime::Resources& resources, const std::string& error) {
              Json reply = {
                  {"op", "built"}, {"index", index}, {"resources", to_json(resources)}, {"error", error}};
              answer(out, reply);
            });
        if (!answer(out, {{"op", "done"}})) return 0;
      } else if (op == "verify") {
        if (!answer(out, to_json(runner->verify(parse_schedule(text_of(request, "schedule")))))) return 0;
      } else if (op == "time") {
        const auto options = measure_options_of(member(request, "options"));
        if (!answer(out, to_json(runner->time(parse_schedule(text_of(request, "schedule")), options))))
          return 0;
      } else {
        throw Error(ErrorCode::invalid_argument, "unknown request \"" + op + "\"");
      }
    } catch (const Error& error) {
      refuse(out, error);
    } catch (const std::bad_alloc&) {
      refuse(out, host_memory_error());
    } catch (const std::length_error&) {
      refuse(out, host_memory_error());
    } catch (const std::exception& error) {
      refuse(out, Error(ErrorCode::internal, error.what()));
    }
  }
  return 0;
}

}  // namespace flashjit::autotune

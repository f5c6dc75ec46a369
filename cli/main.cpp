// The flashjit command: picks the verb, and turns errors into text on stderr and exit codes.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "cli/common/flush.hpp"
#include "cli/common/tell.hpp"
#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace {

// 2: the call was wrong or cannot be served here; 1: the work itself failed.
int exit_code_of(flashjit::ErrorCode code) {
  using flashjit::ErrorCode;
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
    case ErrorCode::not_found:
    case ErrorCode::io:
      return 2;
    case ErrorCode::compile_failed:
    case ErrorCode::device:
    case ErrorCode::wrong_result:
    case ErrorCode::internal:
      return 1;
  }
  return 1;
}

constexpr const char* kMemoryRanOut =
    "the host's memory ran out\nSmaller sizes (--batch, --heads, --seqlen-q, --seqlen-k) need less of it.";

// CLI11's complaint about a call that it cannot parse, in the form of our other messages. About an unknown
// verb CLI11 only says that a verb is required, and what it did not expect it names in reverse order.
std::string words_of(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> unknown = app->remaining(/*recurse=*/true);
  const bool no_verb = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  if (no_verb && !unknown.empty() && !unknown.front().starts_with('-')) {
    return "flashjit: there is no verb \"" + unknown.front() +
           "\"\nRun with --help for those that there are.\n";
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    return fmt::format(
        "flashjit: The following argument{} not expected: {}\nRun with --help for more information.\n",
        unknown.size() == 1 ? " was" : "s were", fmt::join(unknown, " "));
  }
  return "flashjit: " + CLI::FailureMessage::simple(app, error);
}

int run(int argc, char** argv) {
  CLI::App app{"FlashAttention kernels, written, compiled, tuned and cached at run time.", "flashjit"};
  app.set_version_flag("--version", "flashjit " FLASHJIT_VERSION);
  app.require_subcommand(1);
  app.failure_message(words_of);
  app.footer(
      "Data goes to stdout, words to stderr. Exit codes: 0 well; 1 the work failed or a check found a wrong "
      "result; "
      "2 the call was wrong, needs what is not here, such as a GPU or NVRTC, or could not read or write a "
      "file (doctor: 1 for a problem).");
  int exit_code = 0;
  using namespace flashjit::cli;
  for (auto* add : {add_run, add_check, add_profile, add_demo, add_inspect, add_tune, add_bench, add_cache,
                    add_doctor, add_worker}) {
    add(app, exit_code);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const flashjit::Error& error) {
    tell_message(error.what());
    return exit_code_of(error.code());
  } catch (const std::bad_alloc&) {
    tell_message(kMemoryRanOut);
    return 1;
  } catch (const std::length_error&) {  // more than a container can hold
    tell_message(kMemoryRanOut);
    return 1;
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) throw;  // thrown because stdout failed
    tell_message(error.what());
    return 1;
  } catch (const std::exception& error) {
    tell_message(error.what());
    return 1;
  }
  return exit_code;
}

// The next file to be opened would get the descriptor of a closed stream, and output would end up in that
// file. So a closed stream is replaced by one that takes no output.
void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) static_cast<void>(::open("/dev/null", O_RDONLY));
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_closed_streams();
  int exit_code = 0;
  try {
    exit_code = run(argc, argv);
    flashjit::cli::flush_stdout();
  } catch (const std::system_error& error) {
    flashjit::cli::tell_message("stdout could not be written: " + error.code().message());
    if (exit_code == 0) exit_code = exit_code_of(flashjit::ErrorCode::io);
  }
  return exit_code;
}

// The flashjit command: picks the verb, turns errors into words on stderr and exit codes.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <exception>

#include "cli/verbs.hpp"
#include "flashjit/error.hpp"

namespace {

// 2: the call was wrong, or cannot be served here; 1: the work itself failed.
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"FlashAttention kernels, written, compiled, tuned and cached at run time.", "flashjit"};
  app.set_version_flag("--version", "flashjit " FLASHJIT_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Data goes to stdout, words to stderr. Exit codes: 0 well; 1 the work failed or a check found a wrong "
      "result; "
      "2 the call was wrong.");
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
    std::fprintf(stderr, "flashjit: %s\n", error.what());
    return exit_code_of(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashjit: %s\n", error.what());
    return 1;
  }
  return exit_code;
}

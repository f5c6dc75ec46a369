// The verbs of the flashjit command, one file each.
#pragma once

#include <CLI/App.hpp>

namespace flashjit::cli {

// Each function adds a subcommand to the app. The subcommand's callback runs the verb and sets `exit_code`
// (0: success; 1: the work failed or a check found a wrong result). It throws Error for everything else.
void add_run(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_profile(CLI::App& app, int& exit_code);
void add_demo(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_cache(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_worker(CLI::App& app, int& exit_code);  // hidden: the process in which tuning tries candidates

}  // namespace flashjit::cli

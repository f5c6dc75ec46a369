// The verbs of the flashjit command, one file each.
#pragma once

#include <CLI/App.hpp>

namespace flashjit::cli {

// Adds its subcommand to the app. When the user asks for it, it runs from the subcommand's callback and sets
// `exit_code` (0 well, 1 the work failed or a check found a wrong result); it throws Error for everything
// else.
void add_run(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_profile(CLI::App& app, int& exit_code);
void add_demo(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_cache(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_worker(CLI::App& app, int& exit_code);  // hidden: what a tuning run tries its candidates in

}  // namespace flashjit::cli

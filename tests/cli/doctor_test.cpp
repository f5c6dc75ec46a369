// `flashjit doctor`: what it prints, and its exit codes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tests/cli/command.hpp"

namespace fs = std::filesystem;
using flashjit::test::Command;
using flashjit::test::contains;
using flashjit::test::Result;
using nlohmann::json;

namespace {

const json* find(const json& findings, const std::string& what) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const json& finding) { return finding["what"] == what; });
  return found == findings.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("doctor tells what is there, and what to do about what is not") {
  const Command command;
  const Result well = command.run("doctor --json");
  CHECK(well.exit_code == 0);
  const json findings = json::parse(well.out);
  for (const char* what :
       {"driver", "NVRTC", "archs", "nvdisasm", "templates", "emulator", "cache", "entries", "wisdom"}) {
    CAPTURE(what);
    CHECK(find(findings, what) != nullptr);
  }
  CHECK((*find(findings, "NVRTC"))["state"] == "ok");
  CHECK(contains((*find(findings, "cache"))["words"], (command.folder() / "cache").string()));
  CHECK(contains(command.run("doctor").out, "NVRTC     ok"));

  const Result no_compiler = command.run("doctor", "FLASHJIT_NVRTC=/nowhere");
  CHECK(no_compiler.exit_code == 1);
  CHECK(contains(no_compiler.out, "NVRTC     PROBLEM  FLASHJIT_NVRTC is \"/nowhere\""));
  CHECK(contains(no_compiler.out, "→ set it to a libnvrtc.so.N"));

  const Result nowhere = command.run("doctor", "FLASHJIT_CACHE_DIR=/proc/nowhere/cache");
  CHECK(contains(nowhere.out,
                 "cache     note     /proc/nowhere/cache, which does not exist, limit 1.0 GiB: "
                 "can not be opened (No such file or directory)"));
  CHECK_FALSE(contains(nowhere.out, "cache     ok"));
  CHECK_FALSE(contains(nowhere.out, "entries"));

  const Result system =
      command.run("doctor", "FLASHJIT_SYSTEM_CACHE_DIR='" + command.folder().string() + "'");
  CHECK(contains(system.out,
                 "system    ok       " + command.folder().string() + ", 0 entries, 0 records of wisdom"));
  std::ofstream(command.folder() / "wisdom.jsonl") << "no wisdom\n";
  const Result no_wisdom =
      command.run("doctor", "FLASHJIT_SYSTEM_CACHE_DIR='" + command.folder().string() + "'");
  CHECK(contains(no_wisdom.out, "system    note     wisdom " + command.folder().string()));
  const Result no_system = command.run("doctor", "FLASHJIT_SYSTEM_CACHE_DIR=/nowhere");
  CHECK(contains(no_system.out, "system    note     /nowhere can not be opened (No such file or directory)"));

  for (const char* wrong : {"FLASHJIT_TEMPLATE_DIR=/nowhere", "FLASHJIT_EMULATOR_SEED=odd"}) {
    CAPTURE(wrong);
    const Result result = command.run("doctor", wrong);
    CHECK(result.exit_code == 1);
    CHECK(contains(result.out, "PROBLEM  " + std::string(wrong).substr(0, std::string(wrong).find('='))));
  }
  const fs::path overlay = command.folder() / "templates" / "parts" / "mma";
  fs::create_directories(overlay);
  std::ofstream(overlay / "softmax.cuh") << "// mine\n";
  const Result overlaid =
      command.run("doctor", "FLASHJIT_TEMPLATE_DIR='" + (command.folder() / "templates").string() + "'");
  CHECK(contains(overlaid.out, "templates note     FLASHJIT_TEMPLATE_DIR is "));
  CHECK(contains(overlaid.out, "and changes 1 of them"));

  // Root, too, where it has given up the right to pass over rights.
  const std::string meek = geteuid() == 0 ? "setpriv --bounding-set=-all" : "";
  if (meek.empty() || std::system((meek + " true").c_str()) == 0) {
    const Command closed;
    const fs::path cache = closed.folder() / "cache";
    fs::create_directory(cache);
    for (const auto& [rights, words] : {std::pair{fs::perms::none, "rights 000"},
                                        {fs::perms::owner_read | fs::perms::owner_exec, "rights 500"}}) {
      fs::permissions(cache, rights);
      const Result result = closed.run("doctor", meek);
      CHECK(result.exit_code == 0);
      CHECK(contains(result.out, "cache     note     " + cache.string() + ", " + words));
      CHECK(contains(result.out, "(Permission denied)"));
      CHECK_FALSE(contains(result.out, "cache     ok"));
    }
  }

  const Command other;
  std::ofstream(other.folder() / "cache") << "a file";
  const Result no_cache = other.run("doctor");
  CHECK(no_cache.exit_code == 1);
  CHECK(contains(no_cache.out, "cache     PROBLEM"));
}

// `flashjit check` and `flashjit profile`: what they print, and their exit codes. Needs no GPU; skips without
// NVRTC.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/cli/broken_driver.hpp"
#include "tests/cli/command.hpp"

namespace fs = std::filesystem;
using flashjit::test::Command;
using flashjit::test::contains;
using flashjit::test::kBrokenDriver;
using flashjit::test::Result;
using nlohmann::json;

namespace {

// The template with its first `from` replaced, in a folder of its own.
void overlay(const fs::path& folder, const std::string& name, const std::string& from,
             const std::string& to) {
  std::ifstream file(fs::path(FLASHJIT_ROOT) / "templates" / name);
  std::stringstream text;
  text << file.rdbuf();
  std::string changed = text.str();
  const std::size_t at = changed.find(from);
  REQUIRE(at != std::string::npos);
  changed.replace(at, from.size(), to);
  fs::create_directories((folder / name).parent_path());
  std::ofstream(folder / name) << changed;
}

constexpr const char* kSmall = " --arch sm_80 --head-dim 32 --heads 1 --seqlen-q 70 --family mma ";

}  // namespace

TEST_CASE("check says clean, for what, and what was looked at") {
  const Command command;
  const Result clean = command.run(std::string("check --causal --seeds 2") + kSmall);
  CHECK(clean.exit_code == 0);
  CAPTURE(clean.out);
  CHECK(contains(clean.out, "clean: forward bf16 d32 causal 1x1x70x70, mma:"));
  CHECK(contains(clean.out, "on emulated:sm_80, seeds 1 to 2"));
  for (const char* words : {"bounds and alignment", "race", "waited for", "deadlock", "rows within"}) {
    CAPTURE(words);
    CHECK(contains(clean.out, words));
  }
  const json report = json::parse(command.run(std::string("check --seeds 2 --seed 7 --json") + kSmall).out);
  CHECK(report["clean"] == true);
  CHECK(report["device"] == "emulated:sm_80");
  CHECK(report["seeds"].size() == 2);
  CHECK(report["seeds"][1]["seed"] == 8);
  CHECK(report["seeds"][1]["findings"].empty());
  CHECK(report["seeds"][1]["reference"]["ok"] == true);
  CHECK(report["checked"].size() > 3);
}

TEST_CASE("a backward pass is checked by float64 and by finite differences") {
  const Command command;
  const std::string problem =
      "--pass backward --arch sm_90a --head-dim 64 --causal --heads 2 --heads-kv 1 --seqlen-q 70 --seqlen-k "
      "90 ";
  const Result clean = command.run("check --seeds 1 " + problem);
  CHECK(clean.exit_code == 0);
  CHECK(contains(clean.out, "elements of dq, dk and dv within"));
  const json figures = json::parse(command.run("check --seeds 1 --json " + problem).out);
  CHECK(figures["clean"] == true);
  CHECK(figures["seeds"][0]["finite_differences"]["elements"] == 18);
}

TEST_CASE("run writes gradients, and reads the gradient of o back") {
  const Command command;
  const fs::path dq = command.folder() / "dq.npy";
  const fs::path again = command.folder() / "again.npy";
  const std::string device = "run --device emulated:sm_90a --no-time --pass backward ";
  const std::string sizes = "--head-dim 64 --heads 2 --seqlen-q 40 --seqlen-k 30 --batch 1 ";
  const Result ran =
      command.run(device + sizes + "--json --dq-out " + dq.string() + " --out " + again.string());
  CHECK(ran.exit_code == 0);
  const json report = json::parse(ran.out);
  for (const char* name : {"dq", "dk", "dv"}) CHECK(report["check"][name]["ok"] == true);
  CHECK(fs::file_size(dq) == 128 + 40 * 2 * 64 * 2);
  // o has the shape of dout, which is all that it takes.
  CHECK(command.run(device + sizes + "--dout " + again.string()).exit_code == 0);
  const Result other = command.run(device + "--head-dim 64 --heads 2 --seqlen-q 41 --batch 1 --dout " +
                                   again.string() + " 2>&1");
  CHECK(other.exit_code == 2);
  CHECK(contains(other.out, "--dout is bf16 (1, 40, 2, 64), must be bf16 (1, 41, 2, 64) as o is"));
  const Result forward = command.run("run --device emulated:sm_90a --head-dim 64 --seqlen-q 8 --dq-out " +
                                     dq.string() + " 2>&1");
  CHECK(forward.exit_code == 2);
}

TEST_CASE("check finds a wait that was taken out of a template, and says where") {
  const Command command;
  overlay(command.folder() / "templates", "ptx/cp_async.cuh", "cp.async.wait_group %0;", "// wait_group %0");
  const std::string environment = "FLASHJIT_TEMPLATE_DIR=" + (command.folder() / "templates").string();
  const Result found = command.run(std::string("check --seeds 20") + kSmall + "2>&1", environment);
  CAPTURE(found.out);
  CHECK(found.exit_code == 1);
  for (const char* words : {"async result: reads shared memory at offset", "at CTA (", "warp ", "lanes 0x",
                            "PTX line ", "templates/", "not clean", "--seeds 1"}) {
    CAPTURE(words);
    CHECK(contains(found.out, words));
  }
  const json report = json::parse(
      command.run(std::string("check --seeds 20 --json") + kSmall + "2>/dev/null", environment).out);
  CHECK(report["clean"] == false);
  const json finding = report["seeds"].back()["findings"][0];
  CHECK(finding["kind"] == "async result");
  CHECK(finding["ptx_line"] > 0);
  CHECK(contains(finding["source"][0]["template"], "templates/"));
}

TEST_CASE("check finds a race in the largest clusters") {
  const Command command;
  overlay(command.folder() / "templates", "ptx/cluster.cuh", "barrier.cluster.arrive.release",
          "barrier.cluster.arrive.relaxed");
  const Result found = command.run(
      "check --arch sm_90a --head-dim 64 --heads 1 --seqlen-q 128 --seqlen-k 1024 --seeds 12 "
      "--schedule wgmma:m128n64s2p0sp8 2>&1",  // 96 warps
      "FLASHJIT_TEMPLATE_DIR=" + (command.folder() / "templates").string());
  CAPTURE(found.out);
  CHECK(found.exit_code == 1);
  CHECK(contains(found.out, "race: "));
  CHECK(contains(found.out, "of the cluster"));
}

TEST_CASE("with no sizes, check and profile run the kernel that inspect shows") {
  const Command command;
  const auto schedule_of = [&](const std::string& arguments) {
    const Result result = command.run(arguments + " --json --arch sm_90a --head-dim 64");
    CAPTURE(result.out);
    REQUIRE(result.exit_code == 0);
    return json::parse(result.out)["schedule"].get<std::string>();
  };
  const std::string large = schedule_of("inspect");
  const std::string small = schedule_of("inspect --batch 1 --heads 2 --seqlen-q 200");
  CHECK(large.substr(0, 6) == "wgmma:");
  CHECK(large != small);
  CHECK(schedule_of("check --seeds 1") == large);
  CHECK(schedule_of("profile") == large);
  CHECK(schedule_of("check --seeds 1 --seqlen-q 200") == small);
  CHECK(schedule_of("profile --heads 2") == small);
  CHECK(schedule_of("check --seeds 1 --family mma").substr(0, 4) == "mma:");
}

TEST_CASE("demo ends with the command that shows the first kernel it ran, also where the driver fails") {
  const Command command;
  const Result shown = command.run("demo 2>&1", kBrokenDriver);
  CAPTURE(shown.out);
  CHECK(shown.exit_code == 0);
  CHECK(contains(shown.out, "There is no GPU to run on"));
  const std::string program = "flashjit ";
  const std::size_t at =
      shown.out.find(program + "inspect --arch sm_90a --head-dim 128 --causal --schedule ");
  REQUIRE(at != std::string::npos);
  const std::size_t begin = at + program.size();
  const std::string inspect = shown.out.substr(begin, shown.out.find('\n', at) - begin);
  const std::string flag = "--schedule ";
  const std::size_t value = inspect.find(flag) + flag.size();
  const std::string schedule = inspect.substr(value, inspect.find(' ', value) - value);
  const std::size_t row = shown.out.find("forward bf16 d128 causal");
  REQUIRE(row != std::string::npos);
  CHECK(contains(shown.out.substr(row, shown.out.find('\n', row) - row), " " + schedule + " "));
  CHECK(contains(command.run(inspect).out, "__global__"));
}

TEST_CASE("demo asks Turing for fp16, since it has no bf16") {
  const Command command;
  const Result shown = command.run("demo --device emulated:sm_75 2>&1");
  CAPTURE(shown.out);
  CHECK(shown.exit_code == 0);
  CHECK(contains(shown.out, "inspect --arch sm_75 --dtype fp16 --head-dim 128"));
}

TEST_CASE("a seed from the environment reaches every emulated device") {
  const Command command;
  overlay(command.folder() / "templates", "ptx/cp_async.cuh", "cp.async.wait_group %0;", "// wait_group %0");
  const std::string overlaid = "FLASHJIT_TEMPLATE_DIR=" + (command.folder() / "templates").string();
  const std::string run =
      "run --device emulated:sm_80 --head-dim 32 --heads 1 --seqlen-q 70 --family mma 2>&1";
  const Result found = command.run(run, overlaid + " FLASHJIT_EMULATOR_SEED=23");
  CAPTURE(found.out);
  CHECK(found.exit_code == 1);
  CHECK(contains(found.out, "(seed 23)"));
  const Result refused = command.run(run, "FLASHJIT_EMULATOR_SEED=odd");
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.out,
                 "FLASHJIT_EMULATOR_SEED is \"odd\", may be a whole number from 0 to 18446744073709551615"));
}

TEST_CASE("check finds a wrong result") {
  const Command command;
  overlay(command.folder() / "templates", "ptx/math.cuh", "ex2.approx.ftz.f32 %0, %1;",
          "add.f32 %0, %1, 0f3F800000;");
  const Result found = command.run(std::string("check --seeds 1") + kSmall + "2>&1",
                                   "FLASHJIT_TEMPLATE_DIR=" + (command.folder() / "templates").string());
  CAPTURE(found.out);
  CHECK(found.exit_code == 1);
  CHECK(contains(found.out, "wrong result"));
}

TEST_CASE("bench --grid goes on where a kernel fails as it runs, and says for which problem") {
  const Command command;
  overlay(command.folder() / "templates", "ptx/cp_async.cuh", "cp.async.wait_group %0;", "// wait_group %0");
  const Result failed =
      command.run("bench --grid --dtype fp16 --device emulated:sm_80 --family mma --rounds 1 2>&1",
                  "FLASHJIT_TEMPLATE_DIR=" + (command.folder() / "templates").string());
  CHECK(failed.exit_code == 1);
  CHECK(contains(failed.out, "flashjit: forward fp16 d64 full at 16x32x1024x1024: the emulator found "));
  CHECK(contains(failed.out, "flashjit: forward fp16 d256 causal at 1x8x16384x16384: the emulator found "));
}

TEST_CASE("profile counts") {
  const Command command;
  const Result table = command.run(std::string("profile") + kSmall);
  CHECK(table.exit_code == 0);
  CAPTURE(table.out);
  for (const char* words : {"warp instructions", "tensor ", "global memory", "bank conflicts",
                            "shared memory by line", "templates/parts/"}) {
    CAPTURE(words);
    CHECK(contains(table.out, words));
  }
  const json counts = json::parse(command.run(std::string("profile --json") + kSmall).out);
  CHECK(counts["launches"] == 1);
  CHECK(counts["bank_conflicts"] == 0);
  CHECK(counts["by_class"]["tensor"] > 0);
  CHECK(counts["tensor_flops"] > 0);
  CHECK(counts["global_bytes_read"] >= 3 * 70 * 32 * 2);
  CHECK(counts["global_bytes_written"] == 70 * 32 * 2 + 70 * 4);
  CHECK(counts["schedule"].get<std::string>().substr(0, 4) == "mma:");
}

TEST_CASE("both refuse with exit code 2 and words") {
  const Command command;
  command.refuses("check --arch sm_42", "sm_42");
  command.refuses("check --arch sm_80 --seeds 0", "--seeds: is \"0\", may be a whole number from 1");
  command.refuses("check --arch sm_80 --threads -1", "--threads: is \"-1\", may be a whole number from 0");
  command.refuses("check --arch sm_80 --inputs odd", "odd");
  command.refuses("check --arch sm_75 --dtype bf16 --family mma", "sm_75");
  command.refuses("profile --device emulated:sm_43", "sm_43");
  command.refuses("profile --arch sm_80 --schedule mma:q", "mma:q");
}

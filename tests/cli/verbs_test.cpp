// The command itself: what inspect and tune print, and their exit codes. Needs no GPU; skips without
// NVRTC.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "tests/cli/broken_driver.hpp"
#include "tests/cli/command.hpp"

namespace fs = std::filesystem;
using flashjit::test::Command;
using flashjit::test::contains;
using flashjit::test::kBrokenDriver;
using flashjit::test::Result;
using nlohmann::json;

TEST_CASE("inspect shows, emits and compares, on an arch that is not here") {
  const Command command;
  const std::string problem = "inspect --arch sm_86 --head-dim 64 --schedule mma:m64n64w4s2 ";
  const Result table = command.run(problem);
  CHECK(table.exit_code == 0);
  for (const char* row :
       {"kernel ", "registers ", "spills ", "shared ", "occupancy ", "limited by ", "compiled in "}) {
    CAPTURE(row);
    CHECK(contains(table.out, row));
  }
  const Result again = command.run(problem);
  CHECK(contains(again.out, "disk"));

  const json figures = json::parse(command.run(problem + "--json").out);
  CHECK(figures["arch"] == "sm_86");
  CHECK(figures["spill_stores"] == 0);
  CHECK(figures["registers"] > 0);
  CHECK(figures["ctas_per_sm"] > 0);

  CHECK(contains(command.run(problem + "--emit source").out, "__global__"));
  CHECK(contains(command.run(problem + "--emit ptx").out, ".target sm_86"));
  CHECK(contains(command.run(problem + "--emit log").out, "registers"));
  CHECK(contains(command.run(problem + "--emit key").out, figures["entry"].get<std::string>()));
  CHECK_FALSE(contains(command.run(problem + "--emit key").out, "\nptxas "));
  // fp32's kernels on tensor cores are compiled at another level, which no schedule names.
  CHECK(contains(command.run("inspect --arch sm_80 --dtype fp32 --head-dim 64 --family mma --emit key").out,
                 "\nptxas         1\n"));
  CHECK(command.run(problem + "--emit cubin").out.substr(0, 4) == "\177ELF");
  const fs::path file = command.folder() / "kernel.ptx";
  const Result written = command.run(problem + "--emit ptx -o " + file.string());
  CHECK(written.exit_code == 0);
  CHECK(written.out.empty());
  CHECK(fs::file_size(file) > 1000);

  const Result compared = command.run(problem + "--compare mma:m64n32w4s2");
  CHECK(compared.exit_code == 0);
  CHECK(contains(compared.out, "mma:m64n32w4s2"));
  CHECK(!contains(compared.out, "target "));  // the same for both
}

TEST_CASE("inspect shows all kernels of a backward pass, or the one that is named") {
  const Command command;
  const std::string problem = "inspect --pass backward --arch sm_90a --head-dim 64 --family wgmma ";
  const json kernels = json::parse(command.run(problem + "--json").out);
  REQUIRE(kernels.is_array());
  REQUIRE(kernels.size() >= 2);
  const std::string first = kernels[0]["kernel"];
  CHECK(contains(first, "_preprocess"));
  CHECK(kernels[0]["rows_per_tile"] > 0);
  CHECK(kernels[1]["keys_per_tile"] > 0);
  const std::string table = command.run(problem).out;
  for (const json& kernel : kernels) CHECK(contains(table, kernel["kernel"].get<std::string>()));
  for (const std::string& name : {std::string("0"), std::string("preprocess"), first}) {
    const json one = json::parse(command.run(fmt::format("{}--json --kernel {}", problem, name)).out);
    CHECK(one["kernel"] == first);
  }
  const std::string sources = command.run(problem + "--emit source").out;
  for (const json& kernel : kernels) CHECK(contains(sources, kernel["kernel"].get<std::string>()));
  CHECK(command.run(problem + "--kernel 1 --emit cubin").out.substr(0, 4) == "\177ELF");
  const Result which = command.run(problem + "--emit cubin 2>&1");
  CHECK(which.exit_code == 2);
  CHECK(contains(which.out, "--kernel"));
  const Result unknown = command.run(problem + "--kernel epilogue 2>&1");
  CHECK(unknown.exit_code == 2);
  CHECK(contains(unknown.out, "kernel is \"epilogue\""));
  CHECK(contains(unknown.out, first));
}

TEST_CASE("tune --grid is the grid of the problem that is asked for") {
  const Command command;
  const Result lines = command.run(
      "tune --dry-run --grid --json --arch sm_90a --family wgmma --pass backward "
      "--deterministic --dtype fp16");
  CHECK(lines.exit_code == 0);
  CHECK(std::count(lines.out.begin(), lines.out.end(), '\n') == 18);
  std::istringstream each(lines.out);
  for (std::string line; std::getline(each, line);) {
    CAPTURE(line.substr(0, 200));
    CHECK(contains(json::parse(line)["problem"].get<std::string>(), "backward fp16 d"));
    CHECK(contains(json::parse(line)["problem"].get<std::string>(), " deterministic"));
  }
}

TEST_CASE("tune --grid goes on where a problem fails, and says which") {
  const Command command;
  const Result failed =
      command.run("tune --grid --budget 0.001 --device emulated:sm_90a --family wgmma 2>&1");
  CHECK(failed.exit_code == 1);
  CHECK(contains(failed.out, "flashjit: forward bf16 d64 full at 16x32x1024x1024: "));
  CHECK(contains(failed.out, "flashjit: forward bf16 d256 causal at 1x8x16384x16384: "));
  // Of family wgmma no fp32 gradient is wider than 128.
  const Result shown =
      command.run("tune --dry-run --grid --arch sm_90a --pass backward --dtype fp32 --family wgmma 2>&1");
  CHECK(shown.exit_code == 1);
  CHECK(contains(shown.out, "backward fp32 d128 causal at 1x16x16384x16384 on sm_90a"));
  CHECK(contains(shown.out, "flashjit: backward fp32 d256 full at 16x8x1024x1024: "));
  CHECK(contains(shown.out, "flashjit: backward fp32 d256 causal at 1x8x16384x16384: "));
}

TEST_CASE("what no compiler makes is shown without NVRTC, where the schedule is given") {
  const Command command;
  const std::string inspect =
      "inspect --arch sm_80 --pass backward --head-dim 64 --schedule mma-backward:m64n64w4 --emit ";
  const char* const without = "FLASHJIT_NVRTC=/nowhere";
  for (const char* artefact : {"source", "schedule", "source --kernel preprocess"}) {
    const Result shown = command.run(inspect + artefact, without);
    CHECK(shown.exit_code == 0);
    CHECK_FALSE(shown.out.empty());
    CHECK(command.run(inspect + artefact).out == shown.out);
  }
  command.refuses(inspect + "ptx", "/nowhere", without);
  command.refuses("inspect --arch sm_80 --head-dim 64 --emit source", "/nowhere", without);
  command.refuses("inspect --arch sm_80 --schedule mma:m127n64 --emit source",
                  "schedule \"mma:m127n64\": tile_m 127", without);
}

TEST_CASE("a driver that fails is a problem to doctor, and to no verb that needs no GPU") {
  const Command command;
  const std::string problem = " --head-dim 8 --dtype fp32 --seqlen-q 16 --heads 1 ";
  for (const char* verb : {"check --seeds 1", "profile", "inspect", "tune --dry-run"}) {
    CAPTURE(verb);
    const Result result = command.run(verb + problem, kBrokenDriver);
    CHECK(result.exit_code == 0);
    CHECK(contains(result.out, "sm_90a"));
    CHECK(command.run(verb + problem + "--device cuda 2>/dev/null", kBrokenDriver).exit_code == 1);
  }
  const Result doctor = command.run("doctor", kBrokenDriver);
  CHECK(doctor.exit_code == 1);
  CHECK(contains(doctor.out, "driver    PROBLEM  cuInit failed: error 803"));
}

TEST_CASE("output that is lost is told, and is no success") {
  const Command command;
  // Little, which waits for the end to be written, and much.
  for (const char* arguments :
       {"doctor", "--help", "inspect --arch sm_80 --emit source", "tune --dry-run --all --grid --arch sm_80",
        "bench --device emulated:sm_80 --dtype fp32 --head-dim 8 --heads 1 --seqlen-q 16 --rounds 1"}) {
    CAPTURE(arguments);
    const Result lost = command.run(fmt::format("{} 2>&1 >/dev/full", arguments));
    CHECK(lost.exit_code == 2);
    CHECK(lost.out == "flashjit: stdout could not be written: No space left on device\n");
  }
  const std::string emit = "inspect --arch sm_80 --emit source -o ";
  for (const auto& [file, why] : {std::pair{"/dev/full", "No space left on device"},
                                  {"/nonexistent/x", "No such file or directory"},
                                  {"/", "Is a directory"}}) {
    command.refuses(emit + file,
                    fmt::format("--output is {}, may be a file that can be written: {}\n", file, why));
  }
  // A file of 4 KB at most, less than a source has, or the tensor.
  const std::string cut = (command.folder() / "cut").string();
  for (const std::string& cuts :
       {emit,
        std::string("run --device emulated:sm_80 --dtype fp32 --head-dim 8 --heads 1 --no-time --out ")}) {
    command.refuses(cuts + cut, "File too large",
                    "bash -c 'trap \"\" XFSZ; ulimit -f 4; exec \"$0\" \"$@\"'");
    CHECK_FALSE(fs::exists(cut));
  }
  const Result nowhere =
      command.run("tune --device emulated:sm_80 --seqlen-q 64 --export /nonexistent/x.jsonl 2>&1");
  CHECK(nowhere.exit_code == 2);
  CHECK(contains(nowhere.out, "--export is /nonexistent/x.jsonl, may be a file that can be written"));
  CHECK_FALSE(contains(nowhere.out, "compiled"));  // told before anything is measured
}

TEST_CASE("run says before it runs that its outputs can not be") {
  const Command command;
  const std::string run = "run --device emulated:sm_80 --dtype fp32 --head-dim 8 --heads 1 --seqlen-q 16 ";
  const std::string file = (command.folder() / "a.npy").string();
  command.refuses(
      run + "--out /nonexistent/o.npy",
      "--out is /nonexistent/o.npy, may be a file that can be written: No such file or directory");
  command.refuses(run + "--out " + command.folder().string(), "Is a directory");
  command.refuses(run + "--out /dev/null/o.npy", "Not a directory");
  command.refuses(run + "--out " + std::string(300, 'o'), "File name too long");
  command.refuses(run + "--no-lse --lse-out " + file, "--no-lse leaves it out");
  command.refuses(run + "--dq-out " + file, "the forward pass has no gradients");
  command.refuses(run + "--out " + file + " --lse-out " + (command.folder() / "." / "a.npy").string(),
                  "must be another file than that of --out");
  command.refuses(run + "--out same_name.npy --lse-out ./same_name.npy",
                  "must be another file than that of --out");
  CHECK_FALSE(fs::exists(command.folder() / "cache"));  // no Engine was made
  CHECK_FALSE(fs::exists(file));
  CHECK(command.run(run + "--out " + file).exit_code == 0);
  command.refuses(fmt::format("run --device emulated:sm_80 --q {0} --k {0} --v {0} --out {0}", file),
                  "--out is " + file + ", must be another file than that of --q");
  const std::string empty = (command.folder() / "empty.npy").string();
  std::ofstream(empty) << std::string("\x93NUMPY\x01\0v\0", 10)
                       << fmt::format("{:<117}\n",
                                      "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 16, 1, 0), }");
  command.refuses(
      fmt::format("run --device emulated:sm_80 --pass backward --q {0} --k {0} --v {1}", file, empty),
      "--v head_dim is 0, may be a multiple of 8 from 8 to 256");
  const Result lost = command.run(run + "--out /dev/full 2>/dev/null");
  CHECK(lost.exit_code == 2);
  CHECK(contains(lost.out, "forward fp32 d8 full"));  // the result is shown all the same
}

TEST_CASE("tune remembers, also when its words are lost, and says where it cannot") {
  const Command command;
  const std::string tune =
      "tune --device emulated:sm_80 --dtype fp32 --head-dim 8 --batch 1 --heads 1 --seqlen-q 16 --family "
      "simt ";
  const Result nowhere = command.run(tune + "2>&1", "FLASHJIT_CACHE_SIZE=0");
  CHECK(nowhere.exit_code == 1);
  CHECK(contains(nowhere.out, "what is learnt goes to no file (--export names one)"));
  CHECK(contains(nowhere.out, "FLASHJIT_CACHE_SIZE is 0"));
  CHECK(contains(nowhere.out, "chosen"));
  const fs::path exported = command.folder() / "exported.jsonl";
  CHECK(command.run(tune + "--export " + exported.string(), "FLASHJIT_CACHE_SIZE=0").exit_code == 0);
  CHECK(fs::exists(exported));
  CHECK(command.run(tune + "2>/dev/full").exit_code == 0);
  const fs::path wisdom = command.folder() / "cache" / "wisdom.jsonl";
  CHECK(fs::exists(wisdom));
  fs::remove(wisdom);
  fs::create_directory(wisdom);  // what root cannot write either
  const Result unwritable = command.run(tune + "2>&1");
  CHECK(unwritable.exit_code == 1);
  const auto told = unwritable.out.find("what is learnt goes to no file (--export names one): wisdom " +
                                        wisdom.string() + " could not be written: it is no regular file");
  CHECK(told < unwritable.out.find("compiled"));  // before anything is measured
}

TEST_CASE("tune that learnt nothing is no success, also where it has a file to write to") {
  const Command command;
  const std::string problem = "--family mma --dtype fp16 --head-dim 256 --batch 1 --heads 1 --seqlen-q 16 ";
  // One candidate of four is in the cache, and no other compiles in 0.2 s: what survives alone is not timed.
  // On a machine so slow that not even this one is tried in time, nothing is learnt either.
  const json candidates =
      json::parse(command.run("tune --dry-run --json --arch sm_75 " + problem).out)["candidates"];
  REQUIRE(candidates.size() > 1);
  CHECK(command
            .run(fmt::format("inspect --arch sm_75 {}--schedule {}", problem,
                             candidates[0]["schedule"].get<std::string>()))
            .exit_code == 0);
  const fs::path exported = command.folder() / "exported.jsonl";
  const Result tuned = command.run(fmt::format("tune --device emulated:sm_75 {}--budget 0.2 --export {} 2>&1",
                                               problem, exported.string()));
  CAPTURE(tuned.out);
  CHECK(contains(tuned.out, "there was no time left to "));
  CHECK(tuned.exit_code == 1);
  std::ifstream lines(exported);
  CHECK(std::count(std::istreambuf_iterator<char>(lines), {}, '\n') == 1);  // the header
}

namespace {

// Runs before main: without NVRTC there is nothing to inspect, and ctest shows the skip.
const bool skipped_without_nvrtc = [] {
  try {
    static_cast<void>(flashjit::runtime::load_nvrtc());
  } catch (const flashjit::Error& error) {
    std::printf("skipped: no NVRTC (%s)\n", error.what());
    std::fflush(stdout);
    std::_Exit(77);
  }
  return true;
}();

}  // namespace

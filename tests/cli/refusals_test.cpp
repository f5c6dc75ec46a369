// What the command refuses: the words, and exit code 2.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <initializer_list>
#include <string>

#include "tests/cli/command.hpp"

using flashjit::test::Command;
using flashjit::test::contains;

TEST_CASE("without NVRTC tune is refused as every other verb") {
  const Command command;
  for (const char* verb : {"tune", "run", "inspect"}) {
    command.refuses(fmt::format("{} --device emulated:sm_80 --dtype fp32 --head-dim 8 --seqlen-q 16", verb),
                    "FLASHJIT_NVRTC is \"/nowhere\"", "FLASHJIT_NVRTC=/nowhere");
  }
}

TEST_CASE("flags that others would ignore are refused") {
  const Command command;
  const std::string device = " --device emulated:sm_80 ";
  const std::string files = "run --q a.npy --k b.npy --v c.npy " + device;
  for (const char* flag : {"--dtype fp16", "--head-dim 64", "--head-dim-v 64", "--batch 1", "--heads 1",
                           "--heads-kv 1", "--seqlen-q 1", "--seqlen-k 1", "--inputs tiny", "--seed 2"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    command.refuses(files + flag, name + " does nothing beside --q, --k and --v: ");
  }
  command.refuses(files + "--pass backward --seed 2", "a.npy");  // of a random dout
  command.refuses(files + "--pass backward --seed 2 --dout d.npy", "--seed does nothing beside");
  for (const char* flag : {"--head-dim 64", "--causal", "--heads 1", "--seqlen-k 64"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    command.refuses(std::string("tune --dry-run --grid ") + flag, name + " does nothing beside --grid: ");
    command.refuses("bench --grid" + device + flag, name + " does nothing beside --grid: ");
  }
  for (const char* verb : {"run", "bench"})
    command.refuses(verb + device + "--tune quick --schedule mma:m64n64w4s2",
                    "--tune does nothing beside --schedule: ");
  for (const char* flag : {"--quick", "--full", "--budget 1", "--export x.jsonl"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    command.refuses(std::string("tune --dry-run --arch sm_80 ") + flag,
                    name + " does nothing beside --dry-run: ");
  }
  for (const char* tune : {"tune --dry-run --arch sm_80", "tune --device emulated:sm_80"})
    command.refuses(std::string(tune) + " --json --all", "--all does nothing beside --json: ");
  command.refuses("inspect --arch sm_80 --emit source --json", "--json does nothing beside --emit: ");
  for (const char* verb : {"check", "inspect", "profile", "tune --dry-run"}) {
    for (const char* other : {"cuda", "cuda:0", "emulated:sm_80"})
      command.refuses(fmt::format("{} --device {} --arch sm_90a", verb, other),
                      fmt::format("--arch sm_90a and --device {} are two devices: give one of them", other));
  }
  CHECK(command.run("tune --dry-run --device emulated:sm_80 --arch sm_80").exit_code ==
        0);  // one, said twice
  command.refuses("run --no-lse --pass backward" + device, "--no-lse does nothing beside --pass backward: ");
  command.refuses("run --deterministic" + device, "--deterministic does nothing beside --pass forward: ");
}

TEST_CASE("a call that cannot be parsed is told as any other") {
  const Command command;
  command.refuses("attend", "flashjit: there is no verb \"attend\"");
  command.refuses("cache list", "flashjit: there is no verb \"list\"");
  command.refuses("", "flashjit: A subcommand is required");
  command.refuses("run --quick", "flashjit: The following argument was not expected: --quick");
  command.refuses("run --threads 2 more",
                  "flashjit: The following arguments were not expected: --threads 2 more\n");
}

TEST_CASE("inspect refuses with exit code 2 and words") {
  const Command command;
  command.refuses("inspect --arch sm_42", "sm_42");
  command.refuses("inspect --arch sm_80 --head-dim 12", "head_dim");
  command.refuses("inspect --arch sm_80 --schedule mma:q", "mma:q");
  command.refuses("inspect --arch sm_80 --family tcgen05", "tcgen05");
  command.refuses("inspect --arch sm_75 --dtype bf16 --family mma", "sm_75");
  command.refuses("inspect --arch sm_80 --emit elf", "may be source, ptx");
  command.refuses("inspect --arch sm_80 -o x", "--emit");
  command.refuses("inspect --arch sm_80 --emit ptx --compare mma:m64n64w4s2", "--compare and --emit");
  command.refuses("inspect --arch sm_80 --emit ptx -o /nowhere/x", "/nowhere/x");
  command.refuses("inspect --arch sm_80 --no-cache", "FLASHJIT_NVRTC is \"/nowhere\"",
                  "FLASHJIT_NVRTC=/nowhere");
}

TEST_CASE("numbers and flags that can not be are refused with exit code 2 and words") {
  const Command command;
  const std::string run = "run --device emulated:sm_80 --dtype fp32 --head-dim 8 ";
  for (const char* number :
       {"batch", "heads", "heads-kv", "seqlen-q", "seqlen-k", "head-dim", "head-dim-v"}) {
    for (const char* value : {"-1", "99999999999", "010", "1.5", ""}) {
      command.refuses(
          fmt::format("{}--{} \"{}\"", run, number, value),
          fmt::format("--{}: is \"{}\", may be a whole number from 0 to 2147483647", number, value));
    }
  }
  command.refuses(run + "--heads 0", "heads is 0, may be 1 or more");
  command.refuses(run + "--batch 1073741824 --heads 2048 --seqlen-q 1048576",
                  "batch 1073741824, 1048576 rows, 2048 heads and 8 columns needs 7.38e+19 bytes");
  for (const char* seed : {"-1", "99999999999999999999", ""}) {
    command.refuses(fmt::format("{}--seed \"{}\"", run, seed),
                    fmt::format("--seed: is \"{}\", may be a whole number from 0 to ", seed));
  }
  for (const char* scale : {"-1", "0", "1e-40", "2e38", "nan", "1x", ""})
    command.refuses(fmt::format("{}--scale \"{}\"", run, scale),
                    fmt::format("--scale: is \"{}\", may be 1.1754944e-38 to 1.7014117e+38", scale));
  for (const char* scale : {"1.1754944e-38", "1.7014117e38"}) {
    CAPTURE(scale);
    CHECK(command.run(fmt::format("{}--heads 1 --seqlen-q 16 --no-time --no-check --scale {}", run, scale))
              .exit_code == 0);
  }
  command.refuses(run + "--tune lazy", "lazy");
  command.refuses("bench --device emulated:sm_80 --rounds 0", "may be a whole number from 1 to 100");
  command.refuses("check --arch sm_80 --seed -1", "--seed");
  command.refuses("profile --arch sm_80 --seed -1", "--seed");
  for (const char* seconds : {"0.0004", "nan", "inf", "-1"}) {
    const std::string words = fmt::format("is \"{}\", may be 0.001 to ", seconds);
    command.refuses(fmt::format("tune --device emulated:sm_80 --budget {}", seconds), "--budget: " + words);
    command.refuses(fmt::format("bench --device emulated:sm_80 --seconds {}", seconds),
                    "--seconds: " + words);
  }
  command.refuses("bench --device emulated:sm_80 --pause nan", "--pause: is \"nan\", may be 0 to 60");
  command.refuses("tune --dry-run --arch sm_90a --family simt --head-dim 64", "sm_90a: simt: ");
  command.refuses("tune --arch sm_80", "--arch is for --dry-run; tuning measures on --device");
}

TEST_CASE("a text that is empty does not count as not given") {
  const Command command;
  const auto refused = [&](const std::string& verb, std::initializer_list<const char*> flags) {
    for (const char* flag : flags) {
      command.refuses(fmt::format("{} {} ''", verb, flag), fmt::format("{}: may not be empty", flag));
      // CLI11 would take the next flag for the text, as in --out=$NOT_SET --json.
      for (const char* missing : {"", "="})
        command.refuses(fmt::format("{} {}{} --json", verb, flag, missing),
                        fmt::format("{}: is \"--json\", the next flag", flag));
    }
  };
  refused("run", {"--q", "--k", "--v", "--dout", "--out", "--lse-out", "--dq-out", "--dk-out", "--dv-out",
                  "--schedule"});
  refused("inspect", {"--arch", "--schedule", "--kernel", "--emit", "--output", "--compare"});
  refused("tune", {"--export"});
  refused("bench", {"--commit"});
  refused("cache prune", {"--size"});
  refused("cache show x", {"--section"});
  for (const char* verb : {"show", "pack", "unpack"})
    command.refuses(fmt::format("cache {} ''", verb), ": may not be empty");
}

TEST_CASE("verbs that measure refuse sizes of which nothing is launched, and devices that are none") {
  const Command command;
  for (const char* verb :
       {"check --arch sm_80", "tune --device emulated:sm_80", "bench --device emulated:sm_80"}) {
    command.refuses(fmt::format("{} --seqlen-q 0", verb), "--seqlen-q is 0, of which nothing is launched");
    command.refuses(fmt::format("{} --batch 0", verb), "--batch is 0, of which nothing is launched");
  }
  CHECK(command.run("run --device emulated:sm_80 --seqlen-q 0").exit_code == 0);
  for (const char* verb : {"run", "check", "profile", "inspect", "tune --dry-run"}) {
    command.refuses(fmt::format("{} --device nonsense", verb),
                    "device is \"nonsense\", may be cuda, cuda:N or emulated:sm_XX");
  }
}

TEST_CASE("a template that is a pipe is refused, and nobody waits for who writes to it") {
  const Command command;
  const auto folder = command.folder() / "templates";
  std::filesystem::create_directories(folder / "parts/mma");
  REQUIRE(::mkfifo((folder / "parts/mma/softmax.cuh").c_str(), 0600) == 0);
  command.refuses("inspect --arch sm_80", "softmax.cuh is not a file",
                  "FLASHJIT_TEMPLATE_DIR=" + folder.string());
}

TEST_CASE("to demo, templates that are not there are no missing GPU") {
  const Command command;
  const std::string nowhere = "FLASHJIT_TEMPLATE_DIR=/nowhere";
  command.refuses("demo", "FLASHJIT_TEMPLATE_DIR is \"/nowhere\", may be a directory", nowhere);
  CHECK_FALSE(contains(command.run("demo 2>&1", nowhere).out, "GPU"));
}

TEST_CASE("where a GPU is asked for by its flag, no arch stands in for it") {
  const Command command;
  const char* const nowhere = "CUDA_VISIBLE_DEVICES=";
  for (const char* verb : {"run", "check", "profile", "inspect", "tune --dry-run", "demo"})
    command.refuses(fmt::format("{} --device cuda", verb), "GPU", nowhere);
  CHECK(contains(command.run("tune --dry-run", nowhere).out, " on sm_90a, "));
}

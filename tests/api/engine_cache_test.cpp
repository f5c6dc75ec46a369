// Where an Engine's code comes from: memory, the cache's directories, templates that were edited.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <fstream>

#include "api/build/report.hpp"
#include "api/build/template_overlay.hpp"
#include "cache/files.hpp"
#include "tests/api/support.hpp"

namespace flashjit::test {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename().string().front() != '.')
      files.push_back(entry.path());
  }
  return files;
}

const runtime::ImageRefused kNotAKernel{Error(ErrorCode::device, "not a kernel")};

TEST_CASE("two Engines in one process are two worlds that share a folder") {
  CompilerScript script;
  const Folder folder;
  FakeEngine one(script, folder.path());
  FakeEngine other(script, folder.path(), "sm_86");
  FakeEngine third(script, folder.path());
  CHECK(one.engine->plan(kProblem, kShape, {.schedule = "mma:m64n64w4s2"}).origin().code ==
        "compiled in 412 ms");
  CHECK(other.engine->plan(kProblem, kShape, {.schedule = "mma:m64n64w4s2"}).origin().code ==
        "compiled in 412 ms");
  CHECK(third.engine->plan(kProblem, kShape, {.schedule = "mma:m64n64w4s2"}).origin().code == "disk");
  CHECK(script.compiles == 2);
}

TEST_CASE("wisdom of the system directory guides, and stays as it is") {
  CompilerScript script;
  const Folder folder;
  autotune::TuneResult tuned;
  tuned.best = parse_schedule("mma:m64n32w4s2");
  {
    FakeEngine fake(script, folder.path());
    const auto record = autotune::record_of(kProblem, kShape, fake.device->target(),
                                            autotune::gpu_of(fake.device->description()), tuned,
                                            Tuning::quick, api::versions_of(embedded_templates()));
    CHECK(fake.engine->plan(kProblem, kShape).origin().choice == "model");
    autotune::Wisdom wisdom;
    wisdom.add(record, {});
    REQUIRE(autotune::merge_wisdom(folder.path() / "system-wisdom.jsonl", wisdom, {}, cache::publish, {}));
  }
  FakeEngine fake(script, folder.path());
  const Origin origin = fake.engine->plan(kProblem, kShape).origin();
  CHECK(origin.choice == "wisdom (this GPU)");
  CHECK(origin.schedule == "mma:m64n32w4s2");
  CHECK_FALSE(fs::exists(folder.path() / "cache" / "wisdom.jsonl"));
}

TEST_CASE("a report's numbers that fit no int are left out") {
  for (const char* number : {"1e300", "4294967304", "18446744073709551615", "-8", "7.5"}) {
    CAPTURE(number);
    const api::Report report = api::parse_report(
        fmt::format(R"({{"registers": {}, "spill_stores": 8, "compile_ms": 1.5}})", number));
    CHECK(report.resources.registers == 0);
    CHECK(report.resources.spill_stores == 8);
    CHECK(report.compile_ms == 1.5);
  }
}

TEST_CASE("a damaged entry is a miss, and is rebuilt once") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(script.compiles == 1);
  for (const fs::path& file : files_of(folder.path())) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2));
    bytes.put('\x7f');
  }
  FakeEngine again(script, folder.path());
  CHECK(again.engine->plan(kProblem, kShape).origin().code == "compiled in 412 ms");
  CHECK(script.compiles == 2);
  FakeEngine third(script, folder.path());
  CHECK(third.engine->plan(kProblem, kShape).origin().code == "disk");
}

TEST_CASE("a whole entry that the device refuses is rebuilt once") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  FakeEngine again(script, folder.path());
  int refusals = 1;
  again.device->on_load = [&](const runtime::KernelImage&) {
    if (refusals-- > 0) throw kNotAKernel;
  };
  CHECK(again.engine->plan(kProblem, kShape).origin().code == "compiled in 412 ms");
  CHECK(script.compiles == 2);

  FakeEngine third(script, folder.path());
  third.device->on_load = [](const runtime::KernelImage&) { throw kNotAKernel; };
  CHECK_THROWS_WITH_AS(static_cast<void>(third.engine->plan(kProblem, kShape)), "not a kernel", Error);
  CHECK(script.compiles == 3);

  script.missing = true;
  FakeEngine fourth(script, folder.path());
  fourth.device->on_load = third.device->on_load;
  CHECK_THROWS_WITH_AS(static_cast<void>(fourth.engine->plan(kProblem, kShape)), "not a kernel", Error);
}

TEST_CASE("a load that fails for another reason than the image rebuilds nothing") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  FakeEngine again(script, folder.path());
  again.device->on_load = [](const runtime::KernelImage&) { throw Error(ErrorCode::device, "no memory"); };
  CHECK_THROWS_WITH_AS(static_cast<void>(again.engine->plan(kProblem, kShape)), "no memory", Error);
  again.device->on_load = nullptr;
  CHECK(again.engine->plan(kProblem, kShape).origin().code == "disk");
  CHECK(script.compiles == 1);
}

TEST_CASE("of two processes on one cache, the second compiles nothing") {
  const Folder folder;
  const auto compiles_of_a_process = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      CompilerScript script;
      try {
        FakeEngine fake(script, folder.path());
        fake.engine->prepare(kProblem, kShape);
      } catch (const std::exception&) {
        ::_exit(100);
      }
      ::_exit(script.compiles);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  CHECK(compiles_of_a_process() == 1);
  CHECK(compiles_of_a_process() == 0);
}

TEST_CASE("templates are replaced by files of the same path") {
  const Folder folder;
  const std::string name = embedded_templates().begin()->first;
  const fs::path file = folder.path() / name;
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "// edited\n";
  std::ofstream(folder.path() / ".hidden") << "an editor's";
  std::ofstream(folder.path() / "#autosaved.cuh#") << "Emacs's";
  std::ofstream(folder.path() / "CMakeLists.txt") << "a checkout's";
  TemplateSet overlaid = api::overlaid_templates(folder.path());
  CHECK(overlaid.size() == embedded_templates().size());
  CHECK(overlaid.at(name) == "// edited\n");

  SUBCASE("a link to a directory is one") {
    const Folder elsewhere;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.is_directory())
        fs::create_directory_symlink(entry.path(), elsewhere.path() / entry.path().filename());
    }
    CHECK(api::overlaid_templates(elsewhere.path()).at(name) == "// edited\n");
  }
  SUBCASE("another source is another kernel") {
    CompilerScript script;
    TemplateSet edited = embedded_templates();
    for (auto& [path, text] : edited) {
      if (path.find("kernels/") == 0) text += "// edited\n";
    }
    const Folder cache;
    FakeEngine(script, cache.path()).engine->prepare(kProblem, kShape);
    FakeEngine fake(script, cache.path(), "sm_80", edited);
    const Plan plan = fake.engine->plan(kProblem, kShape);
    CHECK(plan.kernels()[0].source.find("// edited") != std::string::npos);
    CHECK(script.compiles == 2);
  }
  SUBCASE("a file that replaces nothing is an error") {
    std::ofstream(folder.path() / "parts.txt") << "?";
    try {
      api::overlaid_templates(folder.path());
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK(error.message().find("parts.txt") != std::string::npos);
      CHECK(error.hint().find(name) != std::string::npos);
    }
  }
  SUBCASE("a directory that is none is an error") {
    CHECK_THROWS_AS(api::overlaid_templates(folder.path() / "nowhere"), Error);
    CHECK_THROWS_AS(api::overlaid_templates(file), Error);
  }
}

}  // namespace
}  // namespace flashjit::test

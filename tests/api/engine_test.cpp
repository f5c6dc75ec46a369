// Engines and plans on a fake device: what is made once, where code comes from, what goes wrong and how it is
// said.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "api/build/template_overlay.hpp"
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

TEST_CASE("a plan is made once and found again") {
  CompilerScript script;
  FakeEngine fake(script);
  const Plan first = fake.engine->plan(kProblem, kShape);
  CHECK(first.origin().code == "compiled in 412 ms");
  CHECK(first.origin().schedule.find(':') != std::string::npos);
  CHECK_FALSE(first.origin().choice.empty());
  CHECK(first.origin().note.empty());
  CHECK(first.kernel_name().find("flashjit_forward_") == 0);
  REQUIRE(first.kernels().size() == 1);
  CHECK(first.kernels()[0].name == first.kernel_name());
  CHECK(first.kernels()[0].source.find(first.kernel_name()) != std::string::npos);
  CHECK(first.problem() == kProblem);
  CHECK(first.shape() == kShape);

  const int compiles = script.compiles;
  const Plan second = fake.engine->plan(kProblem, kShape);
  CHECK(second.origin().code == "memory");
  CHECK(second.origin().schedule == first.origin().schedule);
  CHECK(script.compiles == compiles);
  CHECK(fake.device->loads() == 1);

  SUBCASE("head_dim_v 0 and head_dim are one question") {
    Problem spelled = kProblem;
    spelled.head_dim_v = kProblem.head_dim;
    CHECK(fake.engine->plan(spelled, kShape).origin().code == "memory");
  }
  SUBCASE("another size of the same bucket is the same kernel with its own shape") {
    Shape shape = kShape;
    shape.seqlen_q = 131;
    const Plan third = fake.engine->plan(kProblem, shape);
    CHECK(third.shape().seqlen_q == 131);
    CHECK(fake.device->loads() == 1);
  }
  SUBCASE("another bucket with the same schedule loads nothing") {
    PlanOptions given;
    given.schedule = first.origin().schedule;
    Shape shape = kShape;
    shape.seqlen_q = shape.seqlen_k = 100'000;
    const Plan third = fake.engine->plan(kProblem, shape, given);
    CHECK(third.origin().choice == "given");
    CHECK(third.origin().code == "memory");
    CHECK(fake.device->loads() == 1);
  }
  SUBCASE("a plan outlives its engine") {
    Pointers pointers;
    fake.engine.reset();
    fake.state.reset();
    first.forward(pointers.args());
    CHECK(fake.device->launches().size() == 1);
  }
}

TEST_CASE("a family or a schedule that is asked for is used") {
  CompilerScript script;
  FakeEngine fake(script);
  Problem single = kProblem;
  single.dtype = DType::fp32;
  CHECK(fake.engine->plan(single, kShape, {.family = "simt"}).origin().schedule.find("simt:") == 0);
  CHECK(fake.engine->plan(kProblem, kShape, {.family = "mma"}).origin().schedule.find("mma:") == 0);
  const Plan given = fake.engine->plan(kProblem, kShape, {.schedule = "mma:m64n64w4s2"});
  CHECK(given.origin().schedule == "mma:m64n64w4s2");
  CHECK(given.origin().choice == "given");
}

TEST_CASE("many threads on one Engine compile and load a kernel once") {
  CompilerScript script;
  script.on_compile = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  FakeEngine fake(script);
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  std::atomic<int> ready{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      Pointers pointers;
      for (int round = 0; round < 20; ++round) {
        Shape shape = kShape;
        shape.seqlen_q += i;
        const Plan plan = fake.engine->plan(kProblem, shape);
        plan.forward(pointers.args());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(script.compiles == 1);
  CHECK(fake.device->loads() == 1);
  CHECK(fake.device->launches().size() == kThreads * 20);
}

TEST_CASE("what the first of many throws, all of them throw, and the next one tries again") {
  CompilerScript script;
  std::atomic<bool> broken{true};
  script.on_compile = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (broken) throw Error(ErrorCode::compile_failed, "NVRTC said no");
  };
  FakeEngine fake(script);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      try {
        fake.engine->prepare(kProblem, kShape);
      } catch (const Error& error) {
        if (error.message() == "NVRTC said no") ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 4);
  broken = false;
  CHECK(fake.engine->plan(kProblem, kShape).origin().code == "compiled in 412 ms");
}

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

TEST_CASE("a miss in a capture is refused and names prepare; what is ready is not") {
  CompilerScript script;
  FakeEngine fake(script);
  fake.device->captures = true;
  try {
    static_cast<void>(fake.engine->plan(kProblem, kShape));
    FAIL("a plan was made in a capture");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unsupported);
    CHECK(error.hint().find("Engine::prepare") != std::string::npos);
  }
  CHECK(script.compiles == 0);
  CHECK(script.loads == 0);
  fake.device->captures = false;
  fake.engine->prepare(kProblem, kShape);
  fake.device->captures = true;
  Pointers pointers;
  fake.engine->plan(kProblem, kShape).forward(pointers.args());
  CHECK(fake.device->launches().size() == 1);
}

TEST_CASE("a schedule that spills is passed over, and the plan says so") {
  CompilerScript script;
  std::string spiller;
  script.resources = [&](const KernelSource& source) {
    runtime::Resources resources;
    if (spiller.empty()) spiller = source.entry;
    if (source.entry == spiller) resources.spill_stores = 48;
    return resources;
  };
  FakeEngine fake(script);
  const Plan plan = fake.engine->plan(kProblem, kShape);
  CHECK(plan.kernel_name() != spiller);
  CHECK(plan.origin().note.find("spills 48 bytes") != std::string::npos);
  CHECK(plan.origin().note.find("passed over") != std::string::npos);
  CHECK(script.compiles == 2);

  SUBCASE("but it is what was asked for") {
    script.resources = [](const KernelSource&) { return runtime::Resources{.spill_loads = 16}; };
    const Plan given = fake.engine->plan(kProblem, kShape, {.schedule = "mma:m32n32w2s2"});
    CHECK(given.origin().schedule == "mma:m32n32w2s2");
    CHECK(given.origin().note.find("spills 16 bytes") != std::string::npos);
  }
}

TEST_CASE("a warm cache needs no NVRTC") {
  const Folder folder;
  CompilerScript script;
  std::string schedule;
  {
    FakeEngine fake(script, folder.path());
    schedule = fake.engine->plan(kProblem, kShape).origin().schedule;
  }
  CHECK(script.asked_for_id == 1);

  SUBCASE("with the same NVRTC, it is not even asked who it is") {
    FakeEngine again(script, folder.path());
    CHECK(again.engine->plan(kProblem, kShape).origin().code == "disk");
    CHECK(script.asked_for_id == 1);
    CHECK(script.compiles == 1);
  }
  SUBCASE("with none at all, the last one's kernels are used") {
    script.missing = true;
    FakeEngine again(script, folder.path());
    const Plan plan = again.engine->plan(kProblem, kShape);
    CHECK(plan.origin().code == "disk");
    CHECK(plan.origin().schedule == schedule);
    Problem other = kProblem;
    other.head_dim = 128;
    try {
      static_cast<void>(again.engine->plan(other, kShape));
      FAIL("compiled without NVRTC");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::not_found);
      CHECK(error.message() == "no NVRTC anywhere");
    }
  }
  SUBCASE("another NVRTC compiles anew") {
    script.stamp = "stamp-2";
    script.build_id = "CL-2 V13.1.0";
    FakeEngine again(script, folder.path());
    CHECK(again.engine->plan(kProblem, kShape).origin().code == "compiled in 412 ms");
    CHECK(script.compiles == 2);
  }
  SUBCASE("an empty cache and no NVRTC is an error that says where to get it") {
    const Folder empty;
    script.missing = true;
    FakeEngine again(script, empty.path());
    CHECK_THROWS_AS(static_cast<void>(again.engine->plan(kProblem, kShape)), Error);
  }
}

TEST_CASE("NVRTC_APPEND_FLAGS is part of the key") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  ::setenv("NVRTC_APPEND_FLAGS", "--fmad=false", 1);
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  ::unsetenv("NVRTC_APPEND_FLAGS");
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(script.compiles == 2);
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
    if (refusals-- > 0) throw Error(ErrorCode::device, "not a kernel");
  };
  CHECK(again.engine->plan(kProblem, kShape).origin().code == "compiled in 412 ms");
  CHECK(script.compiles == 2);

  FakeEngine third(script, folder.path());
  third.device->on_load = [](const runtime::KernelImage&) { throw Error(ErrorCode::device, "not a kernel"); };
  CHECK_THROWS_WITH_AS(static_cast<void>(third.engine->plan(kProblem, kShape)), "not a kernel", Error);
  CHECK(script.compiles == 3);
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
  TemplateSet overlaid = api::overlaid_templates(folder.path());
  CHECK(overlaid.size() == embedded_templates().size());
  CHECK(overlaid.at(name) == "// edited\n");

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

TEST_CASE("PTX for the driver: the driver is part of the key") {
  const Folder folder;
  CompilerScript script;
  script.makes_cubin = false;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(script.compiles == 1);
  // A NVRTC that makes cubins is another stamp; its key has no driver.
  script.makes_cubin = true;
  script.stamp = "stamp-3";
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(script.compiles == 2);
}

TEST_CASE("buffers free themselves") {
  CompilerScript script;
  FakeEngine fake(script);
  const std::size_t before = fake.device->bytes_alive();
  {
    Buffer buffer = fake.engine->allocate(64);
    const std::string text = "sixteen letters!";
    fake.engine->upload(buffer, text.data(), text.size());
    std::string back(text.size(), ' ');
    fake.engine->download(back.data(), buffer, back.size());
    CHECK(back == text);
    Buffer moved = std::move(buffer);
    CHECK(moved.size() == 64);
    const Buffer none = fake.engine->allocate(0);
    CHECK(none.data() == nullptr);
    fake.engine->synchronize();
  }
  CHECK(fake.device->bytes_alive() == before);
}

}  // namespace
}  // namespace flashjit::test

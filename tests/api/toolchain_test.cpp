// Whose kernels an Engine takes: those of the NVRTC that it has; where there is none, those of any that was
// used.
#include <doctest/doctest.h>

#include "api/build/kernel_builder.hpp"
#include "cache/manage.hpp"
#include "tests/api/support.hpp"

namespace flashjit::test {
namespace {

const Problem kOther = [] {
  Problem problem = kProblem;
  problem.head_dim = 128;
  return problem;
}();

// Another NVRTC, which is not there yet.
struct NotYet : CompilerScript {
  NotYet() {
    stamp = "stamp-2";
    missing = true;
  }
};

TEST_CASE("a warm cache needs no NVRTC") {
  const Folder folder;
  CompilerScript script;
  std::string schedule;
  {
    FakeEngine fake(script, folder.path());
    schedule = fake.engine->plan(kProblem, kShape).origin().schedule;
  }
  CHECK(script.asked == 1);

  SUBCASE("with the same NVRTC, it is not even asked who it is") {
    FakeEngine again(script, folder.path());
    CHECK(again.engine->plan(kProblem, kShape).origin().code == "disk");
    CHECK(script.asked == 1);
    CHECK(script.compiles == 1);
  }
  SUBCASE("with none at all, the last one's kernels are used") {
    script.missing = true;
    FakeEngine again(script, folder.path());
    const Plan plan = again.engine->plan(kProblem, kShape);
    CHECK(plan.origin().code == "disk");
    CHECK(plan.origin().schedule == schedule);
    try {
      static_cast<void>(again.engine->plan(kOther, kShape));
      FAIL("compiled without NVRTC");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::not_found);
      CHECK(error.message() == "no NVRTC anywhere");
    }
  }
  SUBCASE("another NVRTC compiles anew") {
    script.stamp = "stamp-2";
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

TEST_CASE("an NVRTC whose bytes have no name goes by its build id") {
  const Folder folder;
  CompilerScript script;
  script.stamp.clear();
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(script.compiles == 1);
  script.build_id = "CL-2 V13.1.0";
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(script.compiles == 2);
}

TEST_CASE("the options are the compiler's of today, whatever a record says") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  script.more_options = {"--extra"};
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(script.asked == 1);  // the rest is
  CHECK(script.compiles == 2);
  script.missing = true;
  FakeEngine again(script, folder.path());
  CHECK(again.engine->plan(kProblem, kShape).origin().code == "disk");
}

TEST_CASE("without NVRTC kernels do that any other has compiled, with lines too") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  CompilerScript lined;  // as `flashjit check` has it
  lined.stamp = "stamp-1 with lines";
  lined.more_options = {"--generate-line-info"};
  FakeEngine(lined, folder.path()).engine->prepare(kOther, kShape);
  script.missing = true;
  FakeEngine again(script, folder.path());
  CHECK(again.engine->plan(kProblem, kShape).origin().code == "disk");
  CHECK(again.engine->plan(kOther, kShape).origin().code == "disk");
}

TEST_CASE("without NVRTC kernels of the system directory do beside those of the user's") {
  const Folder system;
  const Folder folder;
  CompilerScript theirs;
  FakeEngine(theirs, system.path()).engine->prepare(kProblem, kShape);
  CompilerScript script;
  script.stamp = "stamp-2";
  FakeEngine(script, folder.path()).engine->prepare(kOther, kShape);
  const auto store =
      cache::open_store({.directory = folder.path() / "cache", .system_directory = system.path() / "cache"});
  CompilerScript none;
  none.missing = true;
  FakeDevice device(target_of("sm_80"));
  const TemplateSet& templates = embedded_templates();
  api::KernelBuilder builder(device, *store, templates, loader(none));
  const Schedule schedule = parse_schedule("mma:m64n64w4s2");
  CHECK_THROWS_AS(builder.code(kProblem, schedule), Error);  // nobody has compiled this one
  for (const Problem& problem : {kProblem, kOther}) {
    const std::string used = FakeEngine(none, (problem == kOther ? folder : system).path())
                                 .engine->plan(problem, kShape)
                                 .origin()
                                 .schedule;
    CHECK(builder.code(problem, parse_schedule(used)).kernels.front()->origin ==
          (problem == kOther ? "disk" : "system"));
  }
}

TEST_CASE("a directory has a list of its own, beside the system's, and after it was cleared") {
  const Folder system;
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, system.path()).engine->prepare(kProblem, kShape);
  const cache::StoreOptions alone{.directory = folder.path() / "cache"};
  const auto both =
      cache::open_store({.directory = alone.directory, .system_directory = system.path() / "cache"});
  CompilerScript none;
  none.missing = true;
  FakeDevice device(target_of("sm_80"));
  const TemplateSet& templates = embedded_templates();
  const Schedule schedule = parse_schedule("mma:m64n64w4s2");
  api::KernelBuilder builder(device, *both, templates, loader(script));
  for (const int head_dim : {32, 128}) {
    const Problem problem{.head_dim = head_dim};
    CHECK(builder.code(problem, schedule).kernels.front()->origin == "compiled in 412 ms");
    const auto store = cache::open_store(alone);
    api::KernelBuilder later(device, *store, templates, loader(none));
    CHECK(later.code(problem, schedule).kernels.front()->origin == "disk");
    static_cast<void>(cache::clear(alone, /*wisdom_too=*/false));
  }
}

TEST_CASE("an NVRTC that appears later compiles under its own name") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  NotYet newer;
  FakeEngine fake(newer, folder.path());
  CHECK(fake.engine->plan(kProblem, kShape).origin().code == "disk");
  newer.missing = false;
  CHECK(fake.engine->plan(kOther, kShape).origin().code == "compiled in 412 ms");
  FakeEngine(newer, folder.path()).engine->prepare(kOther, kShape);
  CHECK(newer.compiles == 1);
  FakeEngine(script, folder.path()).engine->prepare(kOther, kShape);
  CHECK(script.compiles == 2);
}

TEST_CASE("an NVRTC that appears later finds what it has compiled") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  const auto store = cache::open_store({.directory = folder.path() / "cache"});
  NotYet newer;
  FakeDevice device(target_of("sm_80"));
  const TemplateSet& templates = embedded_templates();
  api::KernelBuilder builder(device, *store, templates, loader(newer));
  const Schedule schedule = parse_schedule("mma:m64n64w4s2");
  CHECK_THROWS_AS(builder.code(kOther, schedule), Error);
  newer.missing = false;
  CHECK(builder.code(kOther, schedule).kernels.front()->origin == "compiled in 412 ms");
  CHECK(builder.code(kOther, schedule).kernels.front()->origin == "memory");
}

TEST_CASE("another NVRTC's entry that the device refuses is rebuilt under the name of who rebuilds it") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  NotYet newer;
  FakeEngine fake(newer, folder.path());
  fake.device->on_load = [&](const runtime::KernelImage&) {
    if (!newer.missing) return;
    newer.missing = false;
    throw runtime::ImageRefused(Error(ErrorCode::device, "not a kernel"));
  };
  CHECK(fake.engine->plan(kProblem, kShape).origin().code == "compiled in 412 ms");
  FakeEngine(newer, folder.path()).engine->prepare(kProblem, kShape);
  CHECK(newer.compiles == 1);
}

TEST_CASE("without NVRTC, an entry that the device refuses leaves those of other NVRTCs") {
  const Folder folder;
  CompilerScript script;
  FakeEngine(script, folder.path()).engine->prepare(kProblem, kShape);
  NotYet newer;
  newer.missing = false;
  FakeEngine(newer, folder.path()).engine->prepare(kProblem, kShape);
  newer.missing = true;
  int to_refuse = 0;
  FakeEngine fake(newer, folder.path());
  fake.device->on_load = [&](const runtime::KernelImage&) {
    if (to_refuse-- > 0) throw runtime::ImageRefused(Error(ErrorCode::device, "not a kernel"));
  };
  SUBCASE("one of which it loads") {
    to_refuse = 1;
    CHECK(fake.engine->plan(kProblem, kShape).origin().code == "disk");
  }
  SUBCASE("which it may refuse, too") {
    to_refuse = 2;
    CHECK_THROWS_WITH(static_cast<void>(fake.engine->plan(kProblem, kShape)),
                      doctest::Contains("not a kernel"));
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

}  // namespace
}  // namespace flashjit::test

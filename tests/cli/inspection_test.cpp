// What `flashjit inspect` says of a kernel, on a fake device and with a scripted compiler.
#include "cli/common/inspection.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "flashjit/error.hpp"
#include "tests/api/support.hpp"
#include "tests/support/contains.hpp"

using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::KernelSource;
using flashjit::cli::emit;
using flashjit::cli::Inspection;
using flashjit::test::CompilerScript;
using flashjit::test::contains;
using flashjit::test::FakeEngine;
using flashjit::test::kProblem;
using flashjit::test::kShape;

namespace {

std::string value_of(const Inspection& inspection, const std::string& what) {
  for (const auto& [name, value] : rows(inspection)) {
    if (name == what) return value;
  }
  return {};
}

// The only kernel of a forward plan.
Inspection inspect(flashjit::EngineState& state, const flashjit::Problem& problem,
                   const flashjit::Shape& shape, const flashjit::PlanOptions& options) {
  return flashjit::cli::inspect(state, problem, shape, options).at(0);
}

// A compiler whose kernels spill a little.
struct Spilling : CompilerScript {
  Spilling();
};

Spilling::Spilling() {
  resources = [](const KernelSource&) {
    flashjit::runtime::Resources said;
    said.registers = 168;
    said.spill_stores = 8;
    said.barriers = 2;
    said.code_bytes = 18432;
    said.warnings = {"ptxas warning : one"};
    return said;
  };
}

constexpr const char* kSchedule = "mma:m128n64w4s2";

}  // namespace

TEST_CASE("a given schedule is compiled, and its figures and their limit are told") {
  Spilling script;
  const flashjit::test::Folder folder;
  const FakeEngine fake(script, folder.path());
  const Inspection inspection = inspect(*fake.state, kProblem, kShape, {.schedule = kSchedule});
  CHECK(inspection.schedule == kSchedule);
  CHECK(value_of(inspection, "schedule") == std::string(kSchedule) + " (given)");
  CHECK(value_of(inspection, "registers") == "168 per thread");
  CHECK(value_of(inspection, "spills") == "8 B stored, 0 B loaded");
  CHECK(value_of(inspection, "code") == "18,432 B");
  CHECK(value_of(inspection, "ptxas") == "ptxas warning : one");
  CHECK(inspection.occupancy.ctas > 0);
  CHECK(!value_of(inspection, "limited by").empty());
  CHECK(contains(value_of(inspection, "from"), "compiled in 412 ms"));

  const nlohmann::json json = to_json(inspection);
  CHECK(json["rows_per_tile"] == 128);
  CHECK_FALSE(json.contains("keys_per_tile"));
  CHECK(json["registers"] == 168);
  CHECK(json["arch"] == "sm_80");
  CHECK(json["limited_by"] == value_of(inspection, "limited by"));
  CHECK(json["entry"] == inspection.code->entry->key.digest());

  const FakeEngine other(script, folder.path());
  flashjit::Problem spelled = kProblem;
  spelled.deterministic = true;  // a forward pass is so anyway
  const Inspection again = inspect(*other.state, spelled, kShape, {.schedule = kSchedule});
  CHECK(script.compiles == 1);
  CHECK(contains(value_of(again, "from"), "disk, compiled in 412 ms once"));
}

TEST_CASE("without a schedule it is the one that a plan takes, also where the first spills") {
  CompilerScript script;
  std::string spiller;
  script.resources = [&](const KernelSource& source) {
    flashjit::runtime::Resources resources;
    if (spiller.empty()) spiller = source.entry;
    if (source.entry == spiller) resources.spill_stores = 48;
    return resources;
  };
  const FakeEngine fake(script);
  const Inspection inspection = inspect(*fake.state, kProblem, kShape, {});
  CHECK(contains(value_of(inspection, "note"), " spills 48 bytes of registers and was passed over"));
  CHECK(to_json(inspection)["note"] == value_of(inspection, "note"));
  CHECK(!inspection.choice.empty());
  CHECK(inspection.choice != "given");
  CHECK(inspection.code->source.entry != spiller);
  CHECK(fake.engine->plan(kProblem, kShape).kernel_name() == inspection.code->source.entry);
  CHECK_THROWS_AS(inspect(*fake.state, kProblem, kShape, {.schedule = "nonsense"}), Error);
  CHECK_THROWS_AS(inspect(*fake.state, kProblem, kShape, {.family = "nonsense"}), Error);
}

TEST_CASE("every artefact that is promised is there") {
  Spilling script;
  const FakeEngine fake(script);
  const Inspection inspection = inspect(*fake.state, kProblem, kShape, {.schedule = kSchedule});
  CHECK(contains(emit(inspection, "source"), inspection.code->source.entry));
  CHECK(emit(inspection, "ptx") == "ptx of " + inspection.code->source.entry);
  CHECK(emit(inspection, "cubin") == "cubin of " + inspection.code->source.entry);
  CHECK(emit(inspection, "log") == "log");
  CHECK(contains(emit(inspection, "schedule"), "m   tile_m          128"));
  const std::string key = emit(inspection, "key");
  CHECK(contains(key, inspection.code->entry->key.digest()));
  CHECK(contains(key, "arch          sm_80\n"));
  CHECK(contains(key, "nvrtc         stamp-1\n"));
  CHECK(!contains(key, "__global__"));  // the source is named by its size and digest
  try {
    static_cast<void>(emit(inspection, "elf"));
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(
        contains(error.message(), "emit is \"elf\", may be source, ptx, sass, cubin, log, key or schedule"));
  }
}

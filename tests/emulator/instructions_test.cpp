// Every scalar instruction against its row of the table; and what the reader and the launch refuse.
#include <doctest/doctest.h>

#include <set>

#include "emulator/decode/opcodes.hpp"
#include "tests/emulator/instruction_rows.hpp"
#include "tests/emulator/support.hpp"

using namespace flashjit;
using namespace flashjit::emulator;
using namespace flashjit::emulator::tests;

TEST_CASE("scalar instructions give what the ISA says") {
  // One kernel holds all of them; each writes 8 bytes.
  std::string body;
  std::size_t index = 0;
  for (const InstructionRow& row : instruction_rows()) {
    body += fmt::format(
        "mov.b64 %d1, {};\nmov.b64 %d2, {};\nmov.b64 %d3, {};\n{}st.global.b64 [%d31+{}], %d20;\n", row.a,
        row.b, row.c, instruction_body(row), 8 * index++);
  }
  Bench bench;
  const std::vector<std::uint32_t> out = bench.run(kernel_text(body), {0}, 2 * instruction_rows().size());
  for (std::size_t k = 0; k < instruction_rows().size(); ++k) {
    const std::uint64_t got = out[2 * k] | std::uint64_t{out[2 * k + 1]} << 32;
    CHECK_MESSAGE(
        got == instruction_rows()[k].expected, instruction_rows()[k].text,
        fmt::format(" a=0x{:x} b=0x{:x} c=0x{:x}: 0x{:x}, expected 0x{:x}", instruction_rows()[k].a,
                    instruction_rows()[k].b, instruction_rows()[k].c, got, instruction_rows()[k].expected));
  }
}

TEST_CASE("every scalar instruction of the emulator has a row") {
  std::set<const Opcode*> seen;
  for (const InstructionRow& row : instruction_rows()) {
    const std::string_view text = row.text;
    Match match;
    seen.insert(find_opcode(text.substr(0, text.find_first_of(" ;")), match));
  }
  // What they give depends on where memory lies, and who asks.
  const std::set<std::string_view> elsewhere = {"isspacep", "mapa", "getctarank"};
  const std::set<OpClass> scalar = {OpClass::integer, OpClass::fp32, OpClass::special, OpClass::packed,
                                    OpClass::convert};
  for (const std::span<const Opcode> table : opcode_tables()) {
    for (const Opcode& row : table) {
      const std::string_view pattern = row.pattern;
      if (!scalar.contains(row.cls) || elsewhere.contains(pattern.substr(0, pattern.find('.')))) continue;
      CHECK_MESSAGE(seen.contains(&row), "no row for ", row.pattern);
    }
  }
}

TEST_CASE("an instruction or modifier that is not known quotes its line") {
  Bench bench;
  for (const char* text : {"frobnicate.b32 %r1, %r2;", "add.s32.fancy %r1, %r2, %r3;",
                           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32 %r1, %r2, %r3, %r4;",
                           "ld.global.u33 %r1, [%d1];"}) {
    try {
      bench.run(kernel_text(text), {0}, 1);
      FAIL("it was accepted: ", text);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::unsupported);
      CHECK(std::string(error.what()).find(text) != std::string::npos);
    }
  }
}

TEST_CASE("operands of another class than the instruction writes are refused") {
  Bench bench;
  constexpr const char* kNarrow = "a 32-bit register is expected as destination";
  constexpr const char* kNone = "a destination must be a register";
  for (const auto& refused :
       {std::pair{"mul.wide.u32 %r1, %r2, %r3;", "a 64-bit register is expected as destination"},
        {"shfl.sync.bfly.b32 %r1|%r2, %r3, 1, 31, -1;", "a predicate register is expected behind |"},
        {"elect.sync %r1, 0xffffffff;", "a predicate is expected behind the destination and |"},
        {"add.s32 %d1, %r1, %r2;", kNarrow},
        {"add.s32 %p1, %r1, %r2;", kNarrow},
        {"add.s32 %h1, %r1, %r2;", kNarrow},
        {"add.u16 %r1, %h1, %h2;", "a 16-bit register is expected as destination"},
        {"mov.b32 %p1, %r2;", kNarrow},
        {"mov.b32 %r1, {};", "2 or 4 parts of 32 or 64 bits are expected"},
        {"mov.b64 {%h1, %h2}, %d1;", kNarrow},
        {"cvt.u32.u16 %h1, %h2;", kNarrow},
        {"cvt.rn.f32.s32 %d1, %r2;", kNarrow},
        {"ld.global.u32 %h1, [%d30];", "a register of at least 32 bits is expected"},
        {"ld.global.v2.u32 {%r1, %d1}, [%d30];", kNarrow},
        {"ld.param.u64 0, [in];", kNone},
        {"ld.global.u32 smem, [%d30];", kNone},
        {"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {0}, [%r29];", kNone},
        {"mov.b64 {0, %r1}, %d30;", kNone},
        {"atom.global.add.u32 0, [%d30], 1;", kNone},
        {"mbarrier.arrive.shared.b64 0, [%r29];", kNone},
        {"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{}, {}, {}, {}}, {%r1, %r2}, {%r3}, {0, 0, 0, "
         "0};",
         "a vector stands in a vector"}}) {
    CAPTURE(refused.first);
    CHECK_THROWS_WITH_AS(bench.run(kernel_text(refused.first), {0}, 1), doctest::Contains(refused.second),
                         Error);
  }
}

TEST_CASE("operands that name another place than the instruction has are refused") {
  Bench bench;
  for (const auto& refused :
       {std::pair{"ld.param.u64 %d1, [in+8];", "8 bytes at offset 8 of \"in\", which has 8"},
        {"ld.param.u32 %r1, [in+-4];", "4 bytes at offset -4 of \"in\", which has 8"},
        {"atom.global.cas.b32 %r1, [%d30], %r2, {};", "one word is swapped"},
        {"st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r29], {%r1}, [%r29+8];",
         "1 values, expected 2"},
        {"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d30], [%r29];",
         "0 coordinates, expected 2"},
        {"cp.async.bulk.global.shared::cta.bulk_group [%d30, {%r1}], [%r29], 16;",
         "1 coordinates, expected 0"},
        {"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, {0, 0, 0, 0}, %d1, %p1, "
         "1, "
         "1, 0;",
         "A needs 4 registers"}}) {
    CAPTURE(refused.first);
    CHECK_THROWS_WITH_AS(bench.run(kernel_text(refused.first), {0}, 1), doctest::Contains(refused.second),
                         Error);
  }
}

TEST_CASE("a floating-point literal of another width is refused, where ptxas does not convert it") {
  Bench bench;
  for (const auto& [line, words] :
       {std::pair{"add.f64 %q1, %q2, 0f3F800000;", "a literal of 32 bits stands where 64 are expected"},
        {"mov.b32 %r1, 0d3FF0000000000000;", "a literal of 64 bits stands where 32 are expected"},
        {"st.global.b32 [%d31], 0d3FF0000000000000;", "a literal of 64 bits stands where 32 are expected"}}) {
    CHECK_THROWS_WITH_AS(bench.run(kernel_text(line), {0}, 1), doctest::Contains(words), Error);
  }
}

TEST_CASE("text that is no PTX, or broken, is refused with its line") {
  Bench bench;
  const std::string start = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry test(";
  struct Broken {
    std::string text;
    const char* words;
  };
  const Broken kBroken[] = {
      {"int main() {}", "PTX line 1: this is not PTX, which begins with .version, in \"int main() {}\""},
      {"\x7f"
       "ELF\x02\x01",
       "this is not PTX, which begins with .version, in \"?ELF??\""},
      {"// nothing else\n", "this is not PTX"},
      {".target sm_80\n.version 8.0\n", "this is not PTX"},
      {".version 8.0\n.target sm_80\n.address_size 32\n", "PTX line 3: only 64-bit PTX is read"},
      {start + " {", "PTX line 4: \"\" is no state space"},
      {start + ") {\nret;", "PTX line 5: the text ends inside a function"},
      {start + ") { bra NOWHERE; }", "label \"NOWHERE\" is nowhere"},
      {start + ") {\n.reg .b64 %d<2>;\nld.param.u64 %d1, [in];\nret;\n}\n",
       "PTX line 6: \"in\" is not declared: \"ld.param.u64 %d1, [in];\""},
  };
  for (const Broken& broken : kBroken) {
    CAPTURE(broken.text);
    CHECK_THROWS_WITH_AS(bench.device().load({.entry = "test", .ptx = broken.text, .cubin = {}}),
                         doctest::Contains(broken.words), Error);
  }
  CHECK_THROWS_WITH_AS(bench.device().load({.entry = "test", .ptx = {}, .cubin = {}}),
                       doctest::Contains("the image of \"test\" has no PTX"), Error);
  CHECK_THROWS_WITH_AS(bench.device().load({.entry = "other", .ptx = kernel_text(""), .cubin = {}}),
                       "the PTX has no kernel \"other\"; it has test", Error);
}

TEST_CASE("functions are refused if their statements or registers are more than can be pasted") {
  std::string outer = ".func f8()\n{\n}\n";
  for (int k = 7; k >= 0; --k) {
    outer += fmt::format(".func f{}()\n{{\n", k);
    for (int call = 0; call < 30; ++call) outer += fmt::format("call.uni f{}, ();\n", k + 1);
    outer += "}\n";
  }
  Bench bench;
  CHECK_THROWS_WITH_AS(bench.run(kernel_text("call.uni f0, ();", "sm_90a", outer), {0}, 1),
                       "the kernel is too large", Error);
  std::string calls;
  for (int call = 0; call < 11; ++call) calls += "call.uni f, ();\n";
  const std::string many = ".func f()\n{\n.reg .b32 %r<100000>;\n}\n";
  CHECK_THROWS_WITH_AS(bench.run(kernel_text(calls, "sm_90a", many), {0}, 1), "the kernel is too large",
                       Error);
}

TEST_CASE("PTX of another version, or for another arch, is refused in words") {
  Bench bench;
  const auto load = [&](const std::string& text, const std::string& arch) {
    Bench other({.arch = arch});
    static_cast<void>(other.device().load({.entry = "test", .ptx = text, .cubin = {}}));
  };
  for (const char* version : {"1.4", "5.0", "10.0", "83.1"}) {
    std::string text = kernel_text("");
    text.replace(text.find("8.7"), 3, version);
    CHECK_THROWS_WITH_AS(load(text, "sm_90a"),
                         doctest::Contains(fmt::format("PTX version {}, may be 6.0 to 9.x", version).c_str()),
                         Error);
  }
  CHECK_THROWS_WITH_AS(load(kernel_text("", "sm_90a"), "sm_90"),
                       "the PTX is for target \"sm_90a\", this device emulates sm_90", Error);
  CHECK_THROWS_WITH_AS(load(kernel_text("", "sm_89"), "sm_80"),
                       "the PTX is for target \"sm_89\", this device emulates sm_80", Error);
  CHECK_NOTHROW(load(kernel_text("", "sm_75"), "sm_80"));
  CHECK_NOTHROW(load(kernel_text("", "sm_90"), "sm_90a"));
  CHECK_THROWS_WITH_AS(emulator::open_emulated_device({.arch = "sm_35"}),
                       doctest::Contains("arch is \"sm_35\""), Error);
}

TEST_CASE("a call with another block or cluster than the kernel requires is refused") {
  const auto run = [](const char* directives, const RunOptions& options) {
    Bench bench(options);
    static_cast<void>(bench.run(kernel_text("", "sm_90a", "", directives), {0}, 1));
  };
  CHECK_THROWS_WITH_AS(run(".reqntid 64", {.threads = 32}),
                       doctest::Contains("block is 32 x 1 x 1, the kernel requires 64 x 1 x 1"), Error);
  CHECK_THROWS_WITH_AS(run(".reqntid 8, 4", {.threads = 32}),
                       doctest::Contains("block is 32 x 1 x 1, the kernel requires 8 x 4 x 1"), Error);
  CHECK_THROWS_WITH_AS(run(".reqnctapercluster 2, 1, 1", {.grid = 2}),
                       doctest::Contains("cluster is 1 x 1 x 1, the kernel requires 2 x 1 x 1"), Error);
  CHECK_NOTHROW(run(".reqntid 32 .reqnctapercluster 2", {.grid = 2, .cluster = 2}));
}

TEST_CASE("a bound on registers beyond what a multiprocessor has leaves threads none, and no more") {
  const auto run = [](const char* directives) {
    Bench bench;
    static_cast<void>(bench.run(kernel_text("", "sm_90a", "", directives), {0}, 1));
  };
  CHECK_NOTHROW(run(".minnctapersm 134217728"));
  CHECK_THROWS_WITH_AS(run(".minnctapersm 4294967296"), doctest::Contains("their product in 32 bits"), Error);
  CHECK_THROWS_WITH_AS(run(".maxntid 65536, 65536"), doctest::Contains("their product in 32 bits"), Error);
}

TEST_CASE("a call with the wrong grid, threads or parameters is refused") {
  Bench bench;
  const std::string text = kernel_text("");
  auto kernel = bench.device().load({.entry = "test", .ptx = text, .cubin = {}});
  void* nothing = nullptr;
  void* two[] = {&nothing, &nothing};
  auto& device = bench.device();
  const auto refuses = [&](const runtime::Launch& launch, std::span<void* const> params, const char* words) {
    CHECK_THROWS_WITH_AS(device.launch(*kernel, launch, params, nullptr), doctest::Contains(words), Error);
  };
  refuses({.grid = 0, .threads = 32}, two, "a dimension of the grid is 0");
  refuses({.grid = 1, .threads = 2048}, two, "2048 threads a CTA, may be 1 to 1024");
  refuses({.grid = 1, .threads = 0}, two, "0 threads a CTA");
  refuses({.grid = 1, .threads = 32, .shared_bytes = 1 << 20}, two, "bytes of shared memory, sm_90a has");
  refuses({.grid = 3, .threads = 32, .cluster = 2}, two, "cluster is 2");
  refuses({.grid = 32, .threads = 32, .cluster = 32}, two, "cluster is 32");
  refuses({.grid = 1, .threads = 32}, std::span(two, 1), "1 parameters given, the kernel takes 2");
  void* missing[] = {&nothing, nullptr};
  refuses({.grid = 1, .threads = 32}, missing, "parameter 1 is null");
  const std::uint32_t block[3] = {32, 1, 1};
  for (const auto& [y, z] : {std::pair{70000u, 1u}, {1u, 70000u}}) {
    const std::uint32_t grid[3] = {1, y, z};
    CHECK_THROWS_WITH_AS(device.launch_grid(*kernel, grid, block, 0, 1, two),
                         doctest::Contains("may be up to 2147483647 x 65535 x 65535"), Error);
  }
  refuses({.grid = 0x80000000u, .threads = 32}, two, "may be up to 2147483647");
  CHECK_NOTHROW(device.launch(*kernel, {.grid = 1, .threads = 32}, two, nullptr));
}

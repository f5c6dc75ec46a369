// Every scalar instruction against its row of the table; and what the reader and the launch refuse.
#include <doctest/doctest.h>

#include "tests/emulator/instruction_rows.hpp"
#include "tests/emulator/support.hpp"

using namespace flashjit;
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

TEST_CASE("text that is no PTX, or broken, is refused with its line") {
  Bench bench;
  for (const char* text :
       {"", "int main() {}", ".version 8.0\n.target sm_80\n.address_size 32\n",
        ".version 8.0 .target sm_80 .address_size 64 .visible .entry test( {",
        ".version 8.0 .target sm_80 .address_size 64 .visible .entry test() { bra NOWHERE; }"}) {
    CHECK_THROWS_AS(bench.device().load({.entry = "test", .ptx = text, .cubin = {}}), Error);
  }
  CHECK_THROWS_WITH_AS(bench.device().load({.entry = "other", .ptx = kernel_text(""), .cubin = {}}),
                       "the PTX has no kernel \"other\"; it has test", Error);
}

TEST_CASE("a call with the wrong grid, threads or parameters is refused") {
  Bench bench;
  const std::string text = kernel_text("");
  auto kernel = bench.device().load({.entry = "test", .ptx = text, .cubin = {}});
  void* nothing = nullptr;
  void* two[] = {&nothing, &nothing};
  auto& device = bench.device();
  CHECK_THROWS_AS(device.launch(*kernel, {.grid = 0, .threads = 32}, two, nullptr), Error);
  CHECK_THROWS_AS(device.launch(*kernel, {.grid = 1, .threads = 2048}, two, nullptr), Error);
  CHECK_THROWS_AS(device.launch(*kernel, {.grid = 1, .threads = 32, .shared_bytes = 1 << 20}, two, nullptr),
                  Error);
  CHECK_THROWS_AS(device.launch(*kernel, {.grid = 3, .threads = 32, .cluster = 2}, two, nullptr), Error);
  CHECK_THROWS_AS(device.launch(*kernel, {.grid = 1, .threads = 32}, std::span(two, 1), nullptr), Error);
  CHECK_NOTHROW(device.launch(*kernel, {.grid = 1, .threads = 32}, two, nullptr));
}

// What ptxas -v says, read as numbers: logs as NVRTC 13.0 gives them.
#include <doctest/doctest.h>

#include <string>

#include "runtime/nvrtc/ptxas_log.hpp"

using flashjit::runtime::parse_ptxas_log;
using flashjit::runtime::Resources;

TEST_CASE("a kernel that spills") {
  const Resources resources = parse_ptxas_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     48 bytes stack frame, 44 bytes spill stores, 56 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 3 barriers, 48 bytes cumulative stack size, 1024 bytes smem\n"
      "ptxas info    : Compile time = 2.362 ms\n"
      "ptxas warning : Registers are spilled to local memory in function 'k', 44 bytes spill stores\n",
      "k");
  CHECK(resources.registers == 168);
  CHECK(resources.barriers == 3);
  CHECK(resources.stack == 48);
  CHECK(resources.spill_stores == 44);
  CHECK(resources.spill_loads == 56);
  CHECK(resources.shared_bytes == 1024);
  REQUIRE(resources.warnings.size() == 1);
}

TEST_CASE("numbered remarks are warnings, whatever ptxas calls them") {
  const Resources resources = parse_ptxas_log(
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due "
      "to insufficient "
      "register resources for the wgmma pipeline in the function 'k'\n"
      "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n"
      "ptxas info    : Used 20 registers\n",
      "k");
  REQUIRE(resources.warnings.size() == 2);
  CHECK(resources.warnings[0].find("C7510") != std::string::npos);
  CHECK(resources.registers == 20);
}

TEST_CASE("registers are the entry's own, spills are everybody's") {
  const Resources resources = parse_ptxas_log(
      "ptxas info    : Compiling entry function 'other' for 'sm_80'\n"
      "ptxas info    : Function properties for other\n"
      "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
      "ptxas info    : Used 99 registers, used 1 barriers\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
      "ptxas info    : Function properties for helper\n"
      "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Function properties for k\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 40 registers, used 0 barriers\n",
      "k");
  CHECK(resources.registers == 40);
  CHECK(resources.barriers == 0);
  CHECK(resources.stack == 0);
  CHECK(resources.spill_stores == 16);
  CHECK(resources.spill_loads == 12);
}

TEST_CASE("odd logs do no harm") {
  for (const char* log :
       {"", "\n", "Used registers", "ptxas info : Used 99999999999999999999 registers",
        "Function properties for ", "Compiling entry function 'k", " bytes stack frame", "(C", "ptxas (C"}) {
    CHECK(parse_ptxas_log(log, "k").registers == 0);
  }
}

// Every instruction of the emulator's table on random words, on two devices, bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.hpp"

namespace flashjit::test {

struct InstructionReport {
  int instructions = 0;                // that both devices ran
  long long values = 0;                // results compared
  std::vector<std::string> different;  // "add.f32 …: a=… gives … and …", the first of each instruction
  std::vector<std::string> not_run;    // that a device refused, and why
  std::vector<std::string>
      approximate;  // "ex2.approx.f32 …: 2 ulp": not defined to the last bit, not counted
};

// NaNs of any payload are alike. Approximations (.approx) are measured, not judged.
InstructionReport compare_instructions(runtime::Device& one, runtime::Device& other, std::uint64_t seed);

}  // namespace flashjit::test

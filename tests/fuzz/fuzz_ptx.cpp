// PTX text from hostile bytes: a module, or an Error that quotes the line.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "emulator/ptx/parser.hpp"
#include "flashjit/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    (void)flashjit::emulator::parse_ptx(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const flashjit::Error& refused) {
    if (refused.code() != flashjit::ErrorCode::invalid_argument &&
        refused.code() != flashjit::ErrorCode::unsupported)
      std::abort();
  }
  return 0;
}

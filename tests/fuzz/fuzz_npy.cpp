// .npy files from hostile bytes: an array or an Error, and an array that can be written as a header and read
// again.
#include <cstdint>
#include <cstdlib>

#include "cli/common/npy.hpp"
#include "cli/common/npy_header.hpp"
#include "flashjit/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flashjit::cli;
  try {
    const NpyArray array = parse_npy(std::as_bytes(std::span(data, size)), "fuzz.npy");
    const NpyHeader again = parse_npy_header(make_npy_header(array.dtype, array.shape), "again.npy");
    if (again.dtype != array.dtype || again.shape != array.shape || again.bytes != array.bytes.size())
      std::abort();
  } catch (const flashjit::Error& refused) {
    if (refused.code() != flashjit::ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}

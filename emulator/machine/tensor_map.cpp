#include "emulator/machine/tensor_map.hpp"

#include <fmt/format.h>

#include <cstring>

#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "tensor map: " + what,
              "see cuTensorMapEncodeTiled in the CUDA Driver API");
}

}  // namespace

runtime::TensorMap encode_tensor_map(const runtime::TensorMapRequest& request) {
  EncodedMap map;
  map.magic = EncodedMap::kMagic;
  map.base = reinterpret_cast<u64>(request.base);
  if (map.base % 16 != 0) refuse(fmt::format("base is {}, must be a multiple of 16", request.base));
  if (request.element_bytes != 1 && request.element_bytes != 2 && request.element_bytes != 4 &&
      request.element_bytes != 8) {
    refuse(fmt::format("element_bytes is {}, may be 1, 2, 4 or 8", request.element_bytes));
  }
  map.element_bytes = static_cast<u8>(request.element_bytes);
  map.bf16 = request.bf16 ? 1 : 0;
  switch (request.swizzle_bytes) {
    case 0:
      map.swizzle_bits = 0;
      break;
    case 32:
      map.swizzle_bits = 1;
      break;
    case 64:
      map.swizzle_bits = 2;
      break;
    case 128:
      map.swizzle_bits = 3;
      break;
    default:
      refuse(fmt::format("swizzle_bytes is {}, may be 0, 32, 64 or 128", request.swizzle_bytes));
  }
  while (map.rank < 5 && request.size[map.rank] != 0) ++map.rank;
  if (map.rank == 0) refuse("size of dimension 0 is 0, must be at least 1");
  for (u32 d = 0; d < map.rank; ++d) {
    if (request.size[d] > 1ull << 32)
      refuse(fmt::format("size of dimension {} is {}, may be up to 2^32", d, request.size[d]));
    if (request.box[d] == 0 || request.box[d] > 256)
      refuse(fmt::format("box of dimension {} is {}, may be 1 to 256", d, request.box[d]));
    map.size[d] = static_cast<i64>(request.size[d]);
    map.box[d] = static_cast<u16>(request.box[d]);
    if (d == 0) continue;
    const u64 stride = request.stride[d - 1];
    if (stride % 16 != 0 || stride >= 1ull << 40)
      refuse(fmt::format("stride of dimension {} is {}, must be a multiple of 16 below 2^40", d, stride));
    map.stride[d - 1] = stride;
  }
  const u32 row = map.box[0] * map.element_bytes;
  if (row % 16 != 0) refuse(fmt::format("the box's inner row is {} bytes, must be a multiple of 16", row));
  if (request.swizzle_bytes != 0 && row > static_cast<u32>(request.swizzle_bytes)) {
    refuse(fmt::format("the box's inner row is {} bytes, more than the swizzle's {}", row,
                       request.swizzle_bytes));
  }
  runtime::TensorMap out;
  std::memcpy(out.opaque.data(), &map, sizeof map);
  return out;
}

}  // namespace flashjit::emulator

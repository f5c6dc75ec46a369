// cuTensorMapEncodeTiled. Its rules are checked first, since it only says "invalid value".
#include "runtime/cuda/tensor_map.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "flashjit/error.hpp"

namespace flashjit::runtime {
namespace {

static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));

void require(bool holds, const char* field, std::uint64_t value, const char* rule) {
  if (!holds) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor map: {} is {}, must be {}", field, value, rule));
  }
}

CUtensorMapSwizzle swizzle_of(int bytes) {
  switch (bytes) {
    case 0:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor map: swizzle is {}, may be 0, 32, 64 or 128 bytes", bytes));
  }
}

CUtensorMapDataType type_of(const TensorMapRequest& request) {
  switch (request.element_bytes) {
    case 2:
      return request.bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case 4:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default:
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor map: elements of {} bytes, may be 2 or 4", request.element_bytes));
  }
}

}  // namespace

TensorMap encode_tensor_map(const Driver& driver, const TensorMapRequest& request) {
  cuuint32_t rank = 0;
  while (rank < request.box.size() && request.box[rank] != 0) ++rank;
  require(rank > 0, "rank", rank, "1 to 5");
  const auto base = reinterpret_cast<std::uintptr_t>(request.base);
  require(base != 0 && base % 16 == 0, "base", base, "a multiple of 16, and not null");
  const auto swizzle = static_cast<std::uint64_t>(request.swizzle_bytes);
  const std::uint64_t inner = request.box[0] * static_cast<std::uint64_t>(request.element_bytes);
  require(inner % 16 == 0 && (swizzle == 0 || inner <= swizzle), "inner box (bytes)", inner,
          "a multiple of 16 and no more than the swizzle");
  for (std::size_t i = 0; i < rank; ++i) {
    require(request.box[i] <= 256, "box", request.box[i], "1 to 256");
    require(request.size[i] >= 1 && request.size[i] <= (std::uint64_t{1} << 32), "size", request.size[i],
            "1 to 2^32");
    if (i == 0) continue;
    require(request.stride[i - 1] % 16 == 0 && request.stride[i - 1] < (std::uint64_t{1} << 40),
            "stride (bytes)", request.stride[i - 1], "a multiple of 16 below 2^40");
  }

  const std::array<cuuint32_t, 5> every_element{1, 1, 1, 1, 1};
  CUtensorMap map;
  // Elements that are out of range read as 0. L2 fetches whole lines, since neighbours along a row are always
  // wanted too, but not two lines at a time: that takes 5 to 10 % off the memory's rate
  // (docs/performance/wgmma/memory.md).
  driver.check(
      driver.encode_tiled(&map, type_of(request), rank, const_cast<void*>(request.base), request.size.data(),
                          request.stride.data(), request.box.data(), every_element.data(),
                          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(request.swizzle_bytes),
                          CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
  TensorMap encoded;
  std::memcpy(encoded.opaque.data(), &map, sizeof(map));
  return encoded;
}

}  // namespace flashjit::runtime

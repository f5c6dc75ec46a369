// The emulator's tensor maps: what TMA must know of a tensor, in the 128 bytes that a kernel takes as a
// parameter.
#pragma once

#include "emulator/program.hpp"
#include "runtime/device.hpp"

namespace flashjit::emulator {

struct EncodedMap {
  static constexpr u64 kMagic = 0x50414d544a464c46;  // "FLFJTMAP"
  u64 magic = 0;
  u64 base = 0;
  u64 stride[4] = {};  // bytes, of dimensions 1 to 4
  i64 size[5] = {};    // elements, up to 2^32
  u16 box[5] = {};
  u8 rank = 0;
  u8 element_bytes = 0;
  u8 swizzle_bits =
      0;  // how many of address bits 7, 8, 9 are added to bits 4, 5, 6: 0 to 3 for none, 32, 64, 128 bytes
  u8 bf16 = 0;
};
static_assert(sizeof(EncodedMap) <= 128);

// A box's rows, and the bytes of each. Five dimensions of 256 give more rows than fit in 32 bits.
inline u64 rows_of(const EncodedMap& map) {
  u64 rows = 1;
  for (u32 d = 1; d < map.rank; ++d) rows *= map.box[d];
  return rows;
}
inline u32 row_of(const EncodedMap& map) {
  return map.box[0] * u32{map.element_bytes};
}
// The distance between rows of a box in shared memory: the span of the swizzle. If a box is narrower, the
// bytes between its rows keep their values (seen on an H200).
inline u32 pitch_of(const EncodedMap& map) {
  return map.swizzle_bits == 0 ? row_of(map) : 16u << map.swizzle_bits;
}

// Throws Error{invalid_argument} for what cuTensorMapEncodeTiled would refuse (CUDA Driver API, tensor map
// objects).
runtime::TensorMap encode_tensor_map(const runtime::TensorMapRequest& request);

// Address bits 4 to 6 are exclusive-ored with bits 7 to 9, as far as the swizzle reaches.
inline u32 swizzle(u32 address, u32 bits) {
  return address ^ (address >> 7 & ((1u << bits) - 1)) << 4;
}

}  // namespace flashjit::emulator

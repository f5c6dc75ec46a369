// Which rows and keys of a tile of scores each thread works on.
#pragma once

// A warp's lanes form a grid, kLanes across the keys (and the value columns) and 32 / kLanes down the rows.
// Bits 0 and 1 of the lane number alternate between the two directions: then lanes i and i ^ 1 read the same
// rows, lanes i and i ^ 2 the same keys, and a 128-bit shared load serves half a warp at a time instead of a
// quarter.
struct Place {
  int warp;
  int key_lane;  // works on keys key_lane + kLanes * j of the tile
  int row;       // works on rows row + kRowLanes * i of the tile
};

constexpr int kRowLanes = 32 / kLanes;

__device__ __forceinline__ Place place_of_thread() {
  const int lane = threadIdx.x % 32;
  Place place;
  place.warp = threadIdx.x / 32;
  place.key_lane = (lane & 1) | (lane / 4 % (kLanes / 2)) * 2;
  place.row = place.warp * (kTileM / kWarps) + ((lane / 2 & 1) | lane / (2 * kLanes) * 2);
  return place;
}

// kCount floats, read or written by one instruction where they are 2 or 4; read by two where they are 8.
template <int kCount>
__device__ __forceinline__ void load_floats(float* to, const float* from) {
  if constexpr (kCount == 8) {
    load_floats<4>(to, from);
    load_floats<4>(to + 4, from + 4);
  } else if constexpr (kCount == 4) {
    const float4 value = *reinterpret_cast<const float4*>(from);
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
  } else if constexpr (kCount == 2) {
    const float2 value = *reinterpret_cast<const float2*>(from);
    to[0] = value.x, to[1] = value.y;
  } else {
    to[0] = *from;
  }
}

template <int kCount>
__device__ __forceinline__ void store_floats(float* to, const float* from) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(to) = float4{from[0], from[1], from[2], from[3]};
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(to) = float2{from[0], from[1]};
  } else {
    *to = *from;
  }
}

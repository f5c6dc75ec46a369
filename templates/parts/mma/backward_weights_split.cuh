// P of the backward pass in fp32: what a score in two floats weighs beside an LSE in one.
#pragma once

constexpr float kLog2e = 1.442695040888963407f;

// log2 of P = exp((high + low) * scale - lse). The difference is taken before the change of base: where a
// weight matters the difference is small, and so is its rounding error. A difference below 2^-24 of the LSE,
// which is half a unit to one unit in its last place, counts as none, since rounding the LSE may have made
// it: a key with all the weight weighs 1.
__device__ __forceinline__ float log2_weight(float high, float low, float scale, float lse) {
  constexpr float kRounding = 1.001f / (1 << 24);
  const float difference = fmaf(low, scale, fmaf(high, scale, -lse));
  return fabsf(difference) < fabsf(lse) * kRounding ? 0.0f : difference * kLog2e;
}

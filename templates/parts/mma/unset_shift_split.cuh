// The shift of a row that has seen no key, or only scores of -inf. Where numbers are split, K's infinities
// become 2^119 (ptx/finite.cuh), so such a score is -2^119 times a number of Q. The shift lies above it if
// that number is above 2^-19.
#pragma once

constexpr float kUnset = -0x1p100f;

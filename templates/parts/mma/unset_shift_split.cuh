// The shift of a row that has seen no key, or only scores of -inf. Where numbers are split, K's infinities
// become ±0x1.fep127 (ptx/finite.cuh), so such a score is -0x1.fep127 times a number of Q. The shift lies
// above it.
#pragma once

constexpr float kUnset = -0x1p120f;

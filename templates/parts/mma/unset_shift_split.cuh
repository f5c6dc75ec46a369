// The shift of a row that has seen no key, or scores of -inf only. These are -0x1.fep127 times a number of Q
// where numbers are split (ptx/finite.cuh), so the shift lies above what such a score comes to.
#pragma once

constexpr float kUnset = -0x1p120f;

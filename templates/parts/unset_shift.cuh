// The shift of a row that has seen no key, or scores of -inf only: finite, so that no difference is NaN, and
// the lowest there is.
#pragma once

constexpr float kUnset = -0x1.fffffep127f;

// The shift of a row that has seen no key, or only scores of -inf: finite, so that no difference is NaN, and
// the lowest finite number.
#pragma once

constexpr float kUnset = -0x1.fffffep127f;

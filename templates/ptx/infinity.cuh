// The infinity of fp32.
#pragma once

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

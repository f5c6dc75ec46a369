// Elements of a tensor that are read and written together: 16 bytes.
#pragma once

constexpr int kVector = 16 / kElementBytes;

// A driver for a command's environment that fails (broken_driver.cpp).
#pragma once

namespace flashjit::test {

inline constexpr const char* kBrokenDriver =
    "LD_LIBRARY_PATH='" BROKEN_DRIVER_FOLDER "'${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}";

}  // namespace flashjit::test

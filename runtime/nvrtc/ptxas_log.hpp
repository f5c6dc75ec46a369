// What ptxas -v reports, as numbers.
#pragma once

#include <string_view>

#include "runtime/compile.hpp"

namespace flashjit::runtime {

// Registers, stack, shared memory and barriers of the entry; spills of all functions; every warning and every
// numbered remark such as C7510. What is not in the log stays 0.
Resources parse_ptxas_log(std::string_view log, std::string_view entry);

}  // namespace flashjit::runtime

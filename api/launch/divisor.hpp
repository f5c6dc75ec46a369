// What kernels divide by (templates/parts/divide.cuh).
#pragma once

#include "templates/params/divisor.h"

namespace flashjit::api {

// divisor: 1 … 2^31 - 1.
Divisor divisor_of(long long divisor);

}  // namespace flashjit::api

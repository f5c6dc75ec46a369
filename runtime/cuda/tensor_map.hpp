// TMA descriptors for a GPU.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "runtime/device.hpp"

namespace flashjit::runtime {

// Throws Error{invalid_argument} that names the wrong field, which cuTensorMapEncodeTiled would not.
TensorMap encode_tensor_map(const Driver& driver, const TensorMapRequest& request);

}  // namespace flashjit::runtime

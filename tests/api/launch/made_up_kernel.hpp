// A kernel that nobody wrote, for geometry that no family of sm_80 has.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/api/support.hpp"

namespace flashjit::test {

inline std::shared_ptr<const api::LoadedPlan> kernel(FakeDevice& device, const Geometry& geometry,
                                                     std::vector<TensorMapSpec> maps = {},
                                                     int ctas_per_sm = 1) {
  auto made = std::make_shared<api::LoadedPlan>();
  made->problem = kProblem;
  api::KernelCode code;
  code.source.entry = "test";
  code.source.geometry = geometry;
  code.source.maps = std::move(maps);
  made->kernels.push_back({.code = std::make_shared<const api::KernelCode>(std::move(code)),
                           .ctas_per_sm = ctas_per_sm,
                           .kernel = device.load({.entry = "test", .ptx = {}, .cubin = {}, .origins = {}})});
  return made;
}

}  // namespace flashjit::test

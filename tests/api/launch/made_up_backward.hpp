// A backward pass that nobody wrote: its kernels, and memory for its tensors.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "api/launch/launcher.hpp"
#include "tests/api/support.hpp"

namespace flashjit::test {

inline const Problem kBackward{.pass = Pass::backward, .dtype = DType::bf16, .head_dim = 64, .causal = true};

struct Memory {
  alignas(256) std::byte q[256], k[256], v[256], o[256], dout[256], lse[256], dq[256], dk[256], dv[256],
      workspace[256];
  BackwardArgs args() {
    return {.q = q,
            .k = k,
            .v = v,
            .o = o,
            .dout = dout,
            .lse = reinterpret_cast<float*>(lse),
            .dq = dq,
            .dk = dk,
            .dv = dv};
  }
};

// A plan of kernels that nobody wrote: one over query tiles, one over key tiles, which it may take off a
// counter and divide, one over query tiles.
inline std::shared_ptr<const api::LoadedPlan> plan(FakeDevice& device, DqWay way,
                                                   const std::vector<TensorMapSpec>& maps = {},
                                                   bool dynamic = false, bool divides = false) {
  auto made = std::make_shared<api::LoadedPlan>();
  made->problem = kBackward;
  made->schedule = WgmmaBackwardSchedule{.tile_m = 64, .tile_n = 96, .dq = static_cast<int>(way)};
  const auto add = [&](const char* entry, const Geometry& geometry) {
    api::KernelCode code;
    code.source.entry = entry;
    code.source.geometry = geometry;
    code.source.maps = maps;
    made->kernels.push_back({.code = std::make_shared<const api::KernelCode>(std::move(code)),
                             .kernel = device.load({.entry = entry, .ptx = {}, .cubin = {}, .origins = {}})});
  };
  add("first", {.tile_m = 128, .threads = 256});
  add("keys", {.grid = Grid::key_tiles,
               .tile_m = 64,
               .tile_n = 96,
               .threads = 128,
               .dynamic = dynamic,
               .divides = divides});
  add("last", {.tile_m = 64, .threads = 64});
  return made;
}

}  // namespace flashjit::test

// What the handles of the C interface point at.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "api/engine_state.hpp"
#include "flashjit/flashjit.h"
#include "flashjit/flashjit.hpp"

struct flashjit_engine {
  std::shared_ptr<flashjit::EngineState> state;
  flashjit::Engine engine;
  std::string device, description;
  // What flashjit_allocate returned and flashjit_free has not received yet. Without this set flashjit_free
  // would free foreign memory, since a GPU's driver frees whatever it knows, no matter who allocated it.
  std::mutex mutex{};
  std::unordered_set<void*> allocated{};

  // Frees the rest, since nobody could free it without the engine.
  ~flashjit_engine() {
    for (void* const memory : allocated) state->device().free(memory);
  }
};

struct flashjit_plan {
  flashjit::Plan plan;
  std::string kernel;
  std::vector<flashjit::KernelView> kernels;  // views of std::strings, so that each ends in a zero
};

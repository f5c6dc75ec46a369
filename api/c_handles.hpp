// What a program that calls the C interface has handles of.
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
  // What flashjit_allocate gave and flashjit_free has not had yet: a GPU's driver frees whatever it knows,
  // whoever made it.
  std::mutex mutex{};
  std::unordered_set<void*> allocated{};

  // The rest goes with the engine, without which nobody could free it.
  ~flashjit_engine() {
    for (void* const memory : allocated) state->device().free(memory);
  }
};

struct flashjit_plan {
  flashjit::Plan plan;
  std::string kernel;
  std::vector<flashjit::KernelView> kernels;  // of strings, so that each ends in a zero
};

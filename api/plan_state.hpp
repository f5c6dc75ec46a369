// What is behind a Plan.
#pragma once

#include <memory>

#include "api/engine_state.hpp"
#include "flashjit/plan.hpp"

namespace flashjit {

class PlanState {
 public:
  std::shared_ptr<EngineState> engine;  // first, so that the device goes last
  std::shared_ptr<const api::Launcher> launcher;
  Problem problem;
  Shape shape;
  Origin origin;
};

}  // namespace flashjit

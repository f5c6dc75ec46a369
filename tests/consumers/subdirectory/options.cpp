// Calls as docs/api.md shows them, with some fields left out: none is a warning in a consumer's code.
#include <flashjit/flashjit.hpp>

flashjit::EngineOptions engine_options() {
  return {.device = "emulated:sm_80", .tuning = flashjit::Tuning::quick};
}

flashjit::Plan plan(flashjit::Engine& engine) {
  return engine.plan({.pass = flashjit::Pass::backward, .head_dim = 64}, {.batch = 1, .seqlen_q = 16},
                     {.tuning = flashjit::Tuning::quick});
}

void launch(const flashjit::Plan& forward, const flashjit::Plan& backward, const void* q) {
  forward.forward({.q = q, .q_strides = {.head = 64}});
  backward.backward({.q = q, .q_strides = {.head = 64}});
}

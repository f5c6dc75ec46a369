// flashjit: FlashAttention kernels, written, compiled, tuned and cached at run time. Include this one header.
//
//   flashjit::Engine engine;
//   flashjit::Plan plan = engine.plan({.head_dim = 128, .causal = true},
//                                     {.batch = 4, .heads = 32, .heads_kv = 8, .seqlen_q = 4096, .seqlen_k =
//                                     4096});
//   plan.forward({.q = q, .k = k, .v = v, .o = o}, stream);
#pragma once

#include "flashjit/engine.hpp"
#include "flashjit/error.hpp"
#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"

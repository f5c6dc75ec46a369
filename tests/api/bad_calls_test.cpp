// Every argument of Engine and Plan that can be wrong: the call throws, names the argument, and launches
// nothing.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/api/support.hpp"

namespace flashjit::test {
namespace {

struct Case {
  const char* what;
  std::function<void(Engine&, const Plan&, Pointers&)> call;
  ErrorCode code;
  std::vector<const char*> says;  // all of these are in the message
};

const auto kBad = ErrorCode::invalid_argument;

// A call of forward with one thing changed.
std::function<void(Engine&, const Plan&, Pointers&)> forward(
    std::function<void(ForwardArgs&, Pointers&)> change) {
  return [change = std::move(change)](Engine&, const Plan& plan, Pointers& pointers) {
    ForwardArgs args = pointers.args();
    change(args, pointers);
    plan.forward(args);
  };
}

std::function<void(Engine&, const Plan&, Pointers&)> plan_of(
    std::function<void(Problem&, Shape&, PlanOptions&)> change) {
  return [change = std::move(change)](Engine& engine, const Plan&, Pointers&) {
    Problem problem = kProblem;
    Shape shape = kShape;
    PlanOptions options;
    change(problem, shape, options);
    static_cast<void>(engine.plan(problem, shape, options));
  };
}

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

const std::vector<Case> kCases = {
    // Problem and Shape
    {"head_dim 0", plan_of([](auto& p, auto&, auto&) { p.head_dim = 0; }), kBad, {"head_dim is 0", "multiple of 8"}},
    {"head_dim 12", plan_of([](auto& p, auto&, auto&) { p.head_dim = 12; }), kBad, {"head_dim is 12"}},
    {"head_dim 264", plan_of([](auto& p, auto&, auto&) { p.head_dim = 264; }), kBad, {"head_dim is 264", "256"}},
    {"head_dim -8", plan_of([](auto& p, auto&, auto&) { p.head_dim = -8; }), kBad, {"head_dim is -8"}},
    {"head_dim_v 20", plan_of([](auto& p, auto&, auto&) { p.head_dim_v = 20; }), kBad, {"head_dim_v is 20"}},
    {"head_dim_v -1", plan_of([](auto& p, auto&, auto&) { p.head_dim_v = -1; }), kBad, {"head_dim_v is -1"}},
    {"batch -1", plan_of([](auto&, auto& s, auto&) { s.batch = -1; }), kBad, {"batch is -1"}},
    {"heads 0", plan_of([](auto&, auto& s, auto&) { s.heads = 0; }), kBad, {"heads is 0"}},
    {"heads 5 of 2", plan_of([](auto&, auto& s, auto&) { s.heads = 5; }), kBad, {"heads is 5", "heads_kv"}},
    {"heads_kv 3", plan_of([](auto&, auto& s, auto&) { s.heads_kv = 3; }), kBad, {"heads", "heads_kv 3"}},
    {"heads_kv -2", plan_of([](auto&, auto& s, auto&) { s.heads_kv = -2; }), kBad, {"heads_kv is -2"}},
    {"heads_kv 8 of 4", plan_of([](auto&, auto& s, auto&) { s.heads_kv = 8; }), kBad, {"heads_kv 8"}},
    {"seqlen_q -1", plan_of([](auto&, auto& s, auto&) { s.seqlen_q = -1; }), kBad, {"seqlen_q is -1"}},
    {"seqlen_k -7", plan_of([](auto&, auto& s, auto&) { s.seqlen_k = -7; }), kBad, {"seqlen_k is -7"}},
    {"dtype 7", plan_of([](auto& p, auto&, auto&) { p.dtype = static_cast<DType>(7); }), kBad, {"dtype"}},
    {"pass 7", plan_of([](auto& p, auto&, auto&) { p.pass = static_cast<Pass>(7); }), kBad, {"pass"}},
    // PlanOptions
    {"schedule nonsense", plan_of([](auto&, auto&, auto& o) { o.schedule = "nonsense"; }), kBad, {"nonsense"}},
    {"schedule without a number", plan_of([](auto&, auto&, auto& o) { o.schedule = "mma:m"; }), kBad, {"mma:m"}},
    {"schedule of another family",
     plan_of([](auto&, auto&, auto& o) { o.schedule = "simt:m64n64w4s1", o.family = "mma"; }), kBad, {"simt:m64n64w4s1", "mma"}},
    {"family fma", plan_of([](auto&, auto&, auto& o) { o.family = "fma"; }), kBad, {"family is \"fma\"", "simt, mma, wgmma"}},
    {"wgmma on sm_80", plan_of([](auto&, auto&, auto& o) { o.family = "wgmma"; }), ErrorCode::unsupported, {"sm_80", "wgmma"}},
    {"fp32 with wgmma", plan_of([](auto& p, auto&, auto& o) { p.dtype = DType::fp32, o.family = "wgmma"; }),
     ErrorCode::unsupported, {"fp32", "wgmma"}},
    {"a tile that does not fit", plan_of([](auto& p, auto&, auto& o) { p.head_dim = 256, o.schedule = "mma:m256n256w8s4"; }),
     ErrorCode::unsupported, {"shared memory"}},
    {"tuning 9", plan_of([](auto&, auto&, auto& o) { o.tuning = static_cast<Tuning>(9); }), kBad,
     {"tuning is 9, may be off (0), quick (1) or full (2)"}},
    // Pointers
    {"q null", forward([](auto& a, auto&) { a.q = nullptr; }), kBad, {"q is ", "16 bytes"}},
    {"k null", forward([](auto& a, auto&) { a.k = nullptr; }), kBad, {"k is "}},
    {"v null", forward([](auto& a, auto&) { a.v = nullptr; }), kBad, {"v is "}},
    {"o null", forward([](auto& a, auto&) { a.o = nullptr; }), kBad, {"o is "}},
    {"q unaligned", forward([](auto& a, auto& p) { a.q = p.q + 8; }), kBad, {"q is ", "16 bytes"}},
    {"k unaligned", forward([](auto& a, auto& p) { a.k = p.k + 2; }), kBad, {"k is "}},
    {"v unaligned", forward([](auto& a, auto& p) { a.v = p.v + 4; }), kBad, {"v is "}},
    {"o unaligned", forward([](auto& a, auto& p) { a.o = p.o + 1; }), kBad, {"o is "}},
    {"lse unaligned", forward([](auto& a, auto& p) { a.lse = reinterpret_cast<float*>(p.lse + 2); }), kBad, {"lse is ", "4 bytes"}},
    {"o is q", forward([](auto& a, auto& p) { a.o = p.q; }), kBad, {"o is the same memory as q"}},
    {"o is k", forward([](auto& a, auto& p) { a.o = p.k; }), kBad, {"o is the same memory as k"}},
    {"o is v", forward([](auto& a, auto& p) { a.o = p.v; }), kBad, {"o is the same memory as v"}},
    {"lse is o", forward([](auto& a, auto& p) { a.lse = reinterpret_cast<float*>(p.o); }), kBad, {"lse is the same memory as o"}},
    {"lse is q", forward([](auto& a, auto& p) { a.lse = reinterpret_cast<float*>(p.q); }), kBad, {"lse is the same memory as q"}},
    {"lse is k", forward([](auto& a, auto& p) { a.lse = reinterpret_cast<float*>(p.k); }), kBad, {"lse is the same memory as k"}},
    {"lse is v", forward([](auto& a, auto& p) { a.lse = reinterpret_cast<float*>(p.v); }), kBad, {"lse is the same memory as v"}},
    {"lse without LSE",
     [](Engine& engine, const Plan&, Pointers& p) {
       Problem problem = kProblem;
       problem.lse = false;
       engine.plan(problem, kShape).forward(p.args());
     },
     kBad, {"lse is given", "lse = false"}},
    // Scale
    {"scale NaN", forward([](auto& a, auto&) { a.scale = kNan; }), kBad, {"scale is nan"}},
    {"scale inf", forward([](auto& a, auto&) { a.scale = kInf; }), kBad, {"scale is inf"}},
    {"scale 0", forward([](auto& a, auto&) { a.scale = 0.0F; }), kBad, {"scale is 0"}},
    {"scale -1", forward([](auto& a, auto&) { a.scale = -1.0F; }), kBad, {"scale is -1"}},
    {"scale denormal", forward([](auto& a, auto&) { a.scale = 1e-40F; }), kBad, {"scale is 1"}},
    {"scale too large", forward([](auto& a, auto&) { a.scale = 3e38F; }), kBad, {"scale is 3"}},
    // Strides
    {"q row stride 36", forward([](auto& a, auto&) { a.q_strides = {40000, 64, 36}; }), kBad, {"q_strides.row is 36", "multiple of 8"}},
    {"q row stride too short", forward([](auto& a, auto&) { a.q_strides = {40000, 64, 56}; }), kBad, {"q_strides.row is 56", "64"}},
    {"q row stride 0", forward([](auto& a, auto&) { a.q_strides = {40000, 64, 0}; }), kBad, {"q_strides.row is 0"}},
    {"q head stride 3", forward([](auto& a, auto&) { a.q_strides = {40000, 3, 256}; }), kBad, {"q_strides.head is 3"}},
    {"q batch stride 4", forward([](auto& a, auto&) { a.q_strides = {4, 64, 256}; }), kBad, {"q_strides.batch is 4"}},
    {"k row stride negative", forward([](auto& a, auto&) { a.k_strides = {40000, 64, -128}; }), kBad, {"k_strides.row is -128"}},
    {"k head stride 8", forward([](auto& a, auto&) { a.k_strides = {40000, 8, 128}; }), kBad, {"k_strides.head is 8"}},
    {"v row stride 65", forward([](auto& a, auto&) { a.v_strides = {40000, 64, 65}; }), kBad, {"v_strides.row is 65"}},
    {"v batch stride -8", forward([](auto& a, auto&) { a.v_strides = {-8, 64, 128}; }), kBad, {"v_strides.batch is -8"}},
    {"o head stride 0", forward([](auto& a, auto&) { a.o_strides = {40000, 0, 256}; }), kBad, {"o_strides.head is 0"}},
    {"o batch stride 0", forward([](auto& a, auto&) { a.o_strides = {0, 64, 256}; }), kBad, {"o_strides.batch is 0"}},
    {"o rows overlap heads", forward([](auto& a, auto&) { a.o_strides = {40000, 64, 128}; }), kBad, {"o_strides", "overlap"}},
    {"o heads and rows interleave", forward([](auto& a, auto&) {
       a.shape = Shape{.heads = 3, .seqlen_q = 2, .seqlen_k = 1};
       a.o_strides = {40000, 128, 192};  // no two elements meet, but nobody looks that closely
     }),
     kBad, {"o_strides", "may overlap"}},
    {"o batches overlap", forward([](auto& a, auto&) { a.o_strides = {256 * 100, 64, 256}; }), kBad, {"o_strides", "overlap"}},
    {"o strides overflow", forward([](auto& a, auto&) { a.o_strides = {std::int64_t{1} << 62, 64, std::int64_t{1} << 56}; }),
     kBad, {"o_strides.batch", "to 549755813880"}},
    // The call's own shape
    {"shape batch -1", forward([](auto& a, auto&) { a.shape = Shape{.batch = -1}; }), kBad, {"batch is -1"}},
    {"shape heads 6 of 4", forward([](auto& a, auto&) { a.shape = Shape{.heads = 6, .heads_kv = 4, .seqlen_q = 1}; }), kBad, {"heads is 6"}},
    {"shape with too many tiles",
     forward([](auto& a, auto&) { a.shape = Shape{.batch = 1 << 20, .heads = 1 << 16, .seqlen_q = 1, .seqlen_k = 1}; }), kBad,
     {"shape", "tiles", "1073741823"}},
    {"shape with keys up to 2^31", forward([](auto& a, auto&) { a.shape = Shape{.seqlen_q = 1, .seqlen_k = 2147483600}; }), kBad,
     {"seqlen_k is 2147483600", "2147483135"}},
    {"shape with more than 2^63 elements",
     forward([](auto& a, auto&) {
       const int most = std::numeric_limits<int>::max();
       a.shape = Shape{.batch = most, .heads = most, .seqlen_q = most - 512, .seqlen_k = most - 512};
     }),
     kBad, {"shape is too large: q is 2147483647x2147483135x2147483647x64", "2^63 elements"}},
    // Copies
    {"upload too much",
     [](Engine& engine, const Plan&, Pointers& p) {
       const Buffer buffer = engine.allocate(16);
       engine.upload(buffer, p.q, 17);
     },
     kBad, {"bytes is 17", "16 bytes of to"}},
    {"upload from null",
     [](Engine& engine, const Plan&, Pointers&) {
       const Buffer buffer = engine.allocate(16);
       engine.upload(buffer, nullptr, 16);
     },
     kBad, {"from is null"}},
    {"upload to a Buffer of another Engine",
     [](Engine& engine, const Plan&, Pointers& p) {
       Engine other("emulated:sm_80");
       engine.upload(other.allocate(16), p.q, 16);
     },
     kBad, {"to is a Buffer of another Engine"}},
    {"download too much",
     [](Engine& engine, const Plan&, Pointers& p) {
       const Buffer buffer = engine.allocate(16);
       engine.download(p.q, buffer, 32);
     },
     kBad, {"bytes is 32", "16 bytes of from"}},
    {"download to null",
     [](Engine& engine, const Plan&, Pointers&) {
       const Buffer buffer = engine.allocate(16);
       engine.download(nullptr, buffer, 16);
     },
     kBad, {"to is null"}},
};

TEST_CASE("a wrong argument is named, and nothing is launched") {
  CompilerScript script;
  FakeEngine fake(script);
  const Plan plan = fake.engine->plan(kProblem, kShape);
  Pointers pointers;
  for (const Case& c : kCases) {
    CAPTURE(c.what);
    bool threw = false;
    try {
      c.call(*fake.engine, plan, pointers);
    } catch (const Error& error) {
      threw = true;
      CAPTURE(error.message());
      CHECK(error.code() == c.code);
      for (const char* words : c.says)
        CHECK_MESSAGE(std::string(error.message()).find(words) != std::string::npos, words);
    }
    CHECK(threw);
  }
  CHECK(fake.device->launches().empty());
  CHECK(fake.messages->empty());
}

TEST_CASE("a tuning that is none") {
  EngineOptions options;
  options.device = "emulated:sm_80";
  options.tuning = static_cast<Tuning>(-1);
  try {
    const EngineState state(options);
    FAIL("an engine was made");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(error.message() == "tuning is -1, may be off (0), quick (1) or full (2)");
  }
}

TEST_CASE("a tuning budget below 0, or of more than a day") {
  using std::chrono::milliseconds;
  EngineOptions options;
  options.device = "emulated:sm_80";
  options.use_cache = false;
  for (const milliseconds budget : {milliseconds(-5), milliseconds(86'400'001), milliseconds::max()}) {
    options.tuning_budget = budget;
    try {
      const EngineState state(options);
      FAIL("an engine was made");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK(error.message() ==
            fmt::format("tuning_budget is {} ms, may be 0 to 86400000 ms, a day", budget.count()));
    }
  }
  options.tuning_budget = std::chrono::hours(24);
  CHECK_NOTHROW(EngineState{options});
}

TEST_CASE("a device that is none") {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "emulated",
                           "emulated:", "emulated:sm_42", "emulated:80"}) {
    CAPTURE(name);
    try {
      const Engine engine{std::string_view(name)};
      FAIL("an engine was made");
    } catch (const Error& error) {
      CAPTURE(error.message());
      // "cuda:x" may first find that there is no driver, which is as true.
      CHECK((error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::not_found));
      CHECK(error.message().size() > 10);
    }
  }
}

}  // namespace
}  // namespace flashjit::test

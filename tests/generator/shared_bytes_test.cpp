// How much shared memory kernels ask for, added up by hand.
#include <doctest/doctest.h>

#include "generator/render.hpp"
#include "tests/generator/legality.hpp"

using namespace flashjit;
using flashjit::test::kBf16;
using flashjit::test::kFp32;

namespace {

// Of the kernel that the plan spends its time in.
int shared_bytes(const Problem& problem, const char* schedule) {
  const auto kernels = render(problem, parse_schedule(schedule), target_of("sm_90a"));
  return kernels[problem.pass == Pass::forward ? 0 : 1].geometry.shared_bytes;
}

}  // namespace

TEST_CASE("simt: shared memory holds Q, P, and K and V in turns or side by side") {
  const int q = 64 * 68, k = 32 * 68, v = 32 * 64, p = 64 * 48;
  CHECK(shared_bytes(kFp32, "simt:m64n32w4s1") == 4 * (q + p + k));
  CHECK(shared_bytes(kFp32, "simt:m64n32w4s2") == 4 * (q + p + k + v));
}

TEST_CASE("mma-backward: shared memory holds K, V and P^T, and stages with the rows' statistics and dS^T") {
  const Problem gradients{.pass = Pass::backward, .head_dim = 64};
  const int tile = 64 * 128, statistics = 64 * 8, scores = 64 * 64 * 2;
  CHECK(shared_bytes(gradients, "mma-backward:m64n64w8s2dq1") ==
        2 * tile + 2 * (2 * tile + statistics) + scores + 2 * scores);
  CHECK(shared_bytes(gradients, "mma-backward:m64n64w8s1sp2") == 4 * tile + statistics + 2 * scores);
  CHECK(shared_bytes(gradients, "mma-backward:m64n64w8s1") == 4 * tile + statistics + scores);
}

TEST_CASE("mma: shared memory holds Q, K and V, and then O") {
  CHECK(shared_bytes(kBf16, "mma:m64n64w4s2") == 64 * 128 + 2 * 2 * 64 * 128);
  CHECK(shared_bytes(kBf16, "mma:m128n64w8s2qr1kv1") == 3 * 64 * 128 + 128 * 128);  // Q in the last V's place
  CHECK(shared_bytes({.head_dim = 64, .head_dim_v = 256}, "mma:m64n16w4s1kv1") == 64 * 512);
  CHECK(shared_bytes({.head_dim = 192}, "mma:m128n48w8s1kv1p1") == (48 + 128 + 128) * 384);  // O in V's place
}

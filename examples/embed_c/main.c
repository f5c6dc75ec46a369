/* Attention from C through flashjit: the smallest program that runs a kernel. With equal keys, o is the mean
 * of v. */
#include <stdio.h>
#include <stdlib.h>

#include "flashjit/flashjit.h"

enum { kHeadDim = 64, kRows = 4, kKeys = 3 };

static void check(enum flashjit_status status) {
  if (status == FLASHJIT_OK) return;
  fprintf(stderr, "embed_c: %s\n", flashjit_last_error());
  exit(2);
}

static void* uploaded(struct flashjit_engine* engine, const float* values, size_t bytes) {
  void* memory = NULL;
  check(flashjit_allocate(engine, bytes, &memory));
  check(flashjit_upload(engine, memory, values, bytes, NULL));
  return memory;
}

int main(int argc, char** argv) {
  const struct flashjit_engine_options options = {.size = sizeof options,
                                                  .device = argc > 1 ? argv[1] : "cuda"};
  const struct flashjit_problem problem = {
      .size = sizeof problem, .dtype = FLASHJIT_FP32, .head_dim = kHeadDim};
  const struct flashjit_shape shape = {
      .size = sizeof shape, .batch = 1, .heads = 1, .seqlen_q = kRows, .seqlen_k = kKeys};
  struct flashjit_engine* engine = NULL;
  struct flashjit_plan* plan = NULL;
  check(flashjit_engine_create(&options, &engine));
  check(flashjit_plan_create(engine, &problem, &shape, NULL, &plan));

  struct flashjit_origin origin = {.size = sizeof origin};
  check(flashjit_plan_origin(plan, &origin));
  printf("%s\n%s, %s, %s\n", flashjit_engine_device(engine), origin.kernel, origin.choice, origin.code);

  static float q[kRows * kHeadDim], k[kKeys * kHeadDim], v[kKeys * kHeadDim], o[kRows * kHeadDim];
  for (int i = 0; i < kRows * kHeadDim; ++i) q[i] = (float)(i % 7);
  for (int i = 0; i < kKeys * kHeadDim; ++i) k[i] = 1, v[i] = (float)(i / kHeadDim);
  void* const there[] = {uploaded(engine, q, sizeof q), uploaded(engine, k, sizeof k),
                         uploaded(engine, v, sizeof v), uploaded(engine, o, sizeof o)};
  const struct flashjit_forward_args args = {
      .size = sizeof args, .q = there[0], .k = there[1], .v = there[2], .o = there[3]};
  check(flashjit_forward(plan, &args, NULL));
  check(flashjit_download(engine, o, there[3], sizeof o, NULL));

  int wrong = 0;
  for (int i = 0; i < kRows * kHeadDim; ++i) wrong += !(o[i] > 0.9999F && o[i] < 1.0001F);
  printf("%s\n", wrong == 0 ? "right" : "WRONG");
  for (int i = 0; i < 4; ++i) check(flashjit_free(engine, there[i]));
  flashjit_plan_destroy(plan);
  flashjit_engine_destroy(engine);
  return wrong != 0;
}

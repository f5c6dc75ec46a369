/* The C interface from C11, as a C program sees it: returns the number of failed checks. Run by
 * c_abi_test.cpp. */
#include "flashjit/flashjit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int run_c_abi_checks(void);

static int failures;

static void check(int holds, const char* what) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "c_abi_test: %s\n  last error: %s\n", what, flashjit_last_error());
}

static int says(const char* words) {
  return strstr(flashjit_last_error(), words) != NULL;
}

static int messages;
static void count_message(void* context, const char* line) {
  if (line != NULL) ++*(int*)context;
}

static void check_engine_arguments(void) {
  struct flashjit_engine* engine = NULL;
  struct flashjit_engine_options options = {
      .size = sizeof options, .device = "emulated:sm_80", .no_cache = 1};
  check(flashjit_engine_create(&options, NULL) == FLASHJIT_INVALID_ARGUMENT && says("engine is null"),
        "null engine");
  options.size = 0;
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT && says("size is 0"),
        "size 0");
  check(engine == NULL, "no engine was made");
  options.size = sizeof options;
  options.tuning = 3;
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT && says("tuning is 3"),
        "tuning 3");
  options.tuning = 0;
  options.tuning_budget_ms = -1;
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT &&
            says("tuning_budget_ms is -1"),
        "budget");
  options.tuning_budget_ms = 86400001;
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT &&
            says("tuning_budget_ms is 86400001, may be 0 to 86400000, a day"),
        "a budget of more than a day");
  options.tuning_budget_ms = 0;
  options.reserved = 1;
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT && says("reserved is 1"),
        "reserved");
  options.reserved = 0;
  options.device = "emulated:sm_42";
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT && says("sm_42"),
        "unknown arch");
  options.device = "gpu";
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT && says("device is \"gpu\""),
        "unknown device");
  flashjit_engine_destroy(NULL);
}

static void check_sizes(void) {
  /* A struct of a later version is fine while what we do not know is zero. */
  struct {
    struct flashjit_engine_options known;
    int more;
  } later = {.known = {.size = sizeof later, .device = "emulated:sm_80", .no_cache = 1}, .more = 0};
  struct flashjit_engine* engine = NULL;
  check(flashjit_engine_create(&later.known, &engine) == FLASHJIT_OK, "a longer struct of zeros");
  flashjit_engine_destroy(engine);
  engine = NULL;
  later.more = 7;
  check(flashjit_engine_create(&later.known, &engine) == FLASHJIT_INVALID_ARGUMENT && says("does not know"),
        "an unknown field");
  later.more = 0;
  later.known.size = 28; /* through the middle of cache_dir */
  check(flashjit_engine_create(&later.known, &engine) == FLASHJIT_INVALID_ARGUMENT &&
            says("flashjit_engine_options.size is 28"),
        "a field in two");
  /* One of an earlier version ends before our last fields. */
  struct flashjit_engine_options earlier = {.size = offsetof(struct flashjit_engine_options, on_message),
                                            .device = "emulated:sm_80",
                                            .no_cache = 1};
  check(flashjit_engine_create(&earlier, &engine) == FLASHJIT_OK, "a shorter struct");
  flashjit_engine_destroy(engine);
}

static void check_calls(struct flashjit_engine* engine) {
  struct flashjit_problem problem = {.size = sizeof problem, .head_dim = 64};
  struct flashjit_shape shape = {
      .size = sizeof shape, .batch = 1, .heads = 2, .seqlen_q = 16, .seqlen_k = 16};
  struct flashjit_plan* plan = NULL;
  check(flashjit_plan_create(NULL, &problem, &shape, NULL, &plan) == FLASHJIT_INVALID_ARGUMENT &&
            says("engine is null"),
        "plan: engine");
  check(flashjit_plan_create(engine, NULL, &shape, NULL, &plan) == FLASHJIT_INVALID_ARGUMENT &&
            says("problem is null"),
        "plan: problem");
  check(flashjit_plan_create(engine, &problem, NULL, NULL, &plan) == FLASHJIT_INVALID_ARGUMENT &&
            says("shape is null"),
        "plan: shape");
  check(flashjit_plan_create(engine, &problem, &shape, NULL, NULL) == FLASHJIT_INVALID_ARGUMENT &&
            says("plan is null"),
        "plan: plan");
  problem.dtype = 3;
  check(flashjit_plan_create(engine, &problem, &shape, NULL, &plan) == FLASHJIT_INVALID_ARGUMENT &&
            says("dtype is 3"),
        "dtype");
  problem.dtype = FLASHJIT_FP16;
  problem.pass = -1;
  check(flashjit_plan_create(engine, &problem, &shape, NULL, &plan) == FLASHJIT_INVALID_ARGUMENT &&
            says("pass is -1"),
        "pass");
  problem.pass = FLASHJIT_FORWARD;
  problem.head_dim = 12;
  check(
      flashjit_prepare(engine, &problem, &shape, NULL) == FLASHJIT_INVALID_ARGUMENT && says("head_dim is 12"),
      "head_dim");
  problem.head_dim = 64;
  shape.heads_kv = 3;
  check(flashjit_prepare(engine, &problem, &shape, NULL) == FLASHJIT_INVALID_ARGUMENT && says("heads_kv 3"),
        "heads_kv");
  shape.heads_kv = 0;
  shape.batch = 0;
  check(flashjit_prepare(engine, &problem, &shape, NULL) == FLASHJIT_INVALID_ARGUMENT &&
            says("batch is 0 or left out, may be 1 or more"),
        "prepare: batch");
  check(flashjit_plan_create(engine, &problem, &shape, NULL, &plan) == FLASHJIT_INVALID_ARGUMENT &&
            says("batch is 0 or left out, may be 1 or more"),
        "plan: batch");
  shape.batch = 1;
  shape.heads = 0;
  check(flashjit_prepare(engine, &problem, &shape, NULL) == FLASHJIT_INVALID_ARGUMENT && says("heads is 0"),
        "heads");
  shape.heads = 2;
  struct flashjit_plan_options options = {.size = sizeof options, .family = "none"};
  check(flashjit_prepare(engine, &problem, &shape, &options) == FLASHJIT_INVALID_ARGUMENT &&
            says("family is \"none\""),
        "family");
  options.family = NULL;
  options.schedule = "mma:q";
  check(flashjit_prepare(engine, &problem, &shape, &options) == FLASHJIT_INVALID_ARGUMENT && says("mma:q"),
        "schedule");
  check(plan == NULL, "no plan was made");

  struct flashjit_forward_args args = {.size = sizeof args};
  struct flashjit_origin origin = {.size = sizeof origin};
  check(flashjit_forward(NULL, &args, NULL) == FLASHJIT_INVALID_ARGUMENT && says("plan is null"),
        "forward: plan");
  check(flashjit_plan_origin(NULL, &origin) == FLASHJIT_INVALID_ARGUMENT && says("plan is null"),
        "origin: plan");
  flashjit_plan_destroy(NULL);

  void* memory = NULL;
  char bytes[32] = "thirty-two bytes of some kind...";
  char back[32] = {0};
  check(flashjit_allocate(engine, sizeof bytes, NULL) == FLASHJIT_INVALID_ARGUMENT && says("memory is null"),
        "allocate");
  check(flashjit_allocate(engine, sizeof bytes, &memory) == FLASHJIT_OK && memory != NULL, "allocate");
  check(flashjit_upload(engine, NULL, bytes, 1, NULL) == FLASHJIT_INVALID_ARGUMENT && says("to is null"),
        "upload to null");
  check(flashjit_upload(engine, memory, NULL, 1, NULL) == FLASHJIT_INVALID_ARGUMENT && says("from is null"),
        "upload from null");
  check(flashjit_download(engine, NULL, memory, 1, NULL) == FLASHJIT_INVALID_ARGUMENT && says("to is null"),
        "download");
  check(flashjit_upload(engine, memory, bytes, sizeof bytes + 1, NULL) == FLASHJIT_INVALID_ARGUMENT &&
            says("to is 33 bytes at 0x") && says("bytes 0 to 33 of an allocation of 32 bytes"),
        "upload too much");
  check(flashjit_download(engine, back, memory, sizeof back + 1, NULL) == FLASHJIT_INVALID_ARGUMENT &&
            says("from is 33 bytes at 0x"),
        "download too much");
  check(flashjit_upload(engine, memory, bytes, sizeof bytes, NULL) == FLASHJIT_OK, "upload");
  check(flashjit_download(engine, back, memory, sizeof back, NULL) == FLASHJIT_OK, "download");
  check(memcmp(bytes, back, sizeof back) == 0, "what went up came down");
  check(flashjit_synchronize(engine, NULL) == FLASHJIT_OK, "synchronize");
  check(flashjit_synchronize(NULL, NULL) == FLASHJIT_INVALID_ARGUMENT, "synchronize nothing");
  check(flashjit_free(engine, memory) == FLASHJIT_OK, "free");
  check(flashjit_free(engine, memory) == FLASHJIT_INVALID_ARGUMENT && says("pointer is 0x") &&
            says("may be null or what flashjit_allocate gave"),
        "free twice");
  check(flashjit_free(engine, back) == FLASHJIT_INVALID_ARGUMENT && says("pointer is 0x"),
        "free what is not the engine's");
  check(flashjit_free(engine, NULL) == FLASHJIT_OK, "free null");
}

/* One row and one key: whatever q and k say, o is v. */
static void check_forward(struct flashjit_engine* engine) {
  struct flashjit_problem problem = {.size = sizeof problem, .dtype = FLASHJIT_FP32, .head_dim = 8};
  struct flashjit_shape shape = {.size = sizeof shape, .batch = 1, .heads = 1, .seqlen_q = 1, .seqlen_k = 1};
  struct flashjit_plan* plan = NULL;
  const enum flashjit_status made = flashjit_plan_create(engine, &problem, &shape, NULL, &plan);
  if (made == FLASHJIT_NOT_FOUND) {
    fprintf(stderr, "c_abi_test: no NVRTC here, forward is not run: %s\n", flashjit_last_error());
    return;
  }
  check(made == FLASHJIT_OK, "plan");
  if (plan == NULL) return;
  struct flashjit_origin origin = {.size = sizeof origin};
  check(flashjit_plan_origin(plan, &origin) == FLASHJIT_OK, "origin");
  check(strncmp(origin.schedule, "simt:", 5) == 0, "schedule");
  struct flashjit_kernel kernel = {.size = sizeof kernel};
  check(origin.kernels == 1 && flashjit_plan_kernel(plan, 0, &kernel) == FLASHJIT_OK, "kernel");
  check(strcmp(kernel.name, origin.kernel) == 0 && strstr(kernel.source, kernel.name) != NULL, "its source");
  check(flashjit_plan_kernel(plan, 1, &kernel) == FLASHJIT_INVALID_ARGUMENT && says("may be 0 to 0"),
        "no second kernel");
  struct flashjit_origin shorter = {.size = offsetof(struct flashjit_origin, code)};
  check(flashjit_plan_origin(plan, &shorter) == FLASHJIT_OK && shorter.choice != NULL && shorter.code == NULL,
        "shorter origin");

  float host[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float o[8] = {0};
  float lse = 0;
  void* memory[5] = {NULL, NULL, NULL, NULL, NULL};
  for (int i = 0; i < 5; ++i)
    check(flashjit_allocate(engine, sizeof host, &memory[i]) == FLASHJIT_OK, "allocate");
  for (int i = 0; i < 3; ++i)
    check(flashjit_upload(engine, memory[i], host, sizeof host, NULL) == FLASHJIT_OK, "upload");
  struct flashjit_forward_args args = {
      .size = sizeof args, .q = memory[0], .k = memory[1], .v = memory[2], .o = memory[3], .lse = memory[4]};
  args.scale = NAN;
  check(flashjit_forward(plan, &args, NULL) == FLASHJIT_INVALID_ARGUMENT && says("scale is nan"), "scale");
  args.scale = 0;
  args.q = NULL;
  check(flashjit_forward(plan, &args, NULL) == FLASHJIT_INVALID_ARGUMENT && says("q is "), "q");
  args.q = memory[0];
  struct flashjit_shape wrong = {.size = sizeof wrong, .batch = -1, .heads = 1};
  args.shape = &wrong;
  check(flashjit_forward(plan, &args, NULL) == FLASHJIT_INVALID_ARGUMENT && says("batch is -1"), "shape");
  wrong.batch = 0;
  check(flashjit_forward(plan, &args, NULL) == FLASHJIT_OK, "a call's batch may be 0");
  args.shape = NULL;
  check(flashjit_forward(plan, &args, NULL) == FLASHJIT_OK, "forward");
  check(flashjit_download(engine, o, memory[3], sizeof o, NULL) == FLASHJIT_OK, "download o");
  check(flashjit_download(engine, &lse, memory[4], sizeof lse, NULL) == FLASHJIT_OK, "download lse");
  check(memcmp(o, host, sizeof o) == 0, "o is v");
  check(fabsf(lse - 204.0F / sqrtf(8.0F)) < 1e-3F, "lse is the logit");
  for (int i = 0; i < 5; ++i) check(flashjit_free(engine, memory[i]) == FLASHJIT_OK, "free");
  flashjit_plan_destroy(plan);
}

/* One row and one key: whatever q and k say, dv is dout, and the softmax of one number has no slope. */
static void check_backward(struct flashjit_engine* engine) {
  enum { kDim = 64, kQ = 0, kK, kV, kO, kDout, kLse, kDq, kDk, kDv, kBuffers };
  struct flashjit_problem problem = {.size = sizeof problem, .pass = FLASHJIT_BACKWARD, .head_dim = kDim};
  struct flashjit_shape shape = {.size = sizeof shape, .batch = 1, .heads = 1, .seqlen_q = 1, .seqlen_k = 1};
  struct flashjit_plan* plan = NULL;
  const enum flashjit_status made = flashjit_plan_create(engine, &problem, &shape, NULL, &plan);
  if (made == FLASHJIT_NOT_FOUND) {
    fprintf(stderr, "c_abi_test: no NVRTC here, backward is not run: %s\n", flashjit_last_error());
    return;
  }
  check(made == FLASHJIT_OK, "backward plan");
  if (plan == NULL) return;
  struct flashjit_origin origin = {.size = sizeof origin};
  struct flashjit_kernel kernel = {.size = sizeof kernel};
  check(flashjit_plan_origin(plan, &origin) == FLASHJIT_OK && origin.kernels >= 2, "several kernels");
  for (size_t i = 0; i < origin.kernels; ++i) {
    check(flashjit_plan_kernel(plan, i, &kernel) == FLASHJIT_OK &&
              strncmp(kernel.name, origin.kernel, strlen(origin.kernel)) == 0,
          "kernels are named after the plan");
  }
  size_t bytes = 0;
  check(flashjit_workspace_bytes(plan, NULL, &bytes) == FLASHJIT_OK && bytes >= 2 * 128 * sizeof(float),
        "workspace");
  check(flashjit_workspace_bytes(plan, NULL, NULL) == FLASHJIT_INVALID_ARGUMENT && says("bytes is null"),
        "workspace to nowhere");

  uint16_t ones[kDim]; /* bf16 */
  uint16_t result[kDim];
  const float lse = sqrtf((float)kDim);
  for (int x = 0; x < kDim; ++x) ones[x] = 0x3f80;
  void* memory[kBuffers];
  for (int i = 0; i < kBuffers; ++i) {
    check(flashjit_allocate(engine, sizeof ones, &memory[i]) == FLASHJIT_OK, "allocate");
    check(flashjit_upload(engine, memory[i], ones, sizeof ones, NULL) == FLASHJIT_OK, "upload");
  }
  check(flashjit_upload(engine, memory[kLse], &lse, sizeof lse, NULL) == FLASHJIT_OK, "upload lse");
  void* workspace = NULL;
  check(flashjit_allocate(engine, bytes, &workspace) == FLASHJIT_OK, "allocate the workspace");
  struct flashjit_backward_args args = {.size = sizeof args,
                                        .q = memory[kQ],
                                        .k = memory[kK],
                                        .v = memory[kV],
                                        .o = memory[kO],
                                        .dout = memory[kDout],
                                        .lse = memory[kLse],
                                        .dq = memory[kDq],
                                        .dk = memory[kDk],
                                        .dv = memory[kDv]};
  args.dout = NULL;
  check(flashjit_backward(plan, &args, NULL) == FLASHJIT_INVALID_ARGUMENT && says("dout is "), "dout");
  args.dout = memory[kDout];
  struct flashjit_forward_args forward = {.size = sizeof forward};
  check(flashjit_forward(plan, &forward, NULL) == FLASHJIT_INVALID_ARGUMENT && says("backward pass"),
        "a backward plan runs no forward pass");
  for (int round = 0; round < 2; ++round) { /* the engine's pool, then the caller's memory */
    args.workspace = round == 0 ? NULL : workspace;
    check(flashjit_backward(plan, &args, NULL) == FLASHJIT_OK, "backward");
    check(flashjit_download(engine, result, memory[kDv], sizeof result, NULL) == FLASHJIT_OK, "download dv");
    check(memcmp(result, ones, sizeof ones) == 0, "dv is dout");
    check(flashjit_download(engine, result, memory[kDq], sizeof result, NULL) == FLASHJIT_OK, "download dq");
    for (int x = 0; x < kDim; ++x) check((result[x] & 0x7fff) == 0, "dq is 0");
    check(flashjit_upload(engine, memory[kDv], result, sizeof result, NULL) == FLASHJIT_OK, "clear dv");
    check(flashjit_upload(engine, memory[kDq], ones, sizeof ones, NULL) == FLASHJIT_OK, "spoil dq");
  }
  check(flashjit_free(engine, workspace) == FLASHJIT_OK, "free");
  for (int i = 0; i < kBuffers; ++i) check(flashjit_free(engine, memory[i]) == FLASHJIT_OK, "free");
  flashjit_plan_destroy(plan);
}

int run_c_abi_checks(void) {
  failures = 0;
  check(strlen(flashjit_version()) >= 5, "version");
  check(strcmp(flashjit_engine_device(NULL), "") == 0, "the device of no engine");
  check_engine_arguments();
  check_sizes();
  struct flashjit_engine_options options = {.size = sizeof options,
                                            .device = "emulated:sm_80",
                                            .no_cache = 1,
                                            .on_message = count_message,
                                            .context = &messages};
  struct flashjit_engine* engine = NULL;
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_OK, "engine");
  if (engine == NULL) return failures;
  check(strcmp(flashjit_engine_device(engine), "emulated:sm_80") == 0, "device");
  check(strcmp(flashjit_engine_arch(engine), "sm_80") == 0, "arch");
  check(strlen(flashjit_engine_description(engine)) > 0, "description");
  check_calls(engine);
  check_forward(engine);
  flashjit_engine_destroy(engine);
  options.device = "emulated:sm_90a";
  check(flashjit_engine_create(&options, &engine) == FLASHJIT_OK, "another engine");
  if (engine == NULL) return failures;
  check_backward(engine);
  flashjit_engine_destroy(engine);
  return failures;
}

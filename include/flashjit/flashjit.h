/* The C interface of flashjit: the same Engine and Plan, for C and for everything that can call C.
 *
 *   struct flashjit_engine* engine = NULL;
 *   struct flashjit_plan* plan = NULL;
 *   struct flashjit_problem problem = {.size = sizeof problem, .head_dim = 128, .causal = 1};
 *   struct flashjit_shape shape = {
 *       .size = sizeof shape, .batch = 4, .heads = 32, .heads_kv = 8, .seqlen_q = 4096, .seqlen_k = 4096};
 *   struct flashjit_forward_args args = {.size = sizeof args, .q = q, .k = k, .v = v, .o = o};
 *   if (flashjit_engine_create(NULL, &engine) != FLASHJIT_OK ||
 *       flashjit_plan_create(engine, &problem, &shape, NULL, &plan) != FLASHJIT_OK ||
 *       flashjit_forward(plan, &args, stream) != FLASHJIT_OK)
 *     puts(flashjit_last_error());
 *
 * Each struct except flashjit_strides starts with its own size, which the caller sets. Fields are only ever
 * added at the end, and a field that is absent or zero has its default, so a program runs with a library of
 * another version than it was compiled against. (Before 1.0 the name of the shared library,
 * libflashjit.so.0.1, ties a linked program to one minor version; dlopen and ctypes may load any.)
 * flashjit_strides has no size: it is part of other structs and never grows.
 *
 * Five fields have no default: head_dim, and batch and heads of a plan's shape, where 0 is an error; and
 * seqlen_q and seqlen_k, whose 0 means no tokens. (Without query rows a forward pass launches nothing, and a
 * backward pass sets dk and dv to 0; without keys o is 0 and lse is -infinity, and dq is 0.) */
#ifndef FLASHJIT_H
#define FLASHJIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

enum flashjit_status {
  FLASHJIT_OK = 0,
  FLASHJIT_INVALID_ARGUMENT = 1, /* the call was wrong: the message names the argument, and what it may be */
  FLASHJIT_UNSUPPORTED = 2,      /* valid in itself, but not for this GPU, dtype or schedule, or not in a
                                    capture */
  FLASHJIT_NOT_FOUND = 3,        /* a library, device, file or entry is missing */
  FLASHJIT_COMPILE_FAILED = 4,   /* NVRTC refused or ran out of time */
  FLASHJIT_DEVICE = 5,           /* a CUDA call failed, the emulator found a bug in a kernel, or the host's
                                    memory ran out */
  FLASHJIT_IO = 6,               /* a file could not be read or written */
  FLASHJIT_WRONG_RESULT = 7,     /* the tuner's, for a candidate that fails its check; no call returns it */
  FLASHJIT_INTERNAL = 8          /* a bug in flashjit */
};

enum flashjit_pass { FLASHJIT_FORWARD = 0, FLASHJIT_BACKWARD = 1 };
enum flashjit_dtype { FLASHJIT_BF16 = 0, FLASHJIT_FP16 = 1, FLASHJIT_FP32 = 2 };
/* How much time to spend on choosing a schedule: quick 5 s, full 30 s per problem. Candidates run in a
 * second process, the flashjit command. Where no such command of this version is found, they run in this
 * process, in the default stream, and no stream may be captured meanwhile. */
enum flashjit_tuning { FLASHJIT_TUNING_OFF = 0, FLASHJIT_TUNING_QUICK = 1, FLASHJIT_TUNING_FULL = 2 };

/* A device, a compiler and a cache. Any number of threads may use one at once. It keeps every kernel and
 * plan that it made. They go with the engine and its last plan; destroying a plan alone gives nothing
 * back.
 * - On a GPU, all launches of these kernels must have finished before the kernels go.
 * - A CUDA context that the caller made must outlive the engine and all its plans.
 * - Every thread that may make a plan must have ended before exit(), or before main returns.
 * - After a fork, the child may plan and launch on an emulated device, if no other thread of the parent
 *   was in a call of flashjit. A CUDA context does not survive a fork, and neither does an engine on a
 *   GPU. */
struct flashjit_engine;
/* Chosen, loaded kernels. A plan keeps what it needs of its engine alive, and may be used after the engine
 * is destroyed. Any number of threads may launch it, into any number of streams at once. */
struct flashjit_plan;

struct flashjit_engine_options {
  size_t size;
  const char* device;       /* "cuda:1", "emulated:sm_90a"; NULL or "cuda": the GPU of the calling thread's
                               current CUDA context, or cuda:0 if there is no current context */
  int32_t tuning;           /* enum flashjit_tuning */
  int32_t tuning_budget_ms; /* 0: the mode's own (quick 5 s, full 30 s per problem); at most a day */
  const char* cache_dir;    /* NULL: FLASHJIT_CACHE_DIR, else $XDG_CACHE_HOME/flashjit or ~/.cache/flashjit;
                               a relative one counts from the working directory of this call */
  int32_t no_cache;         /* not 0: nothing is read from or written to disk */
  int32_t reserved;         /* 0 */
  /* Receives warnings and progress, one line per call; NULL: the lines go to stderr. context is passed to
   * it. Called from any thread, by several threads at once, and in the midst of a call of the engine. It
   * must not call into this engine, nor into one that tunes on the same device, and must not block on a
   * thread that does. */
  void (*on_message)(void* context, const char* line);
  void* context;
};

struct flashjit_problem {
  size_t size;
  int32_t pass;          /* enum flashjit_pass */
  int32_t dtype;         /* enum flashjit_dtype: of q, k, v and o; arithmetic inside is fp32 */
  int32_t head_dim;      /* of q and k: a multiple of 8, 8 to 256; no default */
  int32_t head_dim_v;    /* of v and o: likewise; 0: the same as head_dim */
  int32_t causal;        /* not 0: aligned bottom right: query i sees keys 0 .. i + seqlen_k - seqlen_q */
  int32_t no_lse;        /* forward only; not 0: the kernel cannot write the log-sum-exp */
  int32_t deterministic; /* backward only; not 0: bit-equal gradients from run to run */
  int32_t reserved;      /* 0 */
};

struct flashjit_shape {
  size_t size;
  int32_t batch;    /* 1 or more; 0 in a call's own shape launches nothing */
  int32_t heads;    /* 1 or more */
  int32_t heads_kv; /* divides heads; 0: the same as heads */
  int32_t seqlen_q; /* 0 to 2147483135 (2^31 - 513), and so is seqlen_k */
  int32_t seqlen_k;
  int32_t reserved; /* 0 */
};

struct flashjit_plan_options {
  size_t size;
  const char* schedule; /* "mma:m128n64w4s2": this one and no other; NULL: chosen */
  const char* family;   /* "mma": only schedules of this family; NULL: all */
  int32_t tuning;       /* enum flashjit_tuning; the higher of this and the engine's counts */
  int32_t reserved;     /* 0 */
  void* stream; /* the caller's stream, if it may be in capture: a plan that is not ready is then refused */
};

/* Distances between neighbours, in elements. The last dimension is contiguous. All three zero: packed
 * (batch, seqlen, heads, head_dim). Otherwise:
 * - Each stride is a multiple of 16 bytes, at least the length of the tensor's last dimension (so none is
 *   negative), and below 2^40 bytes.
 * - In a tensor that is only read, a batch or head stride of 0 makes all batches, or all heads, use the
 *   same data.
 * - In a tensor that is written, elements must not overlap each other: each stride is at least all that
 *   the smaller ones span.
 * - The stride of a dimension of size 1 is ignored. To share over both batch and heads, set row even if
 *   there is only one row, since three zeros mean packed. */
struct flashjit_strides {
  int64_t batch;
  int64_t head;
  int64_t row;
};

/* Device pointers, aligned to 16 bytes (lse: 4 bytes). o and lse must not overlap each other, nor q, k or
 * v; only equal pointers are detected. k and v may be NULL where there are no keys, and every pointer may
 * be NULL where there are no query rows. A row that sees no key has o = 0 and lse = -infinity. */
struct flashjit_forward_args {
  size_t size;
  const void* q; /* (batch, seqlen_q, heads, head_dim) */
  const void* k; /* (batch, seqlen_k, heads_kv, head_dim) */
  const void* v; /* (batch, seqlen_k, heads_kv, head_dim_v) */
  void* o;       /* (batch, seqlen_q, heads, head_dim_v) */
  float* lse;    /* (batch, heads, seqlen_q), packed: natural log-sum-exp of rows; NULL if not wanted */
  struct flashjit_strides q_strides, k_strides, v_strides, o_strides;
  const struct flashjit_shape* shape; /* NULL: the plan's own; any other is legal */
  float scale;                        /* of the logits, 1.18e-38 to 1.7e38; 0: 1 / sqrt(head_dim) */
  int32_t reserved;                   /* 0 */
};

/* The texts live as long as the plan. */
struct flashjit_origin {
  size_t size;
  const char* schedule; /* "mma:m128n64w4s2" */
  /* Why this schedule: "given"; "wisdom (...)", if it was tuned here (perhaps in this very call) or read
   * from a file; "shipped wisdom (...)"; or "model". The brackets begin with "this GPU", with another
   * GPU's name, or, for shipped wisdom, with the arch. */
  const char* choice;
  const char* code;   /* "memory", "disk", "system", "compiled in 412 ms" */
  const char* note;   /* what else a user should know; may be empty */
  const char* kernel; /* problem and schedule; the name of each of the plan's kernels begins with it */
  size_t kernels;     /* how many kernels the plan launches: forward one, backward several */
  size_t held_bytes;  /* device memory that the plan holds for itself */
};

/* One of the kernels that a plan launches. */
struct flashjit_kernel {
  size_t size;
  const char* name;
  const char* source; /* the CUDA C++ that runs, complete in itself */
};

/* The gradients of a loss, computed from the gradient of the forward pass's output. q, k, v, o, lse, scale
 * and shape are the forward pass's own; pointers and strides follow the rules of flashjit_forward_args.
 * - All pointers but workspace are needed, except those of queries (q, o, dout, lse, dq) where there are
 *   no query rows, and those of keys (k, v, dk, dv) where there are no keys.
 * - q, k, v, o and dout must be finite, even in rows that see no key.
 * - dq, dk, dv and workspace must overlap neither each other nor an input; only equal pointers are
 *   detected.
 * - Where heads share K and V, dk and dv are sums over these heads. Whatever takes no part has gradient 0. */
struct flashjit_backward_args {
  size_t size;
  const void* q;
  const void* k;
  const void* v;
  const void* o;
  const void* dout; /* (batch, seqlen_q, heads, head_dim_v), the gradient of o */
  const float* lse;
  void* dq; /* as q; dq, dk and dv are written, not added to */
  void* dk; /* as k */
  void* dv; /* as v */
  struct flashjit_strides q_strides, k_strides, v_strides, o_strides, dout_strides;
  struct flashjit_strides dq_strides, dk_strides, dv_strides;
  const struct flashjit_shape* shape; /* NULL: the plan's own; any other is legal */
  /* Device memory of flashjit_workspace_bytes bytes, aligned to 128 bytes, that no other work uses until
   * this pass has finished. Its contents before the call don't matter. NULL: the launch takes memory from
   * a pool of the engine's in stream order and gives it back. That is safe in any number of streams; in a
   * capture, the memory belongs to the graph. */
  void* workspace;
  float scale;      /* of the logits, 1.18e-38 to 1.7e38; 0: 1 / sqrt(head_dim) */
  int32_t reserved; /* 0 */
};

/* "0.1.0" */
const char* flashjit_version(void);

/* What went wrong in this thread's last call that failed: the message and, after a line break, the hint.
 * Valid until the thread's next call that fails. Never NULL. */
const char* flashjit_last_error(void);

/* Makes an engine; options: NULL means all defaults. Each handle that a _create function made is given
 * back by the matching _destroy function, which takes NULL too. flashjit_engine_destroy also frees memory
 * of flashjit_allocate that nobody has freed. Errors: FLASHJIT_INVALID_ARGUMENT, _UNSUPPORTED, _NOT_FOUND
 * (no driver, no GPU, no FLASHJIT_TEMPLATE_DIR), _DEVICE, _IO (the cache, a template). */
enum flashjit_status flashjit_engine_create(const struct flashjit_engine_options* options,
                                            struct flashjit_engine** engine);
void flashjit_engine_destroy(struct flashjit_engine* engine);

/* A plan for this problem and sizes like these: tuned, compiled and loaded the first time, looked up after
 * that. Errors: FLASHJIT_INVALID_ARGUMENT, _UNSUPPORTED, _NOT_FOUND (no NVRTC), _COMPILE_FAILED, _DEVICE,
 * _IO (folders and files that cannot be read). */
enum flashjit_status flashjit_plan_create(struct flashjit_engine* engine,
                                          const struct flashjit_problem* problem,
                                          const struct flashjit_shape* shape,
                                          const struct flashjit_plan_options* options,
                                          struct flashjit_plan** plan);
void flashjit_plan_destroy(struct flashjit_plan* plan);

/* Does the work of flashjit_plan_create without returning a plan: call it before a stream capture, or to
 * warm a cache. Plans are then ready for this problem, for sizes like these, and for the same options
 * except stream. */
enum flashjit_status flashjit_prepare(struct flashjit_engine* engine, const struct flashjit_problem* problem,
                                      const struct flashjit_shape* shape,
                                      const struct flashjit_plan_options* options);

/* Enqueues one forward pass into a CUstream or cudaStream_t (NULL: the legacy default stream). A call is
 * cheap, and may be captured: a captured launch uses the plan's kernels and tile counters, so the plan
 * must outlive every graph that captured it. Errors: FLASHJIT_INVALID_ARGUMENT, before anything is
 * enqueued; _UNSUPPORTED if captures have used up the counters that flashjit_prepare made, or if the
 * launch needs stream-ordered memory and the GPU has none; _DEVICE. */
enum flashjit_status flashjit_forward(const struct flashjit_plan* plan,
                                      const struct flashjit_forward_args* args, void* stream);

/* The same for one backward pass; the plan's problem has pass = FLASHJIT_BACKWARD. */
enum flashjit_status flashjit_backward(const struct flashjit_plan* plan,
                                       const struct flashjit_backward_args* args, void* stream);

/* How many bytes flashjit_backward_args.workspace must hold; 0 for the forward pass. shape: NULL means the
 * plan's own. */
enum flashjit_status flashjit_workspace_bytes(const struct flashjit_plan* plan,
                                              const struct flashjit_shape* shape, size_t* bytes);

/* Both fill in as much as the caller's size has room for, and set the rest to zero. Their texts live as
 * long as the plan. index counts the plan's kernels in launch order, from 0; flashjit_origin.kernels says
 * how many there are. */
enum flashjit_status flashjit_plan_origin(const struct flashjit_plan* plan, struct flashjit_origin* origin);
enum flashjit_status flashjit_plan_kernel(const struct flashjit_plan* plan, size_t index,
                                          struct flashjit_kernel* kernel);

/* "cuda:0", "emulated:sm_90a"; "NVIDIA H200, driver 580.159"; "sm_90a". The texts live as long as the
 * engine. */
const char* flashjit_engine_device(const struct flashjit_engine* engine);
const char* flashjit_engine_description(const struct flashjit_engine* engine);
const char* flashjit_engine_arch(const struct flashjit_engine* engine);

/* Device memory, for programs without CUDA of their own. It must not be used after the engine is
 * destroyed.
 * - Copies keep the order of the stream's work; download waits for its copy. Pinned host memory that is
 *   uploaded must not change until the stream has made the copy; any other has been copied when upload
 *   returns.
 * - upload, download and synchronize are refused in a stream that is being captured, and in the default
 *   stream while a stream that waits for it is being captured.
 * - free waits for the GPU and takes NULL too. It refuses memory that flashjit_allocate did not give for
 *   this engine, or that was freed before.
 *
 * Errors: FLASHJIT_INVALID_ARGUMENT, _DEVICE; of copies and synchronize also _UNSUPPORTED. */
enum flashjit_status flashjit_allocate(struct flashjit_engine* engine, size_t bytes, void** memory);
enum flashjit_status flashjit_free(struct flashjit_engine* engine, void* pointer);
enum flashjit_status flashjit_upload(struct flashjit_engine* engine, void* to, const void* from, size_t bytes,
                                     void* stream);
enum flashjit_status flashjit_download(struct flashjit_engine* engine, void* to, const void* from,
                                       size_t bytes, void* stream);
enum flashjit_status flashjit_synchronize(struct flashjit_engine* engine, void* stream);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif

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
 * Every struct starts with its own size, which the caller sets, but flashjit_strides, which is part of others
 * and never grows. Fields are only ever added at the end, and an absent or zero field means its default, so a
 * program runs with a library of another version than it was compiled against. (Before 1.0 the library's name
 * lets a linked program do so within one minor version only; dlopen and ctypes may always.) Five fields have
 * no default, and 0 is what it says: head_dim, batch and heads of what a plan is asked for (0 is an error),
 * seqlen_q and seqlen_k (0 is legal: nothing is launched, or nobody sees a key). */
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
  FLASHJIT_UNSUPPORTED = 2,      /* right in itself, but not on this GPU, dtype or schedule */
  FLASHJIT_NOT_FOUND = 3,        /* a library, device, file or entry is missing */
  FLASHJIT_COMPILE_FAILED = 4,   /* NVRTC refused or ran out of time */
  FLASHJIT_DEVICE = 5,           /* a CUDA call failed, the emulator found a bug in a kernel, or the host's
                                    memory ran out */
  FLASHJIT_IO = 6,               /* a file could not be read or written */
  FLASHJIT_WRONG_RESULT = 7,     /* a check against the reference failed */
  FLASHJIT_INTERNAL = 8          /* a bug in flashjit */
};

enum flashjit_pass { FLASHJIT_FORWARD = 0, FLASHJIT_BACKWARD = 1 };
enum flashjit_dtype { FLASHJIT_BF16 = 0, FLASHJIT_FP16 = 1, FLASHJIT_FP32 = 2 };
/* Where there is no flashjit command to tune in, this process does it, in the default stream: no stream may
 * be captured beside it. */
enum flashjit_tuning { FLASHJIT_TUNING_OFF = 0, FLASHJIT_TUNING_QUICK = 1, FLASHJIT_TUNING_FULL = 2 };

/* A device, a compiler and a cache; any number of threads may use one. It keeps every kernel and plan that it
 * made, until it and its last plan are destroyed: a plan's end alone gives nothing back. A CUDA context that
 * the caller made outlives them all. On a GPU the kernels' launches must be done when it and its last plan
 * go. Every thread that may make a plan must have ended before exit(). After a fork, the child may launch and
 * plan on an emulated device, if no other thread of the parent was in a call of flashjit; a CUDA context does
 * not survive it. */
struct flashjit_engine;
/* A chosen, loaded kernel; it keeps what it needs of its engine alive. Any number of threads may launch it,
 * into any number of streams at once. */
struct flashjit_plan;

struct flashjit_engine_options {
  size_t size;
  const char* device;       /* "cuda:1", "emulated:sm_90a"; NULL or "cuda": the GPU of the thread's current
                               CUDA context, the first one where it has none */
  int32_t tuning;           /* enum flashjit_tuning */
  int32_t tuning_budget_ms; /* 0: the mode's own; at most a day */
  const char* cache_dir;    /* NULL: FLASHJIT_CACHE_DIR, else $XDG_CACHE_HOME or ~/.cache, flashjit */
  int32_t no_cache;         /* not 0: nothing is read from or written to disk */
  int32_t reserved;         /* 0 */
  /* Warnings and progress, from any thread, by several at once, in the midst of a call of the engine: it must
   * not call into this engine, nor wait for who does. NULL: to stderr. context is handed to it. */
  void (*on_message)(void* context, const char* line);
  void* context;
};

struct flashjit_problem {
  size_t size;
  int32_t pass;          /* enum flashjit_pass */
  int32_t dtype;         /* enum flashjit_dtype: of q, k, v and o */
  int32_t head_dim;      /* of q and k: a multiple of 8, 8 to 256; no default */
  int32_t head_dim_v;    /* of v and o; 0: the same */
  int32_t causal;        /* not 0: query i sees keys 0 .. i + seqlen_k - seqlen_q */
  int32_t no_lse;        /* forward only; not 0: the kernel cannot write the log-sum-exp */
  int32_t deterministic; /* backward only */
  int32_t reserved;      /* 0 */
};

struct flashjit_shape {
  size_t size;
  int32_t batch;    /* 1 or more; 0 in a call's own shape launches nothing */
  int32_t heads;    /* 1 or more */
  int32_t heads_kv; /* divides heads; 0: the same */
  int32_t seqlen_q; /* 0 to 2147483135 (2^31 - 513), and so is seqlen_k */
  int32_t seqlen_k;
  int32_t reserved; /* 0 */
};

struct flashjit_plan_options {
  size_t size;
  const char* schedule; /* "mma:m128n64w4s2"; NULL: chosen */
  const char* family;   /* "mma"; NULL: any */
  int32_t tuning;       /* enum flashjit_tuning; the higher of this and the engine's counts */
  int32_t reserved;     /* 0 */
  void* stream; /* the caller's stream if it may be in capture: a plan that is not ready is then an error */
};

/* In elements, and multiples of 16 bytes; the last dimension is contiguous. All zero: packed (batch, seqlen,
 * heads, head_dim). Each is at least the tensor's last dimension (so none is negative) and below 2^40 bytes,
 * or, in batch and head of what is read, 0, to share one tensor. The elements of what is written may overlap
 * neither each other (each stride is at least all that the smaller ones span) nor an input, of which only an
 * equal pointer is found. The stride of a dimension of size 1 is not looked at; to share over batch and
 * heads, give row a value, also where there is one row. */
struct flashjit_strides {
  int64_t batch;
  int64_t head;
  int64_t row;
};

/* A row that sees no key has o = 0 and lse = -infinity. k and v may be NULL where there are no keys, and
 * everything where there are no rows. */
struct flashjit_forward_args {
  size_t size;
  const void* q; /* (batch, seqlen_q, heads, head_dim), 16-byte aligned, as all of them but lse */
  const void* k; /* (batch, seqlen_k, heads_kv, head_dim) */
  const void* v; /* (batch, seqlen_k, heads_kv, head_dim_v) */
  void* o;       /* (batch, seqlen_q, heads, head_dim_v) */
  float* lse;    /* (batch, heads, seqlen_q), packed, 4-byte aligned, natural log; NULL: not wanted */
  struct flashjit_strides q_strides, k_strides, v_strides, o_strides;
  const struct flashjit_shape* shape; /* NULL: the plan's own */
  float scale;                        /* of the logits, 1.18e-38 to 1.7e38; 0: 1 / sqrt(head_dim) */
  int32_t reserved;                   /* 0 */
};

/* Texts live as long as the plan. */
struct flashjit_origin {
  size_t size;
  const char* schedule; /* "mma:m128n64w4s2" */
  /* Why this one: "given"; "wisdom (...)" that was tuned here or read from a file, also in this very call;
   * "shipped wisdom (...)"; "model". The brackets begin with "this GPU", another one's name, or, of shipped
   * wisdom, the arch. */
  const char* choice;
  const char* code;   /* "memory", "disk", "system", "compiled in 412 ms" */
  const char* note;   /* what else a user should know; may be empty */
  const char* kernel; /* problem and schedule; the name of each of its kernels begins with it */
  size_t kernels;     /* how many it launches: forward one, backward several */
  size_t held_bytes;  /* device memory that the plan holds for itself */
};

/* One of the kernels that a plan launches. */
struct flashjit_kernel {
  size_t size;
  const char* name;
  const char* source; /* the CUDA C++ that runs, complete in itself */
};

/* The gradients of a loss, from that of the forward pass's output. Pointers and strides as in
 * flashjit_forward_args; q, k, v, o, lse, scale and shape are the forward pass's own. All are needed, but
 * those of queries where there are no rows and those of keys where there are no keys. */
struct flashjit_backward_args {
  size_t size;
  const void* q;
  const void* k;
  const void* v;
  const void* o;
  const void* dout; /* (batch, seqlen_q, heads, head_dim_v), the gradient of o */
  const float* lse;
  void* dq; /* as q; it and the next two are written, not added to */
  void* dk; /* as k; summed over the heads that share it */
  void* dv; /* as v; likewise */
  struct flashjit_strides q_strides, k_strides, v_strides, o_strides, dout_strides;
  struct flashjit_strides dq_strides, dk_strides, dv_strides;
  const struct flashjit_shape* shape; /* NULL: the plan's own */
  /* flashjit_workspace_bytes of device memory, 128-byte aligned, that no other work uses until this pass is
   * done. NULL: taken from a pool of the engine's in stream order, and given back. */
  void* workspace;
  float scale;      /* of the logits, 1.18e-38 to 1.7e38; 0: 1 / sqrt(head_dim) */
  int32_t reserved; /* 0 */
};

/* "0.1.0" */
const char* flashjit_version(void);

/* What went wrong in this thread's last call that returned something else than FLASHJIT_OK: the message and,
 * after a line break, what to do about it. Good until the thread's next such call. Never NULL. */
const char* flashjit_last_error(void);

/* options: NULL means all defaults. Handles are made by _create and given back by _destroy, which takes NULL
 * too. The end of an engine frees what flashjit_allocate gave and nobody has freed.
 * FLASHJIT_INVALID_ARGUMENT, _UNSUPPORTED, _NOT_FOUND (no driver, no GPU), _DEVICE, _IO (the cache). */
enum flashjit_status flashjit_engine_create(const struct flashjit_engine_options* options,
                                            struct flashjit_engine** engine);
void flashjit_engine_destroy(struct flashjit_engine* engine);

/* Slow the first time, then a lookup. FLASHJIT_INVALID_ARGUMENT, _UNSUPPORTED, _NOT_FOUND (no NVRTC),
 * _COMPILE_FAILED, _DEVICE. */
enum flashjit_status flashjit_plan_create(struct flashjit_engine* engine,
                                          const struct flashjit_problem* problem,
                                          const struct flashjit_shape* shape,
                                          const struct flashjit_plan_options* options,
                                          struct flashjit_plan** plan);
void flashjit_plan_destroy(struct flashjit_plan* plan);

/* flashjit_plan_create for its effect on memory and disk: before a stream capture, or to warm a cache. What
 * is ready then are plans for this problem, sizes like these and the same options (but stream). */
enum flashjit_status flashjit_prepare(struct flashjit_engine* engine, const struct flashjit_problem* problem,
                                      const struct flashjit_shape* shape,
                                      const struct flashjit_plan_options* options);

/* Enqueues one forward pass into a CUstream or cudaStream_t (NULL: the legacy default stream). Cheap, and
 * legal in a capture: the launch uses the plan's kernels and tile counters, so the plan must outlive every
 * graph that captured it. FLASHJIT_INVALID_ARGUMENT before anything is enqueued; _UNSUPPORTED where the
 * memory that it needs cannot be had in a capture, or on this GPU; _DEVICE. */
enum flashjit_status flashjit_forward(const struct flashjit_plan* plan,
                                      const struct flashjit_forward_args* args, void* stream);

/* Likewise one backward pass; the plan's problem has pass = FLASHJIT_BACKWARD. */
enum flashjit_status flashjit_backward(const struct flashjit_plan* plan,
                                       const struct flashjit_backward_args* args, void* stream);

/* What flashjit_backward_args.workspace must hold. shape: NULL means the plan's own. */
enum flashjit_status flashjit_workspace_bytes(const struct flashjit_plan* plan,
                                              const struct flashjit_shape* shape, size_t* bytes);

/* These fill in what the caller's size has room for, and zeros beyond; the text lives as long as the plan.
 * index counts from 0, in launch order, up to flashjit_origin.kernels. */
enum flashjit_status flashjit_plan_origin(const struct flashjit_plan* plan, struct flashjit_origin* origin);
enum flashjit_status flashjit_plan_kernel(const struct flashjit_plan* plan, size_t index,
                                          struct flashjit_kernel* kernel);

/* "cuda:0", "emulated:sm_90a"; "NVIDIA H200, driver 580.159"; "sm_90a". They live as long as the engine. */
const char* flashjit_engine_device(const struct flashjit_engine* engine);
const char* flashjit_engine_description(const struct flashjit_engine* engine);
const char* flashjit_engine_arch(const struct flashjit_engine* engine);

/* Device memory, for programs that have no CUDA of their own; use none of it when the engine is destroyed.
 * Copies are ordered with the stream's work; download waits. Neither they nor synchronize may be captured, or
 * called for the default stream while one that waits for it is captured. Pinned host memory that is uploaded
 * must stay as it is until the stream has done so; any other is copied on return. free waits for the GPU,
 * takes NULL too, and refuses what is no memory of the engine's, or was freed before.
 * FLASHJIT_INVALID_ARGUMENT, _DEVICE; copies and synchronize: _UNSUPPORTED. */
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

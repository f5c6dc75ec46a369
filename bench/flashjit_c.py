"""flashjit's C interface through ctypes, on PyTorch tensors: only what bench/compare.py needs of it."""
import ctypes as c

FORWARD, BACKWARD = 0, 1
DTYPES = {"torch.bfloat16": 0, "torch.float16": 1, "torch.float32": 2}
TUNING = {"off": 0, "quick": 1, "full": 2}


class Sized(c.Structure):
    """A struct of flashjit.h: its first field is its own size."""

    def __init__(self, **fields):
        super().__init__(size=c.sizeof(type(self)), **fields)


class EngineOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("device", c.c_char_p), ("tuning", c.c_int32), ("tuning_budget_ms", c.c_int32),
                ("cache_dir", c.c_char_p), ("no_cache", c.c_int32), ("reserved", c.c_int32),
                ("on_message", c.c_void_p), ("context", c.c_void_p)]


class Problem(Sized):
    _fields_ = [("size", c.c_size_t)] + [(name, c.c_int32) for name in (
        "pass_", "dtype", "head_dim", "head_dim_v", "causal", "no_lse", "deterministic", "reserved")]


class Shape(Sized):
    _fields_ = [("size", c.c_size_t)] + [(name, c.c_int32) for name in (
        "batch", "heads", "heads_kv", "seqlen_q", "seqlen_k", "reserved")]


class PlanOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("schedule", c.c_char_p), ("family", c.c_char_p), ("tuning", c.c_int32),
                ("reserved", c.c_int32), ("stream", c.c_void_p)]


class Strides(c.Structure):
    _fields_ = [("batch", c.c_int64), ("head", c.c_int64), ("row", c.c_int64)]


class ForwardArgs(Sized):
    _fields_ = [("size", c.c_size_t), ("q", c.c_void_p), ("k", c.c_void_p), ("v", c.c_void_p), ("o", c.c_void_p),
                ("lse", c.c_void_p), ("q_strides", Strides), ("k_strides", Strides), ("v_strides", Strides),
                ("o_strides", Strides), ("shape", c.c_void_p), ("scale", c.c_float), ("reserved", c.c_int32)]


class BackwardArgs(Sized):
    _fields_ = [("size", c.c_size_t)] + [(name, c.c_void_p) for name in (
        "q", "k", "v", "o", "dout", "lse", "dq", "dk", "dv")] + [(name + "_strides", Strides) for name in (
            "q", "k", "v", "o", "dout", "dq", "dk", "dv")] + [
                ("shape", c.c_void_p), ("workspace", c.c_void_p), ("scale", c.c_float), ("reserved", c.c_int32)]


class Origin(Sized):
    _fields_ = [("size", c.c_size_t)] + [(name, c.c_char_p) for name in (
        "schedule", "choice", "code", "note", "kernel")] + [("kernels", c.c_size_t), ("held_bytes", c.c_size_t)]


def strides_of(tensor):
    batch, row, head, last = tensor.stride()
    if last != 1:
        raise ValueError("the last dimension must be contiguous")
    return Strides(batch, head, row)


class Engine:
    """One device; plans are kept by problem, shape and options."""

    def __init__(self, library, device="cuda", tuning="off", no_cache=False):
        self.lib = c.CDLL(library)
        self.lib.flashjit_last_error.restype = c.c_char_p
        for name in ("flashjit_engine_description", "flashjit_engine_arch", "flashjit_version"):
            getattr(self.lib, name).restype = c.c_char_p
        options = EngineOptions(device=device.encode(), tuning=TUNING[tuning], no_cache=int(no_cache))
        self.handle = c.c_void_p()
        self.check(self.lib.flashjit_engine_create(c.byref(options), c.byref(self.handle)))
        self.plans = {}

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.flashjit_last_error().decode())

    def description(self):
        return self.lib.flashjit_engine_description(self.handle).decode()

    def plan(self, q, k, v, causal, family="", schedule="", tuning="off", backward=False, deterministic=False):
        """Tensors are (batch, seqlen, heads, head_dim)."""
        (batch, seqlen_q, heads, dim), (_, seqlen_k, heads_kv, _), dim_v = q.shape, k.shape, v.shape[-1]
        key = (batch, seqlen_q, seqlen_k, heads, heads_kv, dim, dim_v, str(q.dtype), causal, family, schedule, tuning,
               backward, deterministic)
        if key not in self.plans:
            problem = Problem(pass_=BACKWARD if backward else FORWARD, dtype=DTYPES[str(q.dtype)], head_dim=dim,
                              head_dim_v=dim_v, causal=int(causal), deterministic=int(deterministic))
            shape = Shape(batch=batch, heads=heads, heads_kv=heads_kv, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
            options = PlanOptions(schedule=schedule.encode() or None, family=family.encode() or None, tuning=TUNING[tuning])
            plan = c.c_void_p()
            self.check(self.lib.flashjit_plan_create(
                self.handle, c.byref(problem), c.byref(shape), c.byref(options), c.byref(plan)))
            self.plans[key] = plan
        return self.plans[key]

    def origin(self, plan):
        origin = Origin()
        self.check(self.lib.flashjit_plan_origin(plan, c.byref(origin)))
        return {name: getattr(origin, name).decode() for name in ("schedule", "choice", "code", "note")}

    def forward(self, plan, q, k, v, o, lse=None, stream=0):
        args = ForwardArgs(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(),
                           lse=lse.data_ptr() if lse is not None else None, q_strides=strides_of(q),
                           k_strides=strides_of(k), v_strides=strides_of(v), o_strides=strides_of(o))
        self.check(self.lib.flashjit_forward(plan, c.byref(args), c.c_void_p(stream)))

    def workspace_bytes(self, plan):
        """What a backward call needs at the plan's own shape."""
        count = c.c_size_t()
        self.check(self.lib.flashjit_workspace_bytes(plan, None, c.byref(count)))
        return count.value

    def backward(self, plan, q, k, v, o, dout, lse, dq, dk, dv, workspace=None, stream=0):
        """workspace: None means the engine's own pool."""
        tensors = {"q": q, "k": k, "v": v, "o": o, "dout": dout, "dq": dq, "dk": dk, "dv": dv}
        args = BackwardArgs(lse=lse.data_ptr(), workspace=workspace.data_ptr() if workspace is not None else None,
                            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
                            **{name + "_strides": strides_of(tensor) for name, tensor in tensors.items()})
        self.check(self.lib.flashjit_backward(plan, c.byref(args), c.c_void_p(stream)))

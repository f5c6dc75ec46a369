#!/usr/bin/env python3
"""Times flashjit and its peers over a grid, interleaved in one run, and writes results.jsonl, ratios.md and
ratios.png.

Each cell is timed in rounds. In a round, each contestant in turn gets an idle pause, a warm-up and cold-L2
launches, so that heat and the power limit affect all alike. FLOPs are FlashAttention's count: 4 b h s^2 d,
halved when causal, and 2.5 times that for a backward pass. A backward pass is timed with its pre- and
postprocessing, but without the forward pass before it. If values are narrower than keys (--dims 192/128),
each product counts with its own width. Few queries q (4 b h q s d) are timed without a mask, since peers do
not agree where the mask begins.

    bench/compare.py --library build/shared/libflashjit.so --ours mma,wgmma --out bench/results/h200
    bench/compare.py --library build/shared/libflashjit.so --pass backward --ours wgmma,wgmma:deterministic --out /tmp/bwd
    bench/compare.py --library build/shared/libflashjit.so --queries 1 --batch 1 --heads 32 --heads-kv 8 --out /tmp/decode
    bench/compare.py --library build/shared/libflashjit.so --cells bench/models.json --out /tmp/models
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

FOLDER = os.environ.get("FLASHJIT_PEERS", "/tmp/peers")
sys.path.insert(0, FOLDER)
import site  # noqa: E402
site.addsitedir(FOLDER)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import flashjit_c  # noqa: E402
import peers as peers_module  # noqa: E402
import ratios  # noqa: E402


# Before a short kernel the GPU waits for a millisecond, so that the launch by a peer's Python is not timed.
HEAD_START_CYCLES, SHORT_MS = 2_000_000, 0.5


def clock_mhz():
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=5).stdout
        return [float(x) for x in text.split(",")]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return [0.0, 0.0]


def median_ms(run, pause, target_ms, flush):
    """Median of cold-L2 launches, after an idle pause and a warm-up."""
    torch.cuda.synchronize()
    time.sleep(pause)
    event = lambda: torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        run()
    first, last = event(), event()
    first.record(); run(); last.record()
    torch.cuda.synchronize()
    once = first.elapsed_time(last)
    count = int(max(8, min(60, target_ms / max(once, 1e-3))))
    pairs = [(event(), event()) for _ in range(count)]
    for start, stop in pairs:
        if pause and once < SHORT_MS:
            torch.cuda._sleep(HEAD_START_CYCLES)
        flush.zero_()
        start.record(); run(); stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in pairs)


def time_in_turns(contestants, rounds, pause, flush):
    """{name: run} to {name: milliseconds of each round}."""
    times = {name: [] for name in contestants}
    turns = list(contestants.items())
    for first in range(rounds):  # rotates, since each contestant heats the GPU for the next
        for name, run in turns[first % len(turns):] + turns[:first % len(turns)]:
            times[name].append(median_ms(run, pause, 60.0 if pause else 200.0, flush))
    return times


def largest_error(ours, q, k, v, causal, out):
    """The error against float64 attention, relative to the error that is allowed. Looks at the first head of
    the first batch and the last head of the last one."""
    worst = 0.0
    group = q.shape[2] // k.shape[2]
    for b, h in {(0, 0), (q.shape[0] - 1, q.shape[2] - 1)}:
        rows = torch.randint(0, q.shape[1], (min(256, q.shape[1]),), device=q.device)
        def attend(x, y, z, t):
            s = (x.to(t) @ y.to(t).T) * q.shape[-1] ** -0.5
            if causal:
                keys = torch.arange(k.shape[1], device=q.device)
                s = s.masked_fill(keys[None] > rows[:, None] + k.shape[1] - q.shape[1], float("-inf"))
            return torch.softmax(s, -1).to(t) @ z.to(t)
        args = (q[b, rows, h], k[b, :, h // group], v[b, :, h // group])
        exact, plain = attend(*args, torch.float64), attend(*args, q.dtype)
        allowed = 2 * (plain.double() - exact).abs().max() + 2 * ((exact.to(q.dtype) + 0.3 - 0.3) - exact).abs().max()
        error = (out[b, rows, h].double() - exact).abs().max()
        worst = max(worst, float(error / allowed)) if torch.isfinite(error) else float("inf")
    return worst


def largest_gradient_error(q, k, v, causal, dout, gradients):
    """Like largest_error, for dk and dv of the last head of keys of the last batch, and dq of the heads that share it."""
    b, kv = q.shape[0] - 1, k.shape[2] - 1
    heads = range(kv * (q.shape[2] // k.shape[2]), q.shape[2])
    def differentiate(t):
        dq, dk, dv = [], 0, 0
        for h in heads:
            x, y, z = (one.to(t).requires_grad_() for one in (q[b, :, h], k[b, :, kv], v[b, :, kv]))
            s = (x @ y.T) * q.shape[-1] ** -0.5
            if causal:
                seen = torch.ones(s.shape, dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
                s = s.masked_fill(~seen, float("-inf"))
            of_head = torch.autograd.grad(torch.softmax(s, -1) @ z, (x, y, z), dout[b, :, h].to(t))
            dq.append(of_head[0])
            dk, dv = dk + of_head[1], dv + of_head[2]
        return torch.stack(dq, 1), dk, dv
    worst = 0.0
    ours = gradients[0][b, :, heads.start:], gradients[1][b, :, kv], gradients[2][b, :, kv]
    for one, exact, plain in zip(ours, differentiate(torch.float64), differentiate(q.dtype)):
        allowed = 2 * (plain.double() - exact).abs().max() + 2 * ((exact.to(q.dtype) + 0.3 - 0.3) - exact).abs().max()
        error = (one.double() - exact).abs().max()
        worst = max(worst, float(error / allowed)) if torch.isfinite(error) else float("inf")
    return worst


class Forward:
    """One cell's tensors, and what each contestant runs on them."""
    products_of_keys, products_of_values = 1, 1  # products as wide as q and k; as wide as v

    def __init__(self, engine, q, k, v, causal):
        self.engine, self.q, self.k, self.v, self.causal = engine, q, k, v, causal
        self.stream = torch.cuda.current_stream().cuda_stream

    def ours(self, family, schedule, tuning, deterministic):
        """The launch, where its schedule came from, and how wrong it is."""
        q, k, v = self.q, self.k, self.v
        plan = self.engine.plan(q, k, v, self.causal, family=family, schedule=schedule, tuning=tuning)
        out = q.new_full((*q.shape[:3], v.shape[-1]), float("nan"))
        run = lambda: self.engine.forward(plan, q, k, v, out, stream=self.stream)
        run()
        torch.cuda.synchronize()
        return run, self.engine.origin(plan) | {"error": largest_error(self.engine, q, k, v, self.causal, out)}

    def peer(self, attend):
        def run():
            with torch.no_grad():
                return attend(self.q, self.k, self.v, self.causal)
        return run


class Backward(Forward):
    products_of_keys, products_of_values = 3, 2

    def __init__(self, engine, q, k, v, causal):
        super().__init__(engine, q, k, v, causal)
        self.o = q.new_empty((*q.shape[:3], v.shape[-1]))
        self.dout = torch.randn_like(self.o)
        self.lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
        engine.forward(engine.plan(q, k, v, causal), q, k, v, self.o, self.lse, stream=self.stream)

    def ours(self, family, schedule, tuning, deterministic):
        q, k, v = self.q, self.k, self.v
        plan = self.engine.plan(q, k, v, self.causal, family=family, schedule=schedule, tuning=tuning, backward=True,
                                deterministic=deterministic)
        gradients = [torch.full_like(x, float("nan")) for x in (q, k, v)]
        workspace = torch.empty(self.engine.workspace_bytes(plan), dtype=torch.int8, device=q.device)
        run = lambda: self.engine.backward(plan, q, k, v, self.o, self.dout, self.lse, *gradients, workspace=workspace,
                                           stream=self.stream)
        run()
        torch.cuda.synchronize()
        return run, self.engine.origin(plan) | {
            "error": largest_gradient_error(q, k, v, self.causal, self.dout, gradients), "workspace": workspace.numel()}

    def peer(self, attend):
        leaves = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        out = attend(*leaves, self.causal)
        return lambda: torch.autograd.grad(out, leaves, self.dout, retain_graph=True)


def grid(a):
    for dims in a.dims.split(","):
        d, _, d_v = dims.partition("/")
        d = int(d)
        for causal in (False, True)[:1 if a.queries else 2]:
            for s in map(int, a.seqs.split(",")):
                h = a.heads or max(1, a.hidden // d)
                yield dict(d=d, d_v=int(d_v or d), causal=causal, s=s, b=a.batch or max(1, a.tokens // s), h=h,
                           h_kv=a.heads_kv or h, queries=a.queries or s)


def named_cells(path):
    for x in json.load(open(path)):
        yield dict(name=x["name"], d=x["head_dim"], d_v=x["head_dim_v"], causal=x["causal"], s=x["seqlen_k"], b=x["batch"],
                   h=x["heads"], h_kv=x["heads_kv"], queries=x["seqlen_q"])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--library", required=True, help="libflashjit.so")
    ap.add_argument("--out", required=True, help="folder for results.jsonl, ratios.md and ratios.png")
    ap.add_argument("--pass", dest="which", default="forward", choices=("forward", "backward"))
    ap.add_argument("--ours", default="",
                    help="families to time, such as mma,wgmma; empty: what the Engine chooses. Backward: wgmma:deterministic too")
    ap.add_argument("--schedules", default="", help="a JSON file {\"family d causal s\": \"schedule\"} that overrides the choice")
    ap.add_argument("--tuning", default="off", choices=("off", "quick", "full"))
    ap.add_argument("--peers", default="fa2,cudnn,flash_attn2,fa3,fa4")
    ap.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    ap.add_argument("--dims", default="64,128,256", help="of q and k, and of v where they differ: 64,192/128")
    ap.add_argument("--seqs", default="1024,4096,16384")
    ap.add_argument("--tokens", type=int, default=16384, help="batch x seqlen")
    ap.add_argument("--hidden", type=int, default=2048, help="heads x head_dim")
    ap.add_argument("--batch", type=int, default=0, help="instead of what --tokens leaves")
    ap.add_argument("--heads", type=int, default=0, help="instead of what --hidden leaves")
    ap.add_argument("--heads-kv", type=int, default=0, help="of k and v; 0: as many as of q")
    ap.add_argument("--queries", type=int, default=0, help="of each sequence; 0: as many as keys")
    ap.add_argument("--cells", default="", help="a JSON file of shapes with names, instead of the grid that the options above make")
    ap.add_argument("--commit", default="", help="noted in the results: the commit that is timed")
    ap.add_argument("--nvrtc", default="", help="noted in the results: the version that `flashjit doctor` names")
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--pause", type=float, default=0.1, help="seconds idle before each timing; 0 measures hot")
    a = ap.parse_args()
    shapes = list(named_cells(a.cells) if a.cells else grid(a))

    os.makedirs(a.out, exist_ok=True)
    results = open(os.path.join(a.out, "results.jsonl"), "w")
    def emit(**record):
        results.write(json.dumps(record) + "\n")
        results.flush()

    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    torch.cuda.init()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[a.dtype]
    others, missing = peers_module.load([p for p in a.peers.split(",") if p], FOLDER)
    engine = flashjit_c.Engine(a.library)
    given = json.load(open(a.schedules)) if a.schedules else {}
    ours = [f for f in a.ours.split(",") if f] or [""]
    emit(gpu=torch.cuda.get_device_name(), engine=engine.description(), torch=torch.__version__,
         cudnn=torch.backends.cudnn.version(), missing_peers=missing, command=" ".join(sys.argv), pause=a.pause,
         rounds=a.rounds, commit=a.commit, nvrtc=a.nvrtc, date=time.strftime("%Y-%m-%d"))
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    cells = []
    for cell in shapes:
        q, k, v = (torch.randn(cell["b"], rows, heads, columns, dtype=dtype, device="cuda") for rows, heads, columns in (
            (cell["queries"], cell["h"], cell["d"]), (cell["s"], cell["h_kv"], cell["d"]), (cell["s"], cell["h_kv"], cell["d_v"])))
        one = (Backward if a.which == "backward" else Forward)(engine, q, k, v, cell["causal"])
        columns = one.products_of_keys * cell["d"] + one.products_of_values * cell["d_v"]
        flops = 2 * cell["b"] * cell["h"] * cell["queries"] * cell["s"] * columns / (2 if cell["causal"] else 1)
        cell |= {"pass": a.which, "dtype": a.dtype}
        contestants, origins = {}, {}
        for name in ours:
            label = f"flashjit {name}".strip()
            family, _, how = name.partition(":")
            try:
                schedule = given.get(f"{name} {ratios.dims_of(cell)} {cell['causal']} {cell['s']}", "")
                contestants[label], origins[label] = one.ours(family, schedule, a.tuning, how == "deterministic")
            except RuntimeError as error:
                emit(**cell, who=label, failed=str(error)[:500])
                print(label, ratios.label_of(cell), error, file=sys.stderr)
        for name, peer in others.items():
            try:
                run = one.peer(peer)
                run()
                torch.cuda.synchronize()
                contestants[name] = run
            except Exception as error:
                emit(**cell, who=name, failed=str(error)[:300])
        times = time_in_turns(contestants, a.rounds, a.pause, flush)
        sm_mhz, watts = clock_mhz()
        row = {}
        for name, samples in times.items():
            ms = min(samples)
            row[name] = flops / ms / 1e9
            emit(**cell, who=name, ms=ms, rounds_ms=samples, tflops=row[name], clock_mhz=sm_mhz, watts=watts,
                 **origins.get(name, {}))
        cells.append((cell, row, origins))
        print(f"{ratios.label_of(cell)}  " + "  ".join(
            f"{n} {t:.0f}" for n, t in sorted(row.items(), key=lambda x: -x[1])) + "  " + " ".join(
            f"[{o['schedule']} {o['choice']} err {o['error']:.2f}]" for o in origins.values()), flush=True)
    ratios.write_table(a, cells)
    (ratios.write_named_plot if a.cells else ratios.write_plot)(a, cells)


if __name__ == "__main__":
    main()

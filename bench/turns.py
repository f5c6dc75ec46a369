#!/usr/bin/env python3
"""Times our own forward pass on variants of the same cells, in turns, without peers. This shows what one
format costs compared with another, and what it costs if scores grow along the sequence, so that the lazy and
the optimistic softmax have to follow.

A variant is a format (bf16, fp16); or a format and the end towards which its keys grow up to twelve times as
large (fp16:last, fp16:first); or fp16:rounded, whose numbers bf16 has too, so that both formats multiply the
same numbers. Each cell is timed in rounds; in a round every variant gets an idle pause, a warm-up and cold-L2
launches. Writes turns.jsonl, and prints what each variant takes compared with the first one.

    bench/turns.py --library build/shared/libflashjit.so --variants bf16,fp16 --out /tmp/fp16
    bench/turns.py --library build/shared/libflashjit.so --variants fp16,fp16:last,fp16:first --seqs 4096 --out /tmp/growing
"""
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import compare  # noqa: E402
import flashjit_c  # noqa: E402

GROWTH = 12.0
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def tensors_of(variant, b, s, h, d):
    """Normally distributed q, k and v; k grows as the variant says."""
    dtype, _, end = variant.partition(":")
    q, k, v = (torch.randn(b, s, h, d, dtype=DTYPES[dtype], device="cuda") for _ in range(3))
    if end == "rounded":
        q, k, v = (x.to(torch.bfloat16).to(x.dtype) for x in (q, k, v))
    elif end:
        growth = torch.linspace(1, GROWTH, s, device="cuda")
        k *= (growth if end == "last" else growth.flip(0)).to(k.dtype)[None, :, None, None]
    return q, k, v


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--library", required=True, help="libflashjit.so")
    ap.add_argument("--out", required=True, help="folder for turns.jsonl")
    ap.add_argument("--variants", required=True)
    ap.add_argument("--family", default="wgmma")
    ap.add_argument("--tuning", default="off", choices=("off", "quick", "full"))
    ap.add_argument("--dims", default="64,128,256")
    ap.add_argument("--seqs", default="1024,4096,16384")
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--pause", type=float, default=0.1, help="seconds idle before each timing; 0 measures hot")
    ap.add_argument("--commit", default="", help="noted in the results: the commit that is timed")
    a = ap.parse_args()

    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    engine = flashjit_c.Engine(a.library)
    variants = a.variants.split(",")
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    costs = {variant: [] for variant in variants[1:]}
    with open(os.path.join(a.out, "turns.jsonl"), "w") as results:
        def emit(**record):
            results.write(json.dumps(record) + "\n")
            results.flush()
        emit(gpu=torch.cuda.get_device_name(), engine=engine.description(), command=" ".join(sys.argv), commit=a.commit,
             pause=a.pause, rounds=a.rounds, date=time.strftime("%Y-%m-%d"))
        for d, causal, s in ((d, causal, s) for d in map(int, a.dims.split(",")) for causal in (False, True)
                             for s in map(int, a.seqs.split(","))):
            b, h = max(1, 16384 // s), max(1, 2048 // d)
            runs, origins = {}, {}
            for variant in variants:
                cell = compare.Forward(engine, *tensors_of(variant, b, s, h, d), causal)
                runs[variant], origins[variant] = cell.ours(a.family, "", a.tuning, False)
            times = compare.time_in_turns(runs, a.rounds, a.pause, flush)
            best = {variant: min(times[variant]) for variant in variants}
            for variant in variants:
                emit(d=d, causal=causal, s=s, b=b, h=h, variant=variant, ms=best[variant], rounds_ms=times[variant],
                     **origins[variant])
            for variant in variants[1:]:
                costs[variant].append(100 * (best[variant] / best[variants[0]] - 1))
            print(f"d{d} {'causal' if causal else 'full':6} {s:6}  {variants[0]} {best[variants[0]]:.4f} ms  " + "  ".join(
                f"{variant} {cost[-1]:+.1f} %" for variant, cost in costs.items())
                + f"  worst error {max(origin['error'] for origin in origins.values()):.2f}", flush=True)
    for variant, cost in costs.items():
        print(f"{variant}: {min(cost):+.1f} to {max(cost):+.1f} %, mean {statistics.mean(cost):+.2f}")


if __name__ == "__main__":
    main()

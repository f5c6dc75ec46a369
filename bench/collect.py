#!/usr/bin/env python3
"""Collects the forward schedules that were timed side by side in bench/results, in one form, for fitting the
analytic model and for the test that says how far the model's picks are behind
(tests/autotune/test_picks.cpp): one line for each problem of each run, with the fastest round of each
schedule in milliseconds.

    bench/collect.py bench/results > bench/results/schedules.jsonl

Left out are fp32, the backward pass, files whose kernels differ by templates and not by schedules, and
few-tiles, whose kernels have changed most since then.
"""
import glob
import json
import os
import re
import sys

FILES = ["h200-forward/" + name + ".jsonl" for name in (
    "random-problems", "random-problems-2", "between-lengths", "few-heads", "few-waves", "short-sequences", "short-tiles",
    "short-wide", "many-short", "other-shapes", "several-ctas", "memory-picks", "shared-picks", "packed-prompts", "edge-tiles",
    "fitted-picks", "tiny-picks")] + ["h100-forward/random-problems.jsonl", "h200-tune/timings*.jsonl", "h100-forward/timings*.jsonl"]
NAMES = {"dtype": (), "d": ("head_dim",), "dv": ("d_v", "head_dim_v"), "causal": (), "b": ("batch",), "h": ("heads",),
         "hk": ("h_kv", "heads_kv"), "sq": ("seqlen_q", "q", "queries"), "sk": ("seqlen_k", "k", "keys", "s")}


def named(fields):
    """The fields under the names in NAMES, whichever of its names each had."""
    found = {name: next((fields[key] for key in (name, *others) if key in fields), None) for name, others in NAMES.items()}
    return {name: value for name, value in found.items() if value is not None}


def from_options(text):
    """The fields of a command line: "--head-dim 136 --batch 8 … --causal"."""
    words = dict(re.findall(r"--([a-z-]+)(?: ([^-\s]\S*))?", text))
    if "head-dim" not in words or words.get("pass") == "backward":
        return {}
    return named({name.replace("-", "_"): value if name == "dtype" else int(value) for name, value in words.items() if value}
                 | {"causal": "causal" in words})


def from_words(problem, shape):
    """The fields of the tuner's texts: "forward bf16 d192/128 full", "16x32/8x1024x1024"."""
    words = re.fullmatch(r"forward (\w+) d(\d+)(?:/(\d+))? (full|causal)", problem)
    sizes = re.fullmatch(r"(\d+)x(\d+)(?:/(\d+))?x(\d+)x(\d+)", shape)
    if not words or not sizes:
        return {}
    b, h, hk, sq, sk = (int(size) if size else None for size in sizes.groups())
    return dict(dtype=words[1], d=int(words[2]), dv=int(words[3] or words[2]), causal=words[4] == "causal", b=b, h=h, hk=hk or h,
                sq=sq, sk=sk)


def problem_of(record):
    problem = record.get("problem")
    if isinstance(problem, str):
        found = from_words(problem, record["shape"]) if "shape" in record else from_options(problem)
    else:  # wisdom, or lines that name everything themselves
        found = named(problem | record["shape"] if problem else record)
        if problem and problem["pass"] != "forward":
            return None
    if not {"d", "b", "h", "sk"} <= found.keys():
        return None
    found = {"dtype": "bf16", "causal": False, "dv": found["d"], "hk": found["h"], "sq": found["sk"]} | found
    found["causal"] = bool(found["causal"])
    return {name: found[name] for name in NAMES} if found["dtype"] != "fp32" else None


def schedule_of(name, record):
    """The schedule that a column names: in full, without its family, or as "old" or "new"."""
    if isinstance(record.get("picked"), dict):
        name = record["picked"].get(name, name)
    if re.match(r"m\d+n\d+s\d", name):
        name = "wgmma:" + name
    return name if re.match(r"(wgmma|mma|simt):m\d+n\d+", name) else None


def timings_of(record):
    if "timings" in record:
        return record["timings"]
    if "candidates" in record:
        return {one["schedule"]: one["measured_ms"] for one in record["candidates"] if one.get("measured_ms")}
    key = next((key for key in ("us", "ms", "rounds_ms") if isinstance(record.get(key), (dict, list))), None)
    if key is None:
        return {}
    columns = record[key] if isinstance(record[key], dict) else {record.get("schedule", ""): record[key]}
    unit = 1e-3 if key == "us" else 1
    return {schedule_of(name, record): unit * (min(rounds) if isinstance(rounds, list) else rounds)
            for name, rounds in columns.items() if rounds and schedule_of(name, record)}


def main():
    results = sys.argv[1]
    for path in (path for pattern in FILES for path in sorted(glob.glob(os.path.join(results, pattern)))):
        gathered = {}  # lines of one schedule each, by problem
        for number, line in enumerate(open(path)):
            record = json.loads(line)
            problem, timings = problem_of(record), timings_of(record)
            if problem is None:
                continue
            key = (json.dumps(problem), record.get("run"), None if "schedule" in record else number)
            gathered.setdefault(key, {}).update(timings)
        for (problem, run, _), timings in gathered.items():
            if len(timings) > 1:
                print(json.dumps({"from": os.path.relpath(path, results), "run": run} | json.loads(problem) | {
                    "ms": {schedule: float(f"{ms:.4g}") for schedule, ms in timings.items()}}, separators=(",", ":")))


if __name__ == "__main__":
    main()

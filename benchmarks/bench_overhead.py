"""The time of a call beside eager's: JSON lines, one per workload.

    python benchmarks/bench_overhead.py [--seconds 2] [--threads 1] [--inductor] [WORKLOAD ...]

Eager, ccompile, ccompile with mode="reduce-overhead" and (with --inductor) torch.compile alternate in one process; a
time is the minimum of its samples. One thread by default, as OpenMP's barriers measure the machine's other load rather
than the call."""

import argparse
import json
import os
import platform
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ccompile
import registry
from ccompile.demo import alternate, largest_error

DEFAULT = ("x + 1", "64 pointwise ops", "SimpleNet b1", "SimpleNet")


def measure(name: str, seconds: float, inductor: bool) -> dict:
    workload = registry.WORKLOADS[name]
    model = registry.build(workload)
    args, kwargs = workload.inputs()
    callables = {"eager": model, "ccompile": ccompile.compile(model)}
    callables["ccompile_reduce"] = ccompile.compile(model, mode="reduce-overhead")
    if inductor:
        callables["inductor"] = torch.compile(model)
    row = {"bench": "overhead", "workload": name, "input": workload.what, "threads": torch.get_num_threads()}
    with torch.no_grad():
        expected = model(*args, **kwargs)
        for kind, fn in callables.items():
            row[f"{kind}_error"] = largest_error(fn(*args, **kwargs), expected)
        times = alternate([lambda fn=fn: fn(*args, **kwargs) for fn in callables.values()], seconds, most=2000)
    eager = times[0] * 1e6
    for kind, ms in zip(callables, times, strict=True):
        row[f"{kind}_ns"] = round(ms * 1e6)
        if kind != "eager":
            row[f"{kind}_over_ns"] = round(ms * 1e6 - eager)
            row[f"{kind}_speedup"] = round(eager / (ms * 1e6), 3)
    row.update(torch=torch.__version__, python=platform.python_version(), processors=os.cpu_count())
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=DEFAULT)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inductor", action="store_true", help="also measures torch.compile (needs a C++ compiler)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.workloads:
        if name not in registry.WORKLOADS:
            parser.error(f"unknown workload {name!r}; choose from: {', '.join(registry.WORKLOADS)}")
        print(json.dumps(measure(name, args.seconds, args.inductor)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

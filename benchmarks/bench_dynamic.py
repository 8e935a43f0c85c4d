"""Sizes that change: recordings, compile time and calls of a MiniTransformer, and seed 004's batch of 32, then 64.

    python benchmarks/bench_dynamic.py [--lengths 64] [--threads 2] [--json]

For each of dynamic=None, True, False: every length once (its first call), then every length again; "compile ms": what
first calls took longer than eager ones. And one length against an entry that was recorded for it alone (dynamic=False),
in alternating calls."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable

import ccompile
import torch
from ccompile.api import compiled_of
from ccompile.demo_models import MiniTransformer, SimpleNet

VOCABULARY, BATCH, SHORTEST = 1000, 2, 32


def timed(call: Callable, *args: object) -> float:
    start = time.perf_counter()
    call(*args)
    return (time.perf_counter() - start) * 1e3


def best(calls: list[Callable], rounds: int = 20) -> list[float]:
    times = [[timed(call) for call in calls] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def sequences(dynamic: bool | None, lengths: int) -> dict:
    model = MiniTransformer(VOCABULARY).eval()
    inputs = [torch.randint(0, VOCABULARY, (BATCH, SHORTEST + i)) for i in range(lengths)]
    compiled = ccompile.compile(model, dynamic=dynamic)
    eager = [best([lambda x=x: model(x)], 2)[0] for x in inputs]
    first = [timed(compiled, x) for x in inputs]
    again = [timed(compiled, x) for x in inputs]
    middle = inputs[lengths // 2]
    alone = ccompile.compile(model, dynamic=False)
    alone(middle)
    static, symbolic = best([lambda: alone(middle), lambda: compiled(middle)])
    report = compiled_of(compiled).report()
    return {
        "experiment": f"{lengths} lengths",
        "dynamic": dynamic,
        "recordings": report["recordings"],
        "eager calls": report["eager_calls"],
        "first calls ms": sum(first),
        "compile ms": sum(first) - sum(eager),
        "again ms": sum(again),
        "eager ms": sum(eager),
        "of static": symbolic / static,
    }


def batches(dynamic: bool | None) -> dict:
    model = SimpleNet().eval()
    compiled = ccompile.compile(model, dynamic=dynamic)
    small, large = torch.randn(32, 512), torch.randn(64, 512)
    first = [timed(compiled, x) for x in (small, large)]
    eager = best([lambda: model(small), lambda: model(large)])
    again = best([lambda: compiled(small), lambda: compiled(large)])
    report = compiled_of(compiled).report()
    return {
        "experiment": "batch 32, 64",
        "dynamic": dynamic,
        "recordings": report["recordings"],
        "eager calls": report["eager_calls"],
        "first calls ms": sum(first),
        "compile ms": sum(first) - sum(eager),
        "again ms": sum(again),
        "eager ms": sum(eager),
        "of static": "-",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.lengths < 1:
        parser.error("--lengths must be at least 1")
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", RuntimeWarning)  # dynamic=False reaches recompile_limit: that is what is shown
    with torch.no_grad():
        rows = [run for d in (None, True, False) for run in (batches(d), sequences(d, args.lengths))]
    if args.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    print("| " + " | ".join(rows[0]) + " |\n|" + " --- |" * len(rows[0]))
    for row in sorted(rows, key=lambda r: r["experiment"]):
        print("| " + " | ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

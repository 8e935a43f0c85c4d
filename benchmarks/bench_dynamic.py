"""Changing sizes: recordings, compile time and call times of a MiniTransformer, and seed 004's batch of 32, then 64.

    python benchmarks/bench_dynamic.py [--lengths 64] [--inductor 0] [--threads 2] [--json]

For each of dynamic=None, True, False: every size once (its first call), then every size again. "compile ms" is the time
of first calls above eager's. "of static" is one size's time relative to an entry recorded for it alone (dynamic=False),
in alternating calls. `--inductor N` adds torch.compile: the two batches, and N lengths under dynamic=None and True
(each of its recordings takes about 10 s; it needs a C++ compiler)."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import ccompile
import torch
from ccompile.api import compiled_of
from ccompile.demo import markdown
from ccompile.demo_models import MiniTransformer, SimpleNet

VOCABULARY, BATCH, SHORTEST = 1000, 2, 32
COLUMNS = ("experiment", "compiler", "dynamic", "recordings")
TIMES = ("eager ms", "first ms", "compile ms", "again ms", "of static")


def timed(call: Callable, *args: object) -> float:
    start = time.perf_counter()
    call(*args)
    return (time.perf_counter() - start) * 1e3


def best(calls: list[Callable], rounds: int = 20) -> list[float]:
    times = [[timed(call) for call in calls] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def counts(compiled: Any) -> dict[str, int]:
    report = compiled_of(compiled).report()
    return {"recordings": report["recordings"], "eager calls": report["eager_calls"]}


def fresh(compiler: str) -> tuple[Callable, Callable[[Any], dict[str, int]]]:
    """The compiler's compile function, with empty caches, and a function that counts its recordings."""
    if compiler == "ccompile":
        return ccompile.compile, counts
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._inductor.config.force_disable_caches = True
    return torch.compile, lambda compiled: {"recordings": torch._dynamo.utils.counters["stats"]["unique_graphs"]}


def measure(experiment: str, compiler: str, dynamic: bool | None, model: Any, inputs: list[torch.Tensor]) -> dict:
    """One row of the table; lists hold a time for each input."""
    compiling, counted = fresh(compiler)
    compiled, alone = compiling(model, dynamic=dynamic), ccompile.compile(model, dynamic=False)
    eager = best([lambda x=x: model(x) for x in inputs], 2)
    first = [timed(compiled, x) for x in inputs]
    again = best([lambda x=x: compiled(x) for x in inputs], 2)
    middle = inputs[len(inputs) // 2]
    alone(middle)
    static, symbolic = best([lambda: alone(middle), lambda: compiled(middle)])
    row = {
        "experiment": experiment,
        "compiler": compiler,
        "dynamic": dynamic,
        **counted(compiled),
        "eager": eager,
        "first": first,
        "again": again,
        "compile ms": sum(first) - sum(eager),
        "of static": symbolic / static,
    }
    return row | {f"{name} ms": sum(row[name]) for name in ("eager", "first", "again")}


def sequences(dynamic: bool | None, lengths: int, compiler: str = "ccompile") -> dict:
    """A MiniTransformer over `lengths` successive sequence lengths."""
    inputs = [torch.randint(0, VOCABULARY, (BATCH, SHORTEST + i)) for i in range(lengths)]
    return measure(f"{lengths} lengths", compiler, dynamic, MiniTransformer(VOCABULARY).eval(), inputs)


def batches(dynamic: bool | None, compiler: str = "ccompile") -> dict:
    """SimpleNet with a batch of 32, then 64."""
    return measure("batch 32, 64", compiler, dynamic, SimpleNet().eval(), [torch.randn(n, 512) for n in (32, 64)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=64)
    parser.add_argument("--inductor", type=int, default=0, metavar="N")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.lengths < 1:
        parser.error("--lengths must be at least 1")
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", RuntimeWarning)  # dynamic=False is meant to reach recompile_limit
    with torch.no_grad():
        rows = [batches(d) for d in (None, True, False)]
        rows += [sequences(d, args.lengths) for d in (None, True, False)]
        if args.inductor:
            rows += [batches(d, "inductor") for d in (None, True, False)]
            rows += [sequences(d, args.inductor, "inductor") for d in (None, True)]
    if args.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    cells = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in map(row.get, COLUMNS + TIMES)] for row in rows]
    print(markdown([list(COLUMNS + TIMES), *cells], left=3))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Optimisers' steps alone: compiled, against the loop over tensors (foreach=False), foreach=True and fused=True.

    python benchmarks/bench_optimisers.py [--threads N] [--seconds S] [--json FILE] [OPTIMISER ...]

All four step on equal parameters in turn; a row gives the medians of the faster half of each, in ms, and how often the
compiled step's time fits into the loop's and the fused step's. The compiled one is the default, a loop over tensors."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import ccompile
import torch
from torch import nn

OPTIMISERS: dict[str, dict[str, Any]] = {
    "Adam": {},
    "AdamW": {},
    "SGD": {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "RMSprop": {},
    "Adagrad": {},
}
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def mlp() -> nn.Module:
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])


def transformer() -> nn.Module:
    def block() -> list[nn.Module]:
        norms = [nn.LayerNorm(256), nn.LayerNorm(256)]
        return [*norms, nn.Linear(256, 768), nn.Linear(256, 256), nn.Linear(256, 1024), nn.Linear(1024, 256)]

    return nn.Sequential(*[part for _ in range(10) for part in block()])


MODELS: dict[str, Callable[[], nn.Module]] = {"12 tensors, 0.4 M": mlp, "120 tensors, 7.9 M": transformer}


def step_of(make: Callable[[], nn.Module], kind: str, **options: Any) -> Callable[[], Any]:
    torch.manual_seed(0)
    params = list(make().parameters())
    for p in params:
        p.grad = 0.1 * torch.randn_like(p)
    return getattr(torch.optim, kind)(params, **OPTIMISERS[kind], **options).step


def typical(times: list[float]) -> float:
    return statistics.median(sorted(times)[: max(len(times) // 2, 1)]) * 1e3


def measure(model: str, kind: str, seconds: float) -> dict[str, Any]:
    make = MODELS[model]
    steps = {"loop": step_of(make, kind, foreach=False), "foreach": step_of(make, kind, foreach=True)}
    if kind in FUSED:
        steps["fused"] = step_of(make, kind, fused=True)
    steps["compiled"] = ccompile.compile(step_of(make, kind))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(4):
            step()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["loop"]) < 8:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    row: dict[str, Any] = {"model": model, "optimiser": kind}
    row |= {name: typical(kept) for name, kept in times.items()}
    row["of_loop"] = row["loop"] / row["compiled"]
    row["of_fused"] = row["fused"] / row["compiled"] if "fused" in row else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimisers", nargs="*", metavar="OPTIMISER", help="all of " + ", ".join(OPTIMISERS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    columns = ("loop", "foreach", "fused", "compiled")
    print(f"{'model':20}{'optimiser':11}" + "".join(f"{c:>10}" for c in columns) + f"{'of loop':>10}{'of fused':>10}")
    rows = []
    for model in MODELS:
        for kind in options.optimisers or OPTIMISERS:
            row = measure(model, kind, options.seconds)
            rows.append(row)
            numbers = "".join(f"{row[c]:10.3f}" if c in row else f"{'-':>10}" for c in columns)
            fused = f"{row['of_fused']:9.2f}x" if row["of_fused"] else f"{'-':>10}"
            print(f"{model:20}{kind:11}{numbers}{row['of_loop']:9.2f}x{fused}", flush=True)
    if options.json:
        with open(options.json, "w") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()

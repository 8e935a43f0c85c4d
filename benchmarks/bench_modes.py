"""Seed 004's experiments with modes and with compiling parts of a model; notebooks/004_mode_dynamic.ipynb plots them.

    python benchmarks/bench_modes.py [--small] [--inductor] [--calls 20] [--threads 2] [--json]

modes: ComplexModel in three modes. functions: compiling two functions of a network, and all of it. halves: compiling
features and classifier separately, and together. branches: forward() picks a classifier by numpy's random numbers,
which failed under torch.compile in the seed. Models are in eval mode under no_grad, with the seed's sizes except for a
batch that suits a CPU. `--small`: small sizes, as in the tests. "steady ms": the minimum of calls that alternate with
eager's."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import ccompile
import numpy as np
import torch
from ccompile.demo import largest_error, markdown
from ccompile.demo_models import (
    ComplexModel,
    ConvNetMix,
    LocalOptimizedNetwork,
    complex_activation,
    feature_enhancement,
    mix_classifier,
    mix_features,
)

COLUMNS = ("experiment", "compiler", "what", "eager ms", "first ms", "steady ms", "speed-up", "error")
MODES = ("default", "reduce-overhead", "max-autotune")


# ---- measuring -------------------------------------------------------------------------------------------------------
def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


def with_seed(call: Callable, i: int) -> Callable[[], Any]:
    def seeded() -> Any:
        np.random.seed(i)
        return call()

    return seeded


def measure(experiment: str, compiler: str, what: str, eager: Callable, compiled: Callable, x: Any, calls: int) -> dict:
    """A row. Call i of both sides sees the same random numbers."""
    ours, theirs = [], []
    error = 0.0
    for i in range(calls + 1):
        eager_ms, expected = timed(with_seed(lambda: eager(x), i))
        our_ms, result = timed(with_seed(lambda: compiled(x), i))
        ours.append(our_ms)
        theirs.append(eager_ms)
        error = max(error, largest_error(result, expected))
    row = {"experiment": experiment, "compiler": compiler, "what": what, "error": error, "calls ms": ours}
    steady, least = min(ours[1:]), min(theirs[1:])
    return row | {"eager ms": least, "first ms": ours[0], "steady ms": steady, "speed-up": least / steady}


def compilers(inductor: bool) -> dict[str, Callable]:
    torch._inductor.config.force_disable_caches = True
    return {"ccompile": ccompile.compile} | ({"torch.compile": torch.compile} if inductor else {})


def modes(small: bool, inductor: bool, calls: int) -> list[dict]:
    x = torch.randn(1, 3, 96, 96) if small else torch.randn(8, 3, 224, 224)
    model = ComplexModel(width=8 if small else 64).eval()
    return [
        measure("modes", name, mode, model, compile(model, mode=mode), x, calls)
        for name, compile in compilers(inductor).items()
        for mode in MODES
    ]


def functions(small: bool, inductor: bool, calls: int) -> list[dict]:
    x = torch.randn(1, 3, 16, 16) if small else torch.randn(4, 3, 224, 224)
    model = LocalOptimizedNetwork(4 if small else 64).eval()
    rows = []
    for name, compile in compilers(inductor).items():
        parts = LocalOptimizedNetwork(4 if small else 64).eval()
        parts.load_state_dict(model.state_dict())
        parts.activation = compile(complex_activation, mode="max-autotune")
        parts.enhance_features = compile(feature_enhancement, mode="max-autotune")
        whole = compile(model, mode="max-autotune")
        rows.append(measure("functions", name, "two functions", model, parts, x, calls))
        rows.append(measure("functions", name, "whole model", model, whole, x, calls))
    return rows


def halves(small: bool, inductor: bool, calls: int) -> list[dict]:
    width, side, batch = (2, 16, 2) if small else (32, 64, 32)
    x = torch.randn(batch, 3, side, side)
    features, classifier = mix_features(width), mix_classifier(width, side)
    model = ConvNetMix(features, [classifier]).eval()
    rows = []
    for name, compile in compilers(inductor).items():
        split = ConvNetMix(compile(features), [compile(classifier)]).eval()
        rows.append(measure("halves", name, "whole model", model, compile(model), x, calls))
        rows.append(measure("halves", name, "features, classifier", model, split, x, calls))
    return rows


def branches(small: bool, inductor: bool, calls: int) -> list[dict]:
    """A row without times is a compiler that failed; "failed" says why."""
    width, side, batch = (2, 16, 2) if small else (32, 64, 32)
    x = torch.randn(batch, 3, side, side)
    features, classifiers = mix_features(width), [mix_classifier(width, side) for _ in range(5)]
    model = ConvNetMix(features, classifiers).eval()
    rows = []
    for name, compile in compilers(inductor).items():
        ways = {
            "whole model": compile(model, dynamic=True, mode="reduce-overhead"),
            "features, classifiers": ConvNetMix(compile(features), [compile(c) for c in classifiers]).eval(),
        }
        for what, way in ways.items():
            try:
                rows.append(measure("branches", name, what, model, way, x, calls))
            except Exception as error:  # as in the seed
                rows.append({"experiment": "branches", "compiler": name, "what": what, "failed": str(error)[:200]})
    return rows


EXPERIMENTS: dict[str, Callable[[bool, bool, int], list[dict]]] = {
    "modes": modes,
    "functions": functions,
    "halves": halves,
    "branches": branches,
}


def text(row: dict, column: str) -> str:
    value = row.get(column, "failed" if column == "first ms" else "-")
    return value if isinstance(value, str) else f"{value:.1e}" if column == "error" else f"{value:.2f}"


def table(rows: list[dict]) -> str:
    return markdown([list(COLUMNS), *([text(row, column) for column in COLUMNS] for row in rows)], left=3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--inductor", action="store_true", help="also measures torch.compile (needs a C++ compiler)")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for name in args.names:
        if name not in EXPERIMENTS:
            parser.error(f"unknown experiment {name!r}; choose from: {', '.join(EXPERIMENTS)}")
    torch.set_num_threads(args.threads)
    with torch.no_grad():
        rows = [
            row
            for name in args.names or EXPERIMENTS
            for row in EXPERIMENTS[name](args.small, args.inductor, args.calls)
        ]
    print("\n".join(map(json.dumps, rows)) if args.json else table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

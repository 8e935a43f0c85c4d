"""The overhead of a call: guards and dispatch, in microseconds.

    python benchmarks/bench_guards.py [--seconds 1] [--rounds 3] [--inductor] [--json] [WORKLOAD ...]

ccompile's calls check their guards, find the entry and allocate their results, but run no kernel
(ccompile._core.skip_kernels). --inductor adds torch.compile with a back-end that returns the tensors of its first call,
which leaves Dynamo's guards and dispatch. "over eager" is the time of a whole call, kernels included, minus that of an
eager call, for the workload that is small enough to show it (x + 1).

"8 variants" is SimpleNet with a string argument of eight values, which changes in every call; "8 states" is the same
with an attribute of the model."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ccompile
import registry
from bench_models import table
from ccompile import _core
from ccompile.api import compiled_of
from ccompile.demo import alternate
from ccompile.demo_models import SimpleNet

WORKLOADS = ("x + 1", "SimpleNet", "ResNet-50", "BERT-Base", "GPT-2", "small Llama")
VARIANTS = ("8 variants", "8 states")
KINDS = ("a", "b", "c", "d", "e", "f", "g", "h")


class Kinds(torch.nn.Module):
    """A model with one variant per entry of KINDS, which it distinguishes after all other work."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SimpleNet()
        self.kind = KINDS[0]

    def forward(self, x: torch.Tensor, kind: str | None = None) -> torch.Tensor:
        y = self.net(x)
        for i, name in enumerate(KINDS):
            if name == (kind or self.kind):
                y = y + i
        return y


def cycling(fn: Callable, model: Kinds, x: torch.Tensor, by_argument: bool) -> Callable[[], Any]:
    """A callable that calls fn with the next kind each time."""
    at = [0]

    def call() -> Any:
        at[0] = (at[0] + 1) % len(KINDS)
        if by_argument:
            return fn(x, KINDS[at[0]])
        model.__dict__["kind"] = KINDS[at[0]]
        return fn(x)

    return call


def calls(name: str, compilers: list[Callable]) -> tuple[list[Callable[[], Any]], Callable]:
    """A callable for each compiler, and ccompile's compiled function."""
    if name in VARIANTS:
        made = [(compile(model), model) for compile in compilers for model in (Kinds().eval(),)]
        x = torch.randn(32, 512)
        return [cycling(fn, model, x, name == VARIANTS[0]) for fn, model in made], made[0][0]
    workload = registry.WORKLOADS[name]
    model = registry.build(workload)
    args, kwargs = workload.inputs()
    compiled = [compile(model) for compile in compilers]
    return [lambda fn=fn: fn(*args, **kwargs) for fn in compiled], compiled[0]


def first_again(graph: torch.fx.GraphModule, inputs: list) -> Callable:
    """A back-end for torch.compile that does no work: every call returns the first one's results."""
    found: list[Any] = []

    def call(*args: Any) -> Any:
        if not found:
            found.append(graph(*args))
        return found[0]

    return call


def noop_compile(model: Any) -> Any:
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(model, backend=first_again, dynamic=False)


def measure(name: str, seconds: float, rounds: int, inductor: bool) -> dict[str, Any]:
    ccompile.reset()
    torch._dynamo.reset()
    row: dict[str, Any] = {"bench": "guards", "workload": name}
    compilers = [ccompile.compile, *([noop_compile] if inductor else [])]
    with torch.no_grad():
        made, compiled = calls(name, compilers)
        for call in made:
            for _ in range(4 * len(KINDS)):
                call()
        before = compiled_of(compiled).report()
        row["guards"] = sum(len(s["guards"]) for s in before["entries"][0]["segments"])
        row["entries"] = len(before["entries"])
        if name == "x + 1":
            x = torch.randn(4)
            plain = registry.build(registry.WORKLOADS[name])
            eager, whole = alternate([lambda: plain(x), lambda: compiled(x)], seconds, most=2000)
            row["over_eager_us"] = (whole - eager) * 1e3
        _core.skip_kernels(True)
        try:
            times = [alternate(made, seconds / rounds, most=100_000) for _ in range(rounds)]
        finally:
            _core.skip_kernels(False)
        after = compiled_of(compiled).report()
    assert after["recordings"] == before["recordings"], f"{name}: {after['last_guard_failure']}"
    row["ccompile_us"] = min(t[0] for t in times) * 1e3
    if inductor:
        row["inductor_us"] = min(t[1] for t in times) * 1e3
    return {**row, "torch": torch.__version__, "python": platform.python_version()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS + VARIANTS)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inductor", action="store_true", help="also measures torch.compile")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for name in args.workloads:
        if name not in registry.WORKLOADS and name not in VARIANTS:
            parser.error(f"unknown workload {name!r}; choose from: {', '.join((*registry.WORKLOADS, *VARIANTS))}")
    torch.set_num_threads(1)
    rows = []
    for name in args.workloads:
        rows.append(measure(name, args.seconds, args.rounds, args.inductor))
        if args.json:
            print(json.dumps(rows[-1]), flush=True)
    if not args.json:
        head = ["workload", "guards", "entries", "ccompile us", "torch.compile us", "over eager us"]
        keys = ["ccompile_us", "inductor_us", "over_eager_us"]
        body = [
            [r["workload"], str(r["guards"]), str(r["entries"])] + [f"{r[k]:.2f}" if k in r else "-" for k in keys]
            for r in rows
        ]
        print(table(head, body))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python -m ccompile bench: a model by batch size and mode: first calls, steady ones (P50, P95, P99), memory, accuracy,
and after how many calls compiling has paid. --save keeps the measurement, --against compares with one and exits with
status 1 if something became worse.

Each process measures one mode: eager and compiled calls alternate in it, and its memory is its own."""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import torch

from . import machine, regression, target
from .api import MODES, compile
from .costs import Cost, measure, percentile
from .demo import largest_error, markdown, tensors
from .report import report

TIMES = ("eager ms", "P50 ms", "P95 ms", "P99 ms")
COLUMNS = ("batch", "mode", *TIMES, "speed-up", "first ms", "pays after", "MiB", "error", "breaks")


# ---- in a process that measures
def work(task: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each batch size; a row is what one process found."""
    if task["threads"]:
        torch.set_num_threads(task["threads"])
    model, args, kwargs = target.find(task["what"])
    if task["inputs"]:
        args, kwargs = tuple(target.tensor(text) for text in task["inputs"]), {}
    if isinstance(model, torch.nn.Module):
        model.eval()
    call = (lambda *given: model(*given, **kwargs)) if kwargs else model
    with torch.no_grad():
        return [_row(call, batched(args, batch), batch, task) for batch in task["batches"] or [None]]


def batched(args: tuple[Any, ...], batch: int | None) -> tuple[Any, ...]:
    """The arguments with dim 0 of each tensor brought to the batch size, by repeating."""

    def sized(x: Any) -> Any:
        if batch is None or not isinstance(x, torch.Tensor) or x.ndim == 0 or x.shape[0] == 0:
            return x
        return x.repeat(-(-batch // x.shape[0]), *[1] * (x.ndim - 1))[:batch].clone()

    return tuple(map(sized, args))


def _row(model: Any, args: tuple[Any, ...], batch: int | None, task: dict[str, Any]) -> dict[str, Any]:
    expected = model(*args)
    compiled = compile(model, mode=task["mode"], isolate_recompiles=True)
    peak = Peak()
    cost = measure(compiled, args, task["calls"])
    memory = peak.mib()
    pairs = zip(tensors(compiled(*args)), tensors(expected), strict=True)
    return {
        "batch": batch,
        "mode": task["mode"],
        "cost": vars(cost),
        "memory_mib": memory,
        "accuracy_loss": max((_loss(a, b) for a, b in pairs), default=0.0),
        "breaks": report(compiled).break_count,
    }


def _loss(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected value."""
    largest = float(expected.double().abs().max()) if expected.numel() else 0.0
    return largest_error([got], [expected]) / max(largest, 1e-30)


class Peak:
    """The memory that the process (or its GPU, if it uses one) has at most from now on, beyond what it has now."""

    def __init__(self) -> None:
        self._gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        if self._gpu:
            torch.cuda.reset_peak_memory_stats()
        elif Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the current resident set
        self._before = self._most()

    def _most(self) -> float:
        if self._gpu:
            return torch.cuda.max_memory_allocated() / 2**20
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return int(found[1]) / 1024 if found else 0.0

    def mib(self) -> float:
        return self._most() - self._before


# ---- in the process that asks
def run(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if args.worker:
        with redirect_stdout(sys.stderr):
            rows = work(json.loads(args.what))
        print(json.dumps(rows))
        return 0
    if (args.against or args.save) and args.processes < 2:
        raise SystemExit("--save and --against need --processes 2 or more: a process is a sample")
    before = json.loads(Path(args.against).read_text()) if args.against else None
    if args.threads:
        torch.set_num_threads(args.threads)
    found = {"machine": machine.describe(), "what": args.what, "inputs": args.input, "rows": _rows(args)}
    print(_table(found["rows"]))
    if args.save:
        Path(args.save).write_text(json.dumps(found, indent=1) + "\n")
    return _judge(before, found, args.report) if before is not None else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ccompile bench", description=__doc__)
    parser.add_argument("what", metavar="MODULE:NAME | FILE.py:NAME | MODEL", help="a callable, or a demo model")
    parser.add_argument("--input", action="append", default=[], metavar="8x64[:dtype]", help="as for explain")
    parser.add_argument("--batch", type=_numbers, default=[], metavar="1,8,32", help="sizes of dim 0 of all tensors")
    parser.add_argument("--mode", type=_modes, default=["default"], metavar="default,...", help="modes of compile")
    parser.add_argument(
        "--calls", type=_above_0, default=100, help="steady calls of each kind in a process (default 100)"
    )
    parser.add_argument("--processes", type=_above_0, default=5, help="processes for each mode (default 5)")
    parser.add_argument("--threads", type=_above_0, help="torch.set_num_threads")
    parser.add_argument("--save", metavar="BASELINE.json", help="keep the measurement")
    parser.add_argument("--against", metavar="BASELINE.json", help="compare with a kept one")
    parser.add_argument("--report", metavar="OUT.md", help="write the comparison as Markdown")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _above_0(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_above_0(word) for word in text.split(",")]


def _modes(text: str) -> list[str]:
    modes = text.split(",")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown mode {unknown[0]!r}; there are: {', '.join(MODES)}")
    return modes


def _rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each batch size and mode: what its processes found, together."""
    rows = []
    for mode in args.mode:
        task = {"what": args.what, "inputs": args.input, "batches": args.batch, "mode": mode, "calls": args.calls,
                "threads": args.threads}  # fmt: skip
        found = [_process(task) for _ in range(args.processes)]
        rows += [_joined(list(same)) for same in zip(*found, strict=True)]
    return sorted(rows, key=lambda row: row["batch"] or 0)


def _process(task: dict[str, Any]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "ccompile", "bench", "--worker", json.dumps(task)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{task['what']} could not be measured in mode {task['mode']!r}")
    return json.loads(done.stdout.splitlines()[-1])


def _joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    costs = [Cost(**row["cost"]) for row in found]
    calls = [ms for cost in costs for ms in cost.compiled]
    return {
        "batch": found[0]["batch"],
        "mode": found[0]["mode"],
        "input": costs[0].input,
        **{f"p{percent}_ms": percentile(calls, percent) for percent in (50, 95, 99)},
        "eager_ms": median(cost.eager_ms for cost in costs),
        "speedup": median(cost.speedup for cost in costs),
        "cold_ms": median(cost.cold_ms for cost in costs),
        "break_even_calls": _finite(median(cost.break_even_calls for cost in costs)),
        "memory_mib": median(row["memory_mib"] for row in found),
        "accuracy_loss": max(row["accuracy_loss"] for row in found),
        "breaks": max(row["breaks"] for row in found),
        "processes": [
            {key: getattr(cost, key) for key in ("cold_ms", "warm_ms", "eager_ms", "compiled_ms")}
            | {"memory_mib": row["memory_mib"]}
            for cost, row in zip(costs, found, strict=True)
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [list(COLUMNS)]
    for row in rows:
        pays = row["break_even_calls"]
        times = [f"{row[key]:.3f}" for key in ("eager_ms", "p50_ms", "p95_ms", "p99_ms")]
        lines.append([
            "-" if row["batch"] is None else str(row["batch"]), row["mode"], *times, f"{row['speedup']:.2f}x",
            f"{row['cold_ms']:.1f}", "never" if pays is None else f"{pays:.0f}", f"{row['memory_mib']:.1f}",
            f"{row['accuracy_loss']:.1e}", str(row["breaks"]),
        ])  # fmt: skip
    return markdown(lines, left=2)


def _judge(before: dict[str, Any], after: dict[str, Any], path: str | None) -> int:
    """Prints the comparison; 1 if something failed."""
    verdicts = regression.compare(before, after)
    keys = ("cpu", "threads", "torch", "ccompile")
    others = [key for key in keys if before["machine"][key] != after["machine"][key]]
    lines = [f"{key}: {before['machine'][key]} before, {after['machine'][key]} now" for key in others]
    lines += [str(verdict) for verdict in verdicts]
    failed = [verdict.name for verdict in verdicts if verdict.failures]
    lines.append(f"failed: {', '.join(failed)}" if failed else "passed")
    print("\n" + "\n".join(lines))
    if path:
        text = "\n".join(f"- {line}" for line in lines)
        Path(path).write_text(f"# {after['what']}: performance\n\n{_table(after['rows'])}\n\n{text}\n")
    return 1 if failed else 0

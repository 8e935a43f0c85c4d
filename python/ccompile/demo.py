"""The demo: compares ccompile with eager on real models, in one process.

Eager and compiled calls alternate, so that both see the same machine state. A time is the minimum of its samples; a
sample is one call or, for fast functions, the mean of a short loop. The error is the largest |compiled - eager| over
all outputs, on the recorded inputs and on new ones."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import ccompile

from . import report
from .demo_models import WORKLOADS, Workload, build

COLUMNS = ("model", "input", "eager ms", "first ms", "steady ms", "speed-up", "max error", "graphs", "breaks")


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def largest_error(got: Any, expected: Any) -> float:
    a, b = list(tensors(got)), list(tensors(expected))
    if len(a) != len(b):
        return float("inf")
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            return float("inf")
        if x.numel():
            same = (x == y) | ((x != x) & (y != y))
            difference = torch.where(same, 0.0, (x.double() - y.double()).abs())
            worst = max(worst, float(difference.nan_to_num(nan=float("inf")).max()))
    return worst


def alternate(calls: list[Callable[[], Any]], seconds: float, most: int = 200, least: int = 3) -> list[float]:
    """The minimal milliseconds of each callable, sampled alternately for about `seconds` in total."""
    loops = []
    for call in calls:
        call()
        begin = time.perf_counter()
        call()
        loops.append(max(1, min(1000, int(0.001 / max(time.perf_counter() - begin, 1e-7)))))
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    done = 0
    while done < least or (done < most and time.perf_counter() < end):
        for i, call in enumerate(calls):
            n = loops[i]
            begin = time.perf_counter()
            for _ in range(n):
                call()
            best[i] = min(best[i], (time.perf_counter() - begin) / n * 1e3)
        done += 1
    return best


def measure(workload: Workload, seconds: float = 3.0, mode: str | None = None) -> dict[str, Any]:
    """One row of the table."""
    model = build(workload)
    args, kwargs = workload.inputs()
    others, _ = workload.inputs()
    with torch.no_grad():
        expected, expected_other = model(*args, **kwargs), model(*others, **kwargs)
        compiled = ccompile.compile(model, mode=mode)
        begin = time.perf_counter()
        first_result = compiled(*args, **kwargs)
        first = (time.perf_counter() - begin) * 1e3
        error = max(largest_error(first_result, expected), largest_error(compiled(*others, **kwargs), expected_other))
        explanation = report.report(compiled)
        del expected, expected_other, first_result
        eager_ms, steady_ms = alternate([lambda: model(*args, **kwargs), lambda: compiled(*args, **kwargs)], seconds)
    return {
        "model": workload.name,
        "input": workload.what.removeprefix("transformers "),
        "eager_ms": eager_ms,
        "first_ms": first,
        "steady_ms": steady_ms,
        "speedup": eager_ms / steady_ms,
        "max_error": error,
        "graphs": explanation.graph_count,
        "breaks": explanation.break_count,
        "give_ups": len(explanation.give_ups),
        "target": workload.target,
    }  # fmt: skip


def markdown(lines: list[list[str]], left: int = 1) -> str:
    """A Markdown table that is aligned as plain text, too. The first line is the header; the first `left` columns are
    left-aligned."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def line(values: list[str]) -> str:
        padded = [v.ljust(w) if i < left else v.rjust(w) for i, (v, w) in enumerate(zip(values, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "| " + " | ".join("-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)) + " |"
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])])


def table(rows: list[dict[str, Any]]) -> str:
    lines = [list(COLUMNS)]
    for row in rows:
        lines.append([
            row["model"], row["input"], f"{row['eager_ms']:.3f}", f"{row['first_ms']:.1f}", f"{row['steady_ms']:.3f}",
            f"{row['speedup']:.2f}x", f"{row['max_error']:.1e}", str(row["graphs"]), str(row["breaks"]),
        ])  # fmt: skip
    return markdown(lines, left=2)


def misses(rows: list[dict[str, Any]]) -> list[str]:
    """Describes each missed target in a sentence."""
    found = []
    for row in rows:
        if row["speedup"] < row["target"]:
            found.append(f"{row['model']}: {row['speedup']:.2f}x, below the target of {row['target']:g}x")
        if row["first_ms"] > row["eager_ms"] + 300:
            found.append(f"{row['model']}: first call {row['first_ms']:.0f} ms, above the target of eager + 300 ms")
        if row["give_ups"]:
            found.append(f"{row['model']}: gave up recording {row['give_ups']} times; run explain")
    return found


def chosen(names: list[str]) -> list[Workload]:
    if not names:
        return [workload for workload in WORKLOADS.values() if workload.demo]
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise SystemExit(f"unknown workload {unknown[0]!r}; there are: {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in names]


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m ccompile demo", description=__doc__)
    parser.add_argument("models", nargs="*", help="workloads to run (default: the demo's set)")
    parser.add_argument("--seconds", type=float, default=3.0, help="sampling time per model (default 3)")
    parser.add_argument("--mode", help="as for ccompile.compile")
    parser.add_argument("--threads", type=int, help="torch.set_num_threads")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of the table")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a target is missed")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    os.environ["CCOMPILE_CACHE_DIR"] = ""  # so that first calls compile all their kernels
    work = chosen(args.models)
    present = [workload for workload in work if workload.available]
    rows, failed = [], 0
    for workload in _progress(present):
        try:
            rows.append(measure(workload, args.seconds, args.mode))
        except Exception as error:  # one model must not hide the others
            failed += 1
            print(f"{workload.name}: {type(error).__name__}: {error}", file=sys.stderr)
    if args.json:
        for row in rows:
            print(json.dumps(row))
    else:
        print(f"\ntorch {torch.__version__}, CPython {platform.python_version()}, {os.cpu_count()} processors, "
              f"{torch.get_num_threads()} threads; {ccompile._core.describe()}\n")  # fmt: skip
        print(table(rows))
        absent = [workload.name for workload in work if not workload.available]
        if absent:
            print(f"\nskipped because transformers is not installed: {', '.join(absent)}")
        short = misses(rows)
        print("\n" + ("\n".join(short) if short else f"all targets met ({len(rows)} models)"))
    return 1 if failed or (args.check and misses(rows)) else 0


def _progress(work: list[Workload]) -> Iterator[Workload]:
    """Yields the workloads, with a progress bar if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        for i, workload in enumerate(work, 1):
            print(f"[{i}/{len(work)}] {workload.name}", file=sys.stderr)
            yield workload
        return
    with tqdm(total=len(work), unit="model", file=sys.stderr, disable=None if "CI" in os.environ else False) as bar:
        for workload in work:
            bar.set_description(workload.name)
            yield workload
            bar.update()

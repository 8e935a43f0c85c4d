"""Other libraries' programs (libraries.py) with ccompile installed against eager: steps alternate in one process, which
has one thread. Times are CPU time: what other processes do counts less.

    python benchmarks/bench_libraries.py [--seconds S] [--json] [PROGRAM ...]
    python benchmarks/bench_libraries.py --dynamo [PROGRAM ...]    Dynamo's graph breaks instead

A step is what a user does: a whole generate(), a pipeline, an epoch. Models are tiny, so the speed-up comes mostly from
less Python and dispatch overhead, and what a library does around its models bounds it. "first" is the time of the first
three steps over eager's: recordings, and kernels that are not on disk yet. Programs whose library is not installed are
left out; `make bench-libraries` installs all."""

import argparse
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import libraries
import torch
import zoo
from bench_models import cell, geomean, table

WARM_STEPS = 7  # after which the programs' steps replay
Side = Callable[[], AbstractContextManager[None]]


def stepping(name: str, side: Side) -> Callable[[int], Any]:
    """The program's step as a function that runs under `side`, with random numbers of its own."""
    torch.manual_seed(7)
    with side():
        use = libraries.PROGRAMS[name].make()

    def step(i: int) -> Any:
        torch.manual_seed(i)
        with side():
            return use.step(i)

    return step


def spent(step: Callable[[int], Any], *inputs: int) -> float:
    """Milliseconds of CPU time."""
    begin = time.process_time()
    for i in inputs:
        step(i)
    return (time.process_time() - begin) * 1e3


def measure(name: str, seconds: float) -> dict[str, Any]:
    made: list[Any] = []
    eager, ours = (stepping(name, side) for side in (libraries.eager, lambda: libraries.ours(made)))
    eager(0)
    first = [spent(step, 0, 1, 2) for step in (eager, ours)]
    for i in range(3, WARM_STEPS):
        ours(i)
    _, breaks = zoo.met(lambda: ours(0), *made)
    pairs = []
    end = time.perf_counter() + seconds
    while len(pairs) < 5 or time.perf_counter() < end:
        pairs.append([spent(step, 0) for step in (eager, ours)])
    eager_ms, ms = (statistics.median(side) for side in zip(*pairs, strict=True))
    speedup = statistics.median(theirs / mine for theirs, mine in pairs)
    return {"bench": "libraries", "name": name, "eager_ms": eager_ms, "ms": ms, "speedup": speedup, "breaks": breaks,
            "first_extra_ms": first[1] - first[0]}  # fmt: skip


def dynamo_breaks(name: str) -> int:
    """Dynamo's graph breaks in two steps under torch.compile(backend="eager")."""
    import torch._dynamo

    theirs = torch.compile

    def compile(model: Any = None, *, dynamic: bool | None = None, **_: Any) -> Any:
        return theirs(model, backend="eager", dynamic=dynamic)

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = stepping(name, lambda: libraries.compiling_by(compile))
    for i in range(2):
        step(i)
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def told(rows: list[dict[str, Any]]) -> str:
    keys = [("eager ms", "eager_ms", ".2f"), ("ms", "ms", ".2f"), ("speed-up", "speedup", ".2f"),
            ("first, ms over eager", "first_extra_ms", ".0f"), ("breaks", "breaks", "d")]  # fmt: skip
    body = [[row["name"], *(cell(row, key, form) for _, key, form in keys)] for row in rows if "failed" not in row]
    failed = [f"\n{row['name']}: {row['failed']}" for row in rows if "failed" in row]
    speeds = [row["speedup"] for row in rows if "speedup" in row]
    ends = f"\n\n{len(rows)} programs, geomean of speed-ups {geomean(speeds):.2f}" if speeds else ""
    return table(["program", *(head for head, _, _ in keys)], body) + ends + "".join(failed)


def installed(names: list[str]) -> list[str]:
    found = []
    for name in names:
        try:
            libraries.need(libraries.PROGRAMS[name].library)
            found.append(name)
        except ImportError as error:
            print(f"{name}: left out ({error})", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="rows of libraries.py (default: all)")
    parser.add_argument("--seconds", type=float, default=2, help="measuring time per program")
    parser.add_argument("--dynamo", action="store_true", help="print Dynamo's graph breaks, and measure nothing")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of the table")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in libraries.PROGRAMS]
    if unknown:
        parser.error(f"unknown {unknown[0]!r}; programs: {', '.join(libraries.PROGRAMS)}")
    torch.set_num_threads(1)  # more do not pay for models this small
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows: list[dict[str, Any]] = []
    for name in installed(args.names or list(libraries.PROGRAMS)):
        try:
            if args.dynamo:
                print(f"{name} {dynamo_breaks(name)}", flush=True)
                continue
            rows.append(measure(name, args.seconds))
        except Exception as error:  # one program must not hide the others
            rows.append({"bench": "libraries", "name": name, "failed": f"{type(error).__name__}: {str(error)[:80]!r}"})
        if args.json:
            print(json.dumps(rows[-1]), flush=True)
    if rows and not args.json:
        print(told(rows))
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

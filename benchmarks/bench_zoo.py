"""The transformers zoo: graphs, breaks, equality with eager, speed-up and first call of each architecture of zoo.py.

    python benchmarks/bench_zoo.py                    the table
    python benchmarks/bench_zoo.py bert llama --json  some rows, as JSON lines
    python benchmarks/bench_zoo.py --rows FILE        the table of previously measured JSON lines
    python benchmarks/bench_zoo.py --dynamo           recounts Dynamo's graphs and breaks: zoo_dynamo.txt (minutes)

Models are small (2 layers, hidden size 32), so the speed-up comes mostly from less Python and dispatch overhead;
bench_models.py has models of real sizes. Breaks are those of a replay after three calls; "yes" means that the whole
output, caches included, equals eager's in three calls with different inputs.
"""

import argparse
import contextlib
import copy
import io
import json
import logging
import sys
import time
import warnings
from typing import Any

import zoo


def outputs(value: Any, seen: set[int] | None = None) -> list[Any]:
    """All tensors in a model's output, nested in any objects, in a fixed order."""
    import torch

    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in seen or isinstance(value, type | str | int | float | None):
        return []
    seen.add(id(value))
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    else:
        inner = list(vars(value).values()) if hasattr(value, "__dict__") and not callable(value) else []
    return [t for one in inner for t in outputs(one, seen)]


def same(eager: Any, compiled: Any) -> bool:
    import torch

    ours, theirs = outputs(compiled), outputs(eager)
    if type(eager) is not type(compiled) or len(ours) != len(theirs):
        return False
    try:
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)
    except AssertionError:
        return False
    return True


def measure(name: str, seconds: float) -> dict[str, Any]:
    import ccompile
    import torch
    from bench_models import blocks

    inputs = zoo.ZOO[name].inputs
    model = zoo.build(name)
    ccompile.reset()
    compiled = ccompile.compile(copy.deepcopy(model))
    with torch.no_grad():
        model(**inputs(0))
        begin = time.perf_counter()
        model(**inputs(0))
        warm = time.perf_counter() - begin
        begin = time.perf_counter()
        compiled(**inputs(0))
        first = time.perf_counter() - begin
        equal = True
        for i in (1, 2, 3):
            torch.manual_seed(i)
            expected = model(**inputs(i))
            torch.manual_seed(i)
            equal = same(expected, compiled(**inputs(i))) and equal
        graphs, breaks = zoo.met(lambda: compiled(**inputs(4)), compiled)
        given = inputs(5)
        eager, ours = (
            blocks([lambda: model(**given), lambda: compiled(**given)], seconds, 0.02) if seconds else ([], [])
        )
    row = {"bench": "zoo", "name": name, "family": zoo.ZOO[name].family, "graphs": graphs, "breaks": breaks,
           "equal": equal, "first_extra_ms": (first - warm) * 1e3}  # fmt: skip
    if seconds:
        row.update(eager_ms=min(eager), ms=min(ours), speedup=min(eager) / min(ours))
    return row


def count_dynamo(name: str) -> tuple[int, int] | None:
    """Dynamo's (graphs, breaks) for the first call; None: Dynamo fails."""
    import torch
    import torch._dynamo as dynamo

    model = zoo.build(name)
    dynamo.reset()
    torch.manual_seed(7)
    try:
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            report = dynamo.explain(model)(**zoo.ZOO[name].inputs(0))
    except dynamo.exc.TorchDynamoException:
        return None
    # graph_break_count is graphs - 1; only the list of reasons includes a break behind the last graph.
    return report.graph_count, max(report.graph_break_count, len(report.break_reasons))


def write_dynamo(names: list[str]) -> None:
    """Recounts `names`, and keeps the other rows of zoo_dynamo.txt."""
    import platform

    import torch
    import transformers

    logging.disable(logging.CRITICAL)
    found = zoo.dynamo_counts() if zoo.DYNAMO.exists() else {}
    for i, name in enumerate(names, 1):
        print(f"[{i}/{len(names)}] {name}", file=sys.stderr, flush=True)
        found[name] = count_dynamo(name)
        versions = (
            f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}"
        )
        head = [f"# torch._dynamo.explain's graphs and breaks of the rows of zoo.py, under no_grad ({versions}).",
                "# Written by: python benchmarks/bench_zoo.py --dynamo [names]",
                "# name graphs breaks (-: Dynamo fails)"]  # fmt: skip
        rows = [(n, found[n]) for n in zoo.ZOO if n in found]
        body = [f"{n} {c[0]} {c[1]}" if c else f"{n} - -" for n, c in rows]
        zoo.DYNAMO.write_text("\n".join([*head, *body]) + "\n")


def told(rows: list[dict[str, Any]]) -> str:
    from bench_models import cell, geomean, table

    dynamo = zoo.dynamo_counts()
    body = []
    for row in rows:
        theirs = dynamo.get(row["name"])
        body.append([row["name"], row["family"], cell(row, "graphs", "d"), cell(row, "breaks", "d"),
                     *(map(str, theirs) if theirs else ("-", "-")),
                     row.get("failed") or ("yes" if row["equal"] else "NO"),
                     cell(row, "eager_ms", ".2f"), cell(row, "speedup", ".2f"),
                     cell(row, "first_extra_ms", ".0f")])  # fmt: skip
    head = ["architecture", "family", "graphs", "breaks", "Dynamo: graphs", "breaks", "equal", "eager ms", "speed-up",
            "first call, ms over eager"]  # fmt: skip
    speeds = [row["speedup"] for row in rows if "speedup" in row]
    ends = [f"{len(rows)} architectures"]
    if speeds:
        ends.append(f"geomean of speed-ups {geomean(speeds):.2f}")
    return table(head, body) + "\n\n" + ", ".join(ends)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows of zoo.py (default: all)")
    parser.add_argument("--seconds", type=float, default=0.3, help="measuring time per row; 0: no timing")
    parser.add_argument("--dynamo", action="store_true", help="recount Dynamo's graphs and breaks")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of the table")
    parser.add_argument("--rows", help="print the rows of this JSON lines file, and measure nothing")
    args = parser.parse_args()
    if args.rows:
        with open(args.rows) as file:
            print(told([json.loads(line) for line in file]))
        return 0
    unknown = [name for name in args.names if name not in zoo.ZOO]
    if unknown:
        parser.error(f"unknown {unknown[0]!r}; rows: {', '.join(zoo.ZOO)}")
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: pip install transformers", file=sys.stderr)
        return 1
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    names = args.names or list(zoo.ZOO)
    if args.dynamo:
        write_dynamo(names)
        return 0
    rows = []
    for name in names:
        try:
            rows.append(measure(name, args.seconds))
        except Exception as error:  # one architecture must not hide the others
            rows.append({"bench": "zoo", "name": name, "family": zoo.ZOO[name].family, "equal": False,
                         "failed": f"{type(error).__name__}: {str(error)[:80]}"})  # fmt: skip
        if args.json:
            print(json.dumps(rows[-1]), flush=True)
    if not args.json:
        print(told(rows))
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

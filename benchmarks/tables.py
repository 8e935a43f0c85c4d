"""Draws docs/benchmarks.md's tables of machines from what `make bench` kept on each of them.

    python benchmarks/tables.py [--results benchmarks/results] [--page docs/benchmarks.md]

A file of the folder is one processor's measurement (bench_models.py --results). The tables replace what stands between
the two marks of the page."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench_models import geomean, table

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- machines: benchmarks/tables.py draws this -->\n", "<!-- end of machines -->\n"
MEAN = "geomean"
SHOWN = {"ccompile": "ccompile", "ccompile-max": "max", "inductor": "Inductor", "openvino": "OpenVINO",
         "onnxruntime": "ONNX Runtime"}  # fmt: skip


def extension(flags: list[str]) -> str:
    """The widest vector extension."""
    return next(
        (name for flag, name in (("amx_tile", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "-"
    )


def of_machines(found: list[dict[str, Any]]) -> str:
    """A line for each processor."""
    head = ["", "processor", "family-model-stepping", "vectors", "threads", "torch", "CPython", "ccompile"]
    keys = ("threads", "torch", "python", "ccompile")
    body = []
    for letter, one in zip(letters(found), found, strict=True):
        here = one["machine"]
        values = [str(here[key]).removeprefix("CPython ") for key in keys]
        body.append([letter, here["cpu"], here["cpu_model"], extension(here["flags"]), *values])
    return table(head, body)


def letters(found: list[dict[str, Any]]) -> list[str]:
    return [chr(ord("A") + i) for i in range(len(found))]


def of_models(found: list[dict[str, Any]]) -> str:
    """Speed-ups over eager by workload, the machines side by side."""
    inputs = {row["workload"]: row["input"] for one in found for row in one["rows"]}
    columns = [column for letter, one in zip(letters(found), found, strict=True) for column in columns_of(letter, one)]
    body = [[name, inputs.get(name, ""), *(cells.get(name, "") for _, cells in columns)] for name in [*inputs, MEAN]]
    return table(["workload", "input", *(title for title, _ in columns)], body)


def columns_of(letter: str, one: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """A machine's columns: titles, and cells by workload."""
    rows = [row for row in one["rows"] if "speedup" in row]
    eager: dict[str, float] = {}
    for row in rows:
        eager[row["workload"]] = min(row["eager_ms"], eager.get(row["workload"], row["eager_ms"]))
    columns = [(f"{letter}: eager ms", {name: f"{ms:.3f}" for name, ms in eager.items()})]
    for compiler, title in SHOWN.items():
        speed = {row["workload"]: row["speedup"] for row in rows if row["compiler"] == compiler}
        if speed:
            speed[MEAN] = geomean(list(speed.values()))
            columns.append((f"{letter}: {title}", {name: f"{value:.2f}" for name, value in speed.items()}))
    return columns


def drawn(page: str, found: list[dict[str, Any]]) -> str:
    """The page with the tables between its marks. Raises ValueError if they are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}\n{of_machines(found)}\n\n{of_models(found)}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/benchmarks.md")
    args = parser.parse_args()
    found = [json.loads(path.read_text()) for path in sorted(args.results.glob("*.json"))]
    if not found:
        print(f"no measurement in {args.results}: `make bench` writes one", file=sys.stderr)
        return 1
    args.page.write_text(drawn(args.page.read_text(), found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

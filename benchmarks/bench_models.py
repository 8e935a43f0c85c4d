"""ccompile and its peers against eager on whole models.

    python benchmarks/bench_models.py [--compilers NAMES] [--dtype DTYPE] [--seconds 4] [--json] [WORKLOAD ...]

Each pair of compiler and workload has a process of its own, so that the spinning threads of two runtimes never share
the cores; in it eager and compiled calls alternate in blocks. A time is the minimum of its blocks.

With --dtype everything runs in that dtype, eager included: converts the model and its floating-point inputs. `autocast`
leaves them as they are and wraps each call in torch.autocast of bfloat16, `autocast-held` all calls in one such block.
Peers that take NumPy arrays do not support this.

Further processes, which only make a few calls, measure memory: the peak of the resident set (VmHWM, which Linux lets a
process reset) during the first call and during a later one, above those of the same process without a compiler; medians
of --processes. Pages of shared libraries count like all others. ccompile caches kernels on disk, so its first call is
measured twice: "first" compiles all kernels, "kept" loads them (as every process but the very first does). Times of
first calls include compiling.

Peers are optional (`pip install ccompile[bench]`; Inductor also needs a C++ compiler): a missing one is a '-' and is
reported once, and so is a peer that fails on a workload (--verbose gives the reason). --json prints one line for each
pair of workload and compiler instead of the tables. --results keeps the rows, with the processor, its vector extensions
and all versions, as FOLDER/PROCESSOR.json, from which tables.py draws the table of docs/benchmarks.md."""

import argparse
import contextlib
import gc
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
COMPILERS = ("ccompile", "ccompile-max", "inductor", "openvino", "onnxruntime")
PEERS = COMPILERS[2:]
AUTOCAST = ("autocast", "autocast-held")  # a block per call; one block around all calls
DTYPES = ("float32", "bfloat16", "float16", "float64", *AUTOCAST)
BY_TORCH = COMPILERS[:3]  # support dtypes other than float32
NEEDS = {"openvino": ("openvino",), "onnxruntime": ("onnxruntime", "onnx", "onnxscript")}
# Seconds after which all runtimes' threads have stopped spinning. ONNX Runtime's still spin after 20 ms: SimpleNet's
# eager call takes 0.25 ms when made 5 ms after its last call, 0.22 after 20 ms, 0.147 after 50 and 100 (Zen 4), as
# without ONNX Runtime.
ASLEEP = 0.06
PEAKS = {"first ": "first_peak_mib", "": "peak_mib", "kept first ": "kept_peak_mib", "kept ": "kept_later_peak_mib"}
WARM_CALLS = 2  # between the first call and the later one that is measured


def missing(compiler: str) -> str | None:
    """Why this compiler can't run, or None."""
    absent = [name for name in NEEDS.get(compiler, ()) if find_spec(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if compiler == "inductor" and not any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "c++", "clang++"))):
        return "no C++ compiler was found"
    return None


# ---- compilers: (model, args, kwargs) -> a callable with the model's signature ---------------------------------------
def compile_eager(model: Any, args: tuple, kwargs: dict) -> Callable:
    return model


def compile_ccompile(model: Any, args: tuple, kwargs: dict) -> Callable:
    import ccompile

    return ccompile.compile(model)


def compile_ccompile_max(model: Any, args: tuple, kwargs: dict) -> Callable:
    import ccompile

    return ccompile.compile(model, mode="max-autotune")


def compile_inductor(model: Any, args: tuple, kwargs: dict) -> Callable:
    import torch

    torch._inductor.config.force_disable_caches = True  # so that the first call compiles
    return torch.compile(model)


def as_module(model: Any, kwargs: dict) -> Any:
    """A module for exporters: takes tensors, returns a tuple of the result's tensors."""
    import torch
    from ccompile.demo import tensors

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return tuple(tensors(self.model(x, **kwargs)))

    return Plain().eval()


def compile_openvino(model: Any, args: tuple, kwargs: dict) -> Callable:
    import openvino
    import torch

    plain = as_module(model, kwargs)
    try:
        converted = openvino.convert_model(plain, example_input=args, input=[list(a.shape) for a in args])
    except Exception:  # a model that can't be traced may still export
        converted = openvino.convert_model(torch.export.export(plain, args))
    hints = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY",
             "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    request = openvino.Core().compile_model(converted, "CPU", hints).create_infer_request()

    def call(*given: Any, **_: Any) -> tuple:
        found = request.infer([a.numpy() for a in given], share_inputs=True, share_outputs=False)
        return tuple(torch.from_numpy(found[i]) for i in range(len(found)))

    return call


def compile_onnxruntime(model: Any, args: tuple, kwargs: dict) -> Callable:
    import onnxruntime
    import torch

    program = torch.onnx.export(as_module(model, kwargs), args, dynamo=True, verbose=False, optimize=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]

    def call(*given: Any, **_: Any) -> tuple:
        found = session.run(None, {name: a.numpy() for name, a in zip(names, given, strict=True)})
        return tuple(map(torch.from_numpy, found))

    return call


COMPILE: dict[str, Callable] = {
    "eager": compile_eager,
    "ccompile": compile_ccompile,
    "ccompile-max": compile_ccompile_max,
    "inductor": compile_inductor,
    "openvino": compile_openvino,
    "onnxruntime": compile_onnxruntime,
}


# ---- in a worker's process -------------------------------------------------------------------------------------------
def blocks(calls: list[Callable[[], Any]], seconds: float, block: float = 0.05) -> list[list[float]]:
    """Milliseconds per call, one value for each block of each callable; blocks alternate. Each block starts with a
    pause in which the other runtime's threads fall asleep (ASLEEP), and an untimed call."""
    loops = []
    for call in calls:
        call()
        begin = time.perf_counter()
        call()
        loops.append(max(1, min(10_000, int(min(block, seconds / 8) / max(time.perf_counter() - begin, 1e-7)))))
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(found[0]) < 5 or time.perf_counter() < end:
        for i, call in enumerate(calls):
            time.sleep(ASLEEP)
            call()
            begin = time.perf_counter()
            for _ in range(loops[i]):
                call()
            found[i].append((time.perf_counter() - begin) / loops[i] * 1e3)
    return found


def peak_mib(call: Callable[[], Any]) -> float:
    """Peak resident set of this process during a call."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the current resident set
    call()
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else math.nan


def peaks(compiler: str, model: Any, args: tuple, kwargs: dict) -> dict[str, float]:
    gc.collect()
    fn = COMPILE[compiler](model, args, kwargs)
    first = peak_mib(lambda: fn(*args, **kwargs))
    for _ in range(WARM_CALLS):
        fn(*args, **kwargs)
    return {"first_peak_mib": first, "peak_mib": peak_mib(lambda: fn(*args, **kwargs))}


def in_dtype(model: Any, dtype: str) -> Any:
    import torch

    if dtype == "autocast":
        return torch.autocast("cpu", dtype=torch.bfloat16)(model)
    if dtype in AUTOCAST or not isinstance(model, torch.nn.Module):
        return model
    return model.to(getattr(torch, dtype))


def inputs_in(inputs: tuple[tuple, dict], dtype: str) -> tuple[tuple, dict]:
    import torch

    if dtype in ("float32", *AUTOCAST):
        return inputs
    kind = getattr(torch, dtype)

    def convert(x: Any) -> Any:
        return x.to(kind) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    return tuple(map(convert, inputs[0])), {key: convert(x) for key, x in inputs[1].items()}


def worker(compiler: str, name: str, seconds: float, threads: int, memory: bool, dtype: str) -> dict[str, Any]:
    """Measures one process' memory peaks, or its times."""
    import registry
    import torch
    from ccompile.demo import largest_error, tensors

    torch.set_num_threads(threads)
    workload = registry.WORKLOADS[name]
    model = in_dtype(registry.build(workload), dtype)
    args, kwargs = inputs_in(workload.inputs(), dtype)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "autocast-held"):
        if memory:
            return peaks(compiler, model, args, kwargs)
        others, _ = inputs_in(workload.inputs(), dtype)
        for _ in range(2):
            expected, expected_other = model(*args, **kwargs), model(*others, **kwargs)
        begin = time.perf_counter()
        model(*args, **kwargs)
        warm = time.perf_counter() - begin
        begin = time.perf_counter()
        fn = COMPILE[compiler](model, args, kwargs)
        first_result = fn(*args, **kwargs)
        first = time.perf_counter() - begin
        pairs = ((first_result, expected), (fn(*others, **kwargs), expected_other))
        error = max(
            largest_error([a], [b]) / max(float(b.abs().max()), 1e-30)
            for got, want in pairs
            for a, b in zip(tensors(got), tensors(want), strict=True)
        )
        eager, compiled = blocks([lambda: model(*args, **kwargs), lambda: fn(*args, **kwargs)], seconds)
    return {
        "eager_ms": min(eager),
        "ms": min(compiled),
        "eager_median_ms": median(eager),
        "median_ms": median(compiled),
        "speedup": min(eager) / min(compiled),
        "first_extra_ms": (first - warm) * 1e3,
        "error": error,  # relative to the largest element
        "blocks": len(eager),
        "torch": torch.__version__,
    }


def work(text: str) -> int:
    """A worker's main: takes arguments as JSON, prints its result as the last line of stdout."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            row = worker(**json.loads(text))
    except Exception as error:  # one compiler must not hide the others
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        row = {"failed": f"{type(error).__name__}: {' '.join(lines)[:300]}"}
    print(json.dumps(row), flush=True)
    os._exit(0)  # some runtimes' threads never end


# ---- in the parent ---------------------------------------------------------------------------------------------------
def start(timeout: float, kept: str = "", **task: Any) -> dict[str, Any]:
    """Runs a worker -> its result, or {"failed": reason}. kept: ccompile's cache folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(task["threads"]), "TOKENIZERS_PARALLELISM": "false",
                   "CCOMPILE_CACHE_DIR": kept}  # fmt: skip
    command = [sys.executable, os.path.abspath(__file__), "--worker", json.dumps(task)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result after {timeout:g} s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"}


def memory_of(compiler: str, args: argparse.Namespace, **task: Any) -> dict[str, float]:
    """Memory peaks: medians over processes."""

    def some(n: int, kept: str) -> list[dict[str, Any]]:
        return [start(args.timeout, kept=kept, compiler=compiler, memory=True, **task) for _ in range(n)]

    def middle(rows: list[dict[str, Any]], key: str) -> dict[str, float]:
        found = [row[key] for row in rows if key in row]
        return {key: median(found)} if found else {}

    rows = some(args.processes, "")
    found = {**middle(rows, "first_peak_mib"), **middle(rows, "peak_mib")}
    found["kept_peak_mib"] = found.get("first_peak_mib", math.nan)
    if compiler.startswith("ccompile"):
        with tempfile.TemporaryDirectory() as folder:
            kept = some(args.processes + 1, folder)[1:]
        found["kept_peak_mib"] = middle(kept, "first_peak_mib").get("first_peak_mib", math.nan)
        found["kept_later_peak_mib"] = middle(kept, "peak_mib").get("peak_mib", math.nan)
    return found


def measure(name: str, what: str, compilers: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each compiler."""
    task = {"name": name, "seconds": args.seconds, "threads": args.threads, "dtype": args.dtype}
    base = memory_of("eager", args, **task) if args.memory else {}
    rows = []
    for compiler in compilers:
        row = {"bench": "models", "workload": name, "input": what, "compiler": compiler, "threads": args.threads}
        row["dtype"] = args.dtype
        absent = missing(compiler)
        row.update({"missing": absent} if absent else start(args.timeout, compiler=compiler, memory=False, **task))
        if args.memory and "ms" in row:
            peak = memory_of(compiler, args, **task)
            base["kept_later_peak_mib"] = base.get("peak_mib")
            for key in PEAKS.values():
                row[key], row[f"eager_{key}"] = peak.get(key), base.get(key)
        row.update(python=platform.python_version(), processors=os.cpu_count())
        rows.append(row)
        if args.json:
            print(json.dumps(row), flush=True)
    return rows


def table(head: list[str], body: list[list[str]]) -> str:
    """An aligned Markdown table whose first column is text."""
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]

    def line(cells: list[str]) -> str:
        return (
            "| "
            + " | ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
            + " |"
        )

    rule = "| " + " | ".join("-" * (w - 1) + ":" if i else "-" * w for i, w in enumerate(widths)) + " |"
    return "\n".join([line(head), rule, *map(line, body)])


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def over(row: dict[str, Any], key: str) -> float | None:
    """Peak memory above eager's, MiB."""
    peak, eager = row.get(key), row.get(f"eager_{key}")
    return None if peak is None or eager is None else peak - eager


def cell(row: dict[str, Any], key: str, form: str) -> str:
    return "-" if row.get(key) is None else format(row[key], form)


def speed_table(names: list[str], compilers: list[str], at: dict[tuple[str, str], dict[str, Any]]) -> str:
    body = []
    for name in names:
        rows = [at[name, c] for c in compilers]
        eager = min((row["eager_ms"] for row in rows if "eager_ms" in row), default=None)
        errors = [row["error"] for row in rows if row["compiler"] not in PEERS and "error" in row]
        body.append([name, rows[0]["input"], cell({"ms": eager}, "ms", ".3f")])
        body[-1] += [cell(row, "speedup", ".2f") for row in rows] + [f"{max(errors):.0e}" if errors else "-"]
    body.append(["geomean", "", ""])
    for compiler in compilers:
        found = [at[name, compiler]["speedup"] for name in names if "speedup" in at[name, compiler]]
        body[-1].append(f"{geomean(found):.2f}" if found else "-")
    body[-1].append("")
    return table(["workload", "input", "eager ms", *compilers, "error"], body)


def cost_table(names: list[str], compilers: list[str], at: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Times of first calls, then memory of first and later calls; the last two lines summarise all workloads."""
    columns = [[at[name, c].get("first_extra_ms") for name in names] for c in compilers]
    shown = [(c, word) for c in compilers for word in PEAKS if c.startswith("ccompile") or "kept" not in word]
    peaks = [[over(at[name, c], PEAKS[word]) for name in names] for c, word in shown]
    shown = [which for which, column in zip(shown, peaks, strict=True) if any(v is not None for v in column)]
    columns += [column for column in peaks if any(v is not None for v in column)]
    body = [[name, *("-" if v[i] is None else f"{v[i]:.0f}" for v in columns)] for i, name in enumerate(names)]
    for label, reduce in (("median", median), ("worst", max)):
        found = [[v for v in column if v is not None] for column in columns]
        body.append([label, *(f"{reduce(v):.0f}" if v else "-" for v in found)])
    return table(["workload", *(f"{c} ms" for c in compilers), *(f"{c} {word}MiB" for c, word in shown)], body)


def against_peers(compiler: str, names: list[str], at: dict[tuple[str, str], dict[str, Any]]) -> str:
    ratios = []
    for name in names:
        best = max((at[name, c]["speedup"] for c in PEERS if "speedup" in at.get((name, c), {})), default=None)
        if best and "speedup" in at[name, compiler]:
            ratios.append(at[name, compiler]["speedup"] / best)
    wins = sum(ratio >= 1 for ratio in ratios)
    found = (
        f"ahead on {wins} of {len(ratios)} workloads, geomean {geomean(ratios):.2f}" if ratios else "nothing to compare"
    )
    return f"{compiler} against the best peer: {found}"


def told(rows: list[dict[str, Any]], compilers: list[str]) -> str:
    """The tables and their summaries."""
    at = {(row["workload"], row["compiler"]): row for row in rows}
    names = list(dict.fromkeys(row["workload"] for row in rows))
    parts = [
        "Speed-up over eager; largest error of ccompile, relative to the largest element:",
        speed_table(names, compilers, at),
        "Extra time of the first call, ms; peak memory of the first call and of a later one above eager's, MiB:",
        cost_table(names, compilers, at),
        *(against_peers(c, names, at) for c in compilers if c not in PEERS),
    ]
    return "\n\n".join(parts)


def notes(rows: list[dict[str, Any]], verbose: bool) -> list[str]:
    """Missing compilers, once each; failures, with reasons if verbose."""
    found = list(dict.fromkeys(f"{row['compiler']}: {row['missing']}" for row in rows if "missing" in row))
    failed = [row for row in rows if "failed" in row]
    if verbose:
        found += [f"{row['compiler']} failed on {row['workload']}: {row['failed']}" for row in failed]
    elif failed:
        found.append(
            f"{len(failed)} failed ({', '.join(sorted({row['compiler'] for row in failed}))}): --verbose says why"
        )
    return found


def keep(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes the measurement, in place of an earlier one of this processor."""
    from ccompile import machine

    here = machine.describe() | {"threads": rows[0]["threads"]}
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", f"{here['cpu']} {here['cpu_model']}").strip("-").lower()
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": here, "rows": rows}, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help="names (default: the 16 of the comparison)")
    parser.add_argument("--compilers", help=f"some of {', '.join(COMPILERS)} (default: all that support the dtype)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="dtype of models and inputs (default float32)"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time per pair (default 4)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each process (default 900)")
    parser.add_argument(
        "--no-memory", dest="memory", action="store_false", help="skip the processes that measure memory"
    )
    parser.add_argument("--processes", type=int, default=5, help="number of processes that measure memory (default 5)")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of the tables")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep the rows as FOLDER/PROCESSOR.json")
    parser.add_argument("--verbose", action="store_true", help="print why compilers failed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.worker)
    import registry

    able = COMPILERS if args.dtype == "float32" else BY_TORCH
    compilers = args.compilers.split(",") if args.compilers else list(able)
    unknown = [c for c in compilers if c not in COMPILERS] + [w for w in args.workloads if w not in registry.WORKLOADS]
    if unknown:
        parser.error(
            f"unknown {unknown[0]!r}; compilers: {', '.join(COMPILERS)}; workloads: {', '.join(registry.WORKLOADS)}"
        )
    if unable := [c for c in compilers if c not in able]:
        parser.error(f"{unable[0]} takes float32 only, {', '.join(able)} take {args.dtype}")
    chosen = [registry.WORKLOADS[name] for name in args.workloads] or [
        w for w in registry.WORKLOADS.values() if w.bench
    ]
    rows: list[dict[str, Any]] = []
    for i, workload in enumerate(chosen, 1):
        print(f"[{i}/{len(chosen)}] {workload.name}", file=sys.stderr, flush=True)
        if workload.available:
            rows += measure(workload.name, workload.what.removeprefix("transformers "), compilers, args)
        else:
            print("  skipped: transformers is not installed", file=sys.stderr)
    if not args.json:
        print("\n" + told(rows, compilers) + "\n")
    if args.results is not None and rows:
        print(f"kept in {keep(args.results, rows)}", file=sys.stderr)
    for note in notes(rows, args.verbose):
        print(note, file=sys.stderr if args.json else sys.stdout)
    return 0 if any("ms" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

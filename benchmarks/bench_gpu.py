"""ccompile on a GPU against eager and torch.compile.

    python benchmarks/bench_gpu.py [--batch 32] [--dtype float32|float16|bfloat16] [--autocast float16|bfloat16]
                                   [--tf32] [--minutes 9] [--json FILE] [WORKLOAD ...]

Whole models (the registry's, with --batch where inputs have a batch dim) and single kernels; a WORKLOAD is the name of
one, or "models" or "kernels". For each workload, ccompile's modes share a process, and torch.compile's share another;
in it blocks of eager and compiled calls alternate, each between CUDA events, and a time is the minimum of its blocks.
`first` is the first call's time above an eager call's, with our cubin cache empty and Inductor's caches off; later
modes of a process reuse the first mode's kernels, so only the first mode's value is meaningful. Memory is the peak of
torch's allocator in a later call, relative to eager's.

Each row is printed, and appended to FILE, as soon as it is measured. After --minutes no new measurement starts.
--device cpu is for tests."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
FAMILIES = {"ccompile": ("default", "reduce-overhead"), "torch": ("default", "reduce-overhead")}
MODELS = ("SimpleNet", "ResNet-50", "BERT-Base", "GPT-2", "ViT-Base", "small Llama", "ComplexModel", "MiniTransformer",
          "MobileNetV2", "ConvNeXt-T")  # fmt: skip
ONE_INPUT = MODELS[1:6] + MODELS[8:]  # batch 1 in the registry
SIZES = ((4096, 4096), (64, 512), (63, 500), (1, 100001))
CALLS_MS = 50  # duration of a block


def kernels() -> dict[str, tuple[Callable, Callable]]:
    """name -> (function, inputs)."""
    import torch
    import torch.nn.functional as F
    from ccompile.demo_models import complex_activation, feature_enhancement

    def masked(x: Any, mask: Any) -> Any:
        return torch.softmax(x.masked_fill(mask, float("-inf")), -1)

    found: dict[str, tuple[Callable, Callable]] = {}
    found["complex_activation 8x64x128x128"] = complex_activation, lambda: (torch.randn(8, 64, 128, 128),)
    found["feature_enhancement 8x64x64x64"] = feature_enhancement, lambda: (torch.randn(8, 64, 64, 64),)
    for rows, columns in SIZES:
        size = (rows, columns)
        for name, fn in (
            ("softmax", lambda x: torch.softmax(x, -1)),
            ("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
            ("gelu", F.gelu),
            ("sum", lambda x: x.sum(-1)),
        ):
            found[f"{name} {rows}x{columns}"] = fn, lambda size=size: (torch.randn(size),)
        found[f"masked_softmax {rows}x{columns}"] = (
            masked,
            lambda size=size: (torch.randn(size), torch.rand(size) < 0.1),
        )
    found["complex_activation 64x512"] = complex_activation, lambda: (torch.randn(64, 512),)
    return found


def workload(name: str, options: argparse.Namespace) -> tuple[Callable, tuple, dict]:
    """The callable and its arguments, on the device."""
    import torch
    from registry import WORKLOADS, build

    torch.manual_seed(0)
    dtype, device = getattr(torch, options.dtype), options.device
    if name in kernels():
        fn, inputs = kernels()[name]
        args, kwargs = inputs(), {}
    else:
        fn, (args, kwargs) = build(WORKLOADS[name]), WORKLOADS[name].inputs()
        if name in ONE_INPUT:
            args = tuple(torch.cat([a] * options.batch) for a in args)
        fn = fn.to(device).to(dtype) if isinstance(fn, torch.nn.Module) else fn
    args = tuple(a.to(device).to(dtype) if a.is_floating_point() else a.to(device) for a in args)
    return fn, args, kwargs


def compile_with(family: str, mode: str, fn: Callable) -> Callable:
    import torch

    more = {} if mode == "default" else {"mode": mode}
    if family == "torch":
        torch._inductor.config.force_disable_caches = True
        torch._dynamo.reset()
        return torch.compile(fn, **more)
    import ccompile

    return ccompile.compile(fn, **more)


def wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def clocked(call: Callable, n: int) -> float:
    """Mean milliseconds of n calls, by CUDA events where there is a GPU."""
    import torch

    if not torch.cuda.is_available():
        start = time.perf_counter()
        for _ in range(n):
            call()
        return (time.perf_counter() - start) * 1e3 / n
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(n):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n


def host_ms(call: Callable, n: int) -> float:
    """Mean milliseconds until a call returns: the cost of Python and of launches, if the GPU keeps up."""
    wait()
    start = time.perf_counter()
    for _ in range(n):
        call()
    spent = (time.perf_counter() - start) * 1e3 / n
    wait()
    return spent


def first_call(call: Callable) -> float:
    wait()
    start = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - start) * 1e3


def peak(call: Callable) -> int:
    import torch

    if not torch.cuda.is_available():
        return 1
    wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    wait()
    del kept
    return torch.cuda.max_memory_allocated() - before


def difference(got: Any, want: Any) -> float:
    from ccompile.demo import tensors

    pairs = zip(tensors(got), tensors(want), strict=True)
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs), default=0)


def modes(options: argparse.Namespace) -> contextlib.ExitStack:
    import torch

    stack = contextlib.ExitStack()
    stack.enter_context(torch.no_grad())
    if options.autocast:
        stack.enter_context(torch.autocast(options.device, getattr(torch, options.autocast)))
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    return stack


def plan_steps(fn: Callable) -> dict[str, int]:
    """The numbers of our kernels and of torch's host steps in the plans."""
    from ccompile.api import compiled_of

    text = "".join(s["plan_text"] for e in compiled_of(fn).report()["entries"] for s in e["segments"])
    return {"kernels": text.count(" kernel "), "hosts": text.count(" host ")}


def measure_mode(family: str, mode: str, fn: Callable, eager: Callable, given: tuple, seconds: float) -> dict[str, Any]:
    plain, want, compiled = first_call(eager), eager(), compile_with(family, mode, fn)

    def ours() -> Any:
        return compiled(*given[0], **given[1])

    first = first_call(ours) - plain
    for _ in range(4):
        got = ours()
    error = difference(got, want)
    n = max(1, int(CALLS_MS / max(clocked(eager, 3), clocked(ours, 3), 0.02)))
    best = [float("inf")] * 2
    stop = time.monotonic() + seconds
    while time.monotonic() < stop or best[1] == float("inf"):
        best = [min(b, clocked(call, n)) for b, call in zip(best, (eager, ours), strict=True)]
    memory = [peak(eager), peak(ours)]
    steps = plan_steps(compiled) if family == "ccompile" else {}
    return {"family": family, "mode": mode, "eager_ms": best[0], "ms": best[1], "ratio": best[0] / best[1],
            "eager_host_ms": host_ms(eager, 5), "host_ms": host_ms(ours, 5), "first_ms": first, "error": error,
            "memory": memory[1] / max(1, memory[0]), **steps}  # fmt: skip


def measure(family: str, name: str, options: argparse.Namespace) -> int:
    """In a process of its own: a line of JSON for each mode; a failing mode does not stop the next. -> exit status."""
    import torch

    with modes(options):
        fn, args, kwargs = workload(name, options)

        def eager() -> Any:
            return fn(*args, **kwargs)

        for _ in range(3):
            eager()
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        failed = 0
        for mode in FAMILIES[family]:
            try:
                row = measure_mode(family, mode, fn, eager, (args, kwargs), options.seconds)
            except Exception as error:
                traceback.print_exc()
                print(f"{mode}: {type(error).__name__}: {str(error).splitlines()[:1]}", file=sys.stderr)
                failed = 1
                continue
            row |= {"workload": name, "gpu": gpu, "torch": torch.__version__}
            row |= {key: getattr(options, key) for key in ("dtype", "batch", "autocast", "tf32")}
            print(json.dumps(row), flush=True)
    return failed


def run(family: str, name: str, options: argparse.Namespace, seconds: float) -> list[dict[str, Any]]:
    """The rows of a family; fewer if its process fails or exceeds `seconds`."""
    command = [
        sys.executable,
        os.path.abspath(__file__),
        "--child",
        family,
        "--batch",
        str(options.batch),
        "--device",
        options.device,
    ]
    command += ["--seconds", str(options.seconds), "--dtype", options.dtype, *(["--tf32"] if options.tf32 else [])]
    command += [*(["--autocast", options.autocast] if options.autocast else []), name]
    with (
        tempfile.TemporaryDirectory() as empty,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as errors,
    ):
        env = {**os.environ, "CCOMPILE_CACHE_DIR": empty}
        try:
            status: Any = subprocess.run(command, env=env, stdout=out, stderr=errors, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            status = f"more than {seconds:.0f} s"
        out.seek(0), errors.seek(0)
        if status:
            print(
                f"{family} failed on {name} ({status}): {errors.read().strip().splitlines()[-1:]}",
                file=sys.stderr,
                flush=True,
            )
        return [json.loads(line) for line in out if line.startswith("{")]


def table(name: str, rows: list[dict[str, Any]]) -> str:
    cells = [name, f"{min(r['eager_ms'] for r in rows):.3f}" if rows else "-"]
    for family, kinds in FAMILIES.items():
        for mode in kinds:
            found = [r for r in rows if (r["family"], r["mode"]) == (family, mode)]
            cells += [f"{r['ratio']:.2f} ({r['first_ms'] / 1e3:.1f} s, {r['memory']:.2f})" for r in found] or ["-"]
    return "| " + " | ".join(cells) + " |"


def geomeans(rows: list[dict[str, Any]]) -> str:
    import math

    cells = ["geomean", ""]
    for family, kinds in FAMILIES.items():
        for mode in kinds:
            ratios = [r["ratio"] for r in rows if (r["family"], r["mode"]) == (family, mode)]
            cells.append(
                f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} of {len(ratios)}" if ratios else "-"
            )
    return "| " + " | ".join(cells) + " |"


def names_of(wanted: list[str]) -> list[str]:
    groups = {"models": MODELS, "kernels": kernels()}
    return [name for word in wanted or ["models", "kernels"] for name in groups.get(word, [word])]


def show(options: argparse.Namespace) -> None:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else options.device
    print(f"{gpu}, torch {torch.__version__}, {options.dtype}, autocast {options.autocast}, tf32 {options.tf32}, batch "
          f"{options.batch}; ratio to eager (first call above eager's, peak memory over eager's)\n")  # fmt: skip
    heads = [f"{family} {mode}" for family, kinds in FAMILIES.items() for mode in kinds]
    print("| workload | eager ms | " + " | ".join(heads) + " |\n" + "| --- " * (len(heads) + 2) + "|", flush=True)
    stop, kept = time.monotonic() + 60 * options.minutes, []
    for name in names_of(options.workloads):
        rows = []
        for family in FAMILIES:
            left = stop - time.monotonic()
            if left > 0 and family in options.families.split(","):
                rows += run(family, name, options, left)
        if not rows:
            continue
        kept += rows
        print(table(name, rows), flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    print(geomeans(kept), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2, help="measuring time of each mode")
    parser.add_argument("--minutes", type=float, default=9, help="time budget of the whole run")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--autocast", choices=("float16", "bfloat16"))
    parser.add_argument("--tf32", action="store_true", help="f32 products may use TF32")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--json", metavar="FILE", help="appends rows to FILE")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("bench_gpu: torch sees no GPU")
    if options.child:
        sys.exit(measure(options.child, options.workloads[0], options))
    else:
        show(options)


if __name__ == "__main__":
    main()

"""ccompile on a GPU against eager and torch.compile.

    python benchmarks/bench_gpu.py [--batch 32] [--seconds 3] [--dtype float32|float16|bfloat16] [--json] [WORKLOAD ...]

Whole models (the registry's, at --batch where their inputs have a batch) and single kernels. Each compiler has a
process of its own for each workload; in it eager and compiled calls alternate in blocks, between CUDA events, and a
time is the least of its blocks. `first` is the time of the first call over that of an eager call, with an empty cubin
cache of ours and without Inductor's caches.
Memory is the peak of torch's allocator in a later call, over that of eager."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
COMPILERS = ("ccompile", "ccompile-reduce", "ccompile-max", "inductor", "inductor-reduce")
MODELS = ("SimpleNet", "MiniTransformer", "ResNet-50", "MobileNetV2", "ConvNeXt-T", "BERT-Base", "GPT-2", "ViT-Base")
SIZES = ((64, 512), (63, 500), (1, 100001), (4096, 4096))


def kernels() -> dict[str, tuple[Callable, Callable]]:
    """name -> (function, inputs)."""
    import torch
    import torch.nn.functional as F
    from ccompile.demo_models import complex_activation, feature_enhancement

    def masked(x: Any, mask: Any) -> Any:
        return torch.softmax(x.masked_fill(mask, float("-inf")), -1)

    found: dict[str, tuple[Callable, Callable]] = {}
    for rows, columns in SIZES:
        size = (rows, columns)
        for name, fn in (
            ("softmax", lambda x: torch.softmax(x, -1)),
            ("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
            ("gelu", F.gelu),
            ("sum", lambda x: x.sum(-1)),
        ):
            found[f"{name} {rows}x{columns}"] = fn, lambda size=size: (torch.randn(size),)
        found[f"masked softmax {rows}x{columns}"] = (
            masked,
            lambda size=size: (torch.randn(size), torch.rand(size) < 0.1),
        )
    found["complex_activation 64x512"] = complex_activation, lambda: (torch.randn(64, 512),)
    found["complex_activation 8x64x128x128"] = complex_activation, lambda: (torch.randn(8, 64, 128, 128),)
    found["feature_enhancement 8x64x64x64"] = feature_enhancement, lambda: (torch.randn(8, 64, 64, 64),)
    return found


def workload(name: str, batch: int, dtype: Any) -> tuple[Callable, tuple, dict]:
    """On the GPU: the callable, its arguments."""
    import torch
    from registry import WORKLOADS, build

    torch.manual_seed(0)
    if name in kernels():
        fn, inputs = kernels()[name]
        args, kwargs = inputs(), {}
    else:
        (chosen,) = (w for w in WORKLOADS if w.name == name)
        fn, (args, kwargs) = build(chosen), chosen.inputs()
        if name in MODELS[2:]:
            args = tuple(torch.cat([a] * batch) for a in args)
        fn = fn.cuda().to(dtype) if isinstance(fn, torch.nn.Module) else fn
    args = tuple(a.cuda().to(dtype) if a.is_floating_point() else a.cuda() for a in args)
    return fn, args, kwargs


def compile_with(compiler: str, fn: Callable) -> Callable:
    import torch

    if compiler.startswith("inductor"):
        torch._inductor.config.force_disable_caches = True
        return torch.compile(fn, mode="reduce-overhead" if compiler.endswith("reduce") else None)
    import ccompile

    mode = {"ccompile": None, "ccompile-reduce": "reduce-overhead", "ccompile-max": "max-autotune"}[compiler]
    return ccompile.compile(fn, **({"mode": mode} if mode else {}))


def clocked(call: Callable, n: int) -> float:
    """Milliseconds a call of n of them."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(n):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n


def first_call(call: Callable) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def peak(call: Callable) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


def measure(compiler: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own."""
    import torch

    with torch.no_grad():
        fn, args, kwargs = workload(name, options.batch, getattr(torch, options.dtype))

        def eager() -> Any:
            return fn(*args, **kwargs)

        for _ in range(3):
            want = eager()
        plain = first_call(eager)
        compiled = compile_with(compiler, fn)

        def ours() -> Any:
            return compiled(*args, **kwargs)

        first = first_call(ours) - plain
        for _ in range(4):
            got = ours()
        from ccompile.demo import tensors

        pairs = zip(tensors(got), tensors(want), strict=True)
        error = max((float((a.double() - b.double()).abs().max()) for a, b in pairs), default=0)
        n = max(1, int(50 / max(clocked(eager, 3), 0.02)))
        best = [float("inf")] * 2
        stop = time.monotonic() + options.seconds
        while time.monotonic() < stop:
            best = [min(b, clocked(call, n)) for b, call in zip(best, (eager, ours), strict=True)]
        memory = [peak(eager), peak(ours)]
    return {"workload": name, "compiler": compiler, "gpu": torch.cuda.get_device_name(), "dtype": options.dtype,
            "batch": options.batch, "eager_ms": best[0], "ms": best[1], "ratio": best[0] / best[1],
            "first_ms": first, "error": error, "memory": memory[1] / max(1, memory[0])}  # fmt: skip


def run(compiler: str, name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    command = [sys.executable, os.path.abspath(__file__), "--child", compiler, "--batch", str(options.batch)]
    command += ["--seconds", str(options.seconds), "--dtype", options.dtype, name]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(command, env={**os.environ, "CCOMPILE_CACHE_DIR": empty}, capture_output=True, text=True)
    if done.returncode:
        print(f"{compiler} failed on {name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(name: str, rows: list[dict[str, Any] | None]) -> str:
    cells = [name]
    for row in rows:
        cells.append(f"{row['ratio']:.2f} ({row['first_ms']:.0f} ms, {row['memory']:.2f})" if row else "-")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench_gpu: torch sees no GPU")
    if options.child:
        print(json.dumps(measure(options.child, options.workloads[0], options)))
        return
    compilers = options.compilers.split(",")
    if not options.json:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}, batch {options.batch}; "
              "ratio to eager (first call above eager's, peak memory over eager's)\n")  # fmt: skip
        print("| workload | " + " | ".join(compilers) + " |\n" + "| --- " * (len(compilers) + 1) + "|")
    for name in options.workloads or [*MODELS, *kernels()]:
        rows = [run(compiler, name, options) for compiler in compilers]
        if options.json:
            for row in rows:
                print(json.dumps(row), flush=True)
        else:
            print(table(name, rows), flush=True)


if __name__ == "__main__":
    main()

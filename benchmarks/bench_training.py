"""Training steps: forward and backward in train mode (dropout on), compiled against eager.

    python benchmarks/bench_training.py [--compilers ccompile torch.compile] [--modes MODE ...] [--step]
        [--autocast] [--json FILE] [WORKLOAD ...]

Each workload runs in a process of its own, in which eager and compiled steps alternate. A row gives the medians of the
faster half of each kind, their ratio, the first step's time over eager's (with kernels on disk) and the peak of
resident memory in a steady step (both in a process for each kind; the peak beyond what is resident between steps), and
the largest difference of a gradient.
--step: with Adam's step, compiled on the compiled side. --autocast: forward under bf16 autocast, on both sides."""

import argparse
import contextlib
import copy
import ctypes
import functools
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import registry
import torch
from torch import nn

COMPILERS = ("ccompile", "torch.compile")
MODES = ("default", "reduce-overhead", "max-autotune")


def transformers_model(config: str, model: str, **settings: Any) -> nn.Module:
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**settings))


def ids(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape)


def mlp() -> nn.Module:
    first = [nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*first, nn.Linear(1024, 1024), nn.LayerNorm(1024), nn.GELU(), nn.Linear(1024, 256))


def labelled(tokens: torch.Tensor) -> tuple[tuple, dict]:
    return (tokens,), {"labels": tokens, "use_cache": False}


class Recurrent(nn.Module):
    """A sequence model's head: two recurrent layers and a classifier of the last step."""

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.rnn, self.out = kind(128, 256, num_layers=2, batch_first=True, dropout=0.2), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(x)
        return self.out(y[:, -1])


SMALL_LLAMA = {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
               "num_attention_heads": 8, "num_key_value_heads": 8}  # fmt: skip
# name -> (what, model, inputs)
WORKLOADS: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], tuple[tuple, dict]]]] = {
    "Linear": ("2x4", lambda: nn.Linear(4, 4), lambda: ((torch.randn(2, 4),), {})),
    "MLP": ("128x256", mlp, lambda: ((torch.randn(128, 256),), {})),
    "MiniTransformer": (
        "16x128",
        lambda: registry.build(registry.WORKLOADS["MiniTransformer"]),
        lambda: ((ids(10000, 16, 128),), {}),
    ),
    "BERT-Base": ("2x128", lambda: transformers_model("BertConfig", "BertModel"), lambda: ((ids(30522, 2, 128),), {})),
    "GPT-2": ("1x64", lambda: transformers_model("GPT2Config", "GPT2LMHeadModel"), lambda: labelled(ids(50257, 1, 64))),
    "small Llama": (
        "1x64",
        lambda: transformers_model("LlamaConfig", "LlamaForCausalLM", **SMALL_LLAMA),
        lambda: labelled(ids(8000, 1, 64)),
    ),
    "GRU": ("16x50x128", lambda: Recurrent(nn.GRU), lambda: ((torch.randn(16, 50, 128),), {})),
    "LSTM": ("16x50x128", lambda: Recurrent(nn.LSTM), lambda: ((torch.randn(16, 50, 128),), {})),
    "ResNet-50": (
        "4x3x224x224",
        lambda: transformers_model("ResNetConfig", "ResNetForImageClassification"),
        lambda: ((torch.randn(4, 3, 224, 224),), {}),
    ),
}


def loss_of(out: Any) -> torch.Tensor:
    """A model's own loss, or a smooth function of its first result."""
    if getattr(out, "loss", None) is not None:
        return out.loss
    first = out if isinstance(out, torch.Tensor) else out["logits"] if "logits" in out else out[0]
    return first.float().sin().mean()


def compiled(name: str, mode: str, model: Callable[..., Any]) -> Callable[..., Any]:
    if name == "eager":
        return model
    if name == "torch.compile":
        return torch.compile(model, mode=mode)
    import ccompile

    return ccompile.compile(model, mode=mode)


class Side:
    """A model, its compiled form and its optimizer."""

    def __init__(self, name: str, mode: str, model: nn.Module, step: bool, autocast: bool = False):
        self.model, self.call = model, compiled(name, mode, model)
        self.ambient = functools.partial(torch.autocast, "cpu", torch.bfloat16) if autocast else contextlib.nullcontext
        self.optimizer = torch.optim.Adam(model.parameters()) if step else None
        self.update = compiled(name, mode, self.optimizer.step) if self.optimizer is not None else None

    def run(self, args: tuple, kwargs: dict, seed: int) -> float:
        """Seconds of a step: forward, backward and, if there is one, the optimizer's step."""
        self.model.zero_grad()
        torch.manual_seed(seed)
        start = time.perf_counter()
        with self.ambient():
            loss = loss_of(self.call(*args, **kwargs))
        loss.backward()
        if self.update is not None:
            self.update()
        return time.perf_counter() - start


def worst_difference(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of two gradients, relative to the largest gradient of all."""
    pairs = [(p.grad, q.grad) for p, q in zip(a.parameters(), b.parameters(), strict=True) if q.grad is not None]
    largest = max(q.abs().max().item() for _, q in pairs)
    return max((p - q).abs().max().item() for p, q in pairs) / largest


def typical(times: list[float]) -> float:
    return statistics.median(sorted(times)[: max(len(times) // 2, 1)])


def measure(workload: str, compiler: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    what, make, inputs = WORKLOADS[workload]
    model = make().train()
    how = options.step, options.autocast
    sides = [Side("eager", mode, copy.deepcopy(model), *how), Side(compiler, mode, model, *how)]
    args, kwargs = inputs()
    for seed in range(3):
        for side in sides:
            side.run(args, kwargs, seed)
    error = worst_difference(sides[1].model, sides[0].model)
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(times[0]) < 4:
        for side, kept in zip(sides, times, strict=True):
            kept.append(side.run(args, kwargs, 3))
    eager, ours = typical(times[0]), typical(times[1])
    row = {"workload": workload, "what": what, "compiler": compiler, "mode": mode, "eager_ms": eager * 1e3}
    row |= {"ms": ours * 1e3, "speed_up": eager / ours}
    return row | {"difference": error}


def resident(field: str) -> int:
    """KiB: what is resident now (VmRSS), or the most since `forget_peak` (VmHWM)."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def forget_peak() -> None:
    """Gives freed memory back to the system, and lets VmHWM start from what is resident now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def alone(workload: str, compiler: str, mode: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of the first step, and MiB that a steady step has resident at most, beyond what is resident between
    steps; the median of three. Where two kinds share a process, the first steps of the second are the slower ones
    whichever it is: it touches memory that a virtual machine's host has yet to provide."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    side = Side(compiler, mode, WORKLOADS[workload][1]().train(), options.step, options.autocast)
    args, kwargs = WORKLOADS[workload][2]()
    first, *_ = (side.run(args, kwargs, seed) for seed in range(3))
    peaks = []
    for seed in range(3):
        side.model.zero_grad()
        forget_peak()
        before = resident("VmRSS")
        side.run(args, kwargs, seed)
        peaks.append((resident("VmHWM") - before) / 1024)
    return {"first_s": first, "peak_mib": statistics.median(peaks)}


def in_a_process(job: list[str], options: argparse.Namespace) -> Any:
    command = [sys.executable, os.path.abspath(__file__), "--job", json.dumps(job), "--seconds", str(options.seconds)]
    command += ["--threads", str(options.threads), *(["--step"] if options.step else [])]
    command += ["--autocast"] if options.autocast else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def line(r: dict[str, Any]) -> str:
    memory = f"{r['peak_mib']:.0f} / {r['eager_peak_mib']:.0f}"
    times = f"{r['eager_ms']:.2f} | {r['ms']:.2f} | {r['speed_up']:.2f} | {r['first_s'] - r['eager_first_s']:.2f}"
    compiler = r["compiler"] if r["mode"] == "default" else f"{r['compiler']}, {r['mode']}"
    return f"| {r['workload']} {r['what']} | {compiler} | {times} | {memory} | {r['difference']:.0e} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=["ccompile"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["default"])
    parser.add_argument("--seconds", type=float, default=8, help="for the timed steps of a workload")
    parser.add_argument("--step", action="store_true", help="with Adam's step")
    parser.add_argument("--autocast", action="store_true", help="under bf16 autocast")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="write the rows to this file, one JSON object a line")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        kind, *job = json.loads(options.job)
        print(json.dumps((measure if kind == "time" else alone)(*job, options)))
        return 0
    unknown = [w for w in options.workloads if w not in WORKLOADS]
    if unknown:
        parser.error(f"unknown {unknown[0]!r}; workloads: {', '.join(WORKLOADS)}")
    print("| training step | compiler | eager ms | ms | speed-up | first step, s | peak MiB / eager's | difference |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    failed, speed_ups = False, []
    for workload in options.workloads or WORKLOADS:
        eager = in_a_process(["alone", workload, "eager", "default"], options)
        for compiler, mode in itertools.product(options.compilers, options.modes):
            r = in_a_process(["time", workload, compiler, mode], options)
            ours = in_a_process(["alone", workload, compiler, mode], options)
            failed = failed or None in (r, ours, eager)
            if None in (r, ours, eager):
                continue
            r |= ours | {f"eager_{key}": value for key, value in eager.items()}
            speed_ups.append(r["speed_up"])
            print(line(r), flush=True)
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps(r) + "\n")
    if len(speed_ups) > 1 and len(options.compilers) == len(options.modes) == 1:
        print(f"| geomean | | | | {statistics.geometric_mean(speed_ups):.2f} | | | |")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

"""Single kernels against eager: reductions, norms, gelu and ops fused around them.

    python benchmarks/bench_kernels.py [--threads 1] [--inductor] [--seconds 0.3] [--sizes 64x512,...] [NAME ...]

Best time of a call, in alternating blocks; `--inductor` adds torch.compile (it needs a C++ compiler). All sides
allocate a new result in each call. A ratio above 1 means that ours is faster. The table is valid Markdown."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import ccompile
import torch
import torch.nn.functional as F
from ccompile.demo_models import complex_activation

SIZES = ["8x64", "64x512", "63x500", "1x100001", "4096x4096"]
OWN_SIZES = {"complex_activation": ["64x512", "8x64x128x128"]}


def masked_softmax(x, w, mask):
    return (x * 0.125).masked_fill(mask, float("-inf")).softmax(-1)


def llama_norm(x, w, mask):
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def residual(x, w, mask):
    s = x + x.roll(1, 0)
    return F.layer_norm(s, (s.shape[-1],), w, w), s


KERNELS: dict[str, Callable] = {
    "softmax": lambda x, w, m: x.softmax(-1),
    "log_softmax": lambda x, w, m: x.log_softmax(-1),
    "masked_softmax": masked_softmax,
    "softmax(0)": lambda x, w, m: x.softmax(0),
    "layer_norm": lambda x, w, m: F.layer_norm(x, (x.shape[-1],), w, w),
    "layer_norm+gelu": lambda x, w, m: F.gelu(F.layer_norm(x, (x.shape[-1],), w, w)),
    "llama_norm": llama_norm,
    "residual+layer_norm": residual,
    "gelu": lambda x, w, m: F.gelu(x),
    "gelu_tanh": lambda x, w, m: F.gelu(x, approximate="tanh"),
    "sum(-1)": lambda x, w, m: x.sum(-1),
    "sum(0)": lambda x, w, m: x.sum(0),
    "sum": lambda x, w, m: x.sum(),
    "amax(-1)": lambda x, w, m: x.amax(-1),
    "var(-1)": lambda x, w, m: x.var(-1),
    "mse": lambda x, w, m: ((x - w) ** 2).mean(),
    "complex_activation": lambda x, w, m: complex_activation(x),
}


def block(call: Callable, seconds: float) -> float:
    """Best time of a call in a block of `seconds`, of at least two calls."""
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best


def measure(sides: dict[str, Callable], args: tuple, seconds: float) -> dict[str, float]:
    for call in sides.values():
        for _ in range(3):
            call(*args)
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(4):
        for name, call in sides.items():
            best[name] = min(best[name], block(lambda call=call: call(*args), seconds / 4))
    return best


def row(name: str, shape: str, options: argparse.Namespace) -> str:
    size = tuple(map(int, shape.split("x")))
    args = torch.randn(size), torch.randn(size[-1]), torch.rand(size) < 0.3
    fn = KERNELS[name]
    sides = {"ours": ccompile.compile(fn), "eager": fn}
    if options.inductor:
        torch._dynamo.reset()
        sides["inductor"] = torch.compile(fn)
    best = measure(sides, args, options.seconds)
    cells = f"| {name:19} | {shape:>12} | {best['ours'] * 1e6:9.1f}"
    for peer in list(sides)[1:]:
        cells += f" | {best[peer] * 1e6:11.1f} | {best[peer] / best['ours']:13.2f}"
    return cells + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KERNELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="measuring time per side and row")
    parser.add_argument("--sizes", help="comma-separated")
    parser.add_argument("--inductor", action="store_true", help="also measures torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    peers = ["eager", "inductor"][: 1 + options.inductor]
    head = [f"{'kernel':19}", f"{'size':>12}", f"{'ours us':>9}"]
    for peer in peers:
        head += [f"{peer + ' us':>11}", f"{peer + '/ours':>13}"]
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("-" * len(h) if i == 0 else "-" * (len(h) - 1) + ":" for i, h in enumerate(head)) + " |")
    for name in options.names or KERNELS:
        for shape in options.sizes.split(",") if options.sizes else OWN_SIZES.get(name, SIZES):
            print(row(name, shape, options), flush=True)


if __name__ == "__main__":
    main()

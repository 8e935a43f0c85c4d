"""How compile time grows: CPU time of a first call, recording included, per node, in graphs of 1,000 and 20,000 nodes.

Both sizes find their kernels in the in-memory cache, as each function is compiled once before at the small size. Times
are CPU times of this process (CLOCK_PROCESS_CPUTIME_ID), so other load matters little; the ratio is the result.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import ccompile
import torch
import torch.nn.functional as F
from torch import Tensor

D = 64


def pointwise(x: Tensor, n: int, p: dict[str, Tensor]) -> Tensor:
    for _ in range(n // 4):
        x = torch.relu(torch.sin(x) * 0.5 + x)
    return x


def attention(x: Tensor, n: int, p: dict[str, Tensor]) -> Tensor:
    """17 nodes per layer."""
    for _ in range(n // 17):
        h = F.layer_norm(x, (D,), p["scale"], p["shift"])
        q, k, v = (F.linear(h, p["weight"]).view(8, 4, D // 4).transpose(0, 1) for _ in range(3))
        a = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(8, D)
        x = x + F.gelu(F.linear(a, p["weight"]))
    return x


def rewritten(x: Tensor, n: int, p: dict[str, Tensor]) -> Tensor:
    """Ops that passes expand, move or turn into gathers: 14 nodes per iteration."""
    for _ in range(n // 14):
        h = x + p["table"][p["index"]]
        h = torch.cat([h[:, : D // 2], h[:, D // 2 :]], 1)
        spread, middle = torch.var_mean(h, 1, keepdim=True)
        h = torch.flip((h - middle) / (spread + 1), (1,))
        x = torch.einsum("ij,kj->ik", h, p["weight"]) + F.embedding(p["index"], p["table"])
    return x


def in_place(x: Tensor, n: int, p: dict[str, Tensor]) -> Tensor:
    """Writes to the graph's own values, whole and in part: six nodes per iteration."""
    for _ in range(n // 6):
        x = x * 0.5
        x.add_(1.0)
        x[2:4] += 1.0
        x.relu_()
    return x


def images(x: Tensor, n: int, p: dict[str, Tensor]) -> Tensor:
    """Four nodes per iteration."""
    y = x.view(8, 1, 8, 8).expand(8, 8, 8, 8)
    for _ in range(n // 4):
        y = F.relu(F.batch_norm(F.conv2d(y, p["kernel"], padding=1), p["mean"], p["var"])) + y
    return y


KINDS: list[Callable[[Tensor, int, dict[str, Tensor]], Tensor]] = [pointwise, attention, rewritten, in_place, images]


def first_call(fn: Callable[..., Tensor], n: int, x: Tensor, p: dict[str, Tensor]) -> tuple[float, int]:
    """(us of CPU time per node, number of recorded nodes)."""
    ccompile.reset()
    compiled = ccompile.compile(fn)
    begin = time.process_time()
    compiled(x, n, p)
    spent = time.process_time() - begin
    nodes = sum(len(graph.ops) for graph in ccompile.explain(compiled, x, n, p).graphs)
    return spent * 1e6 / max(nodes, 1), nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs=2, default=[1000, 20000])
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, index = torch.randn(8, D), torch.arange(8)
    p = {"weight": torch.randn(D, D) / 8, "scale": torch.ones(D), "shift": torch.zeros(D), "table": torch.randn(100, D)}
    p |= {"index": index, "kernel": torch.randn(8, 8, 3, 3) / 9, "mean": torch.zeros(8), "var": torch.ones(8)}
    small, large = args.sizes
    print(f"{'us a node':<12}{small:>10}{large:>10}{'ratio':>8}{'nodes':>9}")
    with torch.no_grad():
        for fn in KINDS:
            first_call(fn, small, x, p)
            few = min(first_call(fn, small, x, p)[0] for _ in range(3))
            many, nodes = first_call(fn, large, x, p)
            print(f"{fn.__name__:<12}{few:>10.1f}{many:>10.1f}{many / few:>8.2f}{nodes:>9}", flush=True)


if __name__ == "__main__":
    main()

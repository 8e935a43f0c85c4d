"""Products: GFLOP/s of one product with weights that come from memory, eager against ccompile.

    python benchmarks/bench_products.py [--seconds 0.5] [--threads 2] [--dtype bfloat16] [--json] [M,N,K ...]

Each row multiplies [m, k] by weights of two layouts: F.linear's [n, k], and addmm's [k, n] (GPT-2's Conv1D). A call
multiplies by several copies of the weights in turn, together larger than most last-level caches, as a model's layers
are. "onednn" is torch's own call of it with plain weights; "frozen" is mode="max-autotune". The ways run in alternating
blocks in one process; a figure is of the fastest block. "of best" is default mode over the better of these two."""

import argparse
import json
import math
import sys

import ccompile
import torch
import torch.nn.functional as F
from ccompile.demo import alternate, markdown
from torch import nn

SHAPES = [
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 3072),
    (64, 50257, 768),
    (197, 3072, 768),
    (197, 768, 3072),
    (512, 2048, 512),
    (32, 512, 512),
    (1, 4096, 4096),
]
COLD_BYTES = 160 << 20  # weights of all copies of a product
MOST_COPIES = 64


class Products(nn.Module):
    """x times each of several weights, of shape [n, k] or (`turned`) [k, n]."""

    def __init__(self, copies: int, n: int, k: int, turned: bool) -> None:
        super().__init__()
        shape = (k, n) if turned else (n, k)
        self.turned = turned
        self.weights = nn.ParameterList(torch.randn(shape) * k**-0.5 for _ in range(copies))
        self.bias = nn.Parameter(torch.randn(n))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        if self.turned:
            return [torch.addmm(self.bias, x, w) for w in self.weights]
        return [F.linear(x, w, self.bias) for w in self.weights]

    def onednn(self, x: torch.Tensor) -> list[torch.Tensor]:
        """By torch's copy of oneDNN."""
        weights = [w.t() for w in self.weights] if self.turned else self.weights
        return [torch.ops.mkldnn._linear_pointwise(x, w, self.bias, "none", [], "") for w in weights]


def measure(shape: tuple[int, int, int], layout: str, dtype: torch.dtype, seconds: float) -> dict:
    """GFLOP/s of each way."""
    m, n, k = shape
    copies = max(2, min(MOST_COPIES, COLD_BYTES // (n * k * dtype.itemsize)))
    model = Products(copies, n, k, layout == "addmm").to(dtype).eval()
    x = torch.randn(m, k, dtype=dtype)
    ways = {
        "eager": model,
        "onednn": model.onednn,
        "default": ccompile.compile(model),
        "frozen": ccompile.compile(model, mode="max-autotune"),
    }
    for call in ways.values():  # records, measures choices, packs
        call(x)
        call(x)
    times = alternate([lambda call=call: call(x) for call in ways.values()], seconds, most=3000)
    found = {"bench": "products", "layout": layout, "shape": list(shape), "threads": torch.get_num_threads()}
    found |= {way: round(2 * m * n * k * copies / ms * 1e-6, 1) for way, ms in zip(ways, times, strict=True)}
    best = max(found["eager"], found["onednn"])
    return found | {"of_best": round(found["default"] / best, 3), "frozen_of_best": round(found["frozen"] / best, 3)}


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="M,N,K", help="default: those of the usual models")
    parser.add_argument("--seconds", type=float, default=0.5, help="per way")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shapes = [tuple(int(size) for size in text.split(",")) for text in args.shapes] or SHAPES
    if any(len(shape) != 3 or min(shape) < 1 for shape in shapes):
        parser.error(f"a shape is three sizes M,N,K, not {args.shapes}")
    rows = []
    with torch.no_grad():
        for shape in shapes:
            for layout in ("linear", "addmm"):
                rows.append(measure(shape, layout, getattr(torch, args.dtype), args.seconds))
                if args.json:
                    print(json.dumps(rows[-1]), flush=True)
    if not args.json:
        columns = ["eager", "onednn", "default", "frozen", "of_best", "frozen_of_best"]
        table = [[", ".join(map(str, r["shape"])), r["layout"], *(str(r[c]) for c in columns)] for r in rows]
        print(markdown([["m, n, k", "layout", *(c.replace("_", " ") for c in columns)], *table], left=2))
        means = [geomean([r[c] for r in rows]) for c in columns[-2:]]
        print(f"\ngeomean: default {means[0]:.3f}, frozen {means[1]:.3f} of the best of eager and oneDNN")
    return 0


if __name__ == "__main__":
    sys.exit(main())

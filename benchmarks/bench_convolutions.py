"""Convolutions alone, as in a model whose other layers are not channels-last: eager against ccompile.

    python benchmarks/bench_convolutions.py [--seconds 0.5] [--threads 2] [--batches 1 8] [--json] [LAYER ...]

Each layer runs alone, with a relu, and with an eval-mode batch norm and a relu, on inputs in torch's own layout. Eager
and compiled calls run in alternating blocks in one process; a figure is of the fastest block. "way" is what the first
run of the plan chose (csrc/run/convways.c)."""

import argparse
import json
import math
import sys
from collections.abc import Callable

import ccompile
import torch
from ccompile.api import compiled_of
from ccompile.demo import alternate, markdown
from torch import nn

# name -> (layer, sizes of an image)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "stem 7x7": (lambda: nn.Conv2d(3, 64, 7, 2, 3), (224, 224)),
    "patches 16x16": (lambda: nn.Conv2d(3, 768, 16, 16), (224, 224)),
    "small 3x3": (lambda: nn.Conv2d(3, 16, 3, padding=1), (32, 32)),
    "3x3": (lambda: nn.Conv2d(64, 64, 3, padding=1), (56, 56)),
    "3x3 deep": (lambda: nn.Conv2d(512, 512, 3, padding=1), (7, 7)),
    "3x3 strided": (lambda: nn.Conv2d(128, 128, 3, 2, 1), (56, 56)),
    "3x3 dilated": (lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2), (56, 56)),
    "1x1 to more": (lambda: nn.Conv2d(64, 256, 1), (56, 56)),
    "1x1 to fewer": (lambda: nn.Conv2d(256, 64, 1), (56, 56)),
    "4 groups": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), (56, 56)),
    "32 groups": (lambda: nn.Conv2d(128, 128, 3, padding=1, groups=32), (56, 56)),
    "depthwise 3x3": (lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96), (56, 56)),
    "depthwise 5x5 strided": (lambda: nn.Conv2d(96, 96, 5, 2, 2, groups=96), (56, 56)),
    "depthwise 7x7": (lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (56, 56)),
    "1d": (lambda: nn.Conv1d(64, 128, 3, padding=1), (512,)),
    "1d stem": (lambda: nn.Conv1d(1, 64, 10, 5), (16000,)),
    "1d depthwise": (lambda: nn.Conv1d(256, 256, 31, padding=15, groups=256), (400,)),
    "3d": (lambda: nn.Conv3d(16, 32, 3, padding=1), (16, 28, 28)),
    "transposed 2x2": (lambda: nn.ConvTranspose2d(128, 64, 2, 2), (28, 28)),
}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def models(layer: nn.Module, dims: int) -> dict[str, nn.Module]:
    norm = NORMS[dims](layer.out_channels)
    return {"": layer, "relu": nn.Sequential(layer, nn.ReLU()), "norm relu": nn.Sequential(layer, norm, nn.ReLU())}


def way_of(call: Callable) -> str:
    steps = compiled_of(call).report()["entries"][0]["segments"][0]["plans"][-1]["steps"]
    return next((step["way"] for step in steps if step["kind"] == "conv"), "other")


def measure(name: str, batch: int, seconds: float) -> list[dict]:
    """A row for each of the layer's models."""
    make, size = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    x = torch.randn(batch, layer.in_channels, *size)
    rows = []
    for after, model in models(layer, len(size)).items():
        call = ccompile.compile(model.eval())
        for _ in range(3):  # records, measures choices
            call(x)
        eager, ours = alternate([lambda model=model: model(x), lambda call=call: call(x)], seconds, most=20000)
        rows.append(
            {"bench": "convolutions", "layer": name, "after": after, "batch": batch, "threads": torch.get_num_threads()}
            | {"eager_ms": eager, "ms": ours, "speedup": eager / ours, "way": way_of(call)}
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"default: all of {', '.join(LAYERS)}")
    parser.add_argument("--seconds", type=float, default=0.5, help="per side")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    unknown = [name for name in args.layers if name not in LAYERS]
    if unknown:
        parser.error(f"unknown layers {unknown}; there are {list(LAYERS)}")
    torch.set_num_threads(args.threads)
    rows = []
    with torch.no_grad():
        for name in args.layers or LAYERS:
            for batch in args.batches:
                rows += measure(name, batch, args.seconds)
    if args.json:
        print("\n".join(map(json.dumps, rows)))
        return 0
    table = [
        [
            r["layer"],
            r["after"],
            str(r["batch"]),
            f"{r['eager_ms']:.3f}",
            f"{r['ms']:.3f}",
            f"{r['speedup']:.2f}",
            r["way"],
        ]
        for r in rows
    ]
    print(markdown([["layer", "then", "batch", "eager ms", "ms", "speed-up", "way"], *table], left=2))
    ratios = [r["speedup"] for r in rows]
    print(f"\ngeomean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}, least {min(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

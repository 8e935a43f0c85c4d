"""Seed 003's training loop (Adam, cross-entropy, the accuracy of every step, a validation) in eager and in each mode.

    python benchmarks/bench_epochs.py [--small] [--torch-compile] [--epochs 3] [--threads 2]

The model and the optimizer's step are compiled. All rows start from the same parameters and see the same batches, so
their losses and accuracies (of the last epoch) can be compared. "first s" is the first epoch with all recording and
compiling, "later s" the median of the others. notebooks/003_training.ipynb plots this."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import ccompile
import torch
from ccompile.demo import markdown
from ccompile.demo_models import MiniTransformer, SimpleModel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MODES = ("default", "reduce-overhead", "max-autotune")
COLUMNS = ("model", "compiler", "mode", "first s", "later s", "speed-up", "loss", "accuracy", "validation")


def images(small: bool) -> tuple[nn.Module, TensorDataset]:
    """The seed's convolutional model on noise: 640 images of 3x32x32 in 10 classes."""
    count, side, width = (64, 8, 8) if small else (640, 32, 64)
    data = TensorDataset(torch.randn(count, 3, side, side), torch.randint(0, 10, (count,)))
    return SimpleModel(width=width, size=side), data


def tokens(small: bool) -> tuple[nn.Module, TensorDataset]:
    """The seed's transformer: 128 tokens, 4 blocks, dropout, 10 classes."""
    count, length, width = (32, 16, 32) if small else (320, 128, 256)
    sizes = {"vocab_size": 10000, "d_model": width, "num_layers": 2 if small else 4, "d_ff": 4 * width}
    data = TensorDataset(torch.randint(0, 10000, (count, length)), torch.randint(0, 10, (count,)))
    return MiniTransformer(**sizes), data


EXPERIMENTS: dict[str, Callable[[bool], tuple[nn.Module, TensorDataset]]] = {
    "SimpleModel": images,
    "MiniTransformer": tokens,
}


class Trainer:
    """The seed's trainer. `compile` is applied to the model and to the optimizer's step; None: eager."""

    def __init__(self, model: nn.Module, compile: Callable | None):
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        self.criterion = nn.CrossEntropyLoss()
        self.model, self.update = model, self.optimizer.step
        if compile is not None:
            self.model, self.update = compile(model), compile(self.optimizer.step)

    def train_epoch(self, batches: DataLoader) -> tuple[float, float]:
        """The mean loss, and the share of right answers."""
        self.model.train()
        total, right, seen = 0.0, 0, 0
        for data, target in batches:
            self.optimizer.zero_grad()
            output = self.model(data)
            loss = self.criterion(output, target)
            loss.backward()
            self.update()
            total += loss.item()
            right += output.argmax(1).eq(target).sum().item()
            seen += target.size(0)
        return total / len(batches), right / seen

    @torch.no_grad()
    def validate(self, batches: DataLoader) -> float:
        """The mean loss in eval mode."""
        self.model.eval()
        losses = [self.criterion(self.model(data), target).item() for data, target in batches]
        return statistics.mean(losses)


def measure(name: str, compiler: str, mode: str, model: nn.Module, data: TensorDataset, epochs: int) -> dict[str, Any]:
    """A row; epoch i draws the same numbers (dropout, order of batches) for each compiler and mode."""
    compilers: dict[str, Callable] = {"ccompile": ccompile.compile, "torch.compile": torch.compile}
    compile = None if compiler == "eager" else lambda what: compilers[compiler](what, mode=mode)
    trainer = Trainer(model, compile)
    batches = DataLoader(data, batch_size=32, shuffle=True)
    times, loss, accuracy = [], 0.0, 0.0
    for i in range(epochs):
        torch.manual_seed(i)
        start = time.perf_counter()
        loss, accuracy = trainer.train_epoch(batches)
        times.append(time.perf_counter() - start)
    row = {"model": name, "compiler": compiler, "mode": mode, "first s": times[0]}
    row |= {"later s": statistics.median(times[1:]), "loss": loss, "accuracy": accuracy}
    return row | {"validation": trainer.validate(batches)}


def modes(name: str, small: bool, torch_compile: bool, epochs: int) -> list[dict[str, Any]]:
    """Rows of one model: eager, then each mode of each compiler."""
    torch.manual_seed(0)
    model, data = EXPERIMENTS[name](small)
    ways = [("eager", "eager")] + [("ccompile", mode) for mode in MODES]
    ways += [("torch.compile", mode) for mode in MODES] if torch_compile else []
    rows = [measure(name, compiler, mode, copy.deepcopy(model), data, epochs) for compiler, mode in ways]
    for row in rows:
        row["speed-up"] = rows[0]["later s"] / row["later s"]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    texts = [[v if isinstance(v := row[column], str) else f"{v:.3f}" for column in COLUMNS] for row in rows]
    return markdown([list(COLUMNS), *texts], left=3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=", ".join(EXPERIMENTS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--torch-compile", action="store_true", help="also torch.compile, which takes minutes")
    parser.add_argument("--epochs", type=int, default=3, help="at least 2")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in EXPERIMENTS]
    if unknown or options.epochs < 2:
        parser.error(f"unknown {unknown[0]!r}; models: {', '.join(EXPERIMENTS)}" if unknown else "--epochs: at least 2")
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.names or EXPERIMENTS:
        rows += modes(name, options.small, options.torch_compile, options.epochs)
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

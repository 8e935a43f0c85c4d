"""Runs mixed work for minutes and shows whether anything grows: memory, references, objects, latency.

    python benchmarks/soak.py --minutes 15

Threads call compiled functions with changing sizes (kernels, products, training steps, breaks, generators,
exceptions), compile new functions and drop them, while the main thread resets now and then. At each interval the
threads pause; then everything is reset and collected, and a line shows the resident set, the references to objects
that all calls use, the objects that the collector knows, and the latency of the interval's calls. A sample of the
results is compared with eager. Exits with 1 if a result differs, if references or objects grow, or if the resident
set grows by more than --grow MiB after the first third."""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ccompile
import torch
from torch import nn

TORCH = nn.functional


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(TORCH.gelu(self.first(x))))


torch.manual_seed(0)
NET = Net().eval()
STATE = {"scale": 2.0, "names": ["a", "b"], "table": torch.randn(32)}


def kernels(x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x * STATE["scale"]) + STATE["table"]).softmax(-1)


def breaks(x: torch.Tensor) -> Any:
    y = torch.relu(x) + 1
    if y.sum().item() > 1e6:
        return y
    return {name: y * i for i, name in enumerate(STATE["names"])}


def generates(x: torch.Tensor) -> list[torch.Tensor]:
    def parts() -> Any:
        for i in range(3):
            yield x * i + 1

    return [*parts()]


def raises(x: torch.Tensor) -> str:
    try:
        return str((x @ x.new_zeros(7, 7)).sum())
    except RuntimeError as error:
        return type(error).__name__


def infers(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return NET(x)


def trains(x: torch.Tensor) -> list[torch.Tensor]:
    w = torch.full((32, 16), 0.1, requires_grad=True)
    loss = torch.tanh(x @ w).square().mean()
    return list(torch.autograd.grad(loss, [w]))


FUNCTIONS: list[Callable] = [kernels, breaks, generates, raises, infers, trains]
USED = [NET, NET.first.weight, STATE, STATE["table"], STATE["names"], *FUNCTIONS, torch.tanh, TORCH.gelu, type(NET)]


class Work:
    """What the threads share. `paused` and `go` let the main thread measure while nothing runs."""

    def __init__(self, threads: int, seed: int) -> None:
        self.compiled = [ccompile.compile(fn) for fn in FUNCTIONS]
        self.seed, self.threads, self.stop = seed, threads, False
        self.times: list[list[float]] = [[] for _ in range(threads)]
        self.wrong: list[str] = []
        self.calls = 0

    def one(self, dice: random.Random, times: list[float]) -> None:
        i = dice.randrange(len(FUNCTIONS))
        x = torch.randn(dice.choice((1, 3, 8, dice.randrange(1, 40))), 32)
        fn = self.compiled[i] if dice.random() < 0.98 else ccompile.compile(FUNCTIONS[i])
        begin = time.perf_counter()
        got = fn(x)
        times.append(time.perf_counter() - begin)
        if dice.random() < 0.05:
            want = FUNCTIONS[i](x)
            try:
                assert got == want if isinstance(want, str) else torch.testing.assert_close(got, want) is None
            except AssertionError as error:
                self.wrong.append(f"{FUNCTIONS[i].__name__}{tuple(x.shape)}: {error}")

    def run(self, number: int, round: int) -> None:
        dice, times = random.Random(f"{self.seed} {number} {round}"), self.times[number]
        try:
            while not self.stop:
                self.one(dice, times)
        except BaseException as error:
            self.wrong.append(f"{type(error).__name__}: {error}")

    def interval(self, seconds: float, round: int) -> list[float]:
        """Lets the threads work for so long -> the latencies of their calls."""
        self.stop, self.times = False, [[] for _ in range(self.threads)]
        threads = [threading.Thread(target=self.run, args=(i, round)) for i in range(self.threads)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(2.0, max(0.0, end - time.monotonic())))
            ccompile.reset()
        self.stop = True
        for thread in threads:
            thread.join()
        found = [t for times in self.times for t in times]
        self.calls += len(found)
        self.times = []
        return found


def resident() -> float:
    """MiB, after the allocator has returned what it can."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def measure() -> tuple[float, int, int]:
    ccompile.reset()
    for _ in range(3):
        gc.collect()
    return resident(), sum(map(sys.getrefcount, USED)), len(gc.get_objects())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--interval", type=float, default=30, help="seconds between lines")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grow", type=float, default=16, help="MiB by which the resident set may grow")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    work, rows = Work(args.threads, args.seed), []
    rounds = max(3, round(args.minutes * 60 / args.interval))
    print("minutes     calls   RSS MiB  references   objects   P50 us   P99 us", flush=True)
    begin = time.monotonic()
    for i in range(rounds):
        times = work.interval(args.minutes * 60 / rounds, i)
        p50, p99 = (statistics.quantiles(times, n=100)[q - 1] * 1e6 if len(times) > 1 else 0.0 for q in (50, 99))
        del times
        rows.append(measure())
        rss, references, objects = rows[-1]
        minutes = (time.monotonic() - begin) / 60
        print(f"{minutes:7.1f} {work.calls:9} {rss:9.1f} {references:11} {objects:9} {p50:8.0f} {p99:8.0f}", flush=True)
    settled = rows[len(rows) // 3]
    grown = [a - b for a, b in zip(rows[-1], settled, strict=True)]
    for text in work.wrong[:10]:
        print(f"DIFFERENT: {text}")
    print(f"after the first third: {grown[0]:+.1f} MiB, {grown[1]:+} references, {grown[2]:+} objects")
    return int(bool(work.wrong) or grown[0] > args.grow or grown[1] > 0 or grown[2] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What compiling costs, and after how many calls it has paid: for each input the first calls and later ones, against
eager."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .api import compile, compiled_of
from .stance import set_stance

WARM_MOST = 16  # calls after the first within which recordings and plans are complete, or never will be


def percentile(samples: Iterable[float], percent: float) -> float:
    """The smallest sample that `percent` % of them (0 < percent <= 100) do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(frozen=True)
class Cost:
    """Times of calls with one input, in ms."""

    input: str
    cold_ms: float  # the first call, which records
    warm_ms: tuple[float, ...]  # the calls after it that made plans and kernels, up to the first two that did not
    eager: tuple[float, ...]  # samples of eager calls
    compiled: tuple[float, ...]  # of later compiled calls, which alternated with the eager ones

    @property
    def eager_ms(self) -> float:
        """The median, as is compiled_ms."""
        return percentile(self.eager, 50)

    @property
    def compiled_ms(self) -> float:
        return percentile(self.compiled, 50)

    @property
    def speedup(self) -> float:
        return self.eager_ms / self.compiled_ms

    @property
    def compile_ms(self) -> float:
        """What compiling cost: the time of the first calls beyond that of as many eager ones."""
        return max(0.0, self.cold_ms + sum(self.warm_ms) - (1 + len(self.warm_ms)) * self.eager_ms)

    @property
    def break_even_calls(self) -> float:
        """The calls whose saved time makes up for compile_ms; inf if a call saves none."""
        saved = self.eager_ms - self.compiled_ms
        return self.compile_ms / saved if saved > 0 else math.inf

    def __str__(self) -> str:
        times = f"eager {self.eager_ms:.3f} ms, compiled {self.compiled_ms:.3f} ms ({self.speedup:.2f}x)"
        pays = "never pays" if math.isinf(self.break_even_calls) else f"pays after {self.break_even_calls:.0f} calls"
        return f"{self.input}: {times}; compiling took {self.compile_ms:.1f} ms, {pays}"


def analyze_costs(model: Callable[..., Any], inputs: Iterable[Any], *, calls: int = 100, **options: Any) -> list[Cost]:
    """Compiles the model anew and measures it with each input, a tuple of arguments or a single one: up to 16 calls
    until all is compiled, then `calls` compiled ones in turn with as many eager ones. All of them are real calls with
    their side effects, in the caller's grad mode and autocast. What one input has compiled serves the next one, too, as
    it does in a program.

    options: those of ccompile.compile. Raises ValueError if calls is below 1, TypeError if inputs can't be iterated."""
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        raise ValueError(f"calls must be an int above 0, not {calls!r:.100}")
    if not isinstance(inputs, Iterable):
        raise TypeError(
            f"inputs must be an iterable of arguments or tuples of them, not {type(inputs).__name__}: {inputs!r:.100}"
        )
    knobs = {**(options.get("options") or {}), "compile_after": 0}
    compiled = compile(model, **options | {"isolate_recompiles": True, "options": knobs})
    return [measure(compiled, given if isinstance(given, tuple) else (given,), calls) for given in inputs]


def measure(compiled: Callable[..., Any], args: tuple[Any, ...], calls: int) -> Cost:
    """The Cost of one input for something that ccompile.compile returned."""
    cold, *warm = _until_compiled(compiled, args)
    eager, later = [], []
    for _ in range(calls):
        with set_stance("force_eager"):
            eager.append(_timed(compiled, args))
        later.append(_timed(compiled, args))
    return Cost(", ".join(map(_shown, args)), cold, tuple(warm), tuple(eager), tuple(later))


def _until_compiled(compiled: Callable[..., Any], args: tuple[Any, ...]) -> list[float]:
    """Times of the first calls: up to the last one that was followed by two which compiled nothing."""
    root, quiet = compiled_of(compiled), 0
    times: list[float] = []
    while quiet < 2 and len(times) < WARM_MOST:
        before = root.metrics()
        times.append(_timed(compiled, args))
        after = root.metrics()
        quiet = 0 if any(after[key] > before[key] for key in ("recordings", "compile_ms")) else quiet + 1
    return times[: max(1, len(times) - quiet)]


def _timed(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    synchronize()
    start = time.perf_counter()
    call(*args)
    synchronize()
    return (time.perf_counter() - start) * 1e3


def synchronize() -> None:
    """Waits for the GPU, if the process uses one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _shown(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else f"{value!r:.40}"

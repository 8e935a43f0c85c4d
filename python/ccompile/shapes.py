"""Compiling for shapes ahead of their first use, and padding sizes to buckets."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from . import api
from .stance import compiling_now


class Precompiled(NamedTuple):
    """One call of `precompile`."""

    inputs: str
    ms: float
    recorded: bool  # False: an existing entry served the call


def precompile(fn: Callable[..., Any], inputs: Iterable[Any]) -> list[Precompiled]:
    """Calls a compiled callable once for each item of `inputs`, so that later calls with these shapes replay.

    An item is a tuple or list of arguments, a tensor, or a shape (ints), which stands for a float32 tensor of zeros.
    The calls are real ones with all their side effects. Grad mode and autocast are the caller's. The knobs
    compile_after and memory_limit do not defer them."""
    compiled, done = api.compiled_of(fn), []
    if not isinstance(inputs, Iterable):
        raise TypeError(
            f"inputs must be an iterable of arguments, tensors or shapes, not {type(inputs).__name__}: {inputs!r:.100}"
        )
    for item in inputs:
        args = arguments(item)
        before, start = compiled.report()["recordings"], time.perf_counter()
        with compiling_now():
            fn(*args)
        ms = (time.perf_counter() - start) * 1e3
        text = ", ".join(str(list(a.shape)) if isinstance(a, torch.Tensor) else repr(a) for a in args)
        done.append(Precompiled(text, ms, compiled.report()["recordings"] > before))
    return done


def arguments(item: Any) -> tuple[Any, ...]:
    """The arguments that an item of precompile's inputs stands for."""
    if isinstance(item, torch.Tensor):
        return (item,)
    if not isinstance(item, tuple | list):
        raise TypeError(f"expected arguments, a tensor or a shape, not {type(item).__name__}: {item!r:.100}")
    if item and all(isinstance(size, int) and not isinstance(size, bool) for size in item):
        return (torch.zeros(*item),)
    return tuple(item)


class BucketStats(NamedTuple):
    """How a bucketed function was called; hit_rate is the fraction of calls whose bucket had been used before."""

    calls: int
    hits: int
    buckets: dict[int, int]  # size -> calls

    @property
    def hit_rate(self) -> float:
        return self.hits / self.calls if self.calls else 0.0


class Bucketed:
    """A compiled function whose tensor arguments are padded to a few sizes; created by `bucketed`."""

    def __init__(self, fn: Any, dim: int, sizes: Callable[[int], int], value: float, crop: bool) -> None:
        self.compiled, self.dim, self.value, self.crop = fn, dim, value, crop
        self._bucket = sizes
        self._calls: dict[int, int] = {}
        self._hits = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        size = self._size((*args, *kwargs.values()))
        bucket = self._bucket(size)
        self._hits += bucket in self._calls
        self._calls[bucket] = self._calls.get(bucket, 0) + 1
        if bucket == size:
            return self.compiled(*args, **kwargs)
        fit = lambda a: self._pad(a, size, bucket)  # noqa: E731
        result = self.compiled(*map(fit, args), **{name: fit(a) for name, a in kwargs.items()})
        return torch.utils._pytree.tree_map(lambda r: self._cut(r, size, bucket), result) if self.crop else result

    def _size(self, args: tuple[Any, ...]) -> int:
        """The size of the first tensor that has the dim."""
        for a in args:
            if isinstance(a, torch.Tensor) and a.ndim > self.dim:
                return a.shape[self.dim]
        raise ValueError(f"bucketed over dim {self.dim}: no argument is a tensor with that dim")

    def _pad(self, a: Any, size: int, bucket: int) -> Any:
        if not isinstance(a, torch.Tensor) or a.ndim <= self.dim or a.shape[self.dim] != size:
            return a
        return torch.nn.functional.pad(a, [0, 0] * (a.ndim - 1 - self.dim) + [0, bucket - size], value=self.value)

    def _cut(self, r: Any, size: int, bucket: int) -> Any:
        fits = isinstance(r, torch.Tensor) and r.ndim > self.dim and r.shape[self.dim] == bucket
        return r.narrow(self.dim, 0, size) if fits else r

    def precompile(self, inputs: Iterable[Any]) -> list[Precompiled]:
        """Like ccompile.precompile, with each item padded to its bucket."""
        fitted = []
        for item in inputs:
            args = arguments(item)
            size = self._size(args)
            bucket = self._bucket(size)
            self._calls.setdefault(bucket, 0)
            fitted.append(tuple(self._pad(a, size, bucket) for a in args))
        return precompile(self.compiled, fitted)

    def stats(self) -> BucketStats:
        return BucketStats(sum(self._calls.values()), self._hits, dict(self._calls))


def bucketed(
    model: Any,
    dim: int,
    *,
    width: int | None = None,
    sizes: Sequence[int] | None = None,
    value: float = 0.0,
    crop: bool = True,
    **options: Any,
) -> Bucketed:
    """Compiles `model` so that dim `dim` of its tensor arguments has only a few sizes: multiples of `width`, or the
    given `sizes`. Arguments are padded at the end with `value`; results that have the padded size are cropped.

    Only for functions whose result at a position does not depend on the padding behind it (element-wise ops, attention
    with a mask; no mean over the dim). A size above the largest of `sizes` is not padded.
    options: those of ccompile.compile; without any, what is compiled already stays as it is."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 0:
        raise ValueError(f"dim must be a non-negative int, not {dim!r}")
    if (width is None) == (sizes is None):
        raise ValueError("pass either width= (buckets are its multiples) or sizes= (the buckets)")
    if width is not None and (isinstance(width, bool) or not isinstance(width, int) or width < 1):
        raise ValueError(f"width must be an int above 0, not {width!r}")
    if sizes is not None and not (
        isinstance(sizes, Sequence) and sizes and all(type(size) is int and size > 0 for size in sizes)
    ):
        raise ValueError(f"sizes must be a sequence of ints above 0, not {sizes!r:.100}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"value must be a number, not {type(value).__name__}: {value!r:.100}")
    if not isinstance(crop, bool):
        raise TypeError(f"crop must be True or False, not {type(crop).__name__}: {crop!r:.100}")
    steps = sorted(sizes or ())

    def bucket(size: int) -> int:
        if width is not None:
            return -(-size // width) * width
        at = bisect.bisect_left(steps, size)
        return steps[at] if at < len(steps) else size

    compiled = model if api.is_compiled(model) and not options else api.compile(model, **options)
    return Bucketed(compiled, dim, bucket, value, crop)

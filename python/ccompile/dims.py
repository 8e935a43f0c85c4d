"""Declares which sizes are symbolic: Dim, mark_dynamic, mark_static, and the argument of `compile(dynamic={...})`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from . import _core

# Attribute of a tensor, read by csrc/rec/sym.c: (mask of dynamic dims, mask of static dims, ((dim, min, max), ...))
_MARKS = "_ccompile_dims"
_MAX_DIMS = 8
_UNBOUNDED = 2**62


@dataclasses.dataclass(frozen=True)
class Dim:
    """A size that changes from call to call: `dynamic={"x": {0: Dim("batch"), 2: Dim(max=256)}}`.

    Sizes in min..max share a recording; each other size gets its own. So do 0 and 1, because they broadcast."""

    name: str = ""
    min: int | None = None
    max: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(
                f"name must be a str, not {type(self.name).__name__}: {self.name!r}; bounds are min= and max="
            )
        _bounds(self.min, self.max)


def _bounds(least: Any, most: Any) -> tuple[int, int]:
    for name, value in (("min", least), ("max", most)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name} must be an int or None, not {type(value).__name__}: {value!r}")
        if value is not None and value < 0:
            raise ValueError(f"{name} must be 0 or more, not {value!r}")
    low, high = max(2, least or 0), _UNBOUNDED if most is None else most
    if low > high:
        raise ValueError(f"min={least}..max={most} contains no size that can be symbolic; sizes below 2 never are")
    return low, high


def _dim(tensor: torch.Tensor, dim: Any) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, not {type(dim).__name__}: {dim!r}")
    if not -tensor.ndim <= dim < tensor.ndim:
        raise IndexError(
            f"dim must be in {-tensor.ndim}..{tensor.ndim - 1} for a tensor with {tensor.ndim} dims: {dim}"
        )
    if tensor.ndim > _MAX_DIMS:
        raise ValueError(f"tensors with more than {_MAX_DIMS} dims are never symbolic; this one has {tensor.ndim}")
    return dim % tensor.ndim


def _dims(dim: Any) -> Iterable[Any]:
    if not isinstance(dim, int | Iterable):
        raise TypeError(f"dim must be an int or several, not {type(dim).__name__}: {dim!r:.100}")
    return (dim,) if isinstance(dim, int) else dim


def _marks(tensor: Any) -> tuple[int, int, dict[int, tuple[int, int]]]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, not {type(tensor).__name__}: {tensor!r:.100}")
    dynamic, static, ranges = tensor.__dict__.get(_MARKS, (0, 0, ()))
    return dynamic, static, {dim: (low, high) for dim, low, high in ranges}


def _store(tensor: torch.Tensor, dynamic: int, static: int, ranges: dict[int, tuple[int, int]]) -> None:
    tensor.__dict__[_MARKS] = (dynamic, static, tuple((dim, *bounds) for dim, bounds in ranges.items()))


def mark_dynamic(
    tensor: torch.Tensor,
    dim: int | Iterable[int],
    *,
    min: int | None = None,
    max: int | None = None,
    hint_override: int | None = None,
    specialize_on: list[Any] | None = None,
) -> None:
    """Makes sizes of this tensor symbolic, within min..max, from its first recording on. torch._dynamo.mark_dynamic and
    maybe_mark_dynamic have the same effect. hint_override and specialize_on are torch's: `ignored` events, since each
    size gets a plan of its own."""
    for name, value in (("hint_override", hint_override), ("specialize_on", specialize_on)):
        if value is not None:
            _core.note(f"mark_dynamic: {name} has no effect: each size gets a plan of its own")
    dynamic, static, ranges = _marks(tensor)
    bounds = _bounds(min, max)
    for d in _dims(dim):
        at = _dim(tensor, d)
        dynamic, static = dynamic | 1 << at, static & ~(1 << at)
        ranges[at] = bounds
    _store(tensor, dynamic, static, ranges)


def mark_static(tensor: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Excludes sizes of this tensor (None: all) from automatic dynamic shapes: each size gets its own recording."""
    dynamic, static, ranges = _marks(tensor)
    for d in range(tensor.ndim) if dim is None else _dims(dim):
        at = _dim(tensor, d)
        dynamic, static = dynamic & ~(1 << at), static | 1 << at
        ranges.pop(at, None)
    _store(tensor, dynamic, static, ranges)


Marks = tuple[int, int, tuple[tuple[int, int, int], ...]]


def declared(dynamic: Mapping[Any, Any]) -> dict[str, Marks]:
    """Converts the argument of `compile(dynamic={...})` to marks by argument name. A size is a Dim, None, or any object
    with `min` and `max` (torch.export.Dim)."""
    out: dict[str, Marks] = {}
    for argument, dims in dynamic.items():
        if not isinstance(argument, str) or not isinstance(dims, Mapping):
            raise TypeError(f"dynamic={{argument: {{dim: Dim(...)}}}}: a str and a mapping, not {argument!r}: {dims!r}")
        mask, ranges = 0, []
        for dim, size in dims.items():
            if isinstance(dim, bool) or not isinstance(dim, int) or not 0 <= dim < _MAX_DIMS:
                raise ValueError(f"dynamic[{argument!r}]: a dim is an int in 0..{_MAX_DIMS - 1}, not {dim!r}")
            if size is not None and not (hasattr(size, "min") and hasattr(size, "max")):
                raise TypeError(f"dynamic[{argument!r}][{dim}] must be a ccompile.Dim or None, not {size!r}")
            most = None if size is None or (size.max or 0) >= _UNBOUNDED else size.max
            mask |= 1 << dim
            ranges.append((dim, *_bounds(None if size is None else size.min, most if isinstance(most, int) else None)))
        out[argument] = (mask, 0, tuple(ranges))
    return out


def of_call(model: Any, marks: Mapping[str, Marks]) -> dict[str | int, Marks]:
    """Checks the result of `declared` against the callable's parameters. A module's __call__ takes *args, so its marks
    are added by position, too (counting self)."""
    is_module = isinstance(model, torch.nn.Module)
    parameters = inspect.signature(model.forward if is_module else model).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in marks:
        if name not in parameters and not takes_any:
            raise ValueError(f"dynamic names {name!r}; the parameters are: {', '.join(parameters) or 'none'}")
    out: dict[str | int, Marks] = {}
    out.update(marks.items())
    if is_module:
        out |= {list(parameters).index(name) + 1: mark for name, mark in marks.items() if name in parameters}
    return out

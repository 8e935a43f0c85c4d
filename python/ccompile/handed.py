"""Functions that torch keeps and calls again outside of every compiled call: the one of a checkpoint with
use_reentrant=True is called by the backward. csrc/eval/handed.c puts a compiled function in its place."""

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from . import _core

_MOST = 256


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


class Handed:
    """The compiled functions of one model. Each has entries of its own, found by what is the same in every step.
    Guards decide what an entry serves, so functions that share one by mistake get right results."""

    def __init__(self, *, options: dict[str, int], **settings: Any) -> None:
        # The optimiser writes to the weights between any two calls without gradients: packed copies would not last.
        self._settings = settings | {"options": options | {"freezing": 0}}
        self._made: dict[Any, _core.Compiled] = {}

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A callable that does what `function` does."""
        if isinstance(function, _core.Compiled | _core.Disabled):
            return function
        key = _key(function)
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= _MOST:
                del self._made[next(iter(self._made))]
            name = _name(function)
            made = self._made[key] = _core.Compiled(_call, name=name, **self._settings)
            made.__name__ = name
        return functools.partial(made, function)

    def all(self) -> list[_core.Compiled]:
        return list(self._made.values())


def _name(function: Any) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__qualname__", None)
    return name if isinstance(name, str) else type(inner).__qualname__


def _key(function: Any) -> tuple[Any, ...]:
    """Addresses of code and modules. A `partial` or a `def` that is made for each call has the same key each time."""
    if isinstance(function, functools.partial):
        return _key(function.func)
    if isinstance(function, types.MethodType):
        return id(function.__self__), *_key(function.__func__)
    if isinstance(function, types.FunctionType):
        return id(function.__code__), *(id(o) for o in map(_content, function.__closure__ or ()) if _is_module(o))
    return (id(function),)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_module(o: Any) -> bool:
    return issubclass(type(o), torch.nn.Module)

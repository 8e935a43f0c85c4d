"""Functions of torch.compiler for programs that call them by our name. Recording follows Python code wherever eager
runs it, so most of them have nothing to do: what they promise to Dynamo holds without them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from . import _core, dims

F = TypeVar("F", bound=Callable[..., Any])
Fs = TypeVar("Fs", bound=Callable[..., Any] | Sequence[Callable[..., Any]])


def _callable(fn: F, what: str) -> F:
    if not callable(fn):
        raise TypeError(f"ccompile.{what} takes a callable, not {type(fn).__name__}: {fn!r:.100}")
    return fn


def allow_in_graph(fn: Fs) -> Fs:
    """Returns fn, a function or a list of them, whose ops are recorded as those of any function. torch's puts it into
    the graph unseen."""
    functions: Sequence[Any] = fn if isinstance(fn, list | tuple) else [fn]
    for one in functions:
        _callable(one, "allow_in_graph")
    return fn


def assume_constant_result(fn: F) -> F:
    """Returns fn. torch's evaluates it once and assumes that the result stays; here a call is recorded, and guards on
    what it reads cost nanoseconds, so the result is always eager's."""
    return _callable(fn, "assume_constant_result")


def nested_compile_region(fn: F | None = None) -> Any:
    """Returns fn; also as a decorator with parentheses. torch's compiles the region once for all its calls; here equal
    regions have the same kernels anyway."""
    return nested_compile_region if fn is None else _callable(fn, "nested_compile_region")


def substitute_in_graph(original: Callable[..., Any], **settings: Any) -> Callable[[F], F]:
    """A decorator that returns the function as it is: calls of `original` stay calls of `original`, recorded if
    ccompile knows it and a graph break otherwise. settings: torch's, without effect."""
    _callable(original, "substitute_in_graph")
    return functools.partial(_callable, what="substitute_in_graph")


class error_on_graph_break:  # used like a function
    """`with error_on_graph_break(True):`, or as a decorator of a function: graph breaks found while this code is
    recorded raise ccompile.Unsupported, as with fullgraph=True; error_on_graph_break(False) permits them again inside.
    Under fullgraph=True it has no effect. What has been recorded before is not affected."""

    def __init__(self, error_on_graph_break: bool) -> None:
        if not isinstance(error_on_graph_break, bool):
            raise TypeError(
                f"error_on_graph_break takes True or False, not {type(error_on_graph_break).__name__}: "
                f"{error_on_graph_break!r:.100}"
            )
        self._value = error_on_graph_break
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_core.error_on_graph_break.get())
        _core.error_on_graph_break.set(self._value)

    def __exit__(self, *exc: object) -> None:
        _core.error_on_graph_break.set(self._before.pop())

    def __call__(self, fn: F) -> F:
        _callable(fn, "error_on_graph_break")

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(self._value):
                return fn(*args, **kwargs)

        return call  # type: ignore[return-value]


def cudagraph_mark_step_begin() -> None:
    """Nothing: memory of results is reused only once nothing refers to it, so no step has to be marked."""


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """mark_dynamic, which never fails here: a size that cannot be symbolic gets recordings of its own."""
    dims.mark_dynamic(tensor, dim)


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """Names that `backend=` takes: "ccompile", and torch.compile's without those that have one of the tags. Imports
    torch._dynamo, which takes seconds."""
    return sorted({"ccompile", *torch.compiler.list_backends(exclude_tags)})

"""Functions of torch.compiler for programs that call them by our name. Recording follows Python code wherever eager
runs it, so most of them have nothing to do: what they promise to Dynamo holds without them."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import dims

F = TypeVar("F", bound=Callable[..., Any])


def _callable(fn: F, what: str) -> F:
    if not callable(fn):
        raise TypeError(f"ccompile.{what} takes a callable, not {type(fn).__name__}: {fn!r:.100}")
    return fn


def allow_in_graph(fn: F) -> F:
    """Returns fn, whose ops are recorded as those of any function. torch's puts fn into the graph unseen."""
    return _callable(fn, "allow_in_graph")


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


def cudagraph_mark_step_begin() -> None:
    """Nothing: memory of results is reused only once nothing refers to it, so no step has to be marked."""


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """mark_dynamic, which never fails here: a size that cannot be symbolic gets recordings of its own."""
    dims.mark_dynamic(tensor, dim)


def list_backends() -> list[str]:
    """Names that `backend=` takes: "ccompile", and torch.compile's. Imports torch._dynamo, which takes seconds."""
    return sorted({"ccompile", *torch.compiler.list_backends()})

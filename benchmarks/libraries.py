"""Programs that use other libraries with torch.compile, as their users write them; for bench_libraries.py and tests.

A row: name -> Program(library, make, breaks). make() builds small random models (no downloads) and lets torch.compile,
nn.Module.compile() or the library compile them. Under eager() nothing is compiled, under ours() ccompile is installed,
so one program gives both sides of a comparison."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Use:
    step: Callable[[int], Any]  # one use with the i-th input; the result is all that a user sees of it
    state: Callable[[], Any]  # what the library saves, loads and says about the model


@dataclass(frozen=True)
class Program:
    library: str  # the module to import
    make: Callable[[], Use]
    breaks: int  # graph breaks, which Dynamo (bench_libraries.py --dynamo) has as well
    costly: bool  # takes seconds; left out of a quick run of the tests
    settles: bool  # later steps only replay
    tolerance: float | None  # relative and absolute, of rows that compute in bf16; None: the tests' own


PROGRAMS: dict[str, Program] = {}


def program(
    library: str, *, breaks: int = 0, costly: bool = False, settles: bool = True, tolerance: float | None = None
) -> Callable[[Callable[[], Use]], Callable[[], Use]]:
    """A decorator that makes a function a row of the table, named after it."""

    def add(make: Callable[[], Use]) -> Callable[[], Use]:
        PROGRAMS[make.__name__] = Program(library, make, breaks, costly, settles, tolerance)
        return make

    return add


def need(library: str) -> None:
    """Imports the library; raises ImportError if it is not installed."""
    _import_torchvision()
    importlib.import_module(library)


def _import_torchvision() -> None:
    """PyPI's torchvision is built for CUDA. Next to a torch without CUDA its C++ ops do not load, and its import fails
    at the first ops whose shapes it describes, and with it that of each library that finds it installed. None of the
    models here needs these ops, so it is enough that they exist."""
    with contextlib.suppress(ImportError):
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            declared = torch.library.Library("torchvision", "DEF")
            for op in ("nms", "qnms"):
                declared.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _kept.append(declared)  # ops live as long as their library
            importlib.import_module("torchvision")


_kept: list[torch.library.Library] = []


@contextlib.contextmanager
def compiling_by(compile: Callable[..., Any]) -> Iterator[None]:
    """torch.compile is `compile` for the duration of a with block."""
    before = torch.compile
    torch.compile = compile
    try:
        yield
    finally:
        torch.compile = before


def eager() -> contextlib.AbstractContextManager[None]:
    """torch.compile returns what it is given."""
    return compiling_by(lambda model=None, **_: (lambda fn: fn) if model is None else model)


@contextlib.contextmanager
def ours(made: list[Any] | None = None) -> Iterator[None]:
    """ccompile is installed; what it compiles is appended to `made`."""
    import ccompile

    def compile(model: Any = None, **arguments: Any) -> Any:
        if model is None:
            return functools.partial(compile, **arguments)
        compiled = installed(model, **arguments)
        if made is not None:
            made.append(compiled)
        return compiled

    with ccompile.installed():
        installed = torch.compile
        with compiling_by(compile):
            yield


import libraries_media  # noqa: E402, F401  these modules fill the table
import libraries_text  # noqa: E402, F401
import libraries_training  # noqa: E402, F401

"""What a listing of a source document is to tests/test_seeds.py.

The modules of this folder hold the code listings of the five documents about torch.compile, in the documents' order:
only imports, the compile call and what belongs to it (explain, disable, config ...) are ccompile's in place of torch's.
Comments and docstrings are left out, texts are in English, CUDA's devices, events and streams are `device.py`'s where
there is no GPU, and modules that a document names but does not define are in `stand_ins.py`. Where sizes or numbers of
iterations are smaller than the document's, a comment says so.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn


class Listing(NamedTuple):
    name: str  # the document and what the listing defines
    run: Callable[[], object]  # does what the document's reader does with it; the result is compared with eager's
    counted: tuple[Callable[..., object], tuple] | None = None  # a callable, and arguments, to explain
    graphs: int | None = None
    breaks: int | None = None
    bare: int = 0  # breaks without an op between them and the one before, or that Dynamo's count leaves out
    recorded: bool = True  # whether the run compiles something
    rtol: float | None = None  # instead of the usual tolerance, where training amplifies rounding
    needs: str = ""  # a package that the listing imports


LISTINGS: list[Listing] = []


def calls(
    name: str,
    fn: Callable[..., object],
    *inputs: tuple,
    graphs: int,
    breaks: int,
    bare: int = 0,
    training: bool = False,
) -> None:
    """Adds a listing that is a function or a module: its reader compiles it and calls it with each of `inputs`, twice."""
    import ccompile

    def run() -> list[object]:
        module = copy.deepcopy(fn).train(training) if isinstance(fn, nn.Module) else fn
        compiled = ccompile.compile(module)
        return [compiled(*copied(args)) for args in (*inputs, *inputs)]

    LISTINGS.append(Listing(name, run, (fn, inputs[0]), graphs, breaks, bare))


def program(name: str, recorded: bool = True, rtol: float | None = None, needs: str = "") -> Callable:
    """Adds a listing that compiles on its own: the decorated function runs it."""

    def add(run: Callable[[], object]) -> Callable[[], object]:
        LISTINGS.append(Listing(name, run, recorded=recorded, rtol=rtol, needs=needs))
        return run

    return add


def copied(args: tuple) -> tuple:
    """Arguments that a call may write to."""
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)


def t(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

"""install(): torch.compile becomes ccompile.compile, for programs and libraries that call torch.compile themselves.

Libraries reach it through the attribute: nn.Module.compile(), transformers' generation, accelerate's compile_regions,
diffusers' compile_repeated_blocks, Lightning. `from torch import compile` that ran earlier keeps torch's own."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _core, api, stance


def _default_backend() -> Any:
    """What torch.compiler.set_default_backend has set; None: nothing."""
    registry = sys.modules.get("torch._dynamo.backends.registry")  # not imported: nobody has set it
    name = registry.get_default_backend() if registry is not None else None
    return None if name == "inductor" else name


@functools.wraps(api._torch_compile)
def _compile(model: Any = None, *, backend: Any = None, **arguments: Any) -> Any:
    if backend is None:
        backend = _default_backend()
    if backend in ("inductor", "ccompile"):  # libraries write torch's default out
        backend = None
    if torch.compiler.is_exporting():
        return api._torch_compile(model, backend=backend or "inductor", **arguments)
    return api.compile(model, backend=backend, **arguments)


def _set_stance(*args: Any, **kwargs: Any) -> Any:
    return stance.set_stance(*args, **kwargs)


def _reset() -> None:
    _core.reset()
    if "torch._dynamo" in sys.modules:
        _torchs["reset"]()


# name in torch.compiler -> ours, in the signature of theirs
_TWINS: dict[str, Callable[..., Any]] = {"reset": _reset, "set_stance": _set_stance}
_torchs: dict[str, Any] = {name: getattr(torch.compiler, name) for name in _TWINS}
_core.break_at(_compile)


def install() -> None:
    """Makes `torch.compile` ours in this process; a second call changes nothing. Calls with another backend than
    "inductor" or "ccompile" still reach torch's. `torch.compiler.set_stance` and `torch.compiler.reset` then act on
    what ccompile has compiled. CCOMPILE_INSTALL=1 does this when ccompile is imported."""
    torch.compile = _compile
    for name, twin in _TWINS.items():
        setattr(torch.compiler, name, twin)


def uninstall() -> None:
    """Gives `torch.compile` back. What has been compiled stays compiled."""
    torch.compile = api._torch_compile
    for name, theirs in _torchs.items():
        setattr(torch.compiler, name, theirs)


@contextmanager
def installed() -> Iterator[None]:
    """install() for the duration of a with block. What was there before is put back, such as a wrapper of another
    library (Lightning's notes the arguments)."""
    compile = torch.compile
    twins = {name: getattr(torch.compiler, name) for name in _TWINS}
    install()
    try:
        yield
    finally:
        torch.compile = compile
        for name, before in twins.items():
            setattr(torch.compiler, name, before)

"""install(): torch.compile becomes ccompile.compile, for programs and libraries that call torch.compile themselves.

Libraries reach it through the attribute: nn.Module.compile(), transformers' generation, accelerate's compile_regions,
diffusers' compile_repeated_blocks, Lightning. `from torch import compile` that ran earlier keeps torch's own."""

import functools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _core, api, artifacts, stance, twins


def _default_backend() -> Any:
    """What torch.compiler.set_default_backend has set; None: nothing."""
    registry = sys.modules.get("torch._dynamo.backends.registry")  # not imported: nobody has set it
    name = registry.get_default_backend() if registry is not None else None
    return None if name == "inductor" else name


def _recompile_limit() -> int | None:
    """What the program has set in torch._dynamo.config; None: nothing."""
    config = sys.modules.get("torch._dynamo.config")
    limit = getattr(config, "recompile_limit", _THEIR_LIMIT)
    return None if limit == _THEIR_LIMIT else limit


def _as_torch_reads(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for api.compile, which takes True and False only. torch takes any value for a flag, and the mode
    "lite"."""
    names = ("fullgraph", "disable", "isolate_recompiles")
    flags = {name: bool(arguments[name]) for name in names if name in arguments}
    if arguments.get("mode") == "lite":
        _core.note("mode 'lite' of torch.compile, which compiles marked regions only: it is 'default' here")
        arguments = arguments | {"mode": "default"}
    if arguments.get("recompile_limit") is None:
        arguments = arguments | {"recompile_limit": _recompile_limit()}
    return arguments | flags


@functools.wraps(api._torch_compile)
def _compile(model: Any = None, *, backend: Any = None, **arguments: Any) -> Any:
    _patch()  # torch._dynamo may have been imported since install()
    if backend is None:
        backend = _default_backend()
    if backend in ("inductor", "ccompile"):  # libraries write torch's default out
        backend = None
    if torch.compiler.is_exporting():
        return api._torch_compile(model, backend=backend or "inductor", **arguments)
    if backend is None:
        arguments = _as_torch_reads(arguments)
    return api.compile(model, backend=backend, **arguments)


def _reset() -> None:
    _core.reset()
    theirs = _torchs.get(("torch._dynamo", "reset"))  # absent: it is not imported, so there is nothing to reset
    if theirs is not None:
        theirs()


_THEIR_LIMIT = 8  # torch._dynamo.config.recompile_limit's default
# module -> name in it -> ours, in the signature of theirs
_TWINS: dict[str, dict[str, Callable[..., Any]]] = {
    "torch": {"compile": _compile},
    "torch.compiler": {
        "load_cache_artifacts": artifacts.load_cache_artifacts,
        "reset": _reset,
        "save_cache_artifacts": artifacts.save_cache_artifacts,
        "set_stance": stance.set_stance,
    },
    "torch._dynamo": {"error_on_graph_break": twins.error_on_graph_break, "reset": _reset},
}
_torchs: dict[tuple[str, str], Any] = {}  # what _patch has replaced
_lock = threading.RLock()
_always, _blocks = False, 0  # install() without uninstall(); open blocks of installed()
_core.break_at(_compile)


@functools.cache
def _of_both(theirs: type[Exception]) -> type[_core.Unsupported]:
    """ccompile.Unsupported that `except torch._dynamo.exc.Unsupported` catches, too. Nothing in it runs Python code:
    it is raised in the middle of a recording."""
    own = {
        "__doc__": _core.Unsupported.__doc__,
        "__module__": "ccompile",
        "__init__": RuntimeError.__init__,
        "__reduce__": lambda self: (_core.Unsupported, self.args),
        "msg": property(str),
        "real_stack": traceback.StackSummary(),
        "gb_type": "",
        **dict.fromkeys(("skip_frame", "logged"), False),
        **dict.fromkeys(("category", "frame_exec_strategy", "_torch_dynamo_tracer_output")),
    }
    return type("Unsupported", (_core.Unsupported, theirs), own)


def _patch() -> None:
    """What it has replaced stays as it is: another library may have wrapped ours (Lightning's notes the arguments)."""
    with _lock:
        for place, names in _TWINS.items():
            module = sys.modules.get(place)
            for name, twin in names.items():
                if (place, name) not in _torchs and hasattr(module, name):
                    _torchs[place, name] = getattr(module, name)
                    setattr(module, name, twin)
        exceptions = sys.modules.get("torch._dynamo.exc")
        if exceptions is not None:
            _core.raise_as(_of_both(exceptions.Unsupported))


def _unpatch() -> None:
    with _lock:
        for (place, name), theirs in _torchs.items():
            setattr(sys.modules[place], name, theirs)
        _torchs.clear()
        _core.raise_as(_core.Unsupported)


def install() -> None:
    """Makes `torch.compile` ours in this process; a second call changes nothing. Calls with another backend than
    "inductor" or "ccompile" still reach torch's. Functions of torch.compiler and torch._dynamo that act on what has
    been compiled (set_stance, reset, save_cache_artifacts, load_cache_artifacts, error_on_graph_break) are ours, too.
    What is raised as ccompile.Unsupported is a torch._dynamo.exc.Unsupported, if that was imported before torch.compile
    was called. CCOMPILE_INSTALL=1 does this when ccompile is imported."""
    global _always
    with _lock:
        _always = True
        _patch()


def uninstall() -> None:
    """Gives `torch.compile` back. What has been compiled stays compiled."""
    global _always
    with _lock:
        _always = False
        _unpatch()


@contextmanager
def installed() -> Iterator[None]:
    """install() for the duration of a with block. Blocks may nest, and overlap in threads: the last one gives
    `torch.compile` back."""
    global _blocks
    with _lock:
        _blocks += 1
        _patch()
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _always and _blocks == 0:
                _unpatch()

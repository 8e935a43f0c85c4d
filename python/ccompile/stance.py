"""set_stance: what compiled functions do instead of recording; the twin of torch.compiler.set_stance."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._contextlib import _DecoratorContextManager

from . import _core, api, config

F = TypeVar("F", bound=Callable[..., Any])
# name -> _core's stance (csrc/eval/eval.h, CcStance)
_STANCES = {
    "default": "default",
    "force_eager": "force_eager",
    "eager_on_recompile": "eager_on_recompile",
    "fail_on_recompile": "fail_on_recompile",
    "eager_then_compile": "eager_then_compile",
    "aot_eager_then_compile": "eager_then_compile",
}
_BACKENDS: dict[Any, str | None] = {None: None, "ccompile": None, "inductor": None, "eager": "force_eager"}


class _Forced:
    """What _core calls for a compiled callable: gives it as torch.compile compiles it with this back-end."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        self._backend = backend
        self._compiled: dict[int, tuple[Any, Any]] = {}  # by id: a callable need not have a hash; it stays alive here

    def __call__(self, fn: Any, fullgraph: bool) -> Any:
        known = self._compiled.get(id(fn))
        if known is None:
            compiled = api._torch_compile(fn, backend=self._backend, fullgraph=fullgraph)
            known = self._compiled[id(fn)] = (fn, compiled)
        return known[1]


class _Stance(_DecoratorContextManager):
    """The result of set_stance: a context manager that ends the stance, and a decorator that sets it for calls; either
    any number of times, as torch's."""

    def __init__(self, stance: str | Callable[..., Any]) -> None:
        self._stance = stance
        self._before = _core.set_stance(stance)

    def __enter__(self) -> None:
        _core.set_stance(self._stance)

    def __exit__(self, *exc: object) -> None:
        _core.set_stance(self._before)

    def __call__(self, fn: F) -> F:
        _core.set_stance(self._before)  # a decorator sets it for the calls only
        return super().__call__(fn)

    def clone(self) -> "_Stance":
        return _Stance(self._stance)


def set_stance(
    stance: str = "default",
    *,
    skip_guard_eval_unsafe: bool = False,
    force_backend: str | Callable[..., Any] | None = None,
) -> _Stance:
    """Sets the stance of all compiled functions of this process: as a function, for a with block, or as a decorator.

    stance:  "default";
             "force_eager": everything runs eagerly;
             "eager_on_recompile": what is not compiled yet runs eagerly;
             "fail_on_recompile": a call that would have to be compiled raises RuntimeError;
             "eager_then_compile": a function's first call runs eagerly ("aot_eager_then_compile" is the same here).
    skip_guard_eval_unsafe: has no effect but an `ignored` event: guards are always checked.
    force_backend: None, "ccompile" or "inductor": no effect; "eager": "force_eager"; a function, or the name of another
             back-end: torch.compile compiles with it what is called. Only with stance "default".
    """
    if not isinstance(skip_guard_eval_unsafe, bool):
        raise TypeError(f"skip_guard_eval_unsafe must be True or False, not {skip_guard_eval_unsafe!r:.100}")
    if not isinstance(stance, str):
        raise TypeError(f"stance must be a str, not {type(stance).__name__}: {stance!r:.100}")
    if not (force_backend is None or isinstance(force_backend, str) or callable(force_backend)):
        given = f"{type(force_backend).__name__}: {force_backend!r:.100}"
        raise TypeError(f"force_backend must be a str, a function or None, not {given}")
    if stance not in _STANCES:
        raise ValueError(config.unknown("stance", stance, list(_STANCES)))
    if force_backend is not None and stance != "default":
        raise ValueError(f"force_backend is for stance 'default' only, not {stance!r}")
    if isinstance(force_backend, str) and force_backend not in _BACKENDS:
        names = torch._dynamo.list_backends(exclude_tags=())
        if force_backend not in names:
            raise ValueError(config.unknown("force_backend", force_backend, [*map(str, _BACKENDS), *names]))
    if skip_guard_eval_unsafe:
        _core.note("set_stance: skip_guard_eval_unsafe: guards are always checked")
    if force_backend is not None and (callable(force_backend) or force_backend not in _BACKENDS):
        return _Stance(_Forced(force_backend))
    return _Stance(_BACKENDS[force_backend] or _STANCES[stance])


def compiling_now() -> _Stance:
    """A block whose calls are recorded if no entry fits, whatever the knobs compile_after and memory_limit say."""
    return _Stance("compile_now")


_core.break_at(set_stance)

"""set_stance: what compiled functions do instead of recording; the twin of torch.compiler.set_stance."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils._contextlib import _DecoratorContextManager

from . import _core, config

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
_BACKENDS = {None: None, "ccompile": None, "inductor": None, "eager": "force_eager"}


class _Stance(_DecoratorContextManager):
    """The result of set_stance: a context manager that ends the stance, and a decorator that sets it for calls; either
    any number of times, as torch's."""

    def __init__(self, stance: str) -> None:
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
    stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: str | None = None
) -> _Stance:
    """Sets the stance of all compiled functions of this process: as a function, for a with block, or as a decorator.

    stance:  "default";
             "force_eager": everything runs eagerly;
             "eager_on_recompile": what is not compiled yet runs eagerly;
             "fail_on_recompile": a call that would have to be compiled raises RuntimeError;
             "eager_then_compile": a function's first call runs eagerly ("aot_eager_then_compile" is the same here).
    skip_guard_eval_unsafe: has no effect but an `ignored` event: guards are always checked.
    force_backend: None, "ccompile" or "inductor": no effect; "eager": "force_eager". Only with stance "default".
    """
    if not isinstance(skip_guard_eval_unsafe, bool):
        raise TypeError(f"skip_guard_eval_unsafe must be True or False, not {skip_guard_eval_unsafe!r:.100}")
    for name, value in (("stance", stance), ("force_backend", force_backend)):
        if not isinstance(value, str) and (value is not None or name == "stance"):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}: {value!r:.100}")
    if stance not in _STANCES:
        raise ValueError(config.unknown("stance", stance, list(_STANCES)))
    if force_backend is not None and stance != "default":
        raise ValueError(f"force_backend is for stance 'default' only, not {stance!r}")
    if force_backend not in _BACKENDS:
        raise ValueError(config.unknown("force_backend", force_backend, [str(name) for name in _BACKENDS]))
    if skip_guard_eval_unsafe:
        _core.note("set_stance: skip_guard_eval_unsafe: guards are always checked")
    return _Stance(_BACKENDS[force_backend] or _STANCES[stance])


def compiling_now() -> _Stance:
    """A block whose calls are recorded if no entry fits, whatever the knobs compile_after and memory_limit say."""
    return _Stance("compile_now")


_core.break_at(set_stance)

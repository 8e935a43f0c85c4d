"""Knobs, as defined in csrc/eval/policy.def: `ccompile.config.NAME` reads a knob, `ccompile.config.NAME = value` sets
it, and `with ccompile.config.patch(NAME=value):` sets it for the duration of a block. Settings of torch.compile's that
programs switch (verbose, debug, suppress_errors, trace ...) are accepted; those without a counterpart are `ignored`
events."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import _core

# Names of torch._dynamo.config and torch._inductor.config that programs set -> our knobs with the same purpose
_TORCHS: dict[str, tuple[str, ...]] = {
    "cache_size_limit": ("recompile_limit",),
    "debug": (),
    "log_level": (),
    "max_autotune": ("autotune", "freezing"),
    "shape_padding": (),
    "suppress_errors": (),
    "verbose": (),
}
_MOST = 2**31 - 1  # knobs are C's int
_set: dict[str, Any] = {}  # values of those without a counterpart
_hidden: set[str] = set()  # deleted, until they are set again: unittest.mock.patch ends so


class _Ignored:
    """torch._inductor.config.trace: any attribute can be set; each is an `ignored` event."""

    def __setattr__(self, name: str, value: Any) -> None:
        _ignore(f"trace.{name}", value)
        super().__setattr__(name, value)


def _ignore(name: str, value: Any) -> None:
    _core.note(f"config.{name} = {value!r:.80}: a setting of torch.compile's that nothing here corresponds to")


def _read(name: str) -> Any:
    if name not in _TORCHS:
        return _core.get_config()[name]
    return _core.get_config()[_TORCHS[name][0]] if _TORCHS[name] else _set.get(name, False)


def _write(name: str, value: Any) -> None:
    """Sets a knob, or what corresponds to a setting of torch.compile's. Raises what check raises."""
    if name not in _TORCHS:
        _core.set_config(name, check("knob", name, value))
    elif not _TORCHS[name]:
        _ignore(name, value)
        _set[name] = value
    for knob in _TORCHS.get(name, ()):
        _core.set_config(knob, check("knob", knob, value))


def unknown(kind: str, name: object, allowed: Mapping[str, Any] | list[str]) -> str:
    """'unknown option 'freezin': did you mean 'freezing'? Allowed: ...'"""
    from difflib import get_close_matches

    near = get_close_matches(str(name), list(allowed), n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return f"unknown {kind} {name!r}{hint} Allowed: {', '.join(map(repr, sorted(allowed)))}"


def check(kind: str, name: object, value: Any) -> Any:
    """Returns the value if the knob exists and can have it; else raises TypeError (another type) or ValueError."""
    table = _core.get_config()
    if not isinstance(name, str):
        raise TypeError(f"{kind} names are str, not {type(name).__name__}: {name!r}")
    if name not in table:
        raise ValueError(unknown(kind, name, table))
    want = type(table[name])
    if type(value) is not want:
        raise TypeError(
            f"{kind} {name!r} is {want.__name__} (now {table[name]!r}), not {type(value).__name__}: {value!r}"
        )
    if isinstance(value, int) and not 0 <= value <= _MOST:
        raise ValueError(f"{kind} {name!r} must be in 0..{_MOST} (now {table[name]!r}), not {value!r}")
    return value


@contextmanager
def patch(**knobs: Any) -> Iterator[None]:
    """Sets knobs for the duration of a with block."""
    for name, value in knobs.items():
        for knob in _TORCHS.get(name, (name,)):
            check("knob", knob, value)
    own = {knob: _read(knob) for name in knobs for knob in _TORCHS.get(name, (name,))}
    others = {name: _set[name] for name in knobs if name in _set}
    try:
        for name, value in knobs.items():
            _write(name, value)
        yield
    finally:
        for knob, value in own.items():
            _core.set_config(knob, value)
        for name in knobs:
            _set.pop(name, None)
        _set.update(others)


def table() -> dict[str, Any]:
    """All knobs and their values."""
    return dict(_core.get_config())


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


class _Config(ModuleType):
    def __getattr__(self, name: str) -> Any:
        knobs = {} if name.startswith("__") else _core.get_config()
        if (name in knobs or name in _TORCHS) and name not in _hidden:
            return _read(name)
        raise AttributeError(unknown("knob", name, knobs) if knobs else name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            _write(name, value)
            _hidden.discard(name)

    def __delattr__(self, name: str) -> None:
        """Hides a knob, whose value stays, until it is set."""
        if name in vars(self):
            super().__delattr__(name)
        else:
            getattr(self, name)  # AttributeError if it is none
            _hidden.add(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_core.get_config()]


trace = _Ignored()
sys.modules[__name__].__class__ = _Config

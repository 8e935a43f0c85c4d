"""Knobs, as defined in csrc/eval/policy.def: `ccompile.config.NAME` reads a knob, `ccompile.config.NAME = value` sets
it, and `with ccompile.config.patch(NAME=value):` sets it for the duration of a block."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import _core


def unknown(kind: str, name: object, allowed: Mapping[str, Any] | list[str]) -> str:
    """'unknown option 'freezin': did you mean 'freezing'? Allowed: ...'"""
    from difflib import get_close_matches

    near = get_close_matches(str(name), list(allowed), n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return f"unknown {kind} {name!r}{hint} Allowed: {', '.join(map(repr, sorted(allowed)))}"


def check(kind: str, name: object, value: Any) -> Any:
    """Returns the value if the knob exists and has the value's type; else raises TypeError or ValueError."""
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
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{kind} {name!r} must be 0 or more (now {table[name]!r}), not {value!r}")
    return value


@contextmanager
def patch(**knobs: Any) -> Iterator[None]:
    """Sets knobs for the duration of a with block."""
    for name, value in knobs.items():
        check("knob", name, value)
    table = _core.get_config()
    before = {name: table[name] for name in knobs}
    try:
        for name, value in knobs.items():
            _core.set_config(name, value)
        yield
    finally:
        for name, value in before.items():
            _core.set_config(name, value)


def table() -> dict[str, Any]:
    """All knobs and their values."""
    return dict(_core.get_config())


class _Config(ModuleType):
    def __getattr__(self, name: str) -> Any:
        knobs = {} if name.startswith("__") else _core.get_config()
        if name in knobs:
            return knobs[name]
        raise AttributeError(unknown("knob", name, knobs) if knobs else name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            _core.set_config(name, check("knob", name, value))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_core.get_config()]


sys.modules[__name__].__class__ = _Config

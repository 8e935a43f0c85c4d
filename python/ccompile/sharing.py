"""A callable that is compiled again finds what was compiled before.

Each result of `compile` is an object of its own. It borrows the entries of an earlier result, its lender, if both wrap
the same callable with the same settings: the same object, the same method of one object, or functions with the same
code, globals, cells and defaults, as a `def` in a loop makes them. Calls compare that again (csrc/mod/types.c), because
a function's parts may be replaced.

Lenders are held weakly, so that compiling keeps nothing alive. A function without cells or defaults whose code is
compiled again although the earlier result is gone (`torch.compile(f)(x)` in a loop) is the exception: the next result
is kept, the last 64 of them."""

import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from . import _core

_KEPT, _KNOWN = 64, 1024
# References without callbacks: compiled code may drop a result, and would break where a callback runs. A dead one says
# that its key was compiled before.
_lenders: "OrderedDict[Any, weakref.ref[_core.Compiled]]" = OrderedDict()
_kept: "OrderedDict[Any, _core.Compiled]" = OrderedDict()


def make(fn: Callable[..., Any], isolate: bool = False, **settings: Any) -> _core.Compiled:
    """A Compiled of fn, which shares entries with an earlier one if it can. isolate: it shares none."""
    key = None if isolate else _key(fn, settings)
    if key is None:
        return _core.Compiled(fn, **settings)
    found = _lenders.get(key)
    lender = found() if found is not None else None
    made = _core.Compiled(fn, lender=lender, **settings)
    if lender is None:
        _put(_lenders, _KNOWN, key, weakref.ref(made))
        if found is not None and _has_code_only(fn):
            _put(_kept, _KEPT, key, made)
    return made


def _key(fn: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """Identifies the callable among living ones, and the settings; None: they can't be compared."""
    knobs = _core.get_config() | settings["options"]
    if isinstance(settings["dynamic"], dict):
        return None
    return *_identity(fn), tuple(knobs.values()), *(value for name, value in settings.items() if name != "options")


def _identity(fn: Any) -> tuple[Any, ...]:
    """Addresses only: keys keep nothing alive."""
    if isinstance(fn, types.MethodType):
        return "method", id(fn.__self__), *_identity(fn.__func__)
    if type(fn) is not types.FunctionType:
        return "object", id(fn)
    cells = tuple(map(id, fn.__closure__ or ()))
    return "function", id(fn.__code__), id(fn.__globals__), cells, id(fn.__defaults__), id(fn.__kwdefaults__)


def _has_code_only(fn: Any) -> bool:
    return type(fn) is types.FunctionType and not (fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__)


def _put(table: "OrderedDict[Any, Any]", most: int, key: Any, value: Any) -> None:
    """Adds the newest item; drops the oldest ones beyond `most`."""
    table.pop(key, None)
    table[key] = value
    while len(table) > most:
        table.popitem(last=False)

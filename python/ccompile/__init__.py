"""ccompile: a tracing JIT for PyTorch models, written in C.

import ccompile
model = ccompile.compile(model)
"""

import os as _os

from ._setup import load as _load

_load()  # refuses unsupported environments with a one-sentence error before anything else is imported

from . import _core, config  # noqa: E402
from ._core import Unsupported, graph_break, is_compiling, reset  # noqa: E402
from .api import compile, counters, disable, events, optimize  # noqa: E402
from .dims import Dim, mark_dynamic, mark_static  # noqa: E402
from .report import BreakReason, Explanation, explain  # noqa: E402
from .shapes import bucketed, precompile  # noqa: E402
from .stance import set_stance  # noqa: E402
from .switch import install, installed, uninstall  # noqa: E402

for _own in (compile, explain, install, uninstall, mark_dynamic, mark_static, precompile, bucketed, reset):
    _core.break_at(_own)  # a call of one of these in compiled code is a single graph break

if _os.environ.get("CCOMPILE_INSTALL", "0") not in ("", "0"):
    install()

__version__ = "0.1.0"
__all__ = [
    "BreakReason",
    "Dim",
    "Explanation",
    "Unsupported",
    "bucketed",
    "compile",
    "config",
    "counters",
    "disable",
    "events",
    "explain",
    "graph_break",
    "install",
    "installed",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "precompile",
    "reset",
    "set_stance",
    "uninstall",
]

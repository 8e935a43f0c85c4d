"""ccompile: a tracing JIT for PyTorch models, written in C.

import ccompile
model = ccompile.compile(model)
"""

import os as _os

from ._setup import load as _load

_load()  # refuses unsupported environments with a one-sentence error before anything else is imported

from . import _core, config, metrics  # noqa: E402
from ._core import Unsupported, graph_break, is_compiling, reset  # noqa: E402
from .api import compile, counters, disable, events, optimize  # noqa: E402
from .artifacts import load_cache_artifacts, save_cache_artifacts  # noqa: E402
from .costs import Cost, analyze_costs  # noqa: E402
from .dims import Dim, mark_dynamic, mark_static  # noqa: E402
from .ladder import DeadlineLadder  # noqa: E402
from .logs import from_environment as _logs_from_environment  # noqa: E402
from .logs import set_logs  # noqa: E402
from .report import BreakReason, Explanation, explain, export  # noqa: E402
from .repro import from_environment as _repro_from_environment  # noqa: E402
from .shapes import bucketed, precompile  # noqa: E402
from .stance import set_stance  # noqa: E402
from .switch import install, installed, uninstall  # noqa: E402
from .timelines import from_environment as _timeline_from_environment  # noqa: E402
from .timelines import timeline  # noqa: E402
from .twins import (  # noqa: E402
    allow_in_graph,
    assume_constant_result,
    cudagraph_mark_step_begin,
    error_on_graph_break,
    list_backends,
    maybe_mark_dynamic,
    nested_compile_region,
    substitute_in_graph,
)

_library = (compile, explain, export, install, uninstall, list_backends, mark_dynamic, maybe_mark_dynamic, mark_static)
for _own in (*_library, precompile, bucketed, analyze_costs, reset):
    _core.break_at(_own)  # a call of one of these in compiled code is a single graph break

_logs_from_environment()
_timeline_from_environment()
_repro_from_environment()
if _os.environ.get("CCOMPILE_INSTALL") == "1":
    install()

__version__ = "0.1.0"
__all__ = [
    "BreakReason",
    "Cost",
    "DeadlineLadder",
    "Dim",
    "Explanation",
    "Unsupported",
    "allow_in_graph",
    "analyze_costs",
    "assume_constant_result",
    "bucketed",
    "compile",
    "config",
    "counters",
    "cudagraph_mark_step_begin",
    "disable",
    "error_on_graph_break",
    "events",
    "explain",
    "export",
    "graph_break",
    "install",
    "installed",
    "is_compiling",
    "list_backends",
    "load_cache_artifacts",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "metrics",
    "nested_compile_region",
    "optimize",
    "precompile",
    "reset",
    "save_cache_artifacts",
    "set_logs",
    "set_stance",
    "substitute_in_graph",
    "timeline",
    "uninstall",
]

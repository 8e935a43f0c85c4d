"""Options of torch's Inductor, as `options=` of ccompile.compile takes them: programs that were written for
torch.compile pass them."""

import ast
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import _core, config

# Inductor's option -> our knobs with the same purpose
_COUNTERPARTS = {
    "max_autotune": ("autotune", "freezing"),
    "max_autotune_gemm": ("autotune", "freezing"),
    "max_autotune_pointwise": ("autotune",),
    "coordinate_descent_tuning": ("autotune",),
    "triton.cudagraphs": ("cuda_graphs",),
}
_NOT_IN_CONFIG = {"guard_filter_fn", "use_aoti"}  # torch.compile takes these out of `options` itself


def knobs(options: Mapping[Any, Any]) -> dict[str, Any]:
    """The knobs that `options` set; adds an `ignored` event for each option of Inductor that has no counterpart. Raises
    TypeError or ValueError for a value of the wrong type and for names that neither ccompile nor Inductor knows."""
    found: dict[str, Any] = {}
    own = _core.get_config()
    for name, value in options.items():
        theirs = name.replace("-", "_") if isinstance(name, str) else name
        if theirs in _COUNTERPARTS:
            found.update(dict.fromkeys(_COUNTERPARTS[theirs], _flag(name, value)))
        elif name not in own and theirs in _options():
            if _options()[theirs]:
                _flag(name, value)
            _core.note(f"option {theirs!r} of torch's Inductor (set to {value!r:.80}): nothing here corresponds to it")
        else:
            found[name] = config.check("option", name, value)
    return found


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, int) or value not in (0, 1):
        raise TypeError(f"option {name!r} must be True or False, not {type(value).__name__}: {value!r:.80}")
    return bool(value)


@functools.cache
def _options() -> dict[str, bool]:
    """All options of the installed Inductor, and whether each is seen to be True or False. Reads its source: to import
    it takes seconds."""
    others = dict.fromkeys(_NOT_IN_CONFIG, False)
    path = os.path.join(os.path.dirname(torch.__file__), "_inductor", "config.py")
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError):
        return others
    return dict(_assigned(tree.body, "")) | others


def _assigned(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, bool]]:
    """Names assigned in a block, and whether they are flags; those of a nested class are prefixed by its name and a
    dot."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _assigned(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.If):
            yield from _assigned(statement.body + statement.orelse, prefix)
        elif isinstance(statement, ast.AnnAssign | ast.Assign):
            for target in [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, _is_flag(statement)


def _is_flag(statement: ast.AnnAssign | ast.Assign) -> bool:
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.annotation, ast.Name) and statement.annotation.id == "bool"
    return isinstance(statement.value, ast.Compare) or (
        isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, bool)
    )

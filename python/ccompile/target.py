"""What a command names: a demo model, MODULE:NAME or FILE.py:NAME, and random inputs for it by their shapes."""

import importlib
import importlib.util
import os
import sys
from typing import Any


def find(what: str) -> tuple[Any, tuple, dict]:
    """The callable (an instance, if a class is named), and arguments for a demo model. Raises SystemExit with a
    sentence if there is none of that name."""
    from ccompile.demo_models import WORKLOADS, build

    if what in WORKLOADS:
        args, kwargs = WORKLOADS[what].inputs()
        return build(WORKLOADS[what]), args, kwargs
    place, _, name = what.rpartition(":")
    if not place:
        raise SystemExit(f"{what!r} is not MODULE:NAME, FILE.py:NAME or one of: {', '.join(WORKLOADS)}")
    if place.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))  # as for a script
        spec = importlib.util.spec_from_file_location(os.path.basename(place)[:-3], place)
        if spec is None or spec.loader is None or not os.path.exists(place):
            raise SystemExit(f"no such file: {place}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not (place + ".").startswith(error.name + "."):
                raise  # a module that it imports is missing
            raise SystemExit(f"no such module: {error.name}") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise SystemExit(f"{place} has no {name!r}")
        found = getattr(found, part)
    return (found() if isinstance(found, type) else found), (), {}


def tensor(text: str) -> Any:
    """A random tensor of a shape such as "8x64:bfloat16" (default: float32). Raises SystemExit for another text."""
    import torch

    shape, _, name = text.partition(":")
    if not all(n.isdecimal() for n in shape.split("x") if n):
        raise SystemExit(f"--input {text!r} must be sizes joined by x, such as 8x64 or 8x64:bfloat16")
    sizes = [int(n) for n in shape.split("x") if n]
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise SystemExit(f"unknown dtype {name!r} in --input {text}")
    if dtype.is_floating_point:
        return torch.randn(sizes, dtype=dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, sizes).to(dtype)

"""The back-end "ccompile" of torch.compile: Dynamo records, ccompile compiles Dynamo's graphs. setup.py's metadata
registers it (entry point torch_dynamo_backends)."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch

from . import api


def backend(graph: torch.fx.GraphModule, example_inputs: list[Any], **settings: Any) -> Callable[..., Any]:
    """A function that runs the graph compiled, with its derivatives. settings: mode and options, as ccompile.compile
    takes them."""
    _tell()
    getattr(graph, "real_recompile", graph.recompile)()  # Dynamo's lazy GraphModule would do it in the first call
    sizes_vary = any(isinstance(value, torch.SymInt) for value in example_inputs)
    compiled = api.compile(graph.forward, name="graph of torch.compile", dynamic=sizes_vary or None, **settings)

    def run(*args: Any) -> Any:  # Dynamo would unwrap `compiled` itself
        return compiled(*args)

    return run


_told = False


def _tell() -> None:
    global _told
    if not _told:
        _told = True
        text = (
            "torch.compile(backend='ccompile') keeps Dynamo's tracing and guards; ccompile.install() or "
            "ccompile.compile starts and runs faster"
        )
        try:
            warnings.warn(text, stacklevel=2)
        except Warning:  # the program's filters make it an error: its call must still do what eager does
            logging.getLogger("ccompile").warning(text)

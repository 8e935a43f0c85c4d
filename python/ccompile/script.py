"""Runs a Python script as __main__ and explains everything that it compiled."""

import os
import runpy
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager

from . import _core, api
from .report import Explanation
from .switch import installed


def run(path: str, args: list[str]) -> tuple[list[Explanation], int]:
    """Runs the script with torch.compile replaced by ours; args: its sys.argv[1:]. Returns an Explanation of each
    compiled function that was called, in the order of compilation, and the exit status: the script's own, or 1 if it
    raised; its traceback is then printed."""
    with _as_main(path, args), installed(), _kept() as made:
        status = _status_of(path)
    called = [compiled for compiled in made if compiled.report()["calls"]]
    return [Explanation.of(compiled) for compiled in called], status


def _status_of(path: str) -> int:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # a KeyboardInterrupt as well: the report so far is wanted
        traceback.print_exception(type(error), error, _inside(error.__traceback__, path))
        return 1
    return 0


def _inside(tb: types.TracebackType | None, path: str) -> types.TracebackType | None:
    """The traceback from the script's first frame on; all of it, if the script has none (a syntax error)."""
    at = tb
    while at is not None and at.tb_frame.f_code.co_filename != path:
        at = at.tb_next
    return at


@contextmanager
def _as_main(path: str, args: list[str]) -> Iterator[None]:
    """sys.argv and sys.path as `python path args` sets them."""
    argv, search = sys.argv, sys.path
    sys.argv, sys.path = [path, *args], [os.path.dirname(os.path.abspath(path)), *search]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, search


@contextmanager
def _kept() -> Iterator[list["_core.Compiled"]]:
    """Keeps everything that is compiled alive."""
    api.made = []
    try:
        yield api.made
    finally:
        api.made = None

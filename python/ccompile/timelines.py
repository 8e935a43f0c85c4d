"""The timeline: what ccompile does, as a trace that Perfetto and chrome://tracing show (csrc/base/timeline.c)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import _core


@contextmanager
def timeline(path: str | os.PathLike[str]) -> Iterator[None]:
    """Writes calls, recordings, passes, kernel compilations, runs of graphs and their steps, and all events, while the
    block runs, to a JSON file; for a folder, to `ccompile-<pid>.json` in it, also in processes forked meanwhile. The
    file is complete after each event.

    Raises OSError if the file can't be written, RuntimeError if a timeline is being written already, TypeError if the
    path is no path."""
    _core.timeline(os.fsdecode(path))
    try:
        yield
    finally:
        _core.timeline(None)


def from_environment() -> None:
    """CCOMPILE_TRACE: the folder that the process's timeline is written to."""
    folder = os.environ.get("CCOMPILE_TRACE", "")
    if folder:
        os.makedirs(folder, exist_ok=True)
        _core.timeline(folder)

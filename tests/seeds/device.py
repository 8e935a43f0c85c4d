"""The documents' device: "cuda" where there is a GPU, and on the CPU what they use of torch.cuda."""

import contextlib
import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


class _Event:
    """A point in time; elapsed_time is in milliseconds."""

    def __init__(self, enable_timing: bool = False):
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, end: "_Event") -> float:
        return (end.time - self.time) * 1e3


def _nothing() -> None:
    """What waits for a GPU, or frees its memory."""


if torch.cuda.is_available():
    Event, Stream, stream = torch.cuda.Event, torch.cuda.Stream, torch.cuda.stream
    synchronize, empty_cache = torch.cuda.synchronize, torch.cuda.empty_cache
else:
    Event, Stream, stream = _Event, contextlib.nullcontext, contextlib.nullcontext
    synchronize = empty_cache = _nothing

"""Captures GPU work as CUDA graphs. csrc/eval/capture.c calls only these functions, so tests can replace them.

Uses torch's own capture (torch.cuda.CUDAGraph), which covers torch's kernels as well as ours and informs its allocator:
memory that is allocated during the capture must belong to the graph as long as it is replayed."""

import contextlib
from collections.abc import Callable
from typing import Protocol

import torch


class Capture(Protocol):
    host_steps: bool  # whether the capture includes steps that torch performs

    def begin(self) -> None:
        """From now on work that this thread submits to the current stream is captured instead of executed."""

    def end(self) -> Callable[[], None]:
        """Ends the capture. The result replays it on the stream that is current then, and keeps the graph alive."""

    def abort(self) -> None:
        """Discards the capture after a step failed, and restores the state from before `begin`."""


class TorchCapture:
    """As in torch._inductor's cudagraph_trees, but each graph has its own memory pool, because graphs on several
    streams may be replayed at the same time."""

    host_steps = True
    _side: dict[int, torch.cuda.Stream] = {}  # by device; the allocator keeps a pool's memory by stream
    _invalid: list[torch.cuda.CUDAGraph] = []  # kept alive: the pinned-memory allocator keeps querying them

    def __init__(self, device: int) -> None:
        self.device = device
        self.graph = torch.cuda.CUDAGraph()
        self.pool = torch.cuda.graph_pool_handle()
        self.outer = contextlib.ExitStack()

    def begin(self) -> None:
        enter = self.outer.enter_context
        try:
            enter(torch.cuda.device(self.device))
            if self.device not in self._side:
                self._side[self.device] = torch.cuda.Stream(self.device)
            side = self._side[self.device]
            # cuBLAS caches workspaces by stream: graphs that share one would overwrite each other's data
            torch._C._cuda_clearCublasWorkspaces()
            self.outer.callback(torch._C._cuda_clearCublasWorkspaces)
            enter(torch.cuda.stream(side))  # torch.cuda.graph leaves this stream current if the capture fails
            # thread_local: other threads may use CUDA freely meanwhile
            enter(torch.cuda.graph(self.graph, pool=self.pool, stream=side, capture_error_mode="thread_local"))
        except BaseException:
            self.abort()
            raise

    def end(self) -> Callable[[], None]:
        try:
            self.outer.close()
        except BaseException:
            self._leave_capture()
            raise
        return self.graph.replay

    def abort(self) -> None:
        try:
            self.outer.close()
        except Exception:  # the capture is already invalid; the first error is the informative one
            self._leave_capture()

    def _leave_capture(self) -> None:
        """Does what CUDAGraph.capture_end skips when the capture is invalid."""
        self._invalid.append(self.graph)
        with contextlib.suppress(RuntimeError):  # capture_end has done it already
            torch._C._cuda_endAllocateToPool(self.device, self.pool)
            torch._C._cuda_releasePool(self.device, self.pool)
        with contextlib.suppress(RuntimeError):  # CUDA is unusable, or another capture is running
            self._free_generator()

    def _free_generator(self) -> None:
        """Before torch 2.12 a device's generator supports one capture at a time and stays in capture mode until one
        ends normally; meanwhile every random number raises "Offset increment outside graph capture". So this captures a
        trivial graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.stream(self._side[self.device]):
            number = torch.empty(1, device=f"cuda:{self.device}")
            graph.capture_begin(capture_error_mode="thread_local")
            number.zero_()
            graph.capture_end()


def open(device: int, forced: bool) -> Capture | None:
    """forced: GPU kernels process CPU tensors (CCOMPILE_BACKEND=cuda)."""
    return None if forced else TorchCapture(device)


def is_capturing(device: int) -> bool:
    """Whether this GPU's current stream is being captured; it may not be the current GPU."""
    if not torch.cuda.is_initialized():  # also the case on a machine without a GPU
        return False
    if torch._C._cuda_getDevice() == device:
        return torch._C._cuda_isCurrentStreamCapturing()
    with torch.cuda.device(device):
        return torch._C._cuda_isCurrentStreamCapturing()


def keep_casts(keep: bool) -> bool:
    """Turns autocast's weight cache on or off; returns whether it was on."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(keep)
    return kept


def copy(to: list[torch.Tensor], source: list[torch.Tensor]) -> None:
    """Copies tensors. A single one goes by copy_, a memcpy, which costs the host less than a foreach kernel."""
    if len(to) == 1:
        to[0].copy_(source[0])
    else:
        torch._foreach_copy_(to, source)


count_writes = torch._C._increment_version  # takes an iterable of tensors

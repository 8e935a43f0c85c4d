"""How what is given to a GPU is captured as a CUDA graph. csrc/eval/capture.c calls these functions, and no others, so
a test may put others in their place.

Torch's own capture is used (torch.cuda.CUDAGraph): its kernels are captured as ours are, and its allocator has to know,
since what is allocated meanwhile must belong to the graph for as long as it is replayed."""

import contextlib
from collections.abc import Callable
from typing import Protocol

import torch


class Capture(Protocol):
    host_steps: bool  # whether steps that torch does are captured as well

    def begin(self) -> None:
        """From here on what this thread gives to the current stream is captured, and not done."""

    def end(self) -> Callable[[], None]:
        """-> what gives it to the current stream of that time, and keeps the graph alive."""

    def abort(self) -> None:
        """A step failed: the capture is given up, and all is as before `begin`."""


class TorchCapture:
    """As torch._inductor's cudagraph_trees does it, with a pool for each graph: graphs of several streams are replayed
    at the same time."""

    host_steps = True
    _side: dict[int, torch.cuda.Stream] = {}  # by device; the allocator hands out a pool's memory by stream
    _invalid: list[torch.cuda.CUDAGraph] = []  # kept: the allocator of pinned memory goes on asking them

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
            # cuBLAS' workspaces are kept by stream: one that was allocated for another graph would be written by both
            torch._C._cuda_clearCublasWorkspaces()
            self.outer.callback(torch._C._cuda_clearCublasWorkspaces)
            enter(torch.cuda.stream(side))  # torch.cuda.graph leaves it current when a capture ends with an error
            # other threads may do as they like meanwhile
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
        except Exception:  # the capture had become invalid: the first error is the one that tells
            self._leave_capture()

    def _leave_capture(self) -> None:
        """What CUDAGraph.capture_end does not come to when the capture is invalid."""
        self._invalid.append(self.graph)
        with contextlib.suppress(RuntimeError):  # it came to it
            torch._C._cuda_endAllocateToPool(self.device, self.pool)
            torch._C._cuda_releasePool(self.device, self.pool)
        with contextlib.suppress(RuntimeError):  # CUDA is gone, or somebody else captures
            self._free_generator()

    def _free_generator(self) -> None:
        """Before torch 2.12 a device's generator knows of one capture at a time, and counts as captured until one has
        come to its end: each random number would be an error ("Offset increment outside graph capture")."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.stream(self._side[self.device]):
            number = torch.empty(1, device=f"cuda:{self.device}")
            graph.capture_begin(capture_error_mode="thread_local")
            number.zero_()
            graph.capture_end()


def open(device: int, forced: bool) -> Capture | None:
    """forced: kernels do tensors of the CPU (CCOMPILE_BACKEND=cuda)."""
    return None if forced else TorchCapture(device)


def is_capturing(device: int) -> bool:
    """Whether somebody captures the current stream of this GPU, which may be another one than the current GPU."""
    if not torch.cuda.is_initialized():  # and a CUDA build of torch may be on a machine without a GPU
        return False
    if torch._C._cuda_getDevice() == device:
        return torch._C._cuda_isCurrentStreamCapturing()
    with torch.cuda.device(device):
        return torch._C._cuda_isCurrentStreamCapturing()


def keep_casts(keep: bool) -> bool:
    """Whether autocast keeps what it casts parameters to until its block ends. -> whether it did."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(keep)
    return kept


def copy(to: list[torch.Tensor], source: list[torch.Tensor]) -> None:
    """Of one tensor as torch copies it: a memcpy, which takes the host less than a kernel that knows of lists."""
    if len(to) == 1:
        to[0].copy_(source[0])
    else:
        torch._foreach_copy_(to, source)


count_writes = torch._C._increment_version  # (tensors)

"""Switches of torch's, of Python's and of the process that a trial of worlds.py turns for some calls: each is a context manager that is
entered anew for a call, on both sides alike."""

import builtins
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import decimal
import gc
import json
import locale
import math
import os
import random
import sys
import warnings

import numpy
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@contextlib.contextmanager
def _turned(turn, on, off):
    turn(on)
    try:
        yield
    finally:
        turn(off)


@contextlib.contextmanager
def _precision():
    """The old name of a setting that back-ends have their own names for, too: turning it back does not unset those."""
    names = [b.matmul for b in (torch.backends.mkldnn, torch.backends.cuda)]
    own = [b.fp32_precision for b in names]
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        for b, precision in zip(names, own, strict=True):
            b.fp32_precision = precision


@contextlib.contextmanager
def _patched(owner, name, value):
    """As a library that patches another: what was no attribute of its own is none again."""
    own = vars(owner).get(name, owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name) if own is owner else setattr(owner, name, own)


@contextlib.contextmanager
def _hooked(register, hook):
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _warnings_raise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def _elsewhere():
    here = os.getcwd()
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(here)


@contextlib.contextmanager
def _environ():
    os.environ["MUTATED"] = "set"
    try:
        yield
    finally:
        del os.environ["MUTATED"]


@contextlib.contextmanager
def _handling():
    """The call is made inside of an except clause."""
    try:
        raise KeyError("handled")
    except KeyError:
        yield


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _plus_one(m, a, out):
    return out + 1 if isinstance(out, torch.Tensor) else out


def _twice(m, a):
    return tuple(v * 2 if isinstance(v, torch.Tensor) else v for v in a)


_linear, _sorted, _forward = nn.functional.linear, sorted, nn.Linear.forward
_modules = nn.modules.module

STATES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast without cache": lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
    "default dtype": lambda: _turned(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: _turned(torch.set_default_device, "meta", None),
    "device block": lambda: torch.device("meta"),
    "deterministic": lambda: _turned(torch.use_deterministic_algorithms, True, False),
    "threads": lambda: _turned(torch.set_num_threads, torch.get_num_threads() % 2 + 1, torch.get_num_threads()),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "backward on one thread": lambda: torch.autograd.set_multithreading_enabled(False),
    "matmul precision": _precision,
    "denormals": lambda: _turned(torch.set_flush_denormal, True, False),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 2),
    "no saved tensors": lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
    "no mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "function mode": _Functions,
    "dispatch mode": _Ops,
    "no torch function": torch._C.DisableTorchFunctionSubclass,
    "forward hook of all": lambda: _hooked(_modules.register_module_forward_hook, _plus_one),
    "pre hook of all": lambda: _hooked(_modules.register_module_forward_pre_hook, _twice),
    "backward hook of all": lambda: _hooked(_modules.register_module_full_backward_hook, lambda m, a, b: None),
    "print options": lambda: torch._tensor_str.printoptions(precision=2),
    "default seed": lambda: torch.random.fork_rng(devices=[]),
    "recursion limit": lambda: _turned(sys.setrecursionlimit, sys.getrecursionlimit() + 100, sys.getrecursionlimit()),
    "digits of an int": lambda: _turned(sys.set_int_max_str_digits, 1000, 4300),
    "switch interval": lambda: _turned(sys.setswitchinterval, 0.1, sys.getswitchinterval()),
    "environ": _environ,
    "cwd": _elsewhere,
    "locale": lambda: _turned(lambda to: locale.setlocale(locale.LC_ALL, to), "C", locale.setlocale(locale.LC_ALL)),
    "warnings": _warnings_raise,
    "profiler": lambda: _turned(sys.setprofile, lambda *a: None, None),
    "no collector": lambda: _turned(lambda on: gc.enable() if on else gc.disable(), False, True),
    "numpy's errors": lambda: numpy.errstate(all="raise"),
    "numpy's print": lambda: numpy.printoptions(precision=2),
    "decimals": lambda: decimal.localcontext(decimal.Context(prec=3)),
    "a handled exception": _handling,
    "torch.relu": lambda: _patched(torch, "relu", torch.tanh),
    "F.linear": lambda: _patched(nn.functional, "linear", lambda *a, **k: _linear(*a, **k) + 1),
    "Linear.forward": lambda: _patched(nn.Linear, "forward", lambda self, x: _forward(self, x) * 2),
    "Module.extra": lambda: _patched(nn.Module, "extra", 7),
    "Module.__call__": lambda: _patched(nn.Module, "__call__", lambda self, *a, **k: self.forward(*a, **k)),
    "Tensor.sum": lambda: _patched(torch.Tensor, "sum", lambda self, *a, **k: torch.mean(self)),
    "Tensor.__mul__": lambda: _patched(torch.Tensor, "__mul__", lambda self, o: torch.add(self, o)),
    "Tensor.zz": lambda: _patched(torch.Tensor, "zz", 7),
    "math.copysign": lambda: _patched(math, "copysign", lambda a, b: "patched"),
    "json.dumps": lambda: _patched(json, "dumps", lambda v: "patched"),
    "copy.deepcopy": lambda: _patched(copy, "deepcopy", copy.copy),
    "Counter.most_common": lambda: _patched(collections.Counter, "most_common", lambda self, n: n),
    "builtins.sorted": lambda: _patched(builtins, "sorted", lambda *a, **k: _sorted(*a, **k)[::-1]),
    "builtins.K": lambda: _patched(builtins, "K", 77),
}


def in_thread(call, *args, **kwargs):
    """In a thread of its own, without what the caller's had."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args, **kwargs).result()


def in_context(call, *args, **kwargs):
    return contextvars.Context().run(call, *args, **kwargs)


WAYS = {"in a thread": in_thread, "in an empty context": in_context}


def drawn(rng: random.Random):
    """(what, call -> the call so made)"""
    what = rng.choice([*STATES, *WAYS])
    if what in WAYS:
        return what, WAYS[what]

    def within(call, *args, **kwargs):
        with STATES[what]():
            return call(*args, **kwargs)

    return what, within

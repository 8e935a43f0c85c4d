"""Stand-ins for what PyTorch's tests of Dynamo (test/dynamo) call, so that they compare values with eager's.

torch.compile and torch._dynamo.optimize return the callable itself, or compile it by ccompile, whatever back-end is named. What
counts or prints Dynamo's own graphs is a Whatever, which every comparison holds for."""

import functools
import importlib
import types
import unittest

import ccompile
import torch
import torch._dynamo.testing
import torch._dynamo.utils
from torch.testing._internal import common_utils

LENGTH = 1234567  # of a Whatever: len() can't return one


class Whatever:
    """Equal to, less and greater than anything; its attributes, items, calls and sums are Whatevers."""

    __hash__ = None
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = lambda self, *_: True
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __getitem__ = lambda self, _: self
    __enter__ = __call__ = lambda self, *_, **__: self
    __setitem__ = __delitem__ = __setattr__ = __exit__ = lambda self, *_: None
    __len__ = lambda self: LENGTH
    __iter__ = lambda self: iter(())
    __repr__ = lambda self: "Whatever()"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


WHATEVER = Whatever()
# Tests of another release import names from these that the installed torch lacks.
RENAMED = """
torch._dynamo.exc torch._dynamo.testing torch._dynamo.utils torch._inductor.utils torch.testing._internal.common_cuda
torch.testing._internal.common_utils torch.testing._internal.inductor_utils torch.testing._internal.triton_utils
""".split()
_trampolines = {}


class Absent(Exception):
    """A decorator that leaves what it is given as it is, and an exception that is never raised."""

    def __new__(cls, thing=None):
        return thing


def absent(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name.startswith("requires_"):
        return unittest.skip("no GPU")
    return False if name.startswith("HAS_") else Absent


def itself(thing, dynamic):
    return thing


def compiled(thing, dynamic):
    """A nested function is called as an argument, which is known by its code, so that the next run of a test is a replay."""
    if not isinstance(thing, types.FunctionType):
        return ccompile.compile(thing, dynamic=dynamic)
    key = thing.__code__, dynamic
    if key not in _trampolines:
        call = lambda fn, args, kwargs: fn(*args, **kwargs)  # noqa: E731
        _trampolines[key] = ccompile.compile(call, dynamic=dynamic, isolate_recompiles=True)
    through = _trampolines[key]

    @functools.wraps(thing)
    def run(*args, **kwargs):
        return through(thing, args, kwargs)

    return run


def put(how):
    """Before the tests are imported. how: itself or compiled."""

    def compile(model=None, *, dynamic=None, disable=False, **_):
        if model is None:
            return lambda thing: compile(thing, dynamic=dynamic, disable=disable)
        return model if disable else how(model, dynamic)

    def optimize(*_, dynamic=None, disable=False, **__):
        return lambda thing: thing if disable else how(thing, dynamic)

    def optimize_assert(*_, dynamic=None, **__):
        return lambda thing: how(thing, dynamic)

    def standard_test(self, fn, nargs, *_, **__):
        sets = [[torch.randn(10, 10) for _ in range(nargs)] for _ in range(2)]
        right = [fn(*args) for args in sets]
        mine = how(fn, None)
        for _ in range(2):
            for args, value in zip(sets, right):
                self.assertTrue(torch._dynamo.testing.same(mine(*args), value))

    asserts = common_utils.TestCase.assertEqual

    def assert_equal(self, x, y, *args, **kwargs):
        if not any(isinstance(side, Whatever) or (type(side) is int and side == LENGTH) for side in (x, y)):
            asserts(self, x, y, *args, **kwargs)

    for name in RENAMED:
        importlib.import_module(name).__getattr__ = absent
    torch.compile = compile
    for module in (torch._dynamo, torch._dynamo.eval_frame):
        module.optimize, module.optimize_assert = optimize, optimize_assert
    testing = torch._dynamo.testing
    testing.standard_test = standard_test
    testing.optimize_assert = optimize_assert
    testing.normalize_gm = lambda *_: WHATEVER
    testing.CompileCounter = testing.CompileCounterWithBackend = lambda *_: WHATEVER
    testing.EagerAndRecordGraphs = testing.AotEagerAndRecordGraphs = lambda *_: WHATEVER
    torch._dynamo.utils.counters = WHATEVER
    common_utils.TestCase.assertEqual = assert_equal
    common_utils.TestCase.assertExpectedInline = lambda *_, **__: None

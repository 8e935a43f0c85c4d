"""Keyword defaults, and the keywords of a partial, that other code changes between calls; instances whose __call__ is compiled."""

import functools

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import breaks

X = torch.arange(3.0)


def scaled(x, *, k=0):
    return x * k


def passed(x):
    return scaled(x, k=5) + scaled(x)


def through_c(x):
    return next(map(scaled, [x]))


def broken(x, *, k=0):
    torch._dynamo.graph_break()
    return x * k


CALLERS = {
    "call": (scaled, lambda x: scaled(x)),
    "compiled": (scaled, lambda x: compiled(x) + 1),
    "passed": (scaled, passed),
    "c": (scaled, through_c),
    "broken": (broken, lambda x: broken(x) + 1),
}
compiled = ccompile.compile(scaled)


@pytest.mark.filterwarnings("ignore:ccompile.*recompile_limit")  # eager's call of `compiled`; what C code calls
@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("kind", [int, float])
def test_keyword_defaults_that_vary(name, kind):
    """The break that a number read too often became was one in the callee, whose frame a replay gave the recorded number."""
    callee, caller = CALLERS[name]
    fn, before = ccompile.compile(caller), dict(callee.__kwdefaults__)
    try:
        for i in range(14):
            callee.__kwdefaults__["k"] = kind(3 * i + 5)
            assert torch.equal(fn(X), caller(X)), i
        assert name == "c" or compiled_of(fn).report()["recordings"] <= 4
    finally:
        callee.__kwdefaults__.update(before)


def test_keywords_of_a_partial_that_vary():
    def caller(x, p):
        return p(x) + 1

    fn = ccompile.compile(caller)
    for i in range(14):
        p = functools.partial(scaled, k=3 * i + 5)
        assert torch.equal(fn(X, p), caller(X, p)), i
    assert compiled_of(fn).report()["recordings"] <= 3 and compiled_of(fn).report()["breaks_seen"] == []


class InBody:
    def __init__(self, k):
        self.k = k

    @ccompile.compile
    def __call__(self, x):
        return x * self.k


class Assigned:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k


Assigned.__call__ = ccompile.compile(Assigned.__call__)


@pytest.mark.parametrize("cls", [InBody, Assigned])
def test_an_instance_whose_call_is_compiled(cls):
    """Part of the caller's graph, as its __call__ and a compiled function are; replaced, it is the new one that runs."""
    o, before = cls(2.0), cls.__dict__["__call__"]

    def caller(x, o):
        return o(x) + o(x * 2)

    fn = ccompile.compile(caller)
    assert breaks(caller, X, o) in (None, (1, 0))
    for k in (2.0, 3.0, 4.0, 2.0):
        assert torch.equal(fn(X, cls(k)), X * k * 3)
    try:
        cls.__call__ = lambda self, x: x - self.k
        assert torch.equal(fn(X, o), (X - 2) + (X * 2 - 2))
        cls.__call__ = ccompile.compile(lambda self, x: x + self.k)
        assert torch.equal(fn(X, o), (X + 2) + (X * 2 + 2))
    finally:
        cls.__call__ = before


class Step:
    def go(self, x):
        return x * 2


def test_a_compiled_function_that_is_replaced_by_another():
    """A guard asks which function it wraps: the type alone let the former one run."""

    def caller(x, o):
        return table["f"](x) + o.go(x) + given.f(x)

    table, given, o, before = {"f": ccompile.compile(lambda x: x * 3)}, Step(), Step(), Step.go
    given.f = ccompile.compile(lambda x: x - 1)
    fn = ccompile.compile(caller)
    try:
        for i in range(3):
            Step.go = ccompile.compile((lambda self, x: x * 5, lambda self, x: x * 7, before)[i])
            assert torch.equal(fn(X, o), caller(X, o))
            table["f"] = ccompile.compile((lambda x: x + 1, lambda x: x + 2, lambda x: x + 3)[i])
            assert torch.equal(fn(X, o), caller(X, o))
            given.f = ccompile.compile((lambda x: x - 4, lambda x: x - 5, lambda x: x - 6)[i])
            assert torch.equal(fn(X, o), caller(X, o)) and torch.equal(fn(X, o), caller(X, o))
    finally:
        Step.go = before

"""Functions that the caller makes for each call (lambdas, closures): guards match their code, defaults and cells.

A row is a function and its arguments in call i, made for each side; a row of REPLAYS replays from then on, though the functions are
other objects, and what a row of OTHERS does depends on which object it is given, or on what it stores in it."""

import functools
import gc
import types
import weakref

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import EAGER, hits, same

X = torch.arange(4.0)


def call(fn, x):
    return fn(x) + 1


def times(k, also=None):
    return lambda x: x * k


def nested(k):
    inner = times(k)
    return lambda x: inner(x) - 1


def decorated(k):
    @torch.no_grad()
    def fn(x, shift=2, name="a"):
        return x * k + shift * len(name)

    return fn


def counter(n):
    def count():
        nonlocal n
        n = n + 1
        return n

    return count, lambda: n


def count_and_read(x, count, read):
    count()
    return x * count(), read()


def counters(i):
    """The two share their variable, or do not."""
    count, read = counter(i)
    return count, read if i % 2 else counter(i)[1]


def generator(k):
    def items(x):
        for i in range(3):
            yield x * (i + k)

    return items


def runge_kutta(f, y, steps, h=0.1):
    for i in range(steps):
        a = f(i * h, y)
        b = f(i * h + h / 2, y + h / 2 * a)
        c = f(i * h + h / 2, y + h / 2 * b)
        y = y + h / 6 * (a + 2 * b + 2 * c + f(i * h + h, y + h * c))
    return y


REPLAYS = {
    "constant": (call, lambda i: (lambda x: x * 2, X)),
    "number": (call, lambda i: (times(i + 2.5), X)),
    "tensor": (call, lambda i: (times(X + i), X)),
    "nested": (call, lambda i: (nested(i + 2.5), X)),
    "decorated": (call, lambda i: (decorated(i + 2.5), X)),
    "two": (call, lambda i: ((times(X + i) if i % 2 else nested(X + i)), X)),
    "keyword": (lambda x, **kw: kw["f"](x), lambda i: ((X,), {"f": times(X + i)})),
    "in a list": (lambda fs, x: [f(x) for f in fs], lambda i: ([times(X + i), lambda x: x - 1], X)),
    "in a dict": (lambda fs, x: {k: f(x) for k, f in fs.items()}, lambda i: ({"a": times(X + i), "b": nested(X)}, X)),
    "returned": (lambda f, x: (f is not None, f(x), x), lambda i: (times(X + i), X)),
    "generator": (lambda f, x: list(f(x)), lambda i: (generator(X + i), X)),
    "map": (lambda f, x: torch.stack(list(map(f, x))), lambda i: (times(i + 2.5), X)),
    "loss": (lambda f, x: f(x.view(2, 2)), lambda i: (lambda y: F.cross_entropy(y, torch.tensor([0, 1]), reduction="none"), X + i)),
    "staticmethod": (lambda s, x: s.__func__(x), lambda i: (staticmethod(times(X + i)), X)),
    "classmethod": (lambda s, x: s.__func__(x), lambda i: (classmethod(nested(X + i)), X)),
    "property": (lambda p, x: p.fget(x), lambda i: (property(times(i + 2.5)), X)),
    "partial": (lambda p, x: p(x), lambda i: (functools.partial(lambda a, b: a + b, X + i), X)),
    "right-hand side": (runge_kutta, lambda i: ((lambda t, y: y * X + t), X + i, 3)),
}


def given(made):
    return made if isinstance(made[1], dict) else (made, {})


@pytest.mark.parametrize("name", REPLAYS)
def test_replays(name):
    fn, args = REPLAYS[name]
    same(fn, own=True, make_args=lambda i, side: given(args(i)), calls=6)


def marked(f, k):
    f.k = k
    return f


def keep(seen, f, x):
    seen[f] = len(seen)
    return f(x) * seen[f], len(seen)


def attribute(f, x):
    f.calls = getattr(f, "calls", 0) + 1
    return f(x) * f.calls


def with_globals(i):
    scope = {"K": i + 1.0}
    return types.FunctionType((lambda x: x * K).__code__, scope)  # noqa: F821


def parts(p, x):
    return p.fset is None, p.__doc__, p.fget(x), p.fset and p.fset(x)


OLD = times(3)
OLD_STATIC = staticmethod(OLD)
OTHERS = {
    "wrapper's identity": (
        lambda f, g, x: (f is g, f == g, len({f, g}), f.__func__(x)),
        lambda i: (OLD_STATIC, OLD_STATIC if i % 2 else staticmethod(OLD), X),
    ),
    "wrapper's attribute": (lambda f, x: (getattr(f, "k", None), x + 1), lambda i: (marked(staticmethod(OLD), i // 2), X)),
    "property's parts": (parts, lambda i: (property(OLD, *((None, None, "a"), (times(2),), ())[i % 3]), X)),
    "identity": (lambda f, g, x: (f is g, f == g, len({f, g}), f(x) + g(x)), lambda i: (OLD, OLD if i % 2 else times(3), X)),
    "key": (keep, lambda i: ({OLD: 0}, OLD if i % 2 else times(3), X)),
    "attribute": (attribute, lambda i: (times(3), X)),
    "shared cells": (lambda f, g, x: count_and_read(x, f, g), lambda i: (*counters(i), X)),
    "defaults": (call, lambda i: ((lambda x, k=(1, 1.0, True)[i % 3]: (x * k).double() + isinstance(k, int)), X)),
    "globals": (call, lambda i: (with_globals(i), X)),
    "raises": (call, lambda i: ((times(X) if i % 2 else times(torch.ones(3))), X)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    fn, args = OTHERS[name]
    same(fn, own=True, make_args=lambda i, side: given(args(i)), calls=7, hit=False, raises=True)


def test_what_the_function_changes():
    """A closure that is changed between calls: its cells, defaults and code."""

    def changed(i, side):
        if not side.past:
            side.function = nested(2.0)
        f = side.function
        if i == 1:
            f.__closure__[0].cell_contents = times(5.0)
        if i == 2:
            f.__code__ = (lambda inner: lambda x, k=0: inner(x) + k)(0).__code__
        if i == 3:
            f.__defaults__ = (7,)
        return (f, X), {}

    same(call, own=True, make_args=changed, calls=5, hit=False, raises=True)


def test_a_closure_of_an_optimiser():
    w = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.SGD([w], 0.1)
    step = ccompile.compile(optimiser.step)

    def once(i=2.0):
        def closure():
            optimiser.zero_grad()
            loss = ((w - i) ** 2).sum()
            loss.backward()
            return loss

        return step(closure)

    losses = [once().item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    hits(once)


def test_it_dies():
    """An entry holds neither the function nor what its cells hold."""
    fn, seen = ccompile.compile(call), []
    for i in range(3):
        big = X + i
        seen.append(weakref.ref(big))
        fn(times(big), X)
        del big
    gc.collect()
    assert EAGER or ccompile.counters()["hits"] > 0
    assert [r() for r in seen] == [None] * 3

"""Objects that hold themselves, alive at a graph break: a replay rebuilds the same cycles."""

import collections
import functools

import ccompile
import pytest
import torch


class Holder:
    def get(self):
        return self.held


def recursive_function():
    def f():
        return f

    g = f
    ccompile.graph_break()
    return g is f(), f is g


def recursive_function_in_a_list():
    def f():
        return f

    c = [f]
    ccompile.graph_break()
    return c[0] is c[0]()


def two_functions():
    def f():
        return g

    def g():
        return f

    c = [g, f]
    ccompile.graph_break()
    return c[0]() is c[1], c[1]() is c[0], f() is g


def own_method():
    o = Holder()
    m = o.get
    o.held = m
    del o
    ccompile.graph_break()
    return m is m()


def iterator_over_itself():
    c = []
    i = iter(c)
    c.append(i)
    del c
    ccompile.graph_break()
    return next(i) is i


def zip_of_itself():
    c = []
    i = zip(c, [1])
    c.append(i)
    del c
    ccompile.graph_break()
    return next(i)[0] is i


def slice_of_itself():
    c = []
    s = slice(c, 1)
    c.append(s)
    del c
    ccompile.graph_break()
    return s.start[0] is s


def partial_of_itself():
    c = []
    p = functools.partial(max, c)
    c.append(p)
    del c
    ccompile.graph_break()
    return p.args[0][0] is p


def view_of_itself():
    d = {}
    d[1] = d.keys()
    v = d[1]
    ccompile.graph_break()
    return d[1] is v, list(v)


def member_of_itself():
    s = frozenset([Holder()])
    next(iter(s)).held = s
    ccompile.graph_break()
    return next(iter(s)).held is s


def container(make, put):
    def f():
        c = make()
        put(c, c)
        inner = []
        put(c, inner)
        inner.append(c)
        ccompile.graph_break()
        return repr(c), inner[0] is c

    return f


def put_in_dict(d, o):
    d[len(d)] = o


CONTAINERS = {
    "list": (list, list.append),
    "deque": (collections.deque, collections.deque.append),
    "bounded_deque": (lambda: collections.deque(range(9), 4), collections.deque.append),
    "dict": (dict, put_in_dict),
    "defaultdict": (lambda: collections.defaultdict(list), put_in_dict),
    "ordered_dict": (collections.OrderedDict, put_in_dict),
}
CASES = {f.__name__: f for f in (recursive_function, recursive_function_in_a_list, two_functions, own_method)}
CASES |= {f.__name__: f for f in (iterator_over_itself, zip_of_itself, slice_of_itself, partial_of_itself)}
CASES |= {f.__name__: f for f in (view_of_itself, member_of_itself)}
CASES |= {name: container(*how) for name, how in CONTAINERS.items()}


@pytest.mark.parametrize("name", CASES)
def test_cycles_are_rebuilt(name):
    def f(x):
        return CASES[name](), x + 1

    x, compiled = torch.ones(2), ccompile.compile(f)
    expected = repr(f(x))
    for _ in range(4):
        assert repr(compiled(x)) == expected

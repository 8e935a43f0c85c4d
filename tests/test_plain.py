"""Containers that the trace made are looked through once while only constants are put into them: whatever else gets in,
by whichever way, is seen."""

import bisect
import collections
import heapq
import operator

import ccompile
import pytest
import torch
from conftest import replaying


class Putter:
    def __init__(self, c):
        self.c = c

    @property
    def put(self):
        self.c.append(self.v)

    def __getattr__(self, name):
        self.c.append(self.v)

    def __getitem__(self, key):
        self.c.append(key)

    def __add__(self, v):
        self.c.append(v)

    def __lt__(self, v):
        self.c.append(v)

    def __setattr__(self, name, v):
        object.__setattr__(self, name, v)
        if name == "stored":
            self.c.append(v)


def by_a_property(c, v):
    p = Putter(c)
    p.v = v
    p.put  # noqa: B018


def by_a_missing_attribute(c, v):
    p = Putter(c)
    p.v = v
    p.missing  # noqa: B018


def by_an_attribute(c, v):
    Putter(c).stored = v


def by_slicing(c, v):
    c[1:1] = (v,)


def in_place(c, v):
    c += [v]


def by_a_generator(c, v):
    def puts():
        c.append(v)
        yield

    next(puts())


def by_a_bound_method(c, v):
    put = c.append
    put(v)


def at_the_front(c, v):
    c.insert(0, v)


def replaced(c, v):
    c[1] = v


LISTS = {
    "append": lambda c, v: c.append(v),
    "extend": lambda c, v: c.extend([v]),
    "iadd": lambda c, v: c.__iadd__([v]),
    "setitem": lambda c, v: operator.setitem(c, 0, v),
    "map": lambda c, v: list(map(c.append, [v])),
    "any": lambda c, v: any(c.append(i) for i in [v]),
    "heap": lambda c, v: heapq.heappush(c, v),
    "heapreplace": lambda c, v: heapq.heapreplace(c, v),
    "insort": lambda c, v: bisect.insort(c, v),
    "a list's item": lambda c, v: Putter(c)[v],
    "a list's sum": lambda c, v: Putter(c) + v,
    "a list's comparison": lambda c, v: Putter(c) < v,
} | {f.__name__: f for f in (by_a_property, by_a_missing_attribute, by_an_attribute, by_slicing, in_place, by_a_generator)}
LISTS |= {f.__name__: f for f in (by_a_bound_method, at_the_front, replaced)}
DICTS = {
    "item": lambda d, v: operator.setitem(d, 1, v),
    "update": lambda d, v: d.update({1: v}),
    "setdefault": lambda d, v: d.setdefault(5, v),
    "or": lambda d, v: operator.ior(d, {1: v}),
    "key": lambda d, v: operator.setitem(d, v, 1),
}
DEQUES = {"append": lambda d, v: d.append(v), "left": lambda d, v: d.appendleft(v), "extend": lambda d, v: d.extend([v])}
READS = {
    "max": max,
    "sorted": lambda c: sorted(c),
    "text": str,
    "contains": lambda c: 7 in c,
    "heap": lambda c: heapq.heappop(c) if isinstance(c, list) else None,
    "values": lambda c: max(c.values()) if isinstance(c, dict) else None,
    "popped": lambda c: [c.pop() for _ in range(2)] if not isinstance(c, dict) else c.popitem(),
}
MAKERS = [
    (lambda: [2, 3, 6, 8, 8], LISTS),
    (lambda: {2: 1, 3: 4, 8: 0}, DICTS),
    (lambda: collections.deque([2, 3, 8]), DEQUES),
]
CASES = [(make, put, name, read) for make, puts in MAKERS for name, put in puts.items() for read in READS]


def size(x):
    return x.shape[0]


def number(x):
    return x[0].item()


@pytest.mark.parametrize("value", [size, number], ids=lambda f: f.__name__)
@pytest.mark.parametrize("make, put, name, read", CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_put_in_is_seen(make, put, name, read, value):
    look = READS[read]

    def f(x):
        v = value(x)
        c = make()
        before = 3 in c, look(make()), max(c), len(c)
        put(c, v)
        return before, look(c), c, x + 1

    compiled = ccompile.compile(f)
    for n in (4, 5, 7, 2, 9, 7):
        x = torch.full((n,), float(n))
        expected, got = f(x), compiled(x)
        assert got[:3] == expected[:3], (n, got, expected)
        assert torch.equal(got[3], expected[3])


def heap(n):
    c = []
    for i in range(n):
        heapq.heappush(c, (i * 7919 % 10007, str(i)))
    return [heapq.heappop(c) for _ in range(n)]


def queue(n):
    c, total = collections.deque(range(n)), 0
    while c:
        total += c.popleft()
        if total % 3 == 0:
            c.append(1)
    return total


def stack(n):
    c = [*range(n)]
    return [c.pop() + (5 in c) for _ in range(n)]


@pytest.mark.parametrize("work", [heap, queue, stack])
def test_long_ones_are_recorded(work):
    def f(x):
        return x + 1, work(1000)

    compiled, x = ccompile.compile(f), torch.ones(2)
    expected = f(x)[1]
    assert compiled(x)[1] == expected
    with replaying():
        assert compiled(x)[1] == expected

"""What C code inspects in its arguments and in results of its callbacks: truth, order and content of items that it gets through
iterators, views, generators and functions.

Each caller is recorded, then the objects' contents change in place, call by call; eager goes through the same steps.
"""

import array
import bisect
import collections
import functools
import heapq
import inspect
import itertools
import types

import ccompile
import pytest
import torch
from torch import nn

X = torch.ones(2)


@ccompile.disable
def brk():
    pass


class Holder:
    def __init__(self, v):
        self.v = v


def told(call, *args):
    try:
        return repr(call(*args))
    except Exception as e:
        return repr(e)


def asked(caller):
    """What a function that computes with tensors, and asks this, gives."""

    def f(o, x):
        x = x + 1
        return caller(o)

    return f


def differences(caller, made, steps):
    """Where the compiled caller tells another thing than eager: each gets objects of its own, changed by the same steps."""
    f, bad = asked(caller), []
    compiled = ccompile.compile(f)
    of_eager, of_compiled = made(), made()
    for i, step in enumerate(steps):
        step(of_eager)
        step(of_compiled)
        want, got = told(f, of_eager, X), told(compiled, of_compiled, X)
        if want != got:
            bad.append(f"call {i}: {got} instead of {want}")
    return bad


# ---- items of items, by the way they come and by what looks at them -------------------------------------------------------
def two_lists():
    return [Holder([]), Holder([])]


STEPS = [
    lambda os: None,
    lambda os: os[1].v.append(1),
    lambda os: os[1].v.clear(),
    lambda os: os[0].v.append(2),
    lambda os: os[1].v.append(1),
    lambda os: setattr(os[0], "v", []),
]

SOURCES = {
    "list": lambda os: [o.v for o in os],
    "tuple": lambda os: tuple(o.v for o in os),
    "deque": lambda os: collections.deque(o.v for o in os),
    "iterator": lambda os: iter([o.v for o in os]),
    "reversed": lambda os: reversed([o.v for o in os]),
    "dict's values": lambda os: {i: o.v for i, o in enumerate(os)}.values(),
    "dict's items": lambda os: {i: o.v for i, o in enumerate(os)}.items(),
    "iterator of values": lambda os: iter({i: o.v for i, o in enumerate(os)}.values()),
    "generator": lambda os: (o.v for o in os),
    "map": lambda os: map(lambda o: o.v, os),
    "starmap": lambda os: itertools.starmap(lambda o: o.v, [(o,) for o in os]),
    "generator of zip": lambda os: (v for (v,) in zip([o.v for o in os])),
    "generator of enumerate": lambda os: (v for _, v in enumerate([o.v for o in os])),
    "chain": lambda os: itertools.chain([o.v for o in os[:1]], [o.v for o in os[1:]]),
    "chain of lists": lambda os: itertools.chain.from_iterable([[o.v] for o in os]),
    "islice": lambda os: itertools.islice([o.v for o in os], 2),
    "cycle": lambda os: itertools.islice(itertools.cycle([o.v for o in os]), 3),
    "repeat": lambda os: itertools.repeat(os[1].v, 2),
    "tee": lambda os: itertools.tee([o.v for o in os])[0],
    "pairwise": lambda os: itertools.pairwise([o.v for o in os]),
    "zip_longest": lambda os: itertools.zip_longest([o.v for o in os], [[1]]),
}

LOOKERS = {
    "any": any,
    "all": all,
    "max": max,
    "min with a default": lambda s: min(s, default=None),
    "max by a key": lambda s: max(s, key=len),
    "max by itself": lambda s: max(s, key=lambda v: v),
    "sorted": sorted,
    "sorted by itself": lambda s: sorted(s, key=lambda v: v),
    "sort": lambda s: (lambda items: (items.sort(), items)[1])(list(s)),
    "nsmallest": lambda s: heapq.nsmallest(1, s),
    "in": lambda s: [1] in s,
    "count": lambda s: list(s).count([]),
    "index": lambda s: list(s).index([1]),
    "filter": lambda s: len(list(filter(None, s))),
    "filter by itself": lambda s: len([*filter(lambda v: v, s)]),
    "for of filter": lambda s: sum(1 for _ in filter(lambda v: v, s)),
    "filterfalse": lambda s: len(list(itertools.filterfalse(None, s))),
    "takewhile": lambda s: len(list(itertools.takewhile(lambda v: v, s))),
    "dropwhile": lambda s: len(list(itertools.dropwhile(lambda v: v, s))),
    "compress": lambda s: list(itertools.compress(range(9), s)),
    "groupby": lambda s: len(list(itertools.groupby(s))),
    "groupby itself": lambda s: len(list(itertools.groupby(s, key=lambda v: v))),
    "chain of it": lambda s: len(list(itertools.chain.from_iterable(s))),
    "sum": lambda s: len(sum(s, [])),
    "accumulate": lambda s: len(list(itertools.accumulate(s))[-1]),
    "reduce": lambda s: functools.reduce(lambda a, b: a + b, s),
    "product": lambda s: len(list(itertools.product(*s))),
    "zip": lambda s: len(list(zip(*s))),
    "list": lambda s: list(s) == [[], []],
    "dict": lambda s: str(dict(enumerate(s))),
    "set": lambda s: set(map(tuple, s)),
    "text": lambda s: ",".join(map(str, s)),
    "lengths": lambda s: [len(v) for v in s],
    "truths": lambda s: list(map(bool, s)),
    "not": lambda s: any(not v for v in s),
    "bisect": lambda s: bisect.bisect(list(s), [0]),
    "iter until": lambda s: (lambda items: len(list(itertools.islice(iter(lambda: items[0], []), 3))))(list(s)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_items(source):
    bad = []
    for name, look in LOOKERS.items():
        found = differences(lambda os, look=look: look(SOURCES[source](os)), two_lists, STEPS)
        bad += [f"{name}: {line}" for line in found]
    assert not bad, "\n".join(bad)


# ---- what special methods give -----------------------------------------------------------------------------------------------
class Speaks:
    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return self.v

    def __lt__(self, other):
        return self.v

    __gt__ = __contains__ = __lt__
    __hash__ = object.__hash__


SPOKEN = {
    "in a list": lambda os: 3 in [Speaks(o.v) for o in os],
    "contains": lambda os: 3 in Speaks(os[1].v),
    "count": lambda os: [Speaks(o.v) for o in os].count(3),
    "index": lambda os: [Speaks(o.v) for o in os].index(3),
    "remove": lambda os: (lambda items: (items.remove(3), len(items))[1])([Speaks(o.v) for o in os]),
    "lists": lambda os: [Speaks(o.v) for o in os] == [1, 2],
    "sorted": lambda os: len(sorted([Speaks(o.v) for o in os])[0].v),
    "max": lambda os: len(max([Speaks(o.v) for o in os]).v),
    "heap": lambda os: len(heapq.nsmallest(1, [Speaks(o.v) for o in os])[0].v),
    "if": lambda os: 1 if Speaks(os[1].v) == 3 else 0,
}


@pytest.mark.parametrize("name", SPOKEN)
def test_special_methods(name):
    assert not differences(SPOKEN[name], two_lists, STEPS)


# ---- the truth of containers ---------------------------------------------------------------------------------------------------
def viewed(view, of=dict):
    def make():
        behind = of()
        return view(behind), behind

    return make


def plainly(of):
    def make():
        made = of()
        return made, made

    return make


CONTAINERS = {
    "list": plainly(list),
    "dict": plainly(dict),
    "set": plainly(set),
    "deque": plainly(collections.deque),
    "defaultdict": plainly(lambda: collections.defaultdict(int)),
    "OrderedDict": plainly(collections.OrderedDict),
    "Counter": plainly(collections.Counter),
    "ChainMap": plainly(collections.ChainMap),
    "UserList": plainly(collections.UserList),
    "bytearray": plainly(bytearray),
    "array": plainly(lambda: array.array("b")),
    "class of list": plainly(type("L", (list,), {})),
    "class of deque": plainly(type("Q", (collections.deque,), {})),
    "class of bytearray": plainly(type("B", (bytearray,), {})),
    "keys": viewed(dict.keys),
    "values": viewed(dict.values),
    "items": viewed(dict.items),
    "ordered keys": viewed(collections.OrderedDict.keys, collections.OrderedDict),
    "ordered values": viewed(collections.OrderedDict.values, collections.OrderedDict),
    "proxy": viewed(types.MappingProxyType),
}
TRUTHS = {
    "if": lambda o: 1 if o else 2,
    "not": lambda o: not o,
    "and": lambda o: bool(o and 1),
    "or": lambda o: (o or 5) == 5,
    "while": lambda o: next((1 for _ in itertools.count() if o), 0) if len(o) else 3,
    "bool": lambda o: bool(o),
    "any": lambda o: any([o]),
    "all": lambda o: all((o, 1)),
    "filter": lambda o: len(list(filter(None, [o]))),
    "comprehension": lambda o: len([v for v in [o] if v]),
}


def fill(pair):
    o = pair[1]
    if hasattr(o, "append"):
        o.append(1)
    elif hasattr(o, "add"):
        o.add(1)
    else:
        o[1] = 1


def empty(pair):
    while len(pair[1]):
        pair[1].popitem() if hasattr(pair[1], "popitem") else pair[1].pop()


@pytest.mark.parametrize("container", CONTAINERS)
def test_truth(container):
    bad = []
    for name, ask in TRUTHS.items():
        steps = [lambda pair: None, fill, empty, fill, fill, empty]
        bad += [f"{name}: {line}" for line in differences(lambda p, ask=ask: ask(p[0]), CONTAINERS[container], steps)]
    assert not bad, "\n".join(bad)


NUMBERS = {
    "filter": lambda a: list(filter(None, [a, a * 1])),
    "filter of a generator": lambda a: list(filter(None, (a * i for i in range(3)))),
    "filter by itself": lambda a: list(filter(lambda v: v, (a * i for i in range(3)))),
    "filterfalse": lambda a: list(itertools.filterfalse(None, [a, 0.0])),
    "compress": lambda a: list(itertools.compress("abc", (a * i for i in range(3)))),
    "takewhile": lambda a: list(itertools.takewhile(lambda v: v, [a, 1.0])),
    "any": lambda a: any(a * i for i in range(2)),
    "contains": lambda a: [1] in Speaks(a),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    """The truth of numbers that tensors gave."""

    def f(x):
        return NUMBERS[name](x.sum().item())

    compiled = ccompile.compile(f)
    for n in (1, 2, 0, 3, 0, 1):
        assert compiled(X * n) == f(X * n)


@pytest.mark.parametrize("take", ["pop", "popleft"])
@pytest.mark.parametrize("ask", ["queue", "len", "not"])
def test_queues(take, ask):
    """`while queue:` with a break in the loop."""
    seen = []

    @ccompile.disable
    def visit(n):
        seen.append(n)

    tests = {"queue": bool, "len": lambda q: len(q) > 0, "not": lambda q: not (not q)}
    holds = tests[ask]

    def walk(x, n):
        queue = collections.deque([x])
        while queue if ask == "queue" else holds(queue):
            node = getattr(queue, take)()
            visit(n)
            if n > 1:
                queue.extend([node + n] * (n % 3))
                n -= 1
        return node

    compiled = ccompile.compile(walk)
    for n in (4, 4, 5, 3, 4, 1):
        seen.clear()
        want = walk(X, n), list(seen)
        seen.clear()
        got = compiled(X, n), list(seen)
        assert torch.equal(want[0], got[0]) and want[1] == got[1]


ITERATORS = {
    "parameters": lambda m: m.parameters(),
    "named_buffers": lambda m: m.named_buffers(prefix="of"),
    "modules": lambda m: m.modules(),
    "chain": lambda m: itertools.chain(m.parameters(), m.buffers()),
    "chain of lists": lambda m: itertools.chain([1, 2], [3]),
    "chain of nothing": lambda m: itertools.chain(),
    "chain from iterable": lambda m: itertools.chain.from_iterable([[1], [], (2, 3)]),
}


@pytest.mark.parametrize("taken", [0, 1, 9])
@pytest.mark.parametrize("net", [nn.BatchNorm1d(3), nn.ReLU()], ids=["some", "none"])
@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_behind_a_break(name, net, taken):
    """A recording replaces them by others, which can be made again: those look the same."""

    def f(x):
        it = ITERATORS[name](net)
        brk()
        first = [next(it, None) for _ in range(taken)]
        brk()
        kind = type(it), isinstance(it, types.GeneratorType), inspect.isgenerator(it), hasattr(it, "send")
        names = getattr(it, "__name__", None), getattr(it, "__qualname__", None)
        try:
            state = it.__setstate__(0)
        except (AttributeError, TypeError) as error:
            state = repr(error)
        return first, kind, names, state, list(it), x + 1

    compiled = ccompile.compile(f)
    for _ in range(4):
        want, got = f(X), compiled(X)
        assert want[1:4] == got[1:4]
        assert [id(v) for v in flat(want[0] + want[4])] == [id(v) for v in flat(got[0] + got[4])]


def flat(items):
    return [v for item in items for v in (item if isinstance(item, tuple) else [item]) if not isinstance(v, str)]

"""Code as users write it gives what eager gives, and replays; the state that it keeps follows."""

import array
import collections
import datetime
import types

import ccompile
import numpy
import pytest
import torch
from conftest import EAGER, alike, learned, no_worse, replaying, same
from record_cases import t
from record_user import CASES, Trainer
from torch import nn


def build(name):
    fn = CASES[name].fn
    torch.manual_seed(5)
    return fn() if isinstance(fn, type) else fn


@pytest.mark.parametrize("name", CASES)
def test_equal(name):
    c = CASES[name]
    same(build(name), make_args=c.inputs, calls=5, hit=c.hit)


@pytest.mark.parametrize(
    "name", [n for n in CASES if isinstance(CASES[n].fn, type) and n not in ("KvCache", "PositionalEncoding", "RunningMean")]
)
def test_gradients(name):
    same(build(name), make_args=CASES[name].inputs, calls=3, no_grad=False, backward=True, hit=False)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_no_more_breaks_than_dynamo(name):
    made = CASES[name].inputs(0)
    args, kw = made if len(made) == 2 and isinstance(made[1], dict) else (made, {})
    no_worse(build(name), *args, bare=learned(name), **kw)


def test_state_from_call_to_call():
    def build():
        trainer = Trainer()
        return trainer.__call__, trainer

    same(build, make_args=lambda i: t(3, 4, seed=i), calls=7, build=True, hit=False)


def changing(make, change, calls=6):
    """fn reads a container that `change` alters between calls: nothing of it may be baked in."""

    eager, compiled = make(), make()
    ours = ccompile.compile(compiled[0])
    with torch.no_grad():
        for i in range(calls):
            x = t(3, 4, seed=i)
            alike(eager[0](x), ours(x.clone()), path=f"call {i}")
            change(eager[1], i)
            change(compiled[1], i)


def over(container, body):
    return lambda: (lambda c: ((lambda x: body(x, c)), c))(container())


CONTAINERS = {
    "deque-len": (over(lambda: collections.deque([1, 2]), lambda x, c: x * len(c)), lambda c, i: c.append(i)),
    "deque-item": (over(lambda: collections.deque([1, 2]), lambda x, c: x * c[-1]), lambda c, i: c.append(i)),
    "extend-from-outside": (
        over(lambda: [1.0, 2.0], lambda x, c: [].extend(c) or x * sum([*c])),
        lambda c, i: c.__setitem__(0, float(i)),
    ),
    "sorted-deep": (
        over(lambda: [[2, "b"], [1, "a"]], lambda x, c: (x, [k for _, k in sorted(c)])),
        lambda c, i: c[0].__setitem__(0, i % 3),
    ),
    "ordered-dict-order": (
        over(lambda: collections.OrderedDict(a=1, b=2), lambda x, c: (x, list(c))),
        lambda c, i: c.move_to_end("a", last=i % 2 == 0),
    ),
    "map-of-append": (over(list, lambda x, c: (x * 2, list(map(c.append, [1])), len(c))), lambda c, i: None),
    "default-dict": (
        over(lambda: collections.defaultdict(int), lambda x, c: (x, c["n"], dict(c))),
        lambda c, i: c.__setitem__("n", i) if i % 2 else c.clear(),
    ),
    "delete-key": (
        over(lambda: {"a": 1, "b": 2}, lambda x, c: (x, c.pop("a", None), sorted(c))),
        lambda c, i: c.__setitem__("a", i),
    ),
    "dict-of-lists": (
        over(lambda: {"a": [1, 2]}, lambda x, c: (c.setdefault("z", []).append(x), len(c["z"]), x * c["a"][-1], list(c))[1:]),
        lambda c, i: c["a"].append(i),
    ),
    "deque-window": (
        over(lambda: collections.deque(maxlen=2), lambda x, c: (c.append(x), torch.stack(list(c)), len(c))[1:]),
        lambda c, i: c.clear() if i == 3 else None,
    ),
    "set-of-numbers": (over(set, lambda x, c: (c.add(len(c)), x * len(c), sorted(c))[1:]), lambda c, i: None),
    "extend-sort-pop": (
        over(lambda: [3.0, 1.0], lambda x, c: (c.extend([2.0]), c.sort(), x * c.pop(), tuple(c))[2:]),
        lambda c, i: c.append(float(i)),
    ),
    "two-names": (
        over(lambda: [1.0], lambda x, c: (lambda d: (d.append(2.0), len(c), c is d, x * sum(d))[1:])(c)),
        lambda c, i: None,
    ),
    "default-dict-writes": (
        over(lambda: collections.defaultdict(int), lambda x, c: (c.__setitem__("a", 1), dict(c), c["b"], x, dict(c))[1:]),
        lambda c, i: c.clear(),
    ),
    "append-then-read": (over(list, lambda x, c: (c.append(1.0), x * sum(c))[1]), lambda c, i: c.clear() if i == 3 else None),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_that_change(name):
    changing(*CONTAINERS[name])


def test_shared_tensors_are_told_apart():
    """`t in seen` is a question of identity: a call whose tensors are shared otherwise must not replay."""

    def distinct(a, b):
        seen, n = set(), 0
        for v in (a, b):
            if v not in seen:
                seen.add(v)
                n += 1
        return a + b, n

    compiled = ccompile.compile(distinct)
    a, b = t(3), t(3, seed=1)
    with torch.no_grad():
        for args in ((a, b), (a, a), (b, a), (b, b), (a, b)):
            alike(distinct(*args), compiled(*args))


def test_numbers_inside_lists_are_not_baked_in():
    """A number read from a tensor that Python code looks at inside of a list."""

    def fn(x):
        k = x.sum().item()
        return x * max([k, 0.5]), min((k, 2.0), (1.0, 1.0))

    same(fn, make_args=lambda i: t(3, 4, seed=i), calls=4, hit=False)


def test_first_parameter_decides():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x.to(next(self.parameters()).dtype))

    net = Net()
    compiled = ccompile.compile(net)
    with torch.no_grad():
        for _ in range(2):
            alike(net(t(3, 4)), compiled(t(3, 4)))
        with replaying(1):
            compiled(t(3, 4))
        net.double()
        alike(net(t(3, 4)), compiled(t(3, 4)))


class Whole(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


class Raw(bytes):
    pass


class Row(tuple):
    pass


class Rows(list):
    pass


class Table(dict):
    pass


class Bag(set):
    pass


class Queue(collections.deque):
    pass


Four = collections.namedtuple("Four", "a b c d")
NUMBER = {
    "add": lambda o: o + 1,
    "reflected": lambda o: 2 - o,
    "compare": lambda o: o == 2,
    "branch": lambda o: 1 if o > 2 else 0,
    "text": lambda o: f"{o} %s" % o,
    "in": lambda o: o in (2, 3),
    "index": lambda o: [*range(9)][int(o)],
    "tensor": lambda o: torch.ones(2) * o,
}
SEQUENCE = {
    "slice": lambda o: o[1:],
    "item": lambda o: o[1],
    "concatenate": lambda o: o + type(o)(o) if isinstance(o, list) else list(o),
    "repeat": lambda o: list(o) * 2,
    "compare": lambda o: (o == o, o == (1, 2, 3, 4)),
    "less": lambda o: tuple(o) < (1, 2, 9) and o[0] == 1,
    "in": lambda o: 2 in o,
    "star": lambda o: [0, *o],
    "arguments": lambda o: (lambda *a: a)(*o),
    "unpack": lambda o: (lambda a, b, *rest: (b, rest))(*o),
    "text": lambda o: "%s" % (o,),
    "enumerate": lambda o: list(enumerate(o)),
    "truth": lambda o: not o,
    "match": lambda o: matched(o),
}
TABLE = {
    "merge": lambda o: {**o},
    "keywords": lambda o: (lambda **k: k)(**o),
    "or": lambda o: o | {"q": 1},
    "compare": lambda o: o == {"a": 1, "k": 2},
    "text": lambda o: f"{o}",
}
SET = {"in": lambda o: 2 in o, "or": lambda o: o | {9}, "minus": lambda o: o - {1}, "order": lambda o: o <= {1, 2}, "star": lambda o: {*o}}
TEXT = {"add": lambda o: o + o, "repeat": lambda o: o * 2, "slice": lambda o: o[1:], "in": lambda o: o[:1] in o, "list": lambda o: [*o]}
LOOK = {"text": str, "hash": hash, "compare": lambda o: o == o, "list": lambda o: list(enumerate(o)) if hasattr(o, "__iter__") else o}
MADE = {   # how it is made of a number, and what is done with it
    "int": (Whole, NUMBER),
    "float": (lambda k: Real(k + 0.5), NUMBER),
    "str": (lambda k: Text("ab%d" % k), TEXT),
    "bytes": (lambda k: Raw([1, k, k]), TEXT),
    "tuple": (lambda k: Row((1, k, 3, k)), SEQUENCE),
    "list": (lambda k: Rows((1, k, 3, k)), SEQUENCE),
    "namedtuple": (lambda k: Four(1, k, 3, k), SEQUENCE),
    "deque": (lambda k: Queue((1, k, 3, k)), {k: v for k, v in SEQUENCE.items() if k not in ("slice", "less")}),
    "empty-deque": (lambda k: Queue([1] * (k % 2)), {"truth": lambda o: not o}),
    "dict": (lambda k: Table(a=1, k=k), TABLE),
    "counter": (lambda k: collections.Counter(a=1, k=k), TABLE),
    "set": (lambda k: Bag((1, k)), SET),
    "date": (lambda k: datetime.date(2020, 1, k), {k: v for k, v in LOOK.items() if k != "list"}),
    "namespace": (lambda k: types.SimpleNamespace(a=k), {"text": str, "compare": lambda o: o == types.SimpleNamespace(a=2)}),
    "array": (lambda k: array.array("i", [1, k]), {"list": LOOK["list"], "compare": LOOK["compare"]}),
    "numpy": (lambda k: numpy.array([1, k]), {"list": LOOK["list"]}),
    "slice": (lambda k: slice(1, k), {
        "list": lambda o: [*range(9)][o], "text": lambda o: "abcdefgh"[o], "range": lambda o: len(range(9)[o]),
        "store": lambda o: (lambda l: (l.__setitem__(o, [0]), l))([*range(9)])[1], "delete": lambda o: deleted([*range(9)], o),
        "tensor": lambda o: torch.arange(9)[o], "compare": lambda o: o == slice(1, 2)}),
    "map": (lambda k: map(int, [1, k]), {"list": LOOK["list"]}),
}


def deleted(items, which):
    del items[which]
    items[which] = [7, 7]
    return items


def matched(o):
    match o:
        case [a, b, *rest]:
            return b, rest
    return None


@pytest.mark.parametrize("kind, use", [(kind, use) for kind, (_, uses) in MADE.items() for use in uses])
@pytest.mark.parametrize("given", ["argument", "attribute", "break"])
def test_what_derived_objects_hold_is_guarded(kind, use, given):
    """Classes of one's own that C code reads as the builtin type that they derive from, and C types that no guard can read."""
    make, uses = MADE[kind]
    op, box = uses[use], types.SimpleNamespace(o=None)
    fetch = ccompile.disable(lambda: box.o)
    fn = {
        "argument": lambda x, o: (x + 1, op(o)),
        "attribute": lambda x, o: (x + 1, op(box.o)),
        "break": lambda x, o: (x + 1, op(fetch())),
    }[given]
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for k in (2, 2, 3, 5, 2, 4):
            x = t(2, 3, seed=k)
            box.o = make(k)
            want = fn(x, box.o)
            box.o = make(k)
            alike(want, compiled(x, box.o), path=f"of {k}")

"""Numbers that change in every call (a learning rate, a temperature): kernels take them as arguments, so that a new value
costs nothing, unless eager distinguishes the value."""

import collections
import functools
import itertools
import math
import operator
import types

import ccompile
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER, alike
from torch import nn

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
PLAIN = [0.3, 0.7, -1.25, 0.0, -0.0, 2.0, 1.0, -1.0, 1e-40, 3.3, 100.5]
ODD = [math.inf, -math.inf, math.nan, 1e30, 70000.0, -1e300]
CLOSE = {"rtol": 1e-5, "atol": 1e-4}
INTS = [3, 7, 0, 1, -2, 1000, 2**40, 2**60, 5]


def tensor(dtype, *shape, seed=0):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3
    return x > 0 if dtype == torch.bool else x.to(dtype)


LARGE = 2**60 + 2**36 + 1  # a tie of f32, if it is rounded to a double first


@pytest.mark.parametrize("f", [lambda x: x + LARGE, lambda x: x * LARGE, lambda x: x.clamp(min=LARGE), lambda x: torch.where(x > 0, x, LARGE), lambda x: x.scatter(0, torch.tensor([0, 2]), LARGE), lambda x: torch.full_like(x, LARGE) - x, lambda x: x.index_fill(0, torch.tensor([1]), LARGE), lambda x: torch.addcmul(x, x, x, value=LARGE)])
def test_integers_are_rounded_once(f):
    x = torch.tensor([0.0, 1.0, 2.0])
    fn = ccompile.compile(f)
    for _ in range(3):
        assert torch.equal(fn(x), f(x))


@pytest.mark.parametrize("alpha", [2**53 + 1, -(2**60) - 1, 2**62 + 1, 7])
def test_integers_of_index_add_are_exact(alpha):
    def f(x, i):
        return x.index_add(0, i, x[:2], alpha=alpha)

    fn, x, i = ccompile.compile(f, options={"verify": False}), torch.tensor([3, 1, 0]), torch.tensor([2, 2])
    for _ in range(3):
        assert torch.equal(fn(x, i), f(x, i))


def with_temperature(x, y, t):
    return torch.softmax(x / t, -1) * y


def learn(x, y, t):
    x = x.clone()
    x.mul_(1 - t * 0.1)
    x.add_(y, alpha=-t)
    return x


OPS = {
    "mul": lambda x, y, t: x * t,
    "rmul": lambda x, y, t: t * x,
    "add": lambda x, y, t: x + t,
    "sub": lambda x, y, t: t - x,
    "alpha": lambda x, y, t: torch.add(x, y, alpha=t),
    "sub alpha": lambda x, y, t: torch.sub(x, y, alpha=t),
    "rsub": lambda x, y, t: torch.rsub(x, t),
    "div": lambda x, y, t: x / t,
    "rdiv": lambda x, y, t: t / x,
    "floor": lambda x, y, t: x // t,
    "div floor": lambda x, y, t: torch.div(x, t, rounding_mode="floor"),
    "div trunc": lambda x, y, t: torch.div(x, t, rounding_mode="trunc"),
    "remainder": lambda x, y, t: x % t,
    "fmod": lambda x, y, t: torch.fmod(x, t),
    "pow": lambda x, y, t: x**t,
    "rpow": lambda x, y, t: t**x,
    "float_power": lambda x, y, t: torch.float_power(x, t),
    "copysign": lambda x, y, t: torch.copysign(x, t),
    "leaky_relu": lambda x, y, t: F.leaky_relu(x, t),
    "elu": lambda x, y, t: F.elu(x, t),
    "celu": lambda x, y, t: F.celu(x, t),
    "softplus": lambda x, y, t: F.softplus(x, t),
    "hardtanh": lambda x, y, t: F.hardtanh(x, -1.0, t),
    "threshold": lambda x, y, t: F.threshold(x, t, 0.5),
    "hardshrink": lambda x, y, t: F.hardshrink(x, t),
    "softshrink": lambda x, y, t: F.softshrink(x, t),
    "clamp": lambda x, y, t: x.clamp(-1, t),
    "clamp_min": lambda x, y, t: x.clamp_min(t),
    "clamp max": lambda x, y, t: torch.clamp(x, max=t),
    "where": lambda x, y, t: torch.where(x > y, x, t),
    "where2": lambda x, y, t: torch.where(x > y, t, 0.5),
    "masked_fill": lambda x, y, t: x.masked_fill(x > y, t),
    "eq": lambda x, y, t: x == t,
    "lt": lambda x, y, t: x < t,
    "gt": lambda x, y, t: t > x,
    "lerp": lambda x, y, t: torch.lerp(x, y, t),
    "addcmul": lambda x, y, t: torch.addcmul(x, x, y, value=t),
    "addcdiv": lambda x, y, t: torch.addcdiv(x, x, y, value=t),
    "nan_to_num": lambda x, y, t: torch.nan_to_num(x / 0, nan=t, posinf=t),
    "full": lambda x, y, t: torch.full((5,), t),
    "full_like": lambda x, y, t: torch.full_like(x, t),
    "fill_": lambda x, y, t: x.clone().fill_(t),
    "tensor": lambda x, y, t: torch.tensor(t) * x,
    "linspace": lambda x, y, t: torch.linspace(0, t, 5),
    "arange": lambda x, y, t: torch.arange(0, 4 * abs(t) % 50, 0.5),
    "and": lambda x, y, t: torch.logical_and(x, torch.full_like(x, t)),
    "softmax": with_temperature,
    "learn": learn,
    "steps": lambda x, y, t: x * (t * 2 + 1) + (t / 4 - 1) * y,
    "by size": lambda x, y, t: x * (t / x.shape[0]),
    "branch": lambda x, y, t: x * t if t > 0.5 else x + t,
    "twice": lambda x, y, t: (x * t) ** t,
    "dropout": lambda x, y, t: F.dropout(x, min(abs(t), 0.5), training=False),
    "product": lambda x, y, t: (x @ y.transpose(0, 1)) * t,
    "attention": lambda x, y, t: (
        F.softmax((x @ y.transpose(0, 1)).masked_fill(x @ x.transpose(0, 1) > 0, t) * t, -1) @ y
    ),
    "returned": lambda x, y, t: (x * t, t * 2),
    "row": lambda x, y, t: (x * t).sum(-1) + t,
    "column": lambda x, y, t: (x - t).amax(0) * t,
}


def outcome(fn, *args):
    try:
        with torch.no_grad():
            return fn(*args), None
    except Exception as error:
        return None, (type(error), str(error))


def check(compiled, fn, args, close):
    got, raised = outcome(compiled, *args)
    expected, wanted = outcome(fn, *args)
    assert raised == wanted, f"{args[-1]}: {raised}, eager {wanted}"
    for a, b in zip(*([v] if not isinstance(v, tuple) else v for v in (got, expected)), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m: f"{args[-1]}: {m}", **(close or {}))
        else:
            assert a == b or a != a


@pytest.mark.parametrize("name", OPS)
def test_values(name):
    for dtype in DTYPES:
        half = dtype in (torch.bfloat16, torch.float16)
        close = {"rtol": 2e-2, "atol": 2e-2} if half else CLOSE if dtype.is_floating_point else {}
        # torch's own remainder of a denormal f32 is nan
        plain = [v for v in PLAIN if v != 1e-40 or name not in ("remainder", "fmod")]
        for values in (plain + ODD + plain, INTS + INTS):
            compiled = ccompile.compile(OPS[name], options={"recompile_limit": 64})
            x, y = tensor(dtype, 4, 6), tensor(dtype, 4, 6, seed=1)
            for t in values:
                check(compiled, OPS[name], (x, y, t), close)


FREE = (
    "mul rmul add sub alpha div clamp where masked_fill lt lerp addcmul softmax learn steps by_size product row".split()
)


@pytest.mark.parametrize("name", FREE)
def test_new_values_cost_nothing(name):
    """No recording, no run by torch, no kernel."""
    fn = OPS[name.replace("_", " ") if name == "by_size" else name]
    compiled = ccompile.compile(fn)
    x, y = tensor(torch.float32, 4, 6), tensor(torch.float32, 4, 6, seed=1)
    for t in (0.3, 0.7):
        check(compiled, fn, (x, y, t), CLOSE)
    before = ccompile.counters()
    for t in (0.9, 0.11, -3.5, 0.0, 123.0):
        check(compiled, fn, (x, y, t), CLOSE)
    after = ccompile.counters()
    for kind in ("recording", "recompile", "new_shape", "kernel", "eager"):
        assert after.get(kind, 0) == before.get(kind, 0), kind
    assert compiled_of(compiled).report()["recordings"] == 2


class Optimizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lr, self.step = 0.1, 0
        self.register_buffer("p", torch.ones(8))

    def forward(self, g):
        self.step += 1
        self.lr *= 0.9
        self.p.sub_(g * self.lr * (1 - 0.5**self.step))
        return self.p.sum() / self.step


IN_PLACE = {
    "iadd": (operator.iadd, 0),
    "isub": (operator.isub, 1.5),
    "imul": (operator.imul, True),
    "ipow": (operator.ipow, 2),
    "ifloordiv": (operator.ifloordiv, 3),
    "itruediv": (operator.itruediv, 2),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_totals_that_begin_as_a_number(name, dtype):
    """`total += x` of a number makes a tensor, which the next ones write to; it is one kernel."""
    first, begin = IN_PLACE[name]

    def total(x, y):
        made = first(begin, x)
        made += y
        return made, x * 2

    x, y = tensor(dtype, 3, 5).abs() + 1, tensor(dtype, 3, 5, seed=1)
    with torch.no_grad():
        compiled = ccompile.compile(total)
        for _ in range(3):
            if name == "itruediv" and dtype == torch.int64:
                y = y.float()
            for got, expected in zip(compiled(x, y), total(x, y), strict=True):
                torch.testing.assert_close(got, expected)
                assert got.dtype == expected.dtype
        plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
    assert " host " not in plan


def test_attributes_that_decay():
    ours, theirs = Optimizer(), Optimizer()
    compiled = ccompile.compile(ours)
    with torch.no_grad():
        for i in range(10):
            g = tensor(torch.float32, 8, seed=i)
            torch.testing.assert_close(compiled(g), theirs(g))
            torch.testing.assert_close(ours.p, theirs.p)
            assert (ours.lr, ours.step) == (theirs.lr, theirs.step)
            if i == 3:
                before = ccompile.counters()
    after = ccompile.counters()
    assert all(after.get(k, 0) == before.get(k, 0) for k in ("recording", "recompile", "new_shape"))


def test_numbers_with_gradients():
    fn = lambda x, t: (x * t).sin().sum()
    compiled = ccompile.compile(fn)
    for t in (0.5, 0.7, 0.9, 1.1):
        grads = []
        for f in (compiled, fn):
            x = torch.linspace(0, 1, 5, requires_grad=True)
            f(x, t).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_numbers_and_sizes():
    fn = lambda x, t: torch.relu(x * t - 1) / (t + x.shape[0])
    compiled = ccompile.compile(fn, dynamic=True)
    with torch.no_grad():
        for i, n in enumerate([3, 4, 5, 3, 4, 5, 6, 6, 3]):
            x = tensor(torch.float32, n, 7, seed=i)
            torch.testing.assert_close(compiled(x, 0.1 + i), fn(x, 0.1 + i))
    assert compiled_of(compiled).report()["recordings"] == 2


def test_graph_text_names_the_number():
    compiled = ccompile.compile(lambda x, t: x * t)
    for t in (0.1, 0.2):
        compiled(torch.ones(3), t)
    segment = compiled_of(compiled).report()["entries"][-1]["segments"][0]
    assert "mul(%0, s0)" in segment["graph_text"]


class Names(set):
    pass


class Pairs(dict):
    def __init__(self, pairs):
        super().__init__(pairs)


# Numbers computed from a tensor's data, which C code takes through an iterator and looks at.
TAKEN = {
    "sorted": lambda n: sorted(v * 2 for v in n),
    "largest": lambda n: (max(v - 1 for v in n), min((v * 2, i) for i, v in enumerate(n)), max(n, key=lambda v: -v)),
    "any": lambda n: (any(v * 2 > 5 for v in n), all(v * 2 for v in n)),
    "sum": lambda n: (sum(v * 2 for v in n), math.fsum(v * 2 for v in n), math.prod(v + 1 for v in n)),
    "map": lambda n: list(map(abs, (v * 2 for v in n))),
    "filter": lambda n: list(filter(lambda v: v > 3, (v * 2 for v in n))),
    "in": lambda n: (4.0 in (v * 2 for v in n), [v * 2 for v in n].index(max(v * 2 for v in n))),
    "accumulate": lambda n: list(itertools.accumulate(v * 2 for v in n)),
    "takewhile": lambda n: list(itertools.takewhile(lambda v: v < 5, (v * 2 for v in n))),
    "reduce": lambda n: functools.reduce(lambda a, b: a * 3 + b, (v * 2 for v in n)),
    "set": lambda n: (sorted({*(v * 2 for v in n)}), sorted(frozenset(v * 2 for v in n)), len(set(v > 2 for v in n))),
    "set updated": lambda n: sorted(set().union(v * 2 for v in n)),
    "set of a class": lambda n: sorted(Names(v * 2 for v in n)),
    "dict": lambda n: sorted(dict((v * 2, 1) for v in n)),
    "dict of a class": lambda n: sorted(Pairs((v * 2, 1) for v in n)),
    "zip": lambda n: sorted(zip((v * 2 for v in n), n)),
    "text": lambda n: ",".join(str(v * 2) for v in n),
    "lengths": lambda n: (list(range(int(abs(n[0] * 2)))), [1] * int(abs(n[1] * 2)), bytes(int(abs(v * 2)) for v in n)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TAKEN)
def test_numbers_of_a_tensor_that_c_code_takes_from_an_iterator(name, dynamic):
    """Orders, lengths and outcomes are those of this call's numbers."""

    def fn(x):
        return TAKEN[name]([v.item() for v in x]), TAKEN[name](x.tolist()), x + 1

    compiled = ccompile.compile(fn, dynamic=dynamic)
    with torch.no_grad():
        for numbers in [(1, 2, 3), (3, 1, 2), (2, 5, -1), (0, 0, 7), (2, 1, 3), (1, 2, 3), (-4, 9, 1), (3, 1, 2)] * 2:
            x = torch.tensor(numbers, dtype=torch.float32)
            (a, b, y), (c, d, z) = compiled(x), fn(x)
            assert repr((a, b)) == repr((c, d)) and torch.equal(y, z)


def split_at(x):
    k = int(x.sum().item()) % 5 + 1
    return [part.sum() for part in x.split([k, 32 - k])]


def looked_at_twice(x):
    v = x.sum().item()
    y = x * v
    return y * int(v)


def by_its_count(x):
    places = (x > 0.5).nonzero()
    return x / places.shape[0], places[: places.shape[0] // 2]


READ = {
    "int": lambda x: x * int(x.sum().item()),
    "float": lambda x: x * float(x.sum().item()),
    "round": lambda x: x * round(x.sum().item()),
    "floor": lambda x: x * math.floor(x.sum().item()),
    "sqrt": lambda x: x * math.sqrt(x.sum().item()),
    "abs": lambda x: x * abs(x.sum().item()),
    "max": lambda x: x * max(x.sum().item(), 1.0),
    "index": lambda x: x[: int(x.sum().item()) % 7 + 1],
    "compared": lambda x: x if int(x.sum().item()) > 10**6 else x * 2,
    "split": split_at,
    "twice": looked_at_twice,
    "count": lambda x: (x > 0.5).nonzero().shape[0],
    "counted": by_its_count,
    "selected": lambda x: x[x > 0.5] * x[x > 0.5].shape[0],
    "size": lambda x: x[x > 0.5].size(0) + x.shape[1],
    "numel": lambda x: torch.zeros(x[x > 0.5].numel()) + 1,
    "length": lambda x: x * len(x[x > 0.5]),
}


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_numbers_that_a_break_gave_become_symbolic(name):
    """Those that Python code looks at, and the sizes of what was selected: no recording for each of them."""
    compiled = ccompile.compile(READ[name])
    before = ccompile.counters()["recording"]
    for seed in range(12):
        x = torch.rand(32, 32, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), READ[name](x))
    assert ccompile.counters()["recording"] - before <= 5


def by_keyword(value):
    return value


def united(a, b):
    a |= b
    return a


def move_last(o, last):
    o.move_to_end("a", last=last)
    return o


def changed(o, how, *args):
    getattr(o, how)(*args)
    return o


KEEPERS = {
    "dict": lambda v: dict(a=v)["a"],
    "dict and None": lambda v: dict(a=v, n=None)["a"],
    "dict and a function": lambda v: dict(a=v, n=len)["a"],
    "dict of a dict": lambda v: dict({"b": 1}, a=v)["a"],
    "dict of pairs": lambda v: dict([("a", v)])["a"],
    "OrderedDict": lambda v: collections.OrderedDict(a=v, n=None)["a"],
    "defaultdict": lambda v: collections.defaultdict(list, a=v)["a"],
    "SimpleNamespace": lambda v: types.SimpleNamespace(a=v, n=None).a,
    "keyword arguments": lambda v: by_keyword(**dict(value=v)),
    "partial": lambda v: functools.partial(by_keyword, value=v)(),
    "union": lambda v: ({"b": 1} | {"a": v, "c": v})["a"],
    "union in place": lambda v: united({"b": v}, {"a": v})["a"],
    "setdefault": lambda v: {"b": v}.setdefault("a", v),
    "setdefault of what is there": lambda v: {"a": v}.setdefault("a", 1),
    "setdefault of an OrderedDict": lambda v: collections.OrderedDict(b=v).setdefault("a", v),
    "fromkeys": lambda v: dict.fromkeys("ab", v)["a"],
    "move_to_end": lambda v: changed(collections.OrderedDict(a=v, b=1), "move_to_end", "a")["a"],
    "insert": lambda v: changed([1, 2], "insert", 1, v)[1],
    "reverse": lambda v: changed([1, v], "reverse")[0],
    "repeated": lambda v: ([1, v] * 2)[3] + (2 * (v, 1))[0],
    "insert in a deque": lambda v: changed(collections.deque([v]), "insert", 0, v)[0],
    "rotate": lambda v: changed(collections.deque([1, v, 2]), "rotate", 1)[2],
    "reverse of a deque": lambda v: changed(collections.deque([1, v]), "reverse")[0],
}


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("use", ["operand", "size"])
@pytest.mark.parametrize("name", KEEPERS)
@torch.no_grad()
def test_numbers_stay_symbolic_in_what_only_keeps_them(name, use):
    """Random augmentations give their parameters to the next function as a dict: no recording for each of them."""
    keep = KEEPERS[name]

    def fn(x, t):
        v = keep(t.item())
        return x * v if use == "operand" else x[v:] * 2

    compiled = ccompile.compile(fn)
    before = ccompile.counters()["recording"]
    for i in range(12):
        x, t = torch.arange(40.0), torch.tensor(1.5 + i if use == "operand" else 3 + i)
        assert torch.equal(compiled(x, t), fn(x, t))
    assert ccompile.counters()["recording"] - before <= 4


KEYED = {
    "place of insert": lambda v: changed([1, 2, 3], "insert", int(v), v),
    "place in a deque": lambda v: list(changed(collections.deque([1, 2, 3]), "insert", int(v), v)),
    "turns": lambda v: list(changed(collections.deque([1, 2, v]), "rotate", int(v))),
    "times": lambda v: [1, v] * int(v),
    "key of setdefault": lambda v: changed({5.5: 1}, "setdefault", v, v),
    "which end": lambda v: list(changed(collections.OrderedDict(a=v, b=1), "move_to_end", "a", v - 4)),
    "which end by keyword": lambda v: list(move_last(collections.OrderedDict(a=v, b=1), v - 4)),
    "united keys": lambda v: {v: 1} | {5.5: 2, 4: v},
    "keys of keys": lambda v: dict.fromkeys((v, 4), v),
    "a key": lambda v: dict([(v, "a")]),
    "a key that is there": lambda v: dict({4: "a", 5.5: "b"}, n=v).get(v),
    "equal keys": lambda v: dict([(v, "a"), (4, "b"), (5.5, "c")]),
    "equal keys of tuples": lambda v: dict(((v, "a"), (5.5, "b"))),
    "equal computed keys": lambda v: dict([(v * 2, "a"), (v + 4, "b"), (8, "c")]),
    "equal keys of a zip": lambda v: dict(zip([v, 5.5], "ab")),
    "equal keys of keys": lambda v: dict.fromkeys([v, 5.5]),
    "equal dicts": lambda v: dict(a=v) == dict(a=4),
    "equal namespaces": lambda v: types.SimpleNamespace(a=v) == types.SimpleNamespace(a=5.5),
    "text": lambda v: str(dict(a=v)) + repr(types.SimpleNamespace(a=v)) + str(collections.OrderedDict(a=v)),
    "hash": lambda v: {tuple(dict(a=v).items()): 1},
    "type": lambda v: type(dict(a=v)["a"]).__name__,
}


@pytest.mark.parametrize("name", KEYED)
@torch.no_grad()
def test_what_looks_at_kept_numbers_sees_them(name):
    look = KEYED[name]

    def fn(x, t):
        return look(t.item()), x + 1

    compiled = ccompile.compile(fn)
    for value in [4, 5.5, 4, 7, -0.0, 0, 0.0, 5.5, 4.0, 1]:
        x, t = torch.arange(3.0), torch.tensor(value)
        (got, y), (want, z) = compiled(x, t), fn(x, t)
        assert repr(got) == repr(want) and torch.equal(y, z)


def through(x, sizes):
    for v in sizes:
        x = x * v
    return x


def unpacked(x, sizes):
    h, w = sizes
    return x * h + w


def nested(x, sizes):
    (a, b), c = sizes
    return x * a + b * c


def some_and_rest(x, sizes):
    first, *rest, last = sizes
    return x * first - last, rest


TUPLES = {
    "unpack": (unpacked, lambda i: (i * 0.5, i)),
    "equal": (unpacked, lambda i: (i + 3, i + 3)),
    "one-differs": (unpacked, lambda i: (2.5, i * 0.5)),
    "list": (unpacked, lambda i: [i * 0.5, i]),
    "nested": (nested, lambda i: ((i * 0.5, i), i + 0.25)),
    "starred": (some_and_rest, lambda i: (i * 0.5, 3, 4, i * 0.25)),
    "index": (lambda x, t: x * t[0] + t[-1], lambda i: (i * 0.5, i * 0.25)),
    "loop": (through, lambda i: (i * 0.5, 2.0)),
    "comprehension": (lambda x, t: [x * v for v in t], lambda i: (i * 0.5, i * 0.25)),
    "zip": (lambda x, t: [x * v for v, _ in zip(t, "ab")], lambda i: (i * 0.5, i * 0.25)),
    "star": (lambda x, t: x.expand(*t) * 2, lambda i: (2 + i, 4)),
    "size": (lambda x, t: F.interpolate(x.view(1, 1, 2, 2), size=t), lambda i: (2, 3 + i)),
    "with-a-tensor": (lambda x, t: t[0] * t[1] + x, lambda i: (torch.ones(4), i * 0.5)),
}


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("name", TUPLES)
@torch.no_grad()
def test_numbers_in_tuples_become_symbolic(name):
    fn, make = TUPLES[name]
    compiled = ccompile.compile(fn)
    before = ccompile.counters()["recording"] + ccompile.counters()["recompile"]
    for i in range(8):
        x = torch.randn(4, generator=torch.Generator().manual_seed(i))
        want, got = fn(x, make(i)), compiled(x, make(i))
        torch.testing.assert_close(got, want)
    assert ccompile.counters()["recording"] + ccompile.counters()["recompile"] - before <= 4


# A float that a break gave meets one that the call before left: (the state, what becomes of it with a number v).
RUNNING = {
    "average": (0.0, lambda s, v: 0.9 * s + 0.1 * v),
    "other way round": (0.0, lambda s, v: 0.1 * v + 0.9 * s),
    "sum": (1.0, lambda s, v: s + v * v),
    "largest": (0.0, lambda s, v: max(s, v * 2)),
    "two of them": (1.0, lambda s, v: (s + v * 0.5) / (1.0 + v * 0.25)),
    "power": (1.0, lambda s, v: (v * 0.5) ** 2 + s),
}


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("name", RUNNING)
@torch.no_grad()
def test_running_numbers_become_symbolic(name):
    first, step = RUNNING[name]

    def make():
        state = {"s": first}

        def fn(x, t):
            state["s"] = step(state["s"], t.item())
            return x * state["s"]

        return fn, state

    (eager, wanted), (fn, state) = make(), make()
    compiled = ccompile.compile(fn)
    before = ccompile.counters()["recording"] + ccompile.counters()["recompile"]
    for i in range(16):
        args = torch.arange(4.0) + i, torch.tensor(0.5 + i)
        torch.testing.assert_close(compiled(*args), eager(*args))
        assert state == wanted
    assert ccompile.counters()["recording"] + ccompile.counters()["recompile"] - before <= 6


@pytest.mark.skipif(EAGER, reason="counts plans")
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels last"])
def test_a_power_of_a_varying_number_has_known_sizes(layout):
    """torch lays the result out contiguously, whatever the exponent's strides are; the kernel takes the number as an argument."""
    x = torch.rand(2, 3, 4, 5)
    x = (
        x.transpose(1, 3)
        if layout == "transposed"
        else x.to(memory_format=torch.channels_last)
        if "last" in layout
        else x
    )
    compiled = ccompile.compile(lambda x, base: torch.pow(base, x))
    for i in range(8):
        got, want = compiled(x, 0.5 + i), torch.pow(0.5 + i, x)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    told = [e.text for e in ccompile.events() if e.kind == "new_shape"]
    assert not [text for text in told if "no rule" in text]


# ---- a count among constants ---------------------------------------------------------------------------------------------
CONTAINERS = {
    "tuple": (30, 80),
    "list": [30, 80, 80],
    "set": {30, 80},
    "frozenset": frozenset({30, 80}),
    "dict": {30: "a", 80: "b", "x": 1, None: 2},
    "counter": collections.Counter([30, 80, 80]),
    "view": {30: "a", 80: "b"}.keys(),
    "nan": (30.0, 80.5, math.nan),
}
PINNED = {"view", "nan"}  # the count becomes a constant


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_count_that_is_not_among_constants_stays_a_symbol(name, negated):
    """`epoch in milestones`, as learning-rate schedulers ask."""
    state, milestones = types.SimpleNamespace(n=0), CONTAINERS[name]

    def fn(x):
        state.n += 1
        found = state.n not in milestones if negated else state.n in milestones
        return x * state.n if found is not negated else x + 1

    def run(call):
        state.n = 0
        return [call(torch.ones(1)).item() for _ in range(100)]

    compiled = ccompile.compile(fn)
    assert run(compiled) == run(fn)
    assert EAGER or name in PINNED or compiled_of(compiled).report()["recordings"] <= 4


def test_the_constants_are_guarded():
    state, milestones = types.SimpleNamespace(n=0), [30, 80]

    def fn(x):
        state.n += 1
        return x * 2 if state.n in milestones else x + state.n

    def run(call):
        state.n, milestones[:] = 0, [30, 80]
        out = []
        for i in range(40):
            if i == 10:
                milestones.append(12)
            if i == 20:
                milestones[0] = 22
            out.append(call(torch.ones(1)).item())
        return out

    assert run(ccompile.compile(fn)) == run(fn)


@pytest.mark.parametrize("of", [tuple, list])
@pytest.mark.parametrize("taken", [slice(2), slice(-2, None), slice(None, None, 2), slice(5, 9), slice(1, None, -1)])
def test_a_slice_depends_on_the_items_that_it_takes(of, taken):
    state = types.SimpleNamespace()

    def fn(x):
        for v in state.items[taken]:
            x = x * 2 + v
        return x

    def run(call):
        out = []
        for i in range(12):
            state.items = of(
                ["a", "b", "c", "d"][k] if k == i % 4 and i > 8 else k * (i > 4) for k in range(4 + (i == 7))
            )
            out.append(outcome_of(call, torch.ones(1)))
        return out

    def outcome_of(call, x):
        try:
            return call(x).item()
        except TypeError as e:
            return str(e)

    assert run(ccompile.compile(fn)) == run(fn)


def test_a_slice_of_the_first_items_of_a_growing_list():
    """Neither the length nor what lies behind is guarded, as long as all items are there."""
    items = []

    def fn(x):
        items.append(len(items) * 1.5)
        for v in items[1:5:2]:
            x = x + v
        return x * len(items[:2])

    def run(call):
        out = []
        for i in range(24):
            if i == 15:
                del items[3:]
            if i == 20:
                items[1] = 7.25
            out.append(call(torch.ones(2)).tolist())
        items.clear()
        return out

    compiled = ccompile.compile(fn)
    assert run(compiled) == run(fn)


def test_an_item_that_a_slice_leaves_out_may_differ():
    state = types.SimpleNamespace(items=(1, 2, "first"))

    def fn(x):
        first, second = state.items[:2]
        return x * first + second

    compiled, x = ccompile.compile(fn), torch.ones(2)
    compiled(x)
    for text in ("a", "b", None, 4.0):
        state.items = (1, 2, text)
        assert torch.equal(compiled(x), fn(x))
    assert EAGER or compiled_of(compiled).report()["recordings"] == 1


def wrapped(fn):
    @functools.wraps(fn)
    def call(*args, **kw):
        return fn(*args, **kw)

    return call


def keeping_the_first(fn):
    def call(first, *rest, last=0, **kw):
        return fn(first, *rest, **kw), len(rest), sum(rest), kw, last

    return call


def scaled(k, m=2, *, n=3.0):
    x = torch.ones(16, 2)
    return x[k] * m + n, x[: k + 1], (k, m, n)


def sized(size):
    return torch.ones(size) + 1


class Scaled(nn.Module):
    def forward(self, k):
        return torch.ones(16, 2)[k] * k


PASSED_ON = {
    "no_grad": (torch.no_grad()(scaled), lambda i: ((i,), {})),
    "positional": (wrapped(scaled), lambda i: ((i, i / 2), {})),
    "by name": (wrapped(scaled), lambda i: ((), {"k": i, "n": i / 3})),
    "rest": (keeping_the_first(scaled), lambda i: ((i, i * 2), {"n": i / 3})),
    "keyword only": (keeping_the_first(scaled), lambda i: ((i,), {"last": i, "m": i})),
    "tuple": (wrapped(sized), lambda i: (((i, 3),), {})),
    "torch.Size by name": (wrapped(sized), lambda i: ((), {"size": torch.Size((3, i))})),
    "a module's call": (Scaled(), lambda i: ((i,), {})),
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_numbers_in_args_and_kwargs_become_symbolic(name):
    fn, make = PASSED_ON[name]
    compiled = ccompile.compile(fn)
    for i in range(1, 15):
        args, kw = make(i)
        assert repr(compiled(*args, **kw)) == repr(fn(*args, **kw)), i
    assert EAGER or compiled_of(compiled).report()["recordings"] <= 3


GIVEN = {
    "list": lambda k: [0] * k,
    "dict": lambda k: {str(i): i for i in range(k)},
    "nested": lambda k: [[k], {"a": [k] * k}],
}


def returned(x, given):
    return x * 2, given


def within(x, given):
    return [x * 2, {"a": given}]


def stored(x, given, o=types.SimpleNamespace()):
    o.given = given
    return x * 2, o.given, o.given is given


def handed_on(x, given):
    y = wrapped(returned)(x, given)
    print(end="")
    return y


def used_later(x, given):
    y = x * 2
    print(end="")
    return y, len(given)


def changed_within(x, given):
    both = [given, given]
    y = x * 2
    both[0].clear()
    print(end="")
    return y, both, both[0] is both[1], given


@pytest.mark.parametrize("use", [returned, within, stored, handed_on, used_later, changed_within], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", GIVEN)
def test_what_a_break_gave_is_guarded_when_it_is_used(name, use):
    """A list or dict that a break returns: its content has no guard while the function only passes it on."""
    give = ccompile.disable(GIVEN[name])

    def fn(x, k):
        return use(x, give(k[0]))

    compiled, x = ccompile.compile(fn), torch.ones(3)
    for i in (3, 4, 5, 6, 3, 1, 0, 9):
        assert repr(compiled(x, (i,))) == repr(fn(x, (i,)))
    if not EAGER and use in (returned, within, stored, handed_on):
        assert compiled_of(compiled).report()["recordings"] <= 2


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("of", [list, tuple])
def test_numpy_scalars_in_what_a_loop_goes_through(of):
    def literal(x):
        return [float(v) * 2 for v in [x.numpy().mean(), x.numpy().max()]]

    def loop(x):
        out = []
        for v in of([x.numpy().mean(), x.numpy().max()]):
            out.append(float(v) + 1)
        return out, x * 2

    for fn in (literal, loop):
        compiled = ccompile.compile(fn)
        for i in range(40):
            x = torch.full((3,), i + 0.5)
            assert repr(compiled(x)) == repr(fn(x))
        assert compiled_of(compiled).report()["recordings"] <= 12


def in_an_attribute(x, o):
    o.t = t = (x.numpy().mean(), 3)
    print(end="")
    return o.t is t, t, x * 2


def in_a_list(x, o):
    t = (x.numpy().mean(), x.numpy().max())
    box = [t, t]
    print(end="")
    return box[0] is t, box[0] is box[1], t[0] is box[1][0]


def stored_behind(x, o):
    t = (x.numpy().mean(), 3)
    print(end="")
    o.seen = t
    y = x * 2
    print(end="")
    return o.seen is t, y


def in_two_variables(x, o):
    t = u = (x.numpy().mean(), 3)
    print(end="")
    return t is u, t[0] is u[0], float(t[0]) + x


@pytest.mark.parametrize("fn", [in_an_attribute, in_a_list, stored_behind, in_two_variables], ids=lambda f: f.__name__)
def test_tuples_of_numpy_scalars_keep_their_identity(fn):
    compiled = ccompile.compile(fn)
    for i in range(6):
        x = torch.full((3,), i + 0.5)
        assert repr(compiled(x, types.SimpleNamespace())) == repr(fn(x, types.SimpleNamespace()))


def as_list(*a):
    return list(a)


def summed(*a):
    s = 0
    for v in a:
        s += v
    return s, a


def behind_a_break(*a, **kw):
    print(end="")
    return a, kw, max(a)


@pytest.mark.parametrize("callee", [as_list, summed, behind_a_break], ids=lambda f: f.__name__)
@pytest.mark.parametrize("of", [tuple, list])
def test_numbers_that_a_call_spreads(callee, of):
    o = types.SimpleNamespace()

    def fn():
        return callee(*o.t)

    compiled = ccompile.compile(fn)
    for i in range(1, 20):
        o.t = of((i, i / 2, i + 1))
        assert compiled() == fn()
    assert EAGER or compiled_of(compiled).report()["recordings"] <= 4


def default_of_two_breaks(x):
    def g(v, w=x.sum().item(), *, k=x.mean().item()):
        return v, w, k

    return g(1), g(1, w=2), g(1, k=3)


def defaults_set_behind_a_break(x):
    t, d = (x.sum().item(), 3), {"k": x.mean().item()}
    print(end="")

    def g(v, w, u, *, k):
        return v, w, u, k

    g.__defaults__ = t
    g.__kwdefaults__ = d
    return g(1), g(1, 2, k=4)


@pytest.mark.parametrize("fn", [default_of_two_breaks, defaults_set_behind_a_break], ids=lambda f: f.__name__)
def test_defaults_that_a_break_left(fn):
    compiled = ccompile.compile(fn)
    for i in range(1, 12):
        assert compiled(torch.full((2,), float(i))) == fn(torch.full((2,), float(i)))


AFTER_ITEM = {
    "a factor": lambda x, s: (x * s).relu() * 2,
    "a divisor": lambda x, s: (x / s + 1).sin(),
    "an exponent": lambda x, s: (x.abs() + 1) ** s,
    "from a number": lambda x, s: (s - x).tanh(),
    "alpha": lambda x, s: torch.add(x, x.sin(), alpha=s).cos(),
    "compared": lambda x, s: torch.where(x > s, x, x * 0.5),
    "of halves": lambda x, s: (x.bfloat16() * s).relu() * 2,
    "twice": lambda x, s: (x * s + s).sigmoid(),
    "also printed": lambda x, s: ((x * s).exp(), f"{s:.2f}"),
    "also compared": lambda x, s: (x * s).exp() if s > -1e9 else x,
}


LEFT_TO_TORCH = ("an exponent", "from a number", "alpha")  # that op only


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", AFTER_ITEM)
def test_a_number_that_a_break_gave_is_an_argument_of_kernels(name, grad):
    """From the first call on, so that torch runs no op; other numbers record nothing."""
    fn = lambda x: AFTER_ITEM[name](x, x.detach().abs().mean().item())  # noqa: E731
    compiled, recordings = ccompile.compile(fn, isolate_recompiles=True), []
    with torch.set_grad_enabled(grad):
        for i in range(8):
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).requires_grad_(grad)
            alike(fn(x), compiled(x), rtol=1e-4, atol=1e-5)
            recordings.append(compiled_of(compiled).report()["recordings"])
    assert recordings[2] == recordings[-1], recordings
    ops = [op.name for graph in ccompile.report.report(compiled).graphs for op, _ in graph.torch_ops]
    assert grad or name in LEFT_TO_TORCH or not ops, ops


def counted_in_place(x, state):
    if len(state) == 0:
        state["step"] = 0
    state["step"] += 1
    return x * (1 - 0.9 ** state["step"])


def counted_in_list(x, items):
    n = len(items)
    items[0] += 1
    return x * items[0] + n


@pytest.mark.parametrize(("fn", "make"), [(counted_in_place, dict), (counted_in_list, lambda: [0, "a"])])
def test_len_leaves_items_free_to_vary(fn, make):
    """len() reads no item: the count that hand-written optimisers keep in a dict or list may vary."""
    compiled, ours, theirs = ccompile.compile(fn), make(), make()
    for i in range(10):
        x = tensor(torch.float32, 4, seed=i)
        alike(fn(x, theirs), compiled(x, ours))
        assert ours == theirs
    report = compiled_of(compiled).report()
    assert EAGER or (report["recordings"] <= 3 and not report["breaks_seen"])


@pytest.mark.parametrize("first", [lambda x, n: x.sum().item(), lambda x, n: n, lambda x, n: f"step {n}"], ids=["float", "int", "text"])
def test_beside_a_numpy_scalar_behind_a_break(first):
    """A tuple, or a list that becomes one, of numbers that vary and a numpy scalar, at a break."""
    def fn(x, n):
        kept = (first(x, n), np.mean([1.0, 2.0]), "a")
        print(end="")
        return kept, [first(x, n), np.mean([3.0])]

    compiled = ccompile.compile(fn)
    for i in range(10):
        x = tensor(torch.float32, 4, seed=i)
        alike(fn(x, i), compiled(x, i))
    assert EAGER or compiled_of(compiled).report()["recordings"] <= 4

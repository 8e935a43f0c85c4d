"""numpy scalars that vary between calls: as arguments, attributes and items, and behind a graph break.

torch reads one as the Python number of its value where a tensor is among the operands, and numpy's own arithmetic keeps numpy's
types; both are computed anew in each call, and whatever else reads one depends on its value."""

import math
import types
import warnings

import ccompile
import numpy as np
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, alike

pytestmark = [
    pytest.mark.skipif(EAGER, reason="needs the product"),
    pytest.mark.filterwarnings("ignore:ccompile.*recompile_limit"),
    pytest.mark.filterwarnings("ignore:(overflow|invalid|divide).*:RuntimeWarning"),
]
X = torch.arange(6.0).reshape(2, 3)
KINDS = [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8]


def behind_a_break(x, a):
    b = a + 1
    torch._dynamo.graph_break()
    return x * b, b


# recorded at most three times: once for each kind of path
FREE = {
    "times": lambda x, a: x * a,
    "numpy first": lambda x, a: a * x,
    "arithmetic": lambda x, a: x * (a * 2 + 1) - a / 4,
    "two kinds": lambda x, a: x * (a * np.float32(2) + np.float64(1)),
    "returned": lambda x, a: (a, a + 1, a * np.float32(1.5), -a, abs(a), a**2, a / 2, a // 2, a % 2),
    "item": lambda x, a: x * a.item(),
    "as float": lambda x, a: x * float(a),
    "math": lambda x, a: x * math.exp(-a),
    "numpy's": lambda x, a: x * np.sqrt(a),
    "list": lambda x, a: [x * v for v in [a, a + 1]],
    "tensor": lambda x, a: (torch.tensor(a), torch.as_tensor(a), torch.full((2,), a)),
    "keyword": lambda x, a: torch.add(x, x, alpha=a),
    "clamp": lambda x, a: x.clamp(max=a),
    "where": lambda x, a: torch.where(x > 2, a, x),
    "in place": lambda x, a: x.clone().mul_(a).add_(a),
    "power": lambda x, a: (x + 1) ** a,
    "compared": lambda x, a: x < a,
    "ints": lambda x, a: x.long() * a,
    "bools": lambda x, a: (x > 1) * a,
    "no dims": lambda x, a: (x.sum() * a, a * x.sum()),
    "half": lambda x, a: x.half() * a,
    "stored": lambda x, a: setattr(HOLDER, "v", a) or x * HOLDER.v,
    "behind a break": behind_a_break,
}
HOLDER = types.SimpleNamespace()
# these depend on the value in other ways: only the results are compared
READ = {
    "branch": lambda x, a: x * 2 if a > 3 else x + a,
    "comparisons": lambda x, a: (a > 3, a == 2, a != 2.0, a <= np.float64(4), bool(a), not a),
    "extremes": lambda x, a: (min(a, 4), max(a, 2), sorted([a, 3.0])),
    "texts": lambda x, a: (f"{a}", f"{a:.2f}", str(a), repr(a), "%s" % a),  # noqa: UP031
    "types": lambda x, a: (isinstance(a, float), isinstance(a, int), type(a), a.dtype, a.real),
    "keys": lambda x, a: ({2: "two"}.get(a), {a: 1}, a in (2, 3), hash(a)),
    "index": lambda x, a: x[int(a)] if 0 <= a < 2 else x,
    "size": lambda x, a: x.repeat(a, 1) if isinstance(a, np.integer) and 0 < a < 5 else x,
    "range": lambda x, a: torch.arange(a) if 0 < a < 9 else x,
    "array": lambda x, a: torch.from_numpy(np.array([a, 1.0])),
}


def values(kind):
    few = [2, 3, 7, 4, 1, 0, 6, 2, 8, 100, 9, 10, 11, 5]
    odd = [5.5, -3, 3.25, math.inf, math.nan, -0.0, 1e30] if issubclass(kind, np.floating) else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return [kind(v) for v in few + odd]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", FREE)
def test_a_new_value_costs_no_recording(name, kind):
    fn = ccompile.compile(FREE[name], isolate_recompiles=True)
    for i, a in enumerate(values(kind)):
        alike(FREE[name](X, a), fn(X, a))
        if i == 10:
            limit = 6 if name == "behind a break" else 3
            assert compiled_of(fn).report()["recordings"] <= limit


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", READ)
def test_what_depends_on_the_value_is_eagers(name, kind):
    fn = ccompile.compile(READ[name], isolate_recompiles=True)
    for a in [*values(kind), *values(kind)]:
        alike(READ[name](X, a), fn(X, a))


def test_other_types_in_its_place():
    fn = ccompile.compile(FREE["arithmetic"])
    for a in (np.float64(2), np.float64(3), np.float32(3), 3, 2.5, np.int64(7), True, np.float64(4), torch.tensor(2.0)):
        alike(FREE["arithmetic"](X, a), fn(X, a))


PLACES = {
    "attribute": (lambda x, o: x * o.v, lambda a: types.SimpleNamespace(v=a)),
    "list": (lambda x, o: x * o[0] + o[1], lambda a: [a, a + 1]),
    "tuple": (lambda x, o: x * o[0] + o[1], lambda a: (a, a + 1)),
    "dict": (lambda x, o: x * o["k"], lambda a: {"k": a}),
    "items": (lambda x, o: [x * v for v in o.values()], lambda a: {"k": a, "l": a * 2}),
}


@pytest.mark.parametrize("place", PLACES)
def test_places(place):
    f, make = PLACES[place]
    fn = ccompile.compile(f)
    for i in range(12):
        alike(f(X, make(np.float64(i + 0.5))), fn(X, make(np.float64(i + 0.5))))
    assert compiled_of(fn).report()["recordings"] <= 4


def test_beside_a_size_that_varies_and_with_gradients():
    def f(x, a, n):
        return (x[:n] * a + n).sum()

    fn = ccompile.compile(f)
    for i in range(10):
        grads = []
        for g in (f, fn):
            x = torch.randn(4 + i, 3, generator=torch.Generator().manual_seed(i)).requires_grad_()
            g(x, np.float32(i + 0.5), i + 2).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
    assert compiled_of(fn).report()["recordings"] <= 3


def test_numpys_error_state_is_that_of_the_call():
    def f(x, a):
        return x * float(a * a)

    fn, outcomes = ccompile.compile(f), []
    for v in (2, 3, 300, 4):
        for how in ("ignore", "raise"):
            for g in (f, fn):
                with np.errstate(all=how):
                    try:
                        outcomes.append(g(X, np.float16(v))[1].tolist())
                    except FloatingPointError as e:
                        outcomes.append(str(e))
    assert outcomes[::2] == outcomes[1::2] and sum(isinstance(o, str) for o in outcomes) == 2

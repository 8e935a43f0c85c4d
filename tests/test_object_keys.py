"""Dicts and sets from outside whose keys are tuples or objects (modules): looked up, looked through and compared without a
break, and guarded: contents, order and identity may change from call to call."""

import ccompile
import pytest
import torch
from ccompile.api import compiled_of

X = torch.ones(2)


class Thing:
    def __init__(self, scale=1.0):
        self.scale = scale


class Equal:
    """Compares by value: no guard knows how."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, Equal) and self.n == other.n

    def __hash__(self):
        return hash(self.n)


def same(got, want):
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif type(want) in (list, tuple):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want):
            same(a, b)
    elif type(want) is dict:
        same(list(got.items()), list(want.items()))
    else:
        assert type(got) is type(want) and (got == want or got is want)


def as_texts(x, d):
    return x * len(list(map(str, d))), list(map(str, d))


def looped(x, d):
    for k in d:
        x = x * 2 + k[0]
    return x


def by_items(x, d):
    for (a, b), v in d.items():
        x = x * a + b * v
    return x


def listed(x, d):
    return x + 1, list(d), [str(k) for k in d], tuple(d.values())


def copied(x, d):
    return x, dict(d), {k: v * 2 for k, v in d.items()}


def looked_up(x, d):
    return x * d[(1, 2)], (1, 2) in d, (9, 9) in d, d.get((4, 5)), len(d)


def in_order(x, d):
    return x, sorted(d), max(d), d == {(1, 2): 3, (4, 5): 6}


TUPLES = [as_texts, looped, by_items, listed, copied, looked_up, in_order]


@pytest.mark.parametrize("f", TUPLES, ids=lambda f: f.__name__)
def test_tuples(f):
    g = ccompile.compile(f)
    d = {(1, 2): 3, (4, 5): 6}
    for _ in range(3):
        same(g(X, d), f(X, d))
    report = compiled_of(g).report()
    assert report["breaks_seen"] == [] and report["recordings"] == 1
    contents = [
        {(4, 5): 6, (1, 2): 3},
        {(1, 2): 3},
        {(1, 2): 3, (4, 5): 7},
        {(1, 2): 3, (4, 6): 6},
        {(1, 2): 3, (4.0, 5): 6},
        {(1, 2): 3, (True, 5): 6},
        {(1, 2): 3, (4, 5): 6, (7, 8): 9},
    ]
    for content in [d, *contents, d, *contents]:
        made = {tuple(list(k)): v for k, v in content.items()}  # other objects
        same(g(X, made), f(X, made))
        d.clear()
        d.update(made)
        same(g(X, d), f(X, d))


def test_identity_of_keys():
    def f(x, d):
        keys = list(d)
        return x + 1, keys[0], keys[0] is keys[1][1]

    g = ccompile.compile(f)
    for i in range(4):
        a = tuple([1, i // 2])
        for d in ({a: 1, (2, a): 2}, {a: 1, (2, tuple(list(a))): 2}):
            got, want = g(X, d), f(X, d)
            assert got[1] is want[1] and got[2] == want[2]


def test_texts_in_nested_tuples():
    def f(x, d):
        return [x * v for (name, (a, b)), v in d.items() if name == "w"], [f"{k}" for k in d]

    g = ccompile.compile(f)
    for v in (1, 2, 1):
        d = {("w", (1, 2)): v, ("b", (1, None)): 2}
        same(g(X, d), f(X, d))
    assert compiled_of(g).report()["breaks_seen"] == []


def test_a_dict_that_changes_behind_a_break():
    def f(x, d):
        for k in d:
            x = x + k[1]
        d[(7, 7)] = x.sum().item()
        for k in d:
            x = x * (1 + k[0])
        return x

    g = ccompile.compile(f)
    for _ in range(4):
        a, b = {(1, 2): 1}, {(1, 2): 1}
        same(g(X, a), f(X, b))
        same(a, b)


def test_modules_as_keys():
    one, two, other = Thing(2.0), Thing(3.0), Thing(4.0)
    d = {one: 1, two: 2}

    def f(x, m):
        return x * d.get(m, 7), m in d, [k.scale for k in d], [k is m for k in d]

    def read(x, m):
        return x * d[m]

    g, h = ccompile.compile(f), ccompile.compile(read)
    for _ in range(3):
        for m in (one, two, other):
            same(g(X, m), f(X, m))
            if m in d:
                same(h(X, m), read(X, m))
    assert compiled_of(g).report()["breaks_seen"] == compiled_of(h).report()["breaks_seen"] == []
    with pytest.raises(KeyError):
        h(X, other)
    d[other] = 5
    del d[one]
    d[one] = 6  # another order
    for m in (one, two, other, one):
        same(g(X, m), f(X, m))
        same(h(X, m), read(X, m))


@pytest.mark.parametrize("kind", [set, frozenset])
def test_members_of_sets(kind):
    things = [Thing(i) for i in range(4)]
    owner = Thing()
    owner.some = kind(things[:2])

    def f(x):
        for t in things:
            if t in owner.some:
                x = x + t.scale + 1
        return x, [t not in owner.some for t in things]

    g = ccompile.compile(f)
    for _ in range(3):
        same(g(X), f(X))
    report = compiled_of(g).report()
    assert report["breaks_seen"] == [] and report["recordings"] == 1
    for members in (things[1:], [], things[:1], [Thing(0.0)], things, [*things[:2], 5, "text"]):
        owner.some = kind(members)
        same(g(X), f(X))
        same(g(X), f(X))


def test_a_set_written_in_the_call():
    things = [Thing(i) for i in range(3)]
    some = set()

    def f(x):
        for t in things:
            if t not in some:
                x = x + 1
                some.add(t)
            if t in some:
                x = x * 2
        return x

    g = ccompile.compile(f)
    for n in (0, 0, 2, 0, 1):
        some.clear()
        some.update(things[:n])
        want = f(X)
        some.clear()
        some.update(things[:n])
        same(g(X), want)
        assert some == set(things)


def test_members_that_compare_by_value():
    things = [Thing(), Equal(3)]
    some = {*things, Equal(4)}

    def f(x, n):
        return x + 1, things[0] in some, Equal(n) in some, things[1] in some

    g = ccompile.compile(f)
    for n in (3, 4, 5, 3):
        same(g(X, n), f(X, n))


def test_a_hash_that_is_patched():
    class Local:
        pass

    a, b = Local(), Local()
    some, d = {a}, {a: 1}

    def f(x):
        return x + 1, a in some, b in some, d.get(b), b in d

    g = ccompile.compile(f)
    for _ in range(3):
        same(g(X), f(X))
    Local.__hash__ = lambda self: hash("all")
    Local.__eq__ = lambda self, other: True
    some.clear()
    some.add(a)
    d.clear()
    d[a] = 1
    for _ in range(3):
        same(g(X), f(X))


def test_tuples_in_sets():
    some = {(1, 2), (3, 4)}

    def f(x):
        return x * ((1, 2) in some) + ((5, 6) in some), len(some)

    g = ccompile.compile(f)
    for members in ([(1, 2), (3, 4)], [(3, 4), (1, 2)], [(5, 6)], [], [(1.0, 2), (5, 6)]):
        some.clear()
        some.update(members)
        for _ in range(2):
            same(g(X), f(X))
    assert compiled_of(g).report()["breaks_seen"] == []


def test_to_the_same_device():
    layers = [torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2).eval(), torch.nn.ReLU()]
    used = set(layers[:2])

    def f(x):
        for layer in layers:
            layer = layer.to("cpu")
            if layer in used:
                x = layer(x)
        return x

    g = ccompile.compile(f)
    x = torch.randn(3, 2, requires_grad=True)
    for _ in range(3):
        before = [(p, p.data_ptr(), p._version) for m in layers for p in [*m.parameters(), *m.buffers()]]
        same(g(x), f(x))
        assert [(p, p.data_ptr(), p._version) for p, _, _ in before] == before
        got, = torch.autograd.grad(g(x).sum(), x)
        want, = torch.autograd.grad(f(x).sum(), x)
        same(got, want)
    assert compiled_of(g).report()["breaks_seen"] == []
    layers[0].double()
    with pytest.raises(RuntimeError):
        f(x)
    with pytest.raises(RuntimeError):
        g(x)
    y = x.double()
    used.discard(layers[1])
    for _ in range(2):
        same(g(y), f(y))


def test_to_another_dtype():
    layer = torch.nn.Linear(2, 2)

    def f(x, dtype):
        layer.to(dtype)
        return layer(x.to(dtype))

    g = ccompile.compile(f)
    weight, bias = layer.weight.data.clone(), layer.bias.data.clone()
    for dtype in (torch.float32, torch.float64, torch.float64, torch.float32, torch.float32):
        want = f(X, dtype)
        layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
        got = g(X, dtype)
        same(got, want)
        assert got.dtype == dtype and layer.weight.dtype == dtype
        layer.weight.data, layer.bias.data = weight.clone(), bias.clone()


def test_many_keys():
    """More than are guarded by their places: they are guarded by their values."""

    def f(x, d):
        for k in d:
            x = x + k[1]
        return x

    g = ccompile.compile(f)
    for n, k in ((100, 1), (100, 1), (101, 1), (100, 2), (100, 1.5)):
        d = {(i, k): i for i in range(n)}
        same(g(X, d), f(X, d))
    assert compiled_of(g).report()["breaks_seen"] == []

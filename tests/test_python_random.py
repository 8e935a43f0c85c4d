"""random.random(), uniform(), randint() and randrange() in compiled functions: no break, and the stream of Python's generator is eager's: also
where the number decides what Python code does, where the call raises, and where a guard fails."""

import math
import random

import ccompile
import pytest
import torch
from ccompile.api import compiled_of

OWN = random.Random(5)


def scaled(x):
    return x * random.random() + 1


def moved(x):
    return x + random.uniform(-2, 3)


def computed(x):
    r = 2 * random.random() - 1
    return (x * r).sin() + r * r, r


def several(x):
    a, b = random.random(), random.random()
    return x * a - b, random.uniform(a, b)


def own_generator(x):
    return x * OWN.random() + random.random()


def as_scalars(x):
    r = random.random()
    return torch.full((3,), r) + x.clamp(max=r) + torch.lerp(x, x * 2, r) + torch.tensor([r, 1.0, r])


def looped(x):
    for _ in range(4):
        x = x * 0.5 + random.random()
    return x


def kept(x):
    return {"r": random.random(), "list": [random.random()], "y": x * 2}


def as_text(x):
    return x + 1, f"{random.random():.3f}"


def with_torchs(x):
    return x * random.random() + torch.rand(3) * random.uniform(0, 1)


def first_draw(x):
    r = random.random
    return r() * x.cos()


WHOLE = [scaled, moved, computed, several, own_generator, as_scalars, looped, kept, as_text, with_torchs, first_draw]


def decides(x):
    if random.random() < 0.5:
        return x * 2
    return x - random.random()


def layers_dropped(x):
    for i in range(3):
        if random.uniform(0, 1) > 0.4:
            x = x * (i + 2)
    return x


def through_math(x):
    return x * math.sqrt(random.random())


def seeded(x):
    random.seed(7)
    return x * random.random()


def whole_numbers(x):
    return x * random.randint(1, 5) + random.randrange(4) + random.choice([1.0, 2.0, 3.0]) + random.gauss(0, 1)


def state_read(x):
    y = x * random.random()
    return y, random.getstate()[1][-1]


def caught(x):
    try:
        y = x * random.random()
        return y.view(5, 5)
    except RuntimeError:
        return x + random.random()


def in_parts(x):
    return x * random.random() + x.sum().item() * random.random()


BROKEN = [decides, layers_dropped, through_math, seeded, whole_numbers, state_read, caught, in_parts]


def run(f, calls=8, make=lambda i: torch.arange(3.0) + i):
    random.seed(3)
    torch.manual_seed(3)
    OWN.seed(5)
    out = []
    for i in range(calls):
        out.append((f(make(i)), random.getstate(), OWN.getstate()))
    return out


def same(a, b):
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
        return
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
        return
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    assert a == b


@pytest.mark.parametrize("f", WHOLE, ids=lambda f: f.__name__)
def test_whole(f):
    want = run(f)
    g = ccompile.compile(f)
    same(run(g), want)
    report = compiled_of(g).report()
    assert report["breaks_seen"] == [] and report["recordings"] == 1


@pytest.mark.parametrize("f", BROKEN, ids=lambda f: f.__name__)
def test_broken(f):
    want = run(f, 16)
    g = ccompile.compile(f)
    for _ in range(2):
        same(run(g, 16), want)


@pytest.mark.parametrize("f", WHOLE + BROKEN, ids=lambda f: f.__name__)
def test_other_sizes(f):
    """Symbolic sizes: torch runs the nodes of a new key once."""

    def make(i):
        return torch.arange(float(3 + (i % 4 if f not in (as_scalars, with_torchs) else 0)))

    same(run(ccompile.compile(f), 12, make), run(f, 12, make))


@pytest.mark.parametrize("f", [scaled, moved, computed, several, looped, decides, in_parts], ids=lambda f: f.__name__)
def test_training(f):
    def steps(f):
        random.seed(11)
        out = []
        for i in range(6):
            x = (torch.arange(4.0) + i).requires_grad_()
            y = f(x)
            y = y[0] if isinstance(y, tuple) else y
            y.sum().backward()
            out.append((y.detach(), x.grad, random.getstate()))
        return out

    same(steps(ccompile.compile(f)), steps(f))


def test_no_break_in_training():
    g = ccompile.compile(computed)
    for _ in range(3):
        g(torch.ones(3, requires_grad=True))[0].sum().backward()
    assert compiled_of(g).report()["breaks_seen"] == []


def test_raises_behind_a_draw():
    """The generator has moved on, as in eager."""

    def f(x, i):
        y = x * random.random()
        return y[i]

    g = ccompile.compile(f)

    def states(f):
        random.seed(1)
        out = []
        for i in (0, 1, torch.tensor(2), torch.tensor(9), torch.tensor(1)):
            try:
                out.append(f(torch.ones(3), i))
            except IndexError as e:
                out.append(str(e))
            out.append(random.getstate())
        return out

    same(states(g), states(f))
    same(states(g), states(f))


def test_guard_fails_behind_a_draw():
    scale = [2.0]

    def f(x):
        y = x * random.random()
        return y * scale[0]

    def calls(f):
        random.seed(2)
        out = []
        for value in (2.0, 2.0, 3.0, 3.0, 4.0, 2.0):
            scale[0] = value
            out.append((f(torch.ones(3)), random.getstate()))
        return out

    want = calls(f)
    same(calls(ccompile.compile(f)), want)


def test_a_patched_generator(monkeypatch):
    g = ccompile.compile(scaled)
    g(torch.ones(3))
    monkeypatch.setattr(random, "random", lambda: 0.25)
    torch.testing.assert_close(g(torch.ones(3)), torch.full((3,), 1.25))


def test_fullgraph():
    g = ccompile.compile(scaled, fullgraph=True)
    same(run(g), run(scaled))


# ---- ints: a replay draws them before its nodes run ------------------------------------------------------------------
OTHER = random.Random(6)


def scaled_by_ints(x):
    return x * random.randint(1, 5) + random.randrange(4)


def cropped(x):
    i = random.randint(0, 2)
    return x.repeat(4)[i : i + 5].sin(), i


def several_generators(x):
    return x * OWN.randint(1, 5) + OTHER.randrange(2, 20, 3) * OWN.randint(0, 100)


def floats_behind_ints(x):
    a = random.randint(0, 2)
    return x * a * random.random() + random.random()


def ints_branched_on(x):
    return x.sin() if random.randint(0, 1) else x.cos() * random.randint(0, 9)


def drawn_as_often_as_drawn(x):
    for _ in range(random.randint(0, 2)):
        x = x + random.randint(1, 3)
    return x


def indexed(x):
    return [1.0, 2.0, 3.0][random.randint(0, 2)] * x, x[random.randint(0, 2)]


def sized(x):
    n = random.randint(1, 4)
    return torch.zeros(n) + x.sum(), n


def out_of_range(x):
    try:
        return x[random.randint(0, 5)]  # torch raises in a replay: nothing may have been drawn when it runs again
    except IndexError:
        return x


def raises_out_of_range(x):
    y = x.clone()
    y[random.randint(0, 5)] = 7
    return y


def large_ints(x):
    return x + 1, random.randint(10**20, 10**21)


AHEAD = [
    scaled_by_ints,
    cropped,
    several_generators,
    floats_behind_ints,
    ints_branched_on,
    drawn_as_often_as_drawn,
    indexed,
    sized,
    large_ints,
]


def ints_behind_floats(x):
    r = random.random()
    return x * r * random.randint(1, 9)


def many_ints(x):
    return [random.randint(0, 9) for _ in range(40)], x


def around_a_break(x):
    i = random.randint(0, 2)
    print(end="")
    return x[i] * x[random.randint(0, 2)]


def run_seeded(f, calls=24):
    """Results, or the exception's class, and all streams, for a seed a call."""
    out = []
    for i in range(calls):
        for k, generator in enumerate((random, OWN, OTHER)):
            generator.seed(i + k)
        try:
            result = f(torch.arange(3.0) + i)
        except IndexError as e:
            result = type(e).__name__
        out.append((result, random.getstate(), OWN.getstate(), OTHER.getstate()))
    return out


@pytest.mark.parametrize("f", AHEAD, ids=lambda f: f.__name__)
def test_ints(f):
    g = ccompile.compile(f)
    same(run_seeded(g), run_seeded(f))
    report = compiled_of(g).report()
    assert not report["breaks_seen"] and not report["give_ups"]
    assert report["recordings"] <= 9  # each branch once, each index of a list once


RUNS_AGAIN = [ints_behind_floats, many_ints, around_a_break, out_of_range, raises_out_of_range]


@pytest.mark.parametrize("f", RUNS_AGAIN, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [None, False])
def test_ints_with_breaks(f, dynamic):
    same(run_seeded(ccompile.compile(f, dynamic=dynamic)), run_seeded(f))


def test_a_patched_generator_is_noticed():
    class Loaded(random.Random):
        def getrandbits(self, k):
            return 0

    own = random.Random(3)
    f = lambda x: x * own.randint(1, 5)  # noqa: E731
    g = ccompile.compile(f)
    for _ in range(3):
        g(torch.ones(2))
    own.getrandbits = lambda k: 2
    assert g(torch.ones(2)).tolist() == f(torch.ones(2)).tolist() == [3.0, 3.0]
    own = Loaded(3)
    assert g(torch.ones(2)).tolist() == [1.0, 1.0]


def test_a_guard_on_another_entry_puts_the_stream_back():
    def f(x, n):
        return x * random.randint(0, 9) if n > 3 else x + random.randint(0, 9) + random.randint(0, 9)

    g = ccompile.compile(f)
    for n in (1, 5, 2, 6, 3, 7, 0, 8) * 3:
        random.seed(n)
        want, state = f(torch.ones(2), n), random.getstate()
        random.seed(n)
        same((g(torch.ones(2), n), random.getstate()), (want, state))

"""random.random() and random.uniform() in compiled functions: no break, and the stream of Python's generator is eager's: also
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

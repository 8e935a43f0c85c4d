"""An op that may raise inside a try block, after ops that draw random numbers: the failing replay is repeated with the generator
restored, so the handler runs, the numbers are eager's and there is no break."""

import re

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import EAGER, breaks, same


def handled(draw):
    def fn(x, m, i):
        try:
            y = draw(x)
            return y, m[i], torch.rand(2)
        except IndexError:
            return draw(x) + 1, m, torch.rand(2)

    return fn


def finally_(draw):
    def fn(x, m, i):
        seen = []
        try:
            y = draw(x)
            return y * 2, m[i], seen
        finally:
            seen.append(float(i.sum()))

    return fn


def nested(draw):
    def inner(x, m, i):
        y = draw(x)
        return y + m[i][0]

    def fn(x, m, i):
        y = draw(x)
        try:
            y = inner(y, m, i)
        except IndexError as error:
            y = y - 1
            return y, str(error)[:20]
        return y, draw(x)

    return fn


def effects(draw):
    log = []

    def fn(x, m, i):
        log.append(1)
        try:
            y = draw(x)
            log.append(2)
            y = y + m[i][0]
            log.append(3)
        except IndexError:
            log.append(4)
            y = draw(x)
        return y, list(log)

    return fn


def second(draw):
    """What draws stands between two that may raise."""

    def fn(x, m, i):
        try:
            a = m[i * 0]
            y = draw(x)
            return y, a, m[i]
        except IndexError:
            return draw(x)

    return fn


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x * torch.randn(4, 8),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((4, 8), 0.5)),
    "randint": lambda x: x * torch.randint(0, 5, (4, 8)),
    "randperm": lambda x: x[torch.randperm(4)],
    "multinomial": lambda x: x * torch.multinomial(torch.ones(4, 8), 8),
    "generator": lambda x: x * torch.rand(4, 8, generator=OWN),
    "in place": lambda x: (x + 0).uniform_(),
    "two": lambda x: F.dropout(F.dropout(x, 0.5, True), 0.3, True),
}
OWN = torch.Generator().manual_seed(3)
SHAPES = (handled, finally_, nested, effects, second)


@pytest.mark.parametrize("no_grad", [True, False], ids=["no_grad", "grad"])
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda f: f.__name__)
def test_a_failing_replay_draws_what_eager_draws(shape, draw, no_grad):
    def make_args(i):
        where = torch.arange(4) + 3 * (i in (3, 5))  # out of range there
        return torch.full((4, 8), 1.0 + i).requires_grad_(not no_grad), torch.arange(32.0).view(4, 8), where

    def make():
        OWN.manual_seed(3)
        return shape(DRAWS[draw])

    if draw == "generator":  # both sides would share it
        eager, compiled = make(), ccompile.compile(make())
        for fn in (eager, compiled):
            OWN.manual_seed(3)
            fn.out = []
            for i in range(7):
                torch.manual_seed(i)
                try:
                    # a stage is one node of autograd's graph: its name differs
                    fn.out.append(re.sub(r"grad_fn=<\w+>", "grad_fn", repr(fn(*make_args(i)))))
                except IndexError as error:
                    fn.out.append(repr(error))
        assert eager.out == compiled.out
        return
    same(make, make_args=make_args, build=True, calls=7, raises=True, hit=False, no_grad=no_grad)


@pytest.mark.skipif(EAGER, reason="needs the product")
@pytest.mark.parametrize("draw", [d for d in DRAWS if d not in ("generator", "in place", "randperm")])
def test_no_break(draw):
    args = torch.ones(4, 8), torch.ones(4, 8), torch.arange(4)
    assert breaks(handled(DRAWS[draw]), *args).breaks == 0

"""Custom autograd.Functions under grad mode: a call whose forward accesses only its operands is part of the graph, any other
is a break; values, gradients and errors are eager's."""

import ccompile
import pytest
import torch
from conftest import EAGER, breaks, counters, same

SCALE = 2.0
LOG = []


def function(forward, backward, setup=None, **more):
    methods = {"forward": forward, "backward": backward, **({"setup_context": setup} if setup else {}), **more}
    return type("Custom", (torch.autograd.Function,), {name: staticmethod(f) for name, f in methods.items()})


def saves(ctx, a, b):
    ctx.save_for_backward(a, b)
    return a * b.sin()


def of_saved(ctx, g):
    a, b = ctx.saved_tensors
    return g * b.sin(), g * a * b.cos()


Saves = function(saves, of_saved)
Rounds = function(lambda ctx, a, s: torch.round(a * s) / s, lambda ctx, g: (g, None))
Global = function(lambda ctx, a: a * SCALE, lambda ctx, g: g * SCALE)
Alias = function(lambda ctx, a: a.view_as(a), lambda ctx, g: -g)
Same = function(lambda ctx, a: a, lambda ctx, g: g * 3)
Two = function(lambda a: (a.exp(), a * 2), lambda ctx, g, h: g * ctx.saved_tensors[0] + h * 2,
               lambda ctx, inputs, output: ctx.save_for_backward(output[0]))  # fmt: skip
Partial = function(lambda ctx, a: (ctx.set_materialize_grads(False), a * 2)[1], lambda ctx, g: None if g is None else g * 2)
Writes = function(lambda ctx, a: (ctx.mark_dirty(a), a.mul_(2))[1], lambda ctx, g: g * 2)
Draws = function(lambda ctx, a: a + torch.rand_like(a), lambda ctx, g: g)
Stores = function(lambda ctx, a, log: (log.append(len(log)), a * 2)[1], lambda ctx, g: (g * 2, None))
Logs = function(lambda ctx, a: (LOG.append(1), a * 2)[1], lambda ctx, g: g * 2)
Items = function(lambda ctx, a: (a * 2, 3), lambda ctx, g, _: g * 2)
Raises = function(lambda ctx, a: a * 2 if a.sum() < 1e6 else a @ a.new_ones(99), lambda ctx, g: g * 2)


class Methods(torch.autograd.Function):
    """As entmax's: class methods that don't look at their class."""

    @classmethod
    def forward(cls, ctx, a, scale=2.0):
        ctx.scale = scale
        ctx.save_for_backward(a.exp())
        return a.exp() * scale

    @classmethod
    def backward(cls, ctx, g):
        return g * ctx.saved_tensors[0] * ctx.scale, None


class ReadsItsClass(Methods):
    k = 3.0

    @classmethod
    def forward(cls, ctx, a):
        ctx.scale = cls.k
        ctx.save_for_backward(a.exp())
        return a.exp() * cls.k

    @classmethod
    def backward(cls, ctx, g):
        return super().backward(ctx, g)[0]


def caught(x, w):
    try:
        return Raises.apply(x @ w * 1e7).sum()
    except RuntimeError:
        return (x @ w).cos()


def scaling(k):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a.clamp(min=0) * k[0] if isinstance(k, list) else a.clamp(min=0) * k

        @staticmethod
        def backward(ctx, g):
            return g * (ctx.saved_tensors[0] > 0) * 2

    return Scaled


def helped(helper):
    class Helped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return helper(a) + 1

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Helped


def counting():
    n = 0

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            nonlocal n
            n += 1
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Counted


Scaled, ByList, Counted = scaling(2.0), scaling([2.0]), counting()
WithWrite, WithDraw = helped(lambda a: a.mul_(2)), helped(lambda a: a + torch.rand(4))

CASES = {  # function, breaks
    "a closure": (lambda x, w: Scaled.apply(x @ w) + Scaled.apply(x * w), 0),
    "a list in a closure": (lambda x, w: ByList.apply(x @ w) * 2, 1),
    "a function in a closure that writes": (lambda x, w: WithWrite.apply(y := (x @ w).detach()) + y * w, 1),
    "a function in a closure that draws": (lambda x, w: torch.rand(4) + WithDraw.apply(x @ w) + torch.rand(4), 1),
    "a count in a closure": (lambda x, w: Counted.apply(x @ w) * 2, 1),
    "saves": (lambda x, w: Saves.apply((x @ w).relu(), w) * 2 + 1, 0),
    "twice": (lambda x, w: Saves.apply(Saves.apply(x @ w, w).tanh(), w), 0),
    "numbers": (lambda x, w: Rounds.apply(x @ w, 4.0).sin(), 0),
    "a global": (lambda x, w: Global.apply(x @ w).sin(), 0),
    "an alias": (lambda x, w: Alias.apply((x @ w).tanh()) * 2, 0),
    "an alias that is read beside a write": (lambda x, w: (y := (x @ w).tanh()) * Alias.apply(y).clone().add_(1), 0),
    "its operand": (lambda x, w: Same.apply(x @ w) * x, 0),
    "two results": (lambda x, w: (lambda a, b: a * b + a)(*Two.apply(x @ w)), 0),
    "an undefined gradient": (lambda x, w: Partial.apply(x @ w).sin(), 0),
    "no gradient wanted": (lambda x, w: Saves.apply(x.detach(), w.detach()) + (x @ w), 0),
    "a write": (lambda x, w: Writes.apply((x @ w) * 2) + 1, 1),
    "random numbers": (lambda x, w: Draws.apply(x @ w) * 2, 1),
    "class methods": (lambda x, w: Methods.apply(x @ w).sin(), 0),
    "a class method that reads its class": (lambda x, w: ReadsItsClass.apply(x @ w).sin(), 1),
    "a list": (lambda x, w: Stores.apply(x @ w, []) * 2, 1),
    "a global list": (lambda x, w: Logs.apply(x @ w) * 2, 1),
    # the first call gives up
    "more than tensors": (lambda x, w: Items.apply(x @ w)[0] * 2, None),
    "an exception": (caught, None),
}


def leaves(i):
    torch.manual_seed(i)
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name):
    fn, broken = CASES[name]
    LOG.clear()
    same(fn, make_args=leaves, no_grad=False, backward=True, versions=True)
    if not EAGER and broken is not None:
        assert ccompile.explain(fn)(*leaves(0)).graph_break_count == broken


def test_second_derivatives_and_new_sizes():
    fn = CASES["saves"][0]
    compiled, before = ccompile.compile(fn), counters()
    for n in (3, 4, 5, 6, 7):
        given = [torch.randn(n, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
        got = []
        for f in (fn, compiled):
            pick = given[0][:4] if n >= 4 else torch.cat([given[0], given[0][:1]])
            first = torch.autograd.grad(f(pick, given[1]).sum(), given, create_graph=True)
            got.append(torch.autograd.grad(sum(g.square().sum() for g in first), given))
        torch.testing.assert_close(got[1], got[0])
    assert EAGER or counters()["graph_break"] == before["graph_break"]


@pytest.mark.parametrize("custom", [Methods, ReadsItsClass])
def test_class_methods_without_grad(custom):
    """Their forward is recorded then, with what it reads of its class."""
    fn, kept = lambda x: custom.apply(x) + 1, getattr(custom, "k", None)
    compiled, x = ccompile.compile(fn), torch.randn(3)
    with torch.no_grad():
        assert torch.allclose(compiled(x), fn(x)) and torch.allclose(compiled(x), fn(x))
        custom.k = 5.0
        assert torch.allclose(compiled(x), fn(x))
    custom.k = kept
    assert EAGER or breaks(fn, x).breaks == 0


def test_forward_is_replaced():
    custom = function(lambda ctx, a: a * 2, lambda ctx, g: g * 2)

    def fn(x):
        return custom.apply(x) + 1

    compiled, x = ccompile.compile(fn), torch.ones(3, requires_grad=True)
    assert torch.equal(compiled(x), fn(x)) and torch.equal(compiled(x), fn(x))
    custom.forward = staticmethod(lambda ctx, a: a * 5)
    assert torch.equal(compiled(x), fn(x)) and compiled(x).grad_fn is not None


def wanted_in_place(x):
    x.requires_grad_()
    return (x * 2).tanh().exp().mean()


def wanted_by_name(x):
    x.requires_grad = True
    return (x * 2).tanh().exp() + x


def derived(x):
    x.requires_grad_()
    u = (x * 2).tanh().exp()
    return torch.autograd.grad(u, (x,), torch.ones_like(u), create_graph=True)[0] * x


@pytest.mark.parametrize("fn", [wanted_in_place, wanted_by_name, derived])
def test_an_argument_that_requires_grad_from_here_on(fn):
    """Its sizes vary: plans for new sizes know what the function changes, not only what came in."""
    compiled = ccompile.compile(fn)
    for i in range(24):
        x = torch.rand(6 + i % 4, 2, generator=torch.Generator().manual_seed(i))
        mine, theirs = x.clone(), x.clone()
        got, want = compiled(mine), fn(theirs)
        assert got.requires_grad and mine.requires_grad
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close((got, mine.grad), (want, theirs.grad))


def test_parameters_frozen_and_thawed_in_a_call():
    layer = torch.nn.Linear(3, 3)

    def fn(x, train):
        layer.weight.requires_grad_(train)
        layer.bias.requires_grad_(train)
        return (layer(x) * 2).tanh().exp()

    compiled = ccompile.compile(fn)
    for i in range(40):
        x, train = torch.rand(6 + i % 3, 3), i % 2 == 1
        got, want = compiled(x, train), fn(x, train)
        assert got.requires_grad == want.requires_grad == train, i
        if train:
            gradients = [torch.autograd.grad(y.sum(), layer.weight)[0] for y in (got, want)]
            torch.testing.assert_close(*gradients)

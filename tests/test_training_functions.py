"""Custom autograd.Functions under grad mode: a call whose forward accesses only its operands is part of the graph, any other
is a break; values, gradients and errors are eager's. Stages compute those whose backward, too, can be recorded."""

import functools

import ccompile
import ccompile.api
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
    "a function in a closure that writes": (lambda x, w: WithWrite.apply(y := (x @ w) * 1) + y + w, 1),
    "such a function, no gradient wanted": (lambda x, w: WithWrite.apply(y := (x @ w).detach()) + y * w, 0),
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
    same(fn, make_args=leaves, no_grad=False, backward=True, versions=True, calls=6)
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


# ---- compiled in stages ---------------------------------------------------------------------------------------------
def quantises(ctx, x, s):
    ctx.save_for_backward(x, s)
    return (x / s).round().clamp(-8, 7) * s


def straight_through(ctx, g):
    x, s = ctx.saved_tensors
    inside = ((x / s) >= -8) & ((x / s) <= 7)
    return g * inside, None


def mish(ctx, x):
    ctx.save_for_backward(x)
    return x * torch.tanh(torch.nn.functional.softplus(x))


def of_mish(ctx, g):
    (x,) = ctx.saved_tensors
    s, t = torch.sigmoid(x), torch.tanh(torch.nn.functional.softplus(x))
    return g * (t + x * s * (1 - t * t))


def set_up(ctx, inputs, output):
    ctx.save_for_backward(output)
    ctx.slope = inputs[1]


def sigmoid_in_the_context(ctx, x):
    ctx.s = torch.sigmoid(x)
    ctx.size = x.shape
    return x * ctx.s


def of_its_context(ctx, g):
    return g.reshape(ctx.size) * ctx.s


def linear(ctx, x, w, b):
    ctx.save_for_backward(x, w)
    return x @ w.t() + b


def of_linear(ctx, g):
    x, w = ctx.saved_tensors
    return g @ w if ctx.needs_input_grad[0] else None, g.t() @ x if ctx.needs_input_grad[1] else None, g.sum(0)


def soft_threshold(ctx, x, k):
    ctx.save_for_backward(x)
    ctx.k = k
    with torch.enable_grad():
        y = x.sign() * (x.abs() - k).clamp(min=0)
    return y


@torch.autograd.function.once_differentiable
def of_threshold(ctx, g):
    return torch.where(ctx.saved_tensors[0].abs() > ctx.k, g, torch.zeros_like(g)), None


Quantised, Mish = function(quantises, straight_through), function(mish, of_mish)
Leaky = function(lambda x, slope: torch.where(x > 0, x, x * slope),
                 lambda ctx, g: (torch.where(ctx.saved_tensors[0] > 0, g, g * ctx.slope), None), set_up)  # fmt: skip
Kept, Linear, Threshold = function(sigmoid_in_the_context, of_its_context), function(linear, of_linear), function(soft_threshold, of_threshold)
Passes = function(lambda ctx, x: x.sign(), lambda ctx, g: g)
Steps = function(lambda ctx, x: (x > 0).to(x.dtype), lambda ctx, g: g.clamp(-1, 1) * 2)
Constant = function(lambda ctx, x: (ctx.save_for_backward(x), x.relu())[1], lambda ctx, g: ctx.saved_tensors[0])
Transposed = function(lambda ctx, x: x.t().contiguous(), lambda ctx, g: g.t())
Normed = function(lambda ctx, x: (ctx.save_for_backward(y := (x - x.mean(-1, True)) / x.std(-1, keepdim=True)), y)[1],
                  lambda ctx, g: g - g.mean(-1, True) - ctx.saved_tensors[0] * (g * ctx.saved_tensors[0]).mean(-1, True))  # fmt: skip

def normed_over(ctx, x, shape, eps):
    ctx.dims = tuple(range(-len(shape), 0))
    y = (x - x.mean(ctx.dims, keepdim=True)) / (x.var(ctx.dims, keepdim=True, unbiased=False) + eps).sqrt()
    ctx.save_for_backward(y)
    return y


def cell(ctx, x, c, w):
    """As a fused recurrent cell: the new hidden state and the new cell's."""
    gate, new = torch.sigmoid(x @ w), torch.tanh(x)
    after = gate * c + (1 - gate) * new
    ctx.save_for_backward(x, c, w, gate, new, after)
    return torch.tanh(after), after


def of_cell(ctx, of_hidden, of_after):
    x, c, w, gate, new, after = ctx.saved_tensors
    g = of_after + of_hidden * (1 - after.tanh() ** 2)
    before = g * (c - new) * gate * (1 - gate)
    return g * (1 - gate) * (1 - new * new) + before @ w.t(), g * gate, x.t() @ before


def codes(ctx, x, book):
    """Vector quantisation: what is nearest in the code book, and where it is."""
    at = (x[:, None] - book).square().sum(-1).argmin(1)
    ctx.mark_non_differentiable(at)
    return book[at], at


def masked(ctx, x):
    keep = (x > 0).to(x.dtype)
    ctx.mark_non_differentiable(keep)
    ctx.save_for_backward(keep)
    return x * keep, keep


Cell, Codes, Masked = function(cell, of_cell), function(codes, lambda ctx, g, _: (g, None)), function(masked, lambda ctx, g, of_keep: g * ctx.saved_tensors[0] + of_keep)
Halves = function(lambda ctx, x: (x[:2] * 2, x[2:].exp(), x.sum()), lambda ctx, g, h, s: torch.cat([g, h]) * 3 + s)
OnlyOne = function(lambda ctx, x: (x.exp(),), lambda ctx, g: g * 2)
Undefined = function(lambda ctx, x: (ctx.set_materialize_grads(False), x * 2, x * 3)[1:], lambda ctx, g, h: g if h is None else h * 7 if g is None else g + h)
Both = function(lambda ctx, x: (y := x * 2, y), lambda ctx, g, h: g + h * 5)
Sorted = function(lambda ctx, x: (ctx.save_for_backward(s := x.sort(-1)[0]), s)[1:] * 2, lambda ctx, g, h: g + ctx.saved_tensors[0] * h)

NormedOver = function(normed_over, lambda ctx, g: (g - g.mean(ctx.dims, keepdim=True), None, None))

IN_STAGES = {
    "a tuple among the operands": lambda x, w: NormedOver.apply(x @ w, (4,), 1e-5).sin(),
    "sizes among the operands": lambda x, w: NormedOver.apply(x @ w, w.shape[1:], 1e-5).sin(),
    "quantised": lambda x, w: Quantised.apply(x, torch.tensor(0.25)) @ Quantised.apply(w, torch.tensor(0.5)),
    "mish": lambda x, w: Mish.apply(x @ w).sum(),
    "setup_context": lambda x, w: (Leaky.apply(x @ w, 0.1) * 2).exp(),
    "a tensor in the context": lambda x, w: Kept.apply(x @ w).cos(),
    "a linear layer": lambda x, w: Linear.apply(x.tanh(), w, w[0]).relu(),
    "needs_input_grad": lambda x, w: Linear.apply(x.detach(), w * 2, w[0]).relu(),
    "once_differentiable": lambda x, w: Threshold.apply(x @ w, 0.5).sin(),
    "the gradient itself": lambda x, w: Passes.apply(x @ w) * w,
    "bools on the way": lambda x, w: Steps.apply(x @ w).sin() * 5,
    "a saved tensor as the gradient": lambda x, w: Constant.apply(x @ w) * w,
    "strides": lambda x, w: Transposed.apply((x @ w).tanh()) @ x,
    "statistics": lambda x, w: Normed.apply(x @ w).tanh(),
    "one in another": lambda x, w: Mish.apply(Quantised.apply(Mish.apply(x @ w), torch.tensor(0.5))) + w,
    "the same operand twice": lambda x, w: Saves.apply((y := (x @ w).tanh()), y) * 3,
    "only one": lambda x, w: Mish.apply(x),
    "two results": lambda x, w: (p := Cell.apply(x @ w, x * 2, w))[0].sin() + p[1].cos(),
    "a cell in a loop": lambda x, w: functools.reduce(lambda p, i: Cell.apply(p[0] + i, p[1], w), range(3), (x, x * 0.1))[0] * 2,
    "the first of two results": lambda x, w: Cell.apply(x @ w, x * 2, w)[0].sin(),
    "the second of two results": lambda x, w: Cell.apply(x @ w, x * 2, w)[1].sin(),
    "two results, both returned": lambda x, w: Cell.apply(x @ w, x * 2, w),
    "an integer among the results": lambda x, w: (p := Codes.apply(x @ w, w.detach()))[0] * 2 + p[1][:, None],
    "a result without a gradient": lambda x, w: (p := Masked.apply(x @ w))[0].sin() + p[1] * w,
    "such a result is returned": lambda x, w: ((p := Masked.apply(x @ w))[0].sin(), p[1]),
    "results of other shapes": lambda x, w: torch.cat([t.flatten().tanh() for t in Halves.apply(x @ w)]),
    "the last of three results": lambda x, w: Halves.apply(x @ w)[2].exp(),
    "a tuple of one": lambda x, w: OnlyOne.apply(x @ w)[0].cos(),
    "in a checkpoint": lambda x, w: torch.utils.checkpoint.checkpoint(lambda a: Mish.apply(a @ w).sin(), x, use_reentrant=False) * 2,
}


def torchs(compiled):
    return [op.name for graph in ccompile.report.report(compiled).graphs for op, _ in graph.torch_ops]


@pytest.mark.parametrize("name", IN_STAGES)
def test_in_stages(name):
    fn = IN_STAGES[name]
    same(fn, make_args=leaves, no_grad=False, backward=True, versions=True, calls=5)
    compiled = ccompile.compile(fn, isolate_recompiles=True)
    for i in range(3):
        got = compiled(*leaves(i))
        (got[0] if type(got) is tuple else got).sum().backward()
    report = ccompile.api.compiled_of(compiled).report()
    assert report["recordings"] == 1 and not report["breaks_seen"], report["breaks_seen"]
    assert not any("apply" in op for op in torchs(compiled)), torchs(compiled)


def gradients(fn, given, **how):
    return torch.autograd.grad(fn(*given).square().sum(), given, allow_unused=True, **how)


@pytest.mark.parametrize("custom", [Undefined, Both, Sorted])
def test_results_that_are_left_to_torch(custom):
    """Gradients that are None, a result twice, a value that its op makes beside another."""
    for read in (lambda a, b: a.sin() + b.cos(), lambda a, b: a.sin(), lambda a, b: b.cos()):
        same(lambda x, w, read=read: read(*custom.apply(x @ w)) * 2, make_args=leaves, no_grad=False, backward=True, versions=True)


@pytest.mark.parametrize("name", ["mish", "setup_context", "statistics", "a linear layer", "one in another", "two results", "results of other shapes"])
def test_second_derivatives(name):
    """torch differentiates the user's backward; the compiled function has had calls without create_graph before."""
    fn, compiled = IN_STAGES[name], ccompile.compile(IN_STAGES[name])
    for i in range(6):
        got = []
        for f in (fn, compiled):
            given = leaves(i)
            first = gradients(f, given, create_graph=i > 2)
            got.append(torch.autograd.grad(sum(g.square().sum() for g in first), given) if i > 2 else first)
        torch.testing.assert_close(got[1], got[0], rtol=1e-4, atol=1e-3)


def test_a_second_derivative_of_once_differentiable():
    fn = lambda x, w: Threshold.apply(x, 0.5).sin() * w  # noqa: E731
    for f in (fn, ccompile.compile(fn)):
        for i in range(4):
            given = leaves(i)
            first = gradients(f, given, create_graph=True)
            with pytest.raises(RuntimeError, match="once_differentiable"):
                first[0].sum().backward()


def test_a_function_that_gives_another_one_no_gradient():
    """Autograd calls the first one's backward with zeros: x gets zeros, not None; also through an op of torch's, or a break."""

    def broken(x, w):
        y = Mish.apply(x * 3).mean()
        print(end="")
        return Quantised.apply(w * 2, y).tanh()

    for fn in (
        lambda x, w: Quantised.apply(w * 2, Mish.apply(x * 3).mean()).tanh(),
        lambda x, w: Quantised.apply(w * 2, torch.linalg.svdvals(Mish.apply(x * 3))[0]).tanh(),
        broken,
    ):
        compiled = ccompile.compile(fn)
        for i in range(4):
            torch.testing.assert_close(gradients(compiled, leaves(i)), gradients(fn, leaves(i)))
            assert torch.equal(gradients(fn, leaves(i))[0], torch.zeros(4, 4))


@pytest.mark.parametrize("name, raises", [("mish", True), ("a tensor in the context", False), ("the gradient itself", False)])
def test_a_write_between_forward_and_backward(name, raises):
    """Autograd tells of writes to what save_for_backward has got, and only of these."""
    custom = {"mish": Mish, "a tensor in the context": Kept, "the gradient itself": Passes}[name]
    fn, compiled = (f := lambda x, w: custom.apply(x) * 2), ccompile.compile(f)
    for i in range(4):
        got = []
        for f in (fn, compiled):
            leaf, w = leaves(i)
            x = leaf * 1
            y = f(x, w)
            with torch.no_grad():
                x.add_(1)
            try:
                y.sum().backward()
                got.append(leaf.grad)
            except RuntimeError as e:
                assert "modified by an inplace operation" in str(e)
                got.append("raised")
        assert (got[0] == "raised") == raises
        assert got[1] == "raised" if raises else torch.allclose(got[1], got[0])


@pytest.mark.parametrize("retain", [True, False])
def test_a_second_backward(retain):
    fn = IN_STAGES["quantised"]
    for f in (fn, compiled := ccompile.compile(fn)):
        for i in range(3):
            x, w = leaves(i)
            y = f(x, w).sum()
            y.backward(retain_graph=retain)
            if retain:
                once = x.grad.clone()
                y.backward()
                assert torch.allclose(x.grad, 2 * once)
            else:
                with pytest.raises(RuntimeError, match="second time"):
                    y.backward()
    assert EAGER or not any("apply" in op for op in torchs(compiled))


def test_what_a_context_holds_is_read_when_the_backward_runs():
    """`ctx.x = x` is no save_for_backward: eager's backward sees what is written to x meanwhile."""

    def stashed(ctx, x):
        ctx.x = x
        return x.exp()

    custom = function(stashed, lambda ctx, g: g * ctx.x)
    fn, compiled = (f := lambda x: custom.apply(x) * 2), ccompile.compile(f)
    for i in range(4):
        got = []
        for f in (fn, compiled):
            leaf = leaves(i)[0]
            x = leaf * 1
            y = f(x)
            with torch.no_grad():
                x.add_(1)
            y.sum().backward()
            got.append(leaf.grad)
        assert torch.allclose(got[1], got[0])


def test_a_global_that_the_backward_reads():
    """It may change between forward and backward."""
    global SCALE
    fn, kept = lambda x: Global.apply(x) + 1, SCALE
    compiled = ccompile.compile(fn)
    try:
        for i in range(5):
            got = []
            for f in (fn, compiled):
                SCALE = 2.0
                x = leaves(i)[0]
                y = f(x)
                SCALE = 3.0 + i
                y.sum().backward()
                got.append(x.grad)
            assert torch.equal(got[1], got[0])
    finally:
        SCALE = kept


def test_a_backward_that_is_replaced():
    custom = function(lambda ctx, x: x * 2, lambda ctx, g: g * 2)
    fn, compiled = (f := lambda x: custom.apply(x).exp()), ccompile.compile(f)
    for k in (2, 2, 7, 7):
        custom.backward = staticmethod(lambda ctx, g, k=k: g * k)
        for i in range(2):
            got = []
            for f in (fn, compiled):
                x = leaves(i)[0]
                f(x).sum().backward()
                got.append(x.grad)
            assert torch.allclose(got[1], got[0]), k


def branches(ctx, x):
    ctx.save_for_backward(x)
    return x * 2 if x.sum() > 0 else x * 3


Branches = function(branches, lambda ctx, g: g * 2 if ctx.saved_tensors[0].sum() > 0 else g * 3)


def test_what_can_not_be_recorded_is_torchs():
    """The first recording is given up; from the second one on torch calls the Function."""
    fn = lambda x: (Branches.apply(x * 1.5).tanh() * 2).exp()  # noqa: E731
    compiled = ccompile.compile(fn)
    for i in range(8):
        got = []
        for f in (fn, compiled):
            x = leaves(i)[0]
            y = f(x)
            y.sum().backward()
            got.append((y, x.grad))
        torch.testing.assert_close(got[1], got[0])
    report = ccompile.api.compiled_of(compiled).report()
    assert report["recordings"] == 2 and not report["breaks_seen"] and len(report["give_ups"]) == 1
    assert any("apply" in op for op in torchs(compiled))


def test_between_batch_norms():
    """Running statistics are written before the Function, whose result has sizes that the trace knows."""
    import copy

    first = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).double()
    second = copy.deepcopy(first)
    fns = [lambda x, m=m: m[2](Mish.apply(m[1](Mish.apply(m[0](x))))) for m in (first, second)]
    compiled = ccompile.compile(fns[1])
    for i in range(4):
        for f in (fns[0], compiled):
            f(leaves(i)[0].double()).pow(3).sum().backward()
        torch.testing.assert_close([p.grad for p in second.parameters()], [p.grad for p in first.parameters()])
        torch.testing.assert_close(second.state_dict(), first.state_dict())
    report = ccompile.api.compiled_of(compiled).report()
    assert report["recordings"] == 1 and not report["breaks_seen"] and not any("apply" in op for op in torchs(compiled))


def mean_of_rows(ctx, x):
    ctx.n = x.shape[0]
    ctx.save_for_backward(x)
    return x.sum(0, keepdim=True) / ctx.n


Mean = function(mean_of_rows, lambda ctx, g: (g / ctx.n) * torch.ones_like(ctx.saved_tensors[0]))
Rows = function(lambda ctx, x: (ctx.save_for_backward(x), sum(r * r for r in x))[1], lambda ctx, g: 2 * g * ctx.saved_tensors[0])

OTHER_SIZES = {  # function, whether stages compute it
    "mish": (lambda x, w: Mish.apply(x @ w).sum(), True),
    "quantised": (lambda x, w: (Quantised.apply(x, w.abs().mean().detach()) @ w).tanh().sum(), True),
    "statistics": (lambda x, w: Normed.apply(x @ w).pow(3).sum(), True),
    "two": (lambda x, w: Mish.apply(Passes.apply(x) @ w).exp().mean(), True),
    "two results": (lambda x, w: sum(t.tanh().sum() for t in Cell.apply(x @ w, x * 2, w)), True),
    "the second of two results": (lambda x, w: Cell.apply(x @ w, x * 2, w)[1].exp().mean(), True),
    "a number of rows": (lambda x, w: (Mean.apply(x @ w) * 2).exp().sum(), False),
    "a loop over rows": (lambda x, w: (Rows.apply(x @ w) * 2).tanh().sum(), False),
}


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_batches_of_other_sizes(name):
    fn, staged = OTHER_SIZES[name]
    compiled = ccompile.compile(fn)
    for n in (4, 4, 5, 6, 3, 9, 5, 6, 6, 5, 9, 4, 2):
        got = []
        for f in (fn, compiled):
            x, w = torch.linspace(-2, 2, 4 * n).reshape(n, 4).requires_grad_(), leaves(0)[1]
            y = f(x, w)
            y.backward()
            got.append((y, x.grad, w.grad))
        torch.testing.assert_close(got[1], got[0], rtol=1e-4, atol=1e-5)
    assert ccompile.api.compiled_of(compiled).report()["recordings"] <= 3
    if staged:
        assert not any("apply" in op for op in torchs(compiled)), torchs(compiled)


def test_under_autocast():
    fn = IN_STAGES["a linear layer"]
    compiled = ccompile.compile(fn)
    for i in range(4):
        got = []
        for f in (fn, compiled):
            given = leaves(i)
            with torch.autocast("cpu", torch.bfloat16):
                y = f(*given)
            y.sum().backward()
            got.append((y, *[g.grad for g in given]))
        torch.testing.assert_close(got[1], got[0], rtol=2e-2, atol=2e-2)


def held_mask(ctx, x):
    ctx.mask = x > 0
    return x.clamp(min=0)


def saved_exp(ctx, x):
    y = x.exp()
    ctx.save_for_backward(y)
    return y * 2


def saved_in_vain(ctx, x):
    ctx.save_for_backward(x)
    return x * 2


def held_view_of_the_result(ctx, x):
    y = x * 2
    ctx.v = y.view(-1)
    return y


def saved_view_of_the_result(ctx, x):
    y = x * 2
    ctx.save_for_backward(y.view(-1))
    return y


def saved_other_result(ctx, x):
    other = x.exp()
    ctx.save_for_backward(other)
    return x * 2, other


def counted(ctx, g):
    ctx.n = ctx.n + 1
    return g * ctx.n


def counting_from_one(ctx, x):
    ctx.n = 1
    return x * 2


WRITTEN = {  # what is written to between forward and backward: operand, result
    "a mask": function(held_mask, lambda ctx, g: g * ctx.mask),
    "a saved intermediate": function(saved_exp, lambda ctx, g: g * ctx.saved_tensors[0]),
    "saved in vain": function(saved_in_vain, lambda ctx, g: g * 2),
    "a view of the result": function(held_view_of_the_result, lambda ctx, g: g * ctx.v.view(g.shape)),
    "the other of two results": function(saved_other_result, lambda ctx, g, h: g * ctx.saved_tensors[0] + h),
    "the other of two results, in vain": function(saved_other_result, lambda ctx, g, h: (ctx.saved_tensors, g * 2 + h)[1]),
    "the other of two results, unread": function(saved_other_result, lambda ctx, g, h: g * 2 + h),
    "a saved view of the result": function(saved_view_of_the_result, lambda ctx, g: g * ctx.saved_tensors[0].view(g.shape)),
}


@pytest.mark.parametrize("written", ["operand", "result", "the last result", "operand in the function"])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_before_the_backward(name, written):
    custom = WRITTEN[name]

    def fn(x):
        h = x * 1.5
        y = custom.apply(h)
        y, last = y if type(y) is tuple else (y, y)
        total = y.sum() + last.sum()
        if written == "operand in the function":
            h.add_(1)
        return h, y, last, total

    compiled = ccompile.compile(fn)
    for i in range(4):
        found = []
        for f in (fn, compiled):
            x = leaves(i)[0]
            *given, total = f(x)
            with torch.no_grad():
                for name, tensor in zip(("operand", "result", "the last result"), given, strict=True):
                    if written == name:
                        tensor.add_(1)
            try:
                total.backward()
                found.append(x.grad)
            except RuntimeError as e:
                assert "modified" in str(e) and "inplace" in str(e)
                found.append(None)
        assert (found[0] is None) == (found[1] is None)
        assert found[0] is None or torch.allclose(found[1], found[0])


AsksForNothing = function(lambda ctx, x: x.sinh(), lambda ctx, g: (ctx.saved_tensors, g * 2)[1])
TWO_BACKWARDS = {
    "saved in vain": lambda x: WRITTEN["saved in vain"].apply(x) + 1,
    "an intermediate is saved": lambda x: WRITTEN["a saved intermediate"].apply(x) + 1,
    "nothing is saved, but asked for": lambda x: AsksForNothing.apply(x) + 1,
    "the gradient itself": lambda x: Passes.apply(x) + x,
    "of two results": lambda x: Halves.apply(x + 1)[1] + 1,
}


@pytest.mark.parametrize("name", TWO_BACKWARDS)
def test_a_backward_that_frees_nothing_may_run_again(name):
    """Without retain_graph: only ctx.saved_tensors is freed."""
    fn, found = TWO_BACKWARDS[name], []
    for f in (fn, ccompile.compile(fn)):
        for i in range(4):
            x = leaves(i)[0]
            y = f(x)
            y.backward(torch.ones_like(y))
            try:
                y.backward(torch.ones_like(y))
                found.append(x.grad)
            except RuntimeError as e:
                assert "second time" in str(e)
                found.append(None)
    for eager, compiled in zip(found[:4], found[4:], strict=True):
        assert (eager is None) == (compiled is None)
        assert eager is None or torch.allclose(compiled, eager)


def test_a_context_that_the_backward_writes():
    custom = function(counting_from_one, counted)
    for f in (fn := lambda x: custom.apply(x * 2).sum(), ccompile.compile(fn)):
        for i in range(3):
            x = leaves(i)[0]
            y = f(x)
            y.backward(retain_graph=True)
            y.backward()
            assert torch.equal(x.grad, torch.full((4, 4), 2 * (2.0 + 3.0)))


def test_a_gradient_for_a_number_raises():
    custom = function(lambda ctx, x, k: x * k, lambda ctx, g: (g, g))
    for f in (fn := lambda x: custom.apply(x * 2, 3.0).sum(), ccompile.compile(fn)):
        for i in range(3):
            with pytest.raises(RuntimeError, match="gradient different than None"):
                f(leaves(i)[0]).backward()


# ---- what running forward and backward once more must not do ---------------------------------------------------------
def norm_with_statistics(ctx, x):
    y = torch.nn.functional.batch_norm(x, STATISTICS[0], STATISTICS[1], training=True)
    return y * 2


def asks_for_parameter(ctx, x, w):
    ctx.k = 3 if isinstance(w, torch.nn.Parameter) else 2
    return x * ctx.k


def asks_for_identity(ctx, a, b):
    ctx.save_for_backward(a, b)
    return a * 2 if a is b else a * b


def asks_its_context(ctx, x):
    ctx.k = 3 if isinstance(ctx, torch.autograd.function.FunctionCtx) else 2
    return x * ctx.k


def catches(ctx, x):
    try:
        ctx.no_such_method()
    except AttributeError:
        ctx.k = 3
    try:
        ctx.mark_non_differentiable()
    except AttributeError:
        ctx.k = 5
    return x * ctx.k


STATISTICS = torch.zeros(4), torch.ones(4)
by_k = lambda ctx, g, *_: (g * ctx.k, None)[: len(ctx.needs_input_grad)]  # noqa: E731
TWICE = {
    "running statistics": function(norm_with_statistics, lambda ctx, g: g * 2),
    "gumbel": function(lambda ctx, x: torch.nn.functional.gumbel_softmax(x, dim=-1), lambda ctx, g: g),
    "rrelu": function(lambda ctx, x: torch.nn.functional.rrelu(x, 0.1, 0.3, True), lambda ctx, g: g),
    "attention with dropout": function(
        lambda ctx, x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0], lambda ctx, g: g),
    "binomial": function(lambda ctx, x: torch.binomial(x.abs() + 1, x.sigmoid()), lambda ctx, g: g),
    "draws in the backward": function(lambda ctx, x: x * 2, lambda ctx, g: torch.nn.functional.gumbel_softmax(g, dim=-1)),
    "in place": function(lambda ctx, x: torch.nn.functional.leaky_relu(x, 0.1, inplace=True), lambda ctx, g: g),
    "in place by position": function(lambda ctx, x: torch.nn.functional.leaky_relu(x, 0.1, True), lambda ctx, g: g),
    "what asks its context": function(asks_its_context, by_k),
    "what catches": function(catches, by_k),
    "saved tensors are new ones": function(
        lambda ctx, x: (ctx.save_for_backward(x), x * 2)[1],
        lambda ctx, g: g * (2 if ctx.saved_tensors[0] is ctx.saved_tensors[0] else 3)),
    "strides of the gradient": function(lambda ctx, x: x * 2, lambda ctx, g: g * 2 if g.is_contiguous() else g * 3),
    "a stride of the gradient": function(lambda ctx, x: x * 2, lambda ctx, g: g * (g.stride(0) + 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_nothing_tells_of_a_second_run(name):
    """Values, gradients, statistics and the generator's state after each call, the recording one among them."""
    custom = TWICE[name]
    fn = lambda x: custom.apply(x * 1.5)  # noqa: E731
    compiled = ccompile.compile(fn)
    for i in range(4):
        found = []
        for f in (fn, compiled):
            for s, v in zip(STATISTICS, (0.0, 1.0), strict=True):
                s.fill_(v + i)
            torch.manual_seed(i)
            x = torch.randn(4, 4, requires_grad=True)
            try:
                y = f(x)
                drawn = torch.rand(2)
                (y.sum() if i % 2 else (y * y).sum()).backward()
                found.append((y.detach(), x.grad, drawn, torch.rand(2), [s.clone() for s in STATISTICS]))
            except RuntimeError as e:
                found.append(str(e)[:40])
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("forward, backward", [(asks_for_parameter, by_k), (asks_for_identity, lambda ctx, g: (g, g))])
def test_operands_are_the_callers(forward, backward):
    custom, w = function(forward, backward), torch.nn.Parameter(torch.full((4, 4), 3.0))
    for fn in (lambda x: custom.apply(x, w), lambda x: custom.apply(x, x), lambda x: custom.apply(y := x * 2, y)):
        compiled = ccompile.compile(fn)
        for i in range(4):
            x = leaves(i)[0]
            torch.testing.assert_close(compiled(x), fn(x))


@pytest.mark.parametrize("context", ["no_grad", "enable_grad"])
def test_grad_mode_behind_a_function_that_sets_it(context):
    """No operand requires a gradient, so forward is recorded; apply() restores grad mode, unseen."""

    def switches(ctx, x):
        with getattr(torch, context)():
            y = x * 2
        return y.sin()

    custom = function(switches, lambda ctx, g: g)
    fn = lambda x, t: custom.apply(x.sin() * 2) * t.cos()  # noqa: E731
    compiled = ccompile.compile(fn)
    for _ in range(4):
        x, t = torch.ones(3), torch.ones(3, requires_grad=True)
        assert compiled(x, t).requires_grad and torch.is_grad_enabled()
        torch.testing.assert_close(compiled(x, t), fn(x, t))


def scaled_by_count(ctx, x, k):
    ctx.k = k
    return x * (1 + 0.1 * (k % 3))


ByCount = function(scaled_by_count, lambda ctx, g: (g * (1 + 0.1 * (ctx.k % 3)), None))


def test_a_backward_goes_only_where_eager_goes():
    """The trace does not know that the loss is independent of h, behind a call with another number in each call."""

    def step(x, w, k, bn):
        h, seen = x * w, []
        h.register_hook(lambda g: seen.append("a hook"))
        print(end="")
        loss = w.sum() + ByCount.apply(bn(h), k).detach().sum()
        h.square().sum().backward()
        loss.backward()
        return seen, w.grad

    found = []
    for f in (step, ccompile.compile(step)):
        bn = torch.nn.BatchNorm1d(4)
        for i, k in enumerate((0, 1, 1, 1, 2, 2, 2)):
            found.append(f(leaves(i)[0], torch.ones(4, requires_grad=True), k, bn))
    for got, want in zip(found[7:], found[:7], strict=True):
        assert got[0] == want[0]
        torch.testing.assert_close(got[1], want[1])

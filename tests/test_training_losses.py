"""Derivatives of losses over classes and over rows, of sums of products over named dims, and of other ops that consist of several
(csrc/grad/compose.c, sums.c): against eager autograd, between pointwise ops with which they form one stage."""

import re
import warnings

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import EAGER
from test_training_moves import LAYOUTS, chained, compare, steps

CLASS = torch.tensor([0, 2, 1, 5])  # of each row of [4, 6]
PLACES = torch.tensor([[[0, 1, 3], [1, 2, 3]]])  # a class in each place of [1, 4, 2, 3]
W = torch.tensor([0.5, 1.5, 0.0, 1.0, 2.0, 0.25])
SIGN = torch.tensor([1, -1, -1, 1])
MASK = torch.tensor([[i * 7 % 3 == 0 for i in range(k, k + 6)] for k in range(4)])
LARGE = torch.tensor([0.0, 1.0, 30.0, -30.0, 100.0, -100.0])


def w(x):
    return W.to(x.dtype)


def classes(reduction):
    """cross_entropy and nll_loss with this reduction"""

    def nll(x, *args, **more):
        return F.nll_loss(x.log_softmax(min(1, x.dim() - 1)), *args, reduction=reduction, **more)

    def ce(*args, **more):
        return F.cross_entropy(*args, reduction=reduction, **more)

    yield "", lambda x: ce(x, CLASS) + nll(x, CLASS)
    yield "weights", lambda x: ce(x, CLASS, w(x)) + nll(x, CLASS, w(x))
    yield "ignored", lambda x: ce(x, CLASS, ignore_index=2) + nll(x, CLASS, w(x), ignore_index=5)
    yield "ignored -100", lambda x: ce(x, torch.where(SIGN > 0, CLASS, -100), w(x)) + nll(x, torch.where(SIGN > 0, CLASS, -100), w(x))
    yield "smoothed", lambda x: ce(x, CLASS, label_smoothing=0.2)
    yield "smoothed, with weights", lambda x: ce(x, CLASS, w(x), label_smoothing=0.2, ignore_index=0)
    yield "places", lambda x: ce(x.view(1, 4, 2, 3), PLACES) + nll(x.reshape(1, 4, 2, 3), PLACES)
    yield "places, with weights", lambda x: ce(x.view(1, 4, 2, 3), PLACES, w(x)[:4], ignore_index=2, label_smoothing=0.1)
    yield "transposed classes", lambda x: ce(x[None].transpose(1, 2), CLASS[None])
    yield "one row", lambda x: ce(x[1], CLASS[1]) + nll(x[2], CLASS[0], w(x))
    yield "probabilities", lambda x: ce(x, (x * 2).softmax(1))
    yield "probabilities, with weights", lambda x: ce(x, (x * 2).softmax(1), w(x), label_smoothing=0.1)
    yield "probabilities of places", lambda x: ce(x.view(2, 2, 2, 3), x.view(2, 2, 2, 3).sigmoid(), w(x)[:2])
    yield "large", lambda x: ce(x * LARGE.to(x.dtype), CLASS, label_smoothing=0.1)


def rows(reduction):
    """losses of which each row, or each element, has one"""
    more = {"reduction": reduction}
    for name, more_of in ("", {}), (", with weights", {"weight": 0}):
        yield f"bce{name}", lambda x, of=more_of: F.binary_cross_entropy(x.sigmoid(), x.cos().square(), **{k: w(x) for k in of}, **more)
        yield (f"bce_with_logits{name}",
               lambda x, of=more_of: F.binary_cross_entropy_with_logits(x, MASK.to(x.dtype), **{k: w(x) for k in of}, **more))  # fmt: skip
    yield "bce of 0 and 1", lambda x: F.binary_cross_entropy(x.clamp(0, 1), MASK.to(x.dtype), **more)
    yield "pos_weight", lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), pos_weight=w(x), **more)
    yield "cosine_embedding", lambda x: F.cosine_embedding_loss(x, x.flip(0), SIGN, margin=0.1, **more)
    yield "cosine_embedding of floats", lambda x: F.cosine_embedding_loss(x, x.roll(1, 0), SIGN.to(x.dtype), **more)
    yield "triplet_margin", lambda x: F.triplet_margin_loss(x, x.flip(0), x.roll(1, 0), **more)
    yield "triplet_margin, swapped", lambda x: F.triplet_margin_loss(x, x.flip(0), x.roll(1, 0), swap=True, margin=0.3, p=1, **more)
    yield "multi_margin", lambda x: F.multi_margin_loss(x, CLASS, **more)
    yield "multi_margin, with weights", lambda x: F.multi_margin_loss(x, CLASS, p=2, margin=0.3, weight=w(x), **more)
    yield "margin_ranking", lambda x: F.margin_ranking_loss(x, x.flip(0), MASK.to(x.dtype) * 2 - 1, margin=0.1, **more)
    yield "mse", lambda x: F.mse_loss(x, x.flip(0) * 2, **more) + F.mse_loss(x, MASK.to(x.dtype), **more)
    yield "l1", lambda x: F.l1_loss(x, x.flip(0).relu(), **more)
    yield "l1 of equals", lambda x: F.l1_loss(x.relu(), x.clamp(-0.1, 0.1), **more)
    yield "smooth_l1", lambda x: F.smooth_l1_loss(x, x.flip(0), beta=0.3, **more) + F.smooth_l1_loss(x, MASK.to(x.dtype), **more)
    yield "smooth_l1 without a bend", lambda x: F.smooth_l1_loss(x.relu(), x.clamp(-0.1, 0.1), beta=0.0, **more)
    yield "huber", lambda x: F.huber_loss(x, x.flip(0), delta=0.3, **more) + F.huber_loss(x, MASK.to(x.dtype), **more)
    yield "kl_div", lambda x: F.kl_div(x.log_softmax(1), x.flip(0).softmax(1), **more)
    yield "kl_div of logs", lambda x: F.kl_div(x.log_softmax(1), x.flip(0).log_softmax(1), log_target=True, **more)


SUMS = {
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x.exp()),
    "einsum of a batch": lambda x: torch.einsum("bhid,bhjd->bhij", x.reshape(1, 2, 4, 3), x.reshape(1, 2, 4, 3).cos()),
    "einsum with heads last": lambda x: torch.einsum("bqhd,bkhd->bhqk", x.reshape(1, 2, 4, 3), x.reshape(1, 2, 4, 3)),
    "einsum of a broadcast dim": lambda x: torch.einsum("...ij,...jk->...ik", x.view(2, 2, 6), x[:3].reshape(1, 6, 3)),
    "einsum without an arrow": lambda x: torch.einsum("ji,jk", x, x),
    "einsum of three": lambda x: torch.einsum("ij,kj,il->kl", x, x.cos(), x.exp()),
    "einsum of sums": lambda x: torch.einsum("ij,kl->jk", x, x.cos()),
    "einsum of products": lambda x: torch.einsum("ij,ij->ij", x, x.cos()),
    "einsum of vectors": lambda x: torch.einsum("i,j,k->kij", x[0], x[1], x[:, 2]),
    "einsum of a number": lambda x: torch.einsum(",ij->ji", x[1, 2], x),
    "einsum of the whole": lambda x: torch.einsum("ij,ij", x, x.cos()),
    "one, transposed": lambda x: torch.einsum("ij->ji", x) * 2,
    "one, permuted": lambda x: torch.einsum("ijk->kij", x.view(2, 2, 6)) * 2,
    "one, summed": lambda x: torch.einsum("ij->i", x) * x[:, 1],
    "one, permuted and summed": lambda x: torch.einsum("ijk->kj", x.view(2, 2, 6)),
    "tensordot": lambda x: torch.tensordot(x, x.cos(), dims=([0], [0])),
    "tensordot of two dims": lambda x: torch.tensordot(x.view(2, 2, 6), x.view(2, 2, 6).exp(), dims=([0, 2], [1, 2])),
    "tensordot of none": lambda x: torch.tensordot(x[0], x[:, 1], 0),
    "multi_dot": lambda x: torch.linalg.multi_dot([x[0], x.t(), x, x[1]]) * x[0],
    "multi_dot of matrices": lambda x: torch.linalg.multi_dot([x, x.t(), x.cos()]),
}
OTHERS = {
    "prelu": lambda x: F.prelu(x, x[0, :1].exp()),
    "prelu of channels": lambda x: F.prelu(x, x[0]) + F.prelu(x.view(1, 4, 6), x[:, 0]).view(4, 6),
    "prelu of a vector": lambda x: F.prelu(x[0], x[1, 2:3]),
    "var_mean": lambda x: (lambda v, m: v * 2 + m)(*torch.var_mean(x, 1)),
    "var_mean, of which one is used": lambda x: torch.var_mean(x, 0, correction=0)[0] + torch.var_mean(x, 0)[1],
    "std_mean": lambda x: (lambda v, m: v * 2 + m)(*torch.std_mean(x, (0, 1), keepdim=True)) + x,
    "aminmax": lambda x: (lambda a, b: a * 2 + b)(*torch.aminmax(x, dim=1)),
    "aminmax of ties": lambda x: (lambda a, b: a * 2 + b)(*torch.aminmax(x.clamp(-0.1, 0.1))) + x,
}
OPS = {
    **{f"{name}, {r}": f for r in ("none", "mean", "sum") for name, f in (*classes(r), *rows(r))},
    **{f"batchmean, {k}": f for k, f in rows("batchmean") if k.startswith("kl")},
    **SUMS,
    **OTHERS,
}


def with_sum(op):
    """A loss of single rows does not have the shape of x."""
    return chained(lambda x: op(x) + x.sum() * 0.25)


@pytest.mark.parametrize("name", OPS)
def test_gradients(name):
    for dtype, near in ((torch.float32, (1e-4, 1e-5)), (torch.float64, (1e-9, 1e-10))):
        for layout, made in LAYOUTS.items():
            fn = compare(with_sum(OPS[name]), lambda x, made=made, dtype=dtype: made(x.to(dtype)), *near)
            if not EAGER and layout == "dense" and dtype is torch.float32 and " of 0 and 1" not in name and "kl_div" not in name:
                assert {line.split()[0] for line in steps(fn)} == {"stage"}, steps(fn)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_rows_that_are_all_ignored(reduction):
    """The mean of none is NaN; its gradient is 0."""

    def f(x):
        return with_sum(lambda x: F.cross_entropy(x, CLASS * 0 - 100, w(x), reduction=reduction, label_smoothing=0.1))(x)

    compare(f, lambda x: x.float(), 1e-4, 1e-5)


def test_infinite_logits():
    f = with_sum(lambda x: F.cross_entropy(x.masked_fill(MASK & (torch.arange(6) > 2), float("-inf")), CLASS * 0 + 1))
    compare(f, lambda x: x.float(), 1e-4, 1e-5)


def test_losses_without_rows():
    compare(chained(lambda x: F.cross_entropy(x[:0], CLASS[:0], reduction="sum") + x.sum()), lambda x: x.float(), 1e-4, 1e-5)
    compare(chained(lambda x: torch.einsum("ij,kj->ik", x[:, :0], x[:1, :0]) + x.sum()), lambda x: x.float(), 1e-4, 1e-5)


def test_weights_that_need_gradients():
    """Eager has no derivative for them, or one of its own."""
    fn = ccompile.compile(f := lambda x, w: torch.tanh(F.cross_entropy(torch.tanh(x) * 2, CLASS, w.exp())) * 2)
    for g in (fn, f, fn):
        with pytest.raises(RuntimeError, match="nll_loss.*weight|weight.*nll_loss"):
            g(torch.ones(4, 6, requires_grad=True), torch.ones(6, requires_grad=True)).backward()
    compare(chained(lambda x: F.cross_entropy(x, x.softmax(1), x[0].exp()) + x), lambda x: x.float(), 1e-4, 1e-5)


def test_a_class_out_of_range():
    fn = ccompile.compile(f := lambda x, t: torch.tanh(F.cross_entropy(torch.tanh(x) * 2, t, W)) * 2)
    x = torch.randn(4, 6, requires_grad=True)
    for t in (CLASS, CLASS * 0 - 100, CLASS):
        torch.testing.assert_close(*(torch.autograd.grad(g(x, t), x)[0] for g in (fn, f)))
    for g in (fn, f):
        with pytest.raises(IndexError, match="Target 6 is out of bounds"):
            g(x, CLASS + 1)


def test_broadcast_tensors():
    """Recorded tensor by tensor: views, as eager's, also for other sizes; what has the common shape is given as it is."""

    def f(x, y, z):
        a, b, c = torch.broadcast_tensors(x, y, z)
        return a, b, c, torch.tanh(a * b) * c

    fn = ccompile.compile(f)
    for x, y, z in (((4, 6), (6,), ()), ((4, 6), (6,), ()), ((3, 5), (5,), ()), ((6,), (4, 1), (1, 6)), ((1, 6), (4, 1), ()), ((4, 6), (5,), ()), ((4, 6), (4, 6), ()), ((2, 6), (2, 6), (1,))):
        given = [torch.randn(s, requires_grad=True) for s in (x, y, z)]
        sides = []
        for g in (fn, f):
            try:
                made = g(*given)
            except RuntimeError as error:
                sides.append(str(error))
                continue
            assert [t.data_ptr() for t in made[:3]] == [t.data_ptr() for t in given]
            sides.append([type(made), [t is g for t, g in zip(made, given)], [(t.shape, t.stride()) for t in made], made[3].detach(), *torch.autograd.grad(made[3].sum(), given)])
        if isinstance(sides[0], str):
            assert sides[0] == sides[1]
        else:
            assert sides[0][:3] == sides[1][:3]
            torch.testing.assert_close(sides[0][3:], sides[1][3:])


def test_second_derivatives():
    f = with_sum(lambda x: F.cross_entropy(x, CLASS, w(x), label_smoothing=0.1) * torch.einsum("ij,kj->ik", x, x)[0, 1] + F.prelu(x, x[0]))
    fn = ccompile.compile(f)
    for i in range(3):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64).requires_grad_()
        grads = []
        for g in (fn, f):
            (first,) = torch.autograd.grad(g(x).square().sum(), x, create_graph=True)
            grads.append((first, *torch.autograd.grad(first.sin().sum(), x)))
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b)


HEADS = {
    "cross_entropy": lambda y: F.cross_entropy(y, CLASS),
    "cosine_embedding_loss": lambda y: F.cosine_embedding_loss(y, y.new_ones(4, 6), SIGN),
    "triplet_margin_loss": lambda y: F.triplet_margin_loss(y, y.new_ones(4, 6), y.new_zeros(4, 6)),
}


@pytest.mark.skipif(EAGER, reason="of the compiler")
@pytest.mark.parametrize("name", HEADS)
def test_a_layer_and_its_loss_are_a_stage(name):
    """Two nodes that stand for more ops of eager's are worth one, such as the head behind a recurrent layer."""
    w = torch.randn(6, 6).requires_grad_()
    report = str(ccompile.explain(lambda x: HEADS[name](F.linear(x, w)), torch.randn(4, 6)))
    assert "stage 0 backward" in report and not re.search("through torch.*linear", report), report


NAN, INF = float("nan"), float("inf")
EDGES = {  # function, its operand, the gradient of its result: where torch's formulas differ from the usual ones
    "max": (lambda x: x.max(), [1.0, NAN, 3.0, NAN], 1),
    "min": (lambda x: x.min(), [1.0, NAN, 3.0], 2),
    "max of ties": (lambda x: torch.max(x), [3.0, 1.0, 3.0], 2),
    "amax": (lambda x: x.amax(), [1.0, NAN, 3.0], 1),
    "lerp": (lambda x: torch.lerp(x, x * x, 0.999999), [1e-7, 1.0, 2.0], 1),
    "lerp of one operand": (lambda x: torch.lerp(x, x.detach(), 0.99999), [0.5, 1.0, 2.0], 1),
    "prod": (lambda x: x.prod(1), [[1e20, 1e8, 1.0]], 1e11),
    "prod of all": (lambda x: x.prod(), [1e20, 1e8, 1.0], 1e11),
    "norm of order 0": (lambda x: torch.linalg.vector_norm(x, 0, dim=1), [[1.0, 0.0, 2.0]], 1),
    "norm of order 0 and 2": (lambda x: torch.linalg.vector_norm(x, 0, dim=1) * torch.linalg.vector_norm(x, 2, dim=1), [[1.0, 0.0, 2.0]], 1),
    "std": (lambda x: x.std(correction=3), [1.0, 2.0], 1),
    "std of rows": (lambda x: x.std(0, correction=3), [1.0, 2.0], 1),
    "std of one": (lambda x: x.std(), [1.0], 1),
    "var": (lambda x: x.var(correction=2), [1.0, 2.0], 1),
    "std_mean": (lambda x: sum(torch.std_mean(x, correction=3)), [1.0, 2.0], 1),
    "clamp": (lambda x: x[0].clamp(x[1], x[2]).sum(), [[0.0, 0.0, 0.0, NAN], [INF, 1.0, NAN, 1.0], [INF, NAN, 2.0, 2.0]], 1),
    "clamp to a minimum": (lambda x: x[0].clamp(min=x[1]).sum(), [[0.0, 0.0, 0.0, NAN], [INF, 1.0, NAN, 1.0]], 1),
    "xlogy": (lambda x: torch.xlogy(x, NAN), [0.0, 1.0], 1),
    "xlog1py": (lambda x: torch.special.xlog1py(x, NAN), [0.0, 1.0], 1),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    fn, values, grad = EDGES[name]
    compiled, seen = ccompile.compile(lambda x: fn(x * 2) * 0.5, options={"verify": False}), []
    for f in (lambda x: fn(x * 2) * 0.5, compiled, compiled, compiled):
        x = torch.tensor(values, requires_grad=True)
        y = f(x)
        y.backward(torch.full_like(y, grad))
        seen.append(x.grad)
    for got in seen[1:]:
        assert (got is None) == (seen[0] is None)
        torch.testing.assert_close(got, seen[0], rtol=1e-6, atol=0, equal_nan=True)


SPREADS = {
    "std": lambda x: x.std(1) + 1,
    "var": lambda x: (x * 2).var(1),
    "std_mean": lambda x: sum(torch.std_mean(x, 1, correction=2)),
    "var of all": lambda x: x * x.var(),
}


@pytest.mark.parametrize("name", SPREADS)
def test_each_call_warns_of_a_variance_without_degrees_of_freedom(name):
    compiled = ccompile.compile(SPREADS[name], options={"verify": False})
    for shape in ((4, 1), (4, 1), (1, 1), (4, 3), (4, 2), (1, 1), (4, 1)):
        warned = []
        for f in (SPREADS[name], compiled):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                f(torch.ones(shape))
            warned.append([str(w.message) for w in seen])
        assert warned[0] == warned[1]

"""Derivatives of ops that move elements, read or write them at indices, pad with them, scan them or multiply them
(csrc/grad/moves.c, puts.c, rules.c): against eager autograd, between pointwise ops with which they form one stage."""

import re

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER

I = torch.tensor([[0, 2, 2, 1], [3, 3, 0, 1], [1, 0, 0, 2], [2, 2, 2, 2]])  # columns or rows of [4, 6]; repeats
MASK = torch.tensor([[i * 7 % 3 == 0 for i in range(k, k + 6)] for k in range(4)])
ZEROS = torch.tensor([[1, 0, 1, 1, 0, 1], [1] * 6, [0] * 6, [1, 1, 1, 1, 1, 0]])
J, K, FEW = torch.tensor([0, 2, 2]), torch.tensor([-1, 1, 1]), torch.tensor([3, 0])
NONE = torch.empty(0, dtype=torch.int64)

OPS = {  # of x [4, 6]
    "gather": lambda x: x.gather(1, I),
    "gather of rows": lambda x: torch.gather(x, -2, I[:2]),
    "gather of fewer": lambda x: x.gather(1, I[:2, :3]),
    "index_select": lambda x: x.index_select(1, J),
    "index_select of rows": lambda x: torch.index_select(x, -2, FEW),
    "key of rows": lambda x: x[J],
    "key of columns": lambda x: x[:, K],
    "key of both": lambda x: x[J, K],
    "key of a table": lambda x: x[I],
    "key with an int": lambda x: x[1, K],
    "key with a slice": lambda x: x[J, 1:4],
    "key with steps": lambda x: x[1:, J][:, None] + x[::2, K].sum(),
    "key apart": lambda x: x.view(2, 2, 6)[FEW // 3, :, J[:2]],
    "a number": lambda x: x * x[2, -1] + x[0, 1:2],
    "a row and a column": lambda x: x[2] * x[1:2, 3] + x[-1, 0],
    "every other": lambda x: x[:, 1::2].repeat(1, 2) * x[::3].sum(0) + x[3, ::4].mean(),
    "steps beyond the end": lambda x: torch.cat([x[1::7], x[::3], x[:1]]) + x[1:, 5::5].sum(),
    "pairs of four dims": lambda x: torch.stack([x.view(2, 2, 2, 3)[..., 1:], x.view(2, 2, 2, 3)[..., ::2]], -1).flatten(-2),
    "steps along four dims": lambda x: x.reshape(2, 3, 2, 2)[:, 1::2, ::2, 1::2] + x.reshape(2, 3, 2, 2)[1:, ::2].sum(),
    "steps along the middle": lambda x: x.reshape(2, 6, 2)[:, 3::2] * x.reshape(2, 6, 2)[:, 1:3].sum() + x.reshape(2, 6, 2)[:, 5:],
    "slices of many rows": lambda x: x.repeat(600, 1)[:, 1:].mean(0) + x.repeat(600, 1)[:, 1::3].mean() + x[:, 1:],
    "new dims": lambda x: x[:, None, 1:] * x[None, 2, :, None][:, 1:].sum() + x[:, 3, None, None],
    "key with None": lambda x: x[J, None, 2:],
    "roll": lambda x: x.roll(1, 1),
    "roll of two dims": lambda x: x.roll((-1, 2), (0, -1)),
    "roll of all": lambda x: x.roll(5),
    "repeat": lambda x: x.repeat(2, 3),
    "repeat into more dims": lambda x: x.repeat(2, 1, 3),
    "tile": lambda x: x.tile((2, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 0) + 1,
    "repeat_interleave of the last dim": lambda x: x.repeat_interleave(2, -1),
    "flip": lambda x: x.flip(1),
    "flip of two dims": lambda x: x.flip(0, -1),
    "glu": lambda x: F.glu(x),
    "glu of rows": lambda x: F.glu(x, 0),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(1, 4, 2, 3), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.view(1, 1, 4, 6), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(1, 6, 2, 2), 3),
    "reflect": lambda x: F.pad(x, (1, 2), "reflect"),
    "reflect of images": lambda x: F.pad(x.view(1, 1, 4, 6), (5, 1, 0, 3), "reflect"),
    "replicate": lambda x: F.pad(x, (3, 8), "replicate"),
    "replicate of images": lambda x: F.pad(x.view(1, 1, 4, 6), (1, 0, 2, 1), "replicate"),
    "circular": lambda x: F.pad(x.unsqueeze(0), (2, 6), "circular"),
    "circular of images": lambda x: F.pad(x.view(1, 1, 4, 6), (1, 2, 4, 0), "circular"),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum of columns": lambda x: x.cumsum(-2),
    "diff": lambda x: x.diff(),
    "diff of columns": lambda x: torch.diff(x, dim=0),
    "max": lambda x: x.max(1)[0],
    "min": lambda x: x.min(-2, keepdim=True).values,
    "max with indices": lambda x: (lambda m: m.values * m.indices)(x.max(0)),
    "sort": lambda x: x.sort(1).values,
    "sort of columns": lambda x: (lambda v, i: v * i)(*torch.sort(x, 0, True)),
    "topk": lambda x: x.topk(2).values,
    "topk of the least": lambda x: (lambda v, i: v * i)(*torch.topk(x, 3, dim=-2, largest=False, sorted=False)),
    "kthvalue": lambda x: x.kthvalue(2, 1)[0] + torch.kthvalue(x, 3, 1, keepdim=True)[0],
    "median": lambda x: x.median(1)[0] + x.nanmedian(-1, keepdim=True).values,
    "mode": lambda x: x.mode(0).values + torch.mode(x.round(), 0, True)[0],
    "experts": lambda x: (lambda v, i: x.scatter(1, i, v.softmax(-1)))(*x.topk(2, -1)),
    "cummax": lambda x: x.cummax(1).values,
    "cummin": lambda x: x.cummin(0).values,
    "scatter": lambda x: x.scatter(1, I[:, :1], x[:, 3:4] * 2),
    "scatter of a number": lambda x: x.scatter(-1, I, 0.5),
    "scatter_add": lambda x: x.scatter_add(1, I[:2], (x * 2)[:2, :4]),
    "index_add": lambda x: x.index_add(1, J, (x * 3)[:, :3], alpha=2),
    "index_copy": lambda x: x.index_copy(0, FEW, (x * 2)[:2]),
    "index_fill": lambda x: x.index_fill(-1, J, 0.5),
    "index_fill with a tensor": lambda x: x.index_fill(-1, J[:2], x[1, 2]),
    "index_add of a number's worth": lambda x: x.index_add(0, FEW, (x * 3)[2:], alpha=-1),
    "index_put": lambda x: x.index_put((J, K), x[0, :3] * 2),
    "index_put of rows": lambda x: x.index_put((FEW,), x[1:2] * 2),
    "index_put that adds": lambda x: x.index_put((J, K), x[0, :3] * 2, accumulate=True),
    "index_put of a table": lambda x: x.index_put((I[:2, :2], FEW), (x * 2)[:2, :1], True),
    "index_put of a number": lambda x: x.index_put((J, K), x.sum()),
    "scatter_reduce of means": lambda x: x.scatter_reduce(1, I, (x * 2)[:, :4], "mean"),
    "scatter_reduce of means, without x": lambda x: x.scatter_reduce(0, I, (x * 2)[:, :4], "mean", include_self=False),
    "scatter_reduce of maxima": lambda x: x.scatter_reduce(1, I, (x * 2)[:, :4], "amax"),
    "scatter_reduce of minima, with ties": lambda x: x.clamp(-0.1, 0.1).scatter_reduce(1, I, x.clamp(-0.1, 0.1)[:, :4], "amin"),
    "scatter_reduce of maxima, without x": lambda x: x.scatter_reduce(0, I, (x * 2)[:, :4], "amax", include_self=False),
    "scatter_reduce of sums, without x": lambda x: x.scatter_reduce(1, I, (x * 2)[:, :4], "sum", include_self=False),
    "select_scatter": lambda x: x.select_scatter(x[0] * 2, 0, -1),
    "slice_scatter": lambda x: x.slice_scatter(x[:2] * 2, 0, 1, 3),
    "slice_scatter with steps": lambda x: x.slice_scatter(x[:, :3] * 2, -1, -5, None, 2),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[:, 0] * 2),
    "diagonal_scatter below": lambda x: x.diagonal_scatter(x[0, :3] * 2, -1, 0, 1),
    "diagonal": lambda x: x.diagonal() * 2,
    "diagonal above": lambda x: x.diagonal(2, 0, 1) * x.diagonal(-1)[0],
    "diagonal of matrices": lambda x: x.reshape(2, 2, 6).diagonal(1, 2, 0) * 2,
    "unfold": lambda x: x.unfold(1, 3, 2) * 2,
    "unfold of rows": lambda x: x.unfold(0, 2, 1).sin(),
    "masked_scatter": lambda x: x.masked_scatter(MASK, x.flip(1) * 2),
    "masked_scatter of rows": lambda x: x.masked_scatter(MASK[:1], (x * 2).reshape(-1)),
    "take": lambda x: x.take(I * 5),
    "take from the end": lambda x: torch.take(x, -1 - J),
    "take_along_dim": lambda x: x.take_along_dim(I, 1),
    "take_along_dim, broadcast": lambda x: torch.take_along_dim(x, I[:, :1], 0) + torch.take_along_dim(x[:1], I, 1).sum(),
    "cumprod": lambda x: x.cumprod(1),
    "cumprod with zeros": lambda x: (x * ZEROS).cumprod(1) + (x * ZEROS).cumprod(0),
    "logcumsumexp": lambda x: x.logcumsumexp(1) + (x * 40).logcumsumexp(-2),
    "vstack of vectors": lambda x: torch.vstack([x[0], x, x[1]]),
    "column_stack of vectors": lambda x: torch.column_stack([x[:, 0], x, x[:, 1]]),
    "dstack": lambda x: torch.dstack([x, x.cos()]),
    "cat with an empty vector": lambda x: torch.cat([x, torch.zeros(0, dtype=x.dtype), x.cos()]),
    "one of a slice": lambda x: x[0, :1] * x[:1, 2:] + x[3:, :1],
    "attention with a mask": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 4, 3)] * 3, x[:, :4]),
    "attention with a bias of heads": lambda x: F.scaled_dot_product_attention(x.reshape(2, 2, 2, 3), x.reshape(2, 2, 2, 3), x.reshape(2, 2, 2, 3).exp(), x.reshape(2, 2, 6)[:, None, :, :2], scale=0.7),
    "attention with rows that attend nowhere": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 4, 3)] * 3, x[:, :4].masked_fill(MASK[:, :1], float("-inf"))) + F.scaled_dot_product_attention(*[x.reshape(1, 2, 4, 3)] * 3, torch.zeros(4, 4, dtype=x.dtype).masked_fill(MASK[:, :4] | MASK[:, 1:2], float("-inf"))),
    "attention with fewer heads of keys": lambda x: F.scaled_dot_product_attention(x.reshape(1, 4, 2, 3), x.reshape(1, 4, 2, 3)[:, :2], x.reshape(1, 4, 2, 3)[:, 1:3], enable_gqa=True),
    "tril": lambda x: x.tril(),
    "triu": lambda x: torch.triu(x, -1),
    "masked_fill": lambda x: x.masked_fill(x > 0.2, 0.5),
    "masked_fill of rows": lambda x: x.masked_fill((x > 0.2)[:1], float("-inf")).softmax(-1),
    "where": lambda x: torch.where(x > 0, x, x[:1] * 2),
    "where of numbers": lambda x: torch.where(x > 0, x, 0.5) + torch.where(x > 0, 1.0, x),
    "addmm": lambda x: torch.addmm(x[:1, :4] * 2, x, x.t(), beta=0.5, alpha=2),
    "baddbmm": lambda x: torch.baddbmm(x.reshape(2, 2, 6)[..., :2], x.reshape(2, 2, 6), x.reshape(2, 6, 2), beta=3, alpha=-1),
    "addbmm": lambda x: torch.addbmm(x[:2, :2], x.reshape(2, 2, 6), x.reshape(2, 6, 2), beta=0.5),
    "addmv": lambda x: torch.addmv(x[:, 0], x, x[0], beta=2, alpha=0.5),
    "addr": lambda x: torch.addr(x, x[:, 0], x[1], beta=2, alpha=3),
    "outer": lambda x: torch.outer(x[:, 1], x[0].exp()),
    "inner": lambda x: torch.inner(x, x.exp()[:3]),
    "instance_norm": lambda x: F.instance_norm(x.view(2, 2, 6)),
    "instance_norm with a weight": lambda x: F.instance_norm(x.view(1, 4, 6), weight=x.mean(1) + 1, bias=x.sum(1)),
}
LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, x * 2], -1)[..., 0],
}


def chained(op):
    def f(x):
        y = op(torch.tanh(x) * 0.5 + x * 0.75)
        return torch.tanh(y * 0.5) * 2 + y

    return f


def compare(f, make, rtol, atol):
    fn = ccompile.compile(f)
    for i in range(3):
        x = make(torch.randn(4, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64)).detach().requires_grad_()
        sides = []
        for g in (fn, f):
            y = g(x)
            weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64).to(y.dtype)
            sides.append((y.detach(), *torch.autograd.grad((y * weight).sum(), x)))
        for a, b in zip(*sides):
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    return fn


def steps(fn):
    texts = [s["plan_text"] for e in compiled_of(fn).report()["entries"] for s in e["segments"]]
    return [line for text in texts for line in text.splitlines() if line.startswith(("stage ", "torch: "))]


@pytest.mark.parametrize("name", OPS)
def test_gradients(name):
    for dtype, near in ((torch.float32, (1e-4, 1e-5)), (torch.float64, (1e-9, 1e-10))):
        for layout, made in LAYOUTS.items():
            fn = compare(chained(OPS[name]), lambda x, made=made, dtype=dtype: made(x.to(dtype)), *near)
            if not EAGER and layout == "dense" and dtype is torch.float32:
                assert [line.split()[0] for line in steps(fn)] == ["stage"], steps(fn)


EMPTY = {
    "index_select of none": lambda x: x.index_select(1, NONE),
    "key of none": lambda x: x[NONE],
    "gather of none": lambda x: x.gather(1, I[:0]),
    "repeat of none": lambda x: x.repeat(0, 2),
    "nothing added": lambda x: x.index_add(1, NONE, x[:, :0]),
    "nothing put": lambda x: x.index_put((NONE,), x[:0]),
    "no diagonal": lambda x: x.diagonal(6) * 2 + x.sum(),
    "nothing taken": lambda x: x.take(NONE) + x[0, :0],
    "nothing scanned": lambda x: x[:0].cumprod(1) + x[:0].logcumsumexp(0),
    "nothing rolled": lambda x: x[:0].roll(1, 1),
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing(name):
    compare(chained(EMPTY[name]), lambda x: x.float(), 1e-4, 1e-5)


OVERLAPPING = {  # x and a slice of it; other dims of x reach the same memory
    "row of windows": (lambda x: x[0].unfold(0, 4, 1), lambda x: x[0, :2]),
    "row of windows, a new dim": (lambda x: x[0].unfold(0, 4, 1), lambda x: x[0, :, None]),
    "every other element of windows": (lambda x: x.flatten().as_strided((4, 4), (2, 1)), lambda x: x[:1, ::2]),
    "every other of copies": (lambda x: x.expand(4, 4, 6), lambda x: x[::2]),
    "some of copies": (lambda x: x.expand(4, 4, 6), lambda x: x[1:3, 1:]),
    "columns of copies": (lambda x: x.expand(4, 4, 6), lambda x: x[:, 1:3, ::2]),
    "one of copies": (lambda x: x.expand(4, 4, 6), lambda x: x[2]),
    "windows of some": (lambda x: x[0].unfold(0, 4, 1), lambda x: x[1:]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_slice_of_what_overlaps_itself(name):
    """Strides don't show which dims a slice takes."""
    make, op = OVERLAPPING[name]
    compare(lambda x: (op(x) * 2).sin().exp(), make, 1e-9, 1e-10)


@pytest.mark.parametrize("name", OPS)
def test_a_second_backward(name):
    """Raises where eager's does: where it has saved a tensor, if only for its sizes."""
    f = lambda x: (OPS[name](x + 1) + 1).sum()  # noqa: E731
    fn = ccompile.compile(f, isolate_recompiles=True)
    for i in range(3):
        raised = []
        for g in (fn, f):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(i)).requires_grad_()
            y = g(x)
            torch.autograd.grad(y, x)
            try:
                torch.autograd.grad(y, x)
                raised.append("no")
            except RuntimeError as error:
                raised.append("second time" in str(error))
        assert raised[0] == raised[1]


REFUSED = {
    "gather": lambda x, i: x.gather(1, i),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "key": lambda x, i: x[:, i[0]],
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_out_of_range(name):
    """Raises where eager raises."""
    def f(x, i):
        return torch.tanh(REFUSED[name](torch.tanh(x) * 2, i)) * 3

    fn, x = ccompile.compile(f), torch.randn(4, 6, requires_grad=True)
    for k in range(3):
        torch.testing.assert_close(*(torch.autograd.grad(g(x, I + k).sum(), x)[0] for g in (fn, f)))
    for g in (fn, f):
        with pytest.raises((IndexError, RuntimeError), match="out of.* (range|bounds)|DATA bounds"):
            g(x, I + 4)


def test_half_precision():
    f = chained(lambda x: x[:, K].repeat(1, 2) + x.flip(1).cumsum(1) + F.pad(x, (2, 0), "replicate")[:, 2:].index_select(1, torch.arange(6)))
    for dtype in (torch.bfloat16, torch.float16):
        compare(f, lambda x, dtype=dtype: x.to(dtype), 3e-2, 1e-1)


def test_second_derivatives():
    f = chained(lambda x: x[J, K].outer(x.roll(1, 0)[:, 0]) * x.gather(1, I).sum())
    fn = ccompile.compile(f)
    for i in range(3):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64).requires_grad_()
        grads = []
        for g in (fn, f):
            (first,) = torch.autograd.grad(g(x).square().sum(), x, create_graph=True)
            grads.append((first, *torch.autograd.grad(first.sin().sum(), x)))
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("split", ["split", "chunk", "unbind"])
def test_parts_of_a_weight_between_products(split):
    """The backward's products read parts of a weight as torch makes them: nn.MultiheadAttention over two sequences."""
    cuts = {"split": lambda w: w.split([8, 16]), "chunk": lambda w: w.chunk(3), "unbind": lambda w: w.view(3, 8, 8).unbind()}

    def f(x, w):
        first, *others = cuts[split](w)
        heads = [F.linear(x, o).unflatten(-1, (-1, 2, 4)).flatten(0, 1).transpose(-3, -2) for o in others]
        q = F.linear(x.tanh(), first).view(-1, 1, 2, 4).transpose(-3, -2)
        return F.scaled_dot_product_attention(q, heads[0], heads[-1]).sin()

    fn = ccompile.compile(f)
    for i in range(3):
        x, w = (torch.randn(s, generator=torch.Generator().manual_seed(i)).requires_grad_() for s in ((3, 5, 8), (24, 8)))
        got, expected = (torch.autograd.grad(g(x, w).sum(), (x, w)) for g in (fn, f))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert EAGER or [line.split()[0] for line in steps(fn)] == ["stage"], steps(fn)


def test_a_derivative_without_a_kernel_costs_its_op_only():
    """Whatever kernels lack, the ops around it stay in stages."""

    def f(x):
        y = torch.tanh(x * 0.5) * 2 + x
        none = torch.softmax(y[:, :0].exp(), 1, dtype=torch.float64)  # no kernel reads rows without elements
        return torch.cat([y * 3, none], 1).sin()

    fn = compare(f, lambda x: x.float(), 1e-4, 1e-5)
    if not EAGER:
        report = str(ccompile.report.report(fn))
        assert re.search(r"torch\.softmax: no kernel computes it, or its derivative", report), report
        assert "stage 0 forward: 1 kernel" in report, report

"""Attention as one kernel, from both sources (F.scaled_dot_product_attention, and written out): shapes, masks, layouts.

Errors are measured against a float64 reference: compiled may exceed eager's error by a few roundings at most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "core"))
import core_library  # noqa: E402
import harness  # noqa: E402
from harness import WRITES, Graph  # noqa: E402

INF, NAN = float("inf"), float("nan")
LOWEST = torch.finfo(torch.float32).min
CHILD = "CCOMPILE_CORE_CHILD" in os.environ


@pytest.fixture(scope="session")
def lib(tmp_path_factory):
    return harness.load(core_library.built(tmp_path_factory))


@pytest.fixture(autouse=True)
def one_thread(lib):
    """The tables are of small problems: a second thread would only wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lib.t_threads(1)
    yield
    torch.set_num_threads(threads)
    lib.t_threads(threads)


def tensors(b, h, tq, tk, d, dv=None, hk=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    hk = hk or h
    make = lambda *size: torch.randn(*size, generator=g)  # noqa: E731
    return make(b, h, tq, d), make(b, hk, tk, d), make(b, hk, tk, dv or d)


def close(got, eager, exact):
    """Not much worse than eager, by the largest error; NaN and inf where eager has them."""
    assert got.shape == eager.shape and got.dtype == eager.dtype and got.stride() == eager.stride()
    finite = torch.isfinite(eager)
    assert torch.equal(torch.isnan(got), torch.isnan(eager))
    assert torch.equal(got[~finite].nan_to_num(0.5), eager[~finite].nan_to_num(0.5))
    if finite.any():
        size = exact[finite].abs().max().item()
        error = (got.double() - exact)[finite].abs().max().item()
        assert error <= 2 * (eager.double() - exact)[finite].abs().max().item() + 1e-6 * size, (error, size)


def steps(graph):
    return [line.split()[1] for line in graph.plan_text().splitlines() if line[:1].isdigit()]


def sdpa(lib, q, k, v, mask=None, causal=False, scale=None, grouped=False, host=False):
    """One call of the whole op, as a plan of one step."""
    g = Graph(lib)
    fn = lambda q, k, v, m, c, s, e: F.scaled_dot_product_attention(q, k, v, m, 0.0, c, scale=s, enable_gqa=e)  # noqa: E731
    operands = [g.input(q), g.input(k), g.input(v), None if mask is None else g.input(mask), causal, scale, grouped]
    out = g.op("attention", fn, *operands)
    g.out(out).compile()
    assert steps(g) == ["host" if host else "attention"]
    wide = [t.double() if t is not None and t.is_floating_point() else t for t in (q, k, v, mask)]
    close(g.run()[0], g.eager[out.v], fn(*wide, causal, scale, grouped))


class Written:
    """softmax(q @ k^T * scale, masked) @ v as a graph of single ops; `turned`: how k is transposed."""

    def __init__(self, lib, q, k, v, *, scale=None, divide=False, first=False, add=None, fill=None, merge=0, turned="node"):
        self.g = g = Graph(lib)
        self.made = []
        x, y, w = g.input(q), g.input(k), g.input(v)
        op = lambda *a, **kw: self.made.append(g.op(*a, **kw)) or self.made[-1]  # noqa: E731
        if scale is not None and first:
            x = op("mul", torch.mul, x, scale)
        if turned == "node":
            y = op("transpose", torch.transpose, y, -2, -1)
        elif turned == "input":
            y = g.input(k.transpose(-2, -1))
        else:
            y = g.input(k.transpose(-2, -1).contiguous())
        s = op("matmul", torch.matmul, x, y)
        if scale is not None and not first:
            s = op("div", torch.div, s, 1 / scale) if divide else op("mul", torch.mul, s, scale)
        if add is not None:
            s = op("add", torch.add, s, g.input(add))
        if fill is not None:
            s = op("masked_fill", torch.masked_fill, s, g.input(fill[0]), fill[1])
        p = op("softmax", lambda t, m: t.softmax(-1), s, 1)
        o = op("matmul", torch.matmul, p, w)
        if merge:
            o = op("transpose", torch.transpose, o, -3, -2)
            o = op("copy", lambda t: t.contiguous(), o)
        if merge == 2:
            shape = g.eager[o.v].shape
            o = op("view", lambda t, *size: t.view(size), o, *shape[:-2], shape[-2] * shape[-1])
            # Views are what the host makes: one that is an output stays one.
            o = op("relu", torch.relu, o)
        self.result = o
        g.out(o)

    def exact(self):
        """The same calls in float64."""
        live = {v: t.double() if t.is_floating_point() else t for v, t in self.g.inputs.items()}
        for fn, operands, v in self.g.calls:
            live[v] = fn(*[live[o.v] if isinstance(o, harness.V) else o for o in operands])
        return live[self.result.v]

    def check(self, attention=True):
        self.g.compile()
        assert ("attention" in steps(self.g)) == attention, self.g.plan_text()
        close(self.g.run()[0], self.g.eager[self.result.v], self.exact())
        return self


# (batch, heads, rows, keys, depth, width)
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (1, 1, 1, 16, 8, 8),
    (2, 3, 5, 7, 3, 2),
    (2, 2, 12, 32, 32, 32),
    (1, 2, 13, 33, 16, 16),
    (1, 2, 31, 17, 33, 17),
    (2, 8, 128, 128, 32, 32),
    (1, 3, 64, 64, 64, 64),
    (1, 2, 197, 197, 64, 64),
    (1, 1, 25, 100, 80, 80),
    (1, 2, 40, 70, 96, 48),
    (1, 1, 50, 129, 128, 160),
    (1, 1, 9, 40, 300, 20),
    (1, 2, 1, 1000, 64, 64),
    (1, 2, 7, 385, 16, 16),
    (1, 1, 300, 1111, 24, 40),
    (3, 1, 2, 800, 8, 1),
    (2, 2, 3, 300, 32, 64),
    (1, 2, 2, 17, 64, 32),
    (1, 2, 3, 300, 80, 72),
    (1, 2, 20, 40, 20, 23),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(lib, shape):
    b, h, tq, tk, d, dv = shape
    q, k, v = tensors(b, h, tq, tk, d, dv)
    sdpa(lib, q, k, v)
    Written(lib, q, k, v, scale=d**-0.5).check()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_causal(lib, shape):
    b, h, tq, tk, d, dv = shape
    sdpa(lib, *tensors(b, h, tq, tk, d, dv), causal=True)


MASK_SHAPES = [(2, 3, 20, 50), (1, 1, 20, 50), (2, 1, 1, 50), (20, 50), (2, 3, 20, 1), (1, 50), (50,), (3, 1, 1)]


@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_masks(lib, shape, seed):
    """Bool and float ones, broadcast over whatever they lack, and strided."""
    q, k, v = tensors(2, 3, 20, 50, 32, seed=seed)
    torch.manual_seed(seed)
    mask, added = torch.rand(shape) < 0.6, torch.randn(shape)
    if len(shape) > 1:  # torch's own op takes no vectors
        sdpa(lib, q, k, v, mask)
        sdpa(lib, q, k, v, added)
        sdpa(lib, q, k, v, added, scale=0.3)
        sdpa(lib, q, k, v, torch.where(mask, added, torch.tensor(-INF)))
        strided = torch.rand(*shape[:-1], 2 * shape[-1])[..., ::2]
        sdpa(lib, q, k, v, strided)
        sdpa(lib, q, k, v, strided > 0.4)
    Written(lib, q, k, v, scale=0.2, add=added).check()
    Written(lib, q, k, v, add=added).check()
    Written(lib, q, k, v, scale=0.2, fill=(mask, -INF)).check()
    Written(lib, q, k, v, scale=5.0, divide=True, fill=(mask, -1e9)).check()
    Written(lib, q, k, v, scale=0.2, fill=(mask, LOWEST)).check()
    Written(lib, q, k, v, fill=(mask, 3)).check()


def masked_rows(tq, tk):
    mask = torch.ones(tq, tk, dtype=torch.bool)
    mask[0] = mask[tq // 2] = mask[-1] = False
    mask[1, : tk // 2] = False
    return mask


@pytest.mark.parametrize("tk", [5, 16, 50, 900])
def test_fully_masked_rows(lib, tk):
    """0 in torch's op, NaN or the mean in what is written out."""
    q, k, v = tensors(1, 2, 30, tk, 16)
    keep = masked_rows(30, tk)
    added = torch.zeros(30, tk).masked_fill(~keep, -INF)
    sdpa(lib, q, k, v, keep)
    sdpa(lib, q, k, v, added)
    Written(lib, q, k, v, scale=0.25, fill=(~keep, -INF)).check()
    Written(lib, q, k, v, scale=0.25, add=added).check()
    for low in (-1e9, LOWEST, -1e4):
        Written(lib, q, k, v, scale=0.25, fill=(~keep, low)).check()
        low_added = torch.zeros(30, tk).masked_fill(~keep, low)
        Written(lib, q, k, v, scale=0.25, add=low_added).check()
        sdpa(lib, q, k, v, low_added)


@pytest.mark.parametrize("scale", [None, 1.0, 0.01, 30.0, 0.0, -0.5, 7])
def test_scale(lib, scale):
    q, k, v = tensors(1, 2, 30, 40, 16)
    sdpa(lib, q, k, v, scale=scale)
    sdpa(lib, q, k, v, masked_rows(30, 40), scale=scale)
    if scale is not None:
        Written(lib, q, k, v, scale=scale).check()
        Written(lib, q, k, v, scale=scale, first=True).check()
    if scale:
        Written(lib, q, k, v, scale=scale, divide=True).check()
    Written(lib, q, k, v).check()


def test_large_scores(lib):
    """Weights underflow to 0, and nothing overflows on the way."""
    q, k, v = tensors(1, 2, 30, 400, 16)
    sdpa(lib, 100 * q, k, v)
    sdpa(lib, 1e4 * q, 1e4 * k, v)
    sdpa(lib, 1e15 * q, 1e15 * k, v)
    Written(lib, 100 * q, 10 * k, v, scale=1.0).check()


@pytest.mark.parametrize("shape", [(2, 8, 2, 20, 30, 32), (1, 8, 2, 1, 70, 64), (1, 6, 1, 5, 40, 16), (2, 4, 4, 10, 10, 8)], ids=str)
@pytest.mark.parametrize("mask", [None, "causal", "row", "full", "head"])
def test_grouped(lib, shape, mask):
    b, h, hk, tq, tk, d = shape
    q, k, v = tensors(b, h, tq, tk, d, hk=hk)
    masks = {"row": (tk,), "full": (b, h, tq, tk), "head": (h, 1, tk)}
    given = torch.rand(masks[mask]) < 0.7 if mask in masks else None
    if given is not None and given.dim() == 1:
        given = given[None]
    sdpa(lib, q, k, v, given, causal=mask == "causal", grouped=True)


def test_heads_broadcast(lib):
    q, k, v = tensors(2, 4, 9, 20, 16)
    sdpa(lib, q, k[:, :1], v[:, :1])
    sdpa(lib, q, k[:1], v)
    sdpa(lib, q[0], k[0], v[0])
    sdpa(lib, q[0, 0], k[0, 0], v[0, 0])
    sdpa(lib, q[None], k, v)
    Written(lib, q, k[:, :1], v[:, :1], scale=0.25).check()
    Written(lib, q[0], k[0], v[0], scale=0.25).check()
    Written(lib, q[0, 0], k[0, 0], v[0, 0], scale=0.25).check()
    Written(lib, q[:1], k, v, scale=0.25).check()
    Written(lib, q[:1], k[:1], v, scale=0.25).check()
    Written(lib, q[:1], k[:1], v[:1], scale=0.25, add=torch.randn(3, 1, 1, 20)).check(attention=False)


def layouts(b, t, h, d):
    """[b, h, t, d] in the ways that models hold it."""
    yield torch.randn(b, t, 3, h, d).permute(2, 0, 3, 1, 4)[1]
    yield torch.randn(b, t, h, d).transpose(1, 2)
    yield torch.randn(b, h, d, t).transpose(2, 3)
    yield torch.randn(b, h, t, 2 * d)[..., ::2]
    yield torch.randn(b, h, 2 * t, d)[:, :, 1::2]
    yield torch.randn(b, 1, t, d).expand(b, h, t, d)
    yield torch.randn(b, h, 1, d).expand(b, h, t, d)
    yield torch.randn(b, h, t, d + 3)[..., 2 : d + 2]


@pytest.mark.parametrize("turned", ["node", "input", "copied"])
def test_layouts(lib, turned):
    for q in layouts(2, 18, 3, 16):
        for k, v in zip(layouts(2, 35, 3, 16), layouts(2, 35, 3, 16), strict=True):
            if turned == "node":
                sdpa(lib, q, k, v)
            Written(lib, q, k, v, scale=0.25, turned=turned).check()


@pytest.mark.parametrize("shape", [(2, 3, 20, 30, 32), (1, 4, 4, 4, 4), (2, 2, 1, 9, 16), (1, 1, 7, 7, 5)], ids=str)
@pytest.mark.parametrize("merge", [3, 2])
def test_heads_are_put_back(lib, shape, merge):
    w = Written(lib, *tensors(*shape), scale=0.3, merge=merge).check()
    text = w.g.plan_text()
    assert "copy" not in text and "view" not in text
    assert steps(w.g) == (["attention"] if merge == 3 else ["attention", "kernel"])


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("tk", [40, 700])
def test_not_finite(lib, value, where, tk):
    parts = dict(zip("qkv", tensors(1, 2, 30, tk, 16), strict=True))
    parts[where][0, 1, 20, 3] = value
    q, k, v = parts.values()
    if where != "q":  # decoding: keys and values are read as they lie
        sdpa(lib, q[:, :, :1], k, v)
    keep = torch.rand(30, tk) < 0.8
    sdpa(lib, q, k, v)
    sdpa(lib, q, k, v, keep)
    sdpa(lib, q, k, v, torch.randn(30, tk))
    Written(lib, q, k, v, scale=0.25).check()
    Written(lib, q, k, v, scale=0.25, fill=(~keep, -1e9)).check()
    Written(lib, q, k, v, scale=0.25, fill=(~keep, -INF)).check()
    if where != "v":
        sdpa(lib, q, k, v, causal=True)


@pytest.mark.parametrize("value", [NAN, INF])
def test_not_finite_mask(lib, value):
    q, k, v = tensors(1, 2, 30, 40, 16)
    mask = torch.zeros(30, 40)
    mask[3, 5] = mask[29, 39] = value
    sdpa(lib, q, k, v, mask)
    Written(lib, q, k, v, scale=0.25, add=mask).check()


@pytest.mark.parametrize("dtype", [torch.float64])
def test_other_dtypes_stay_with_the_host(lib, dtype):
    q, k, v = (t.to(dtype) for t in tensors(1, 2, 9, 20, 16))
    g = Graph(lib)
    fn = lambda q, k, v, *_: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    g.out(g.op("attention", fn, g.input(q), g.input(k), g.input(v), None, False, None, False)).compile()
    assert steps(g) == ["host"]
    w = Written(lib, q, k, v, scale=0.25)
    w.g.compile()
    assert "attention" not in steps(w.g)


def test_nothing_to_attend_to(lib):
    q, k, v = tensors(1, 2, 9, 20, 16)
    sdpa(lib, q, k[:, :, :0], v[:, :, :0], host=True)
    sdpa(lib, q[:, :, :0], k, v, host=True)


@pytest.mark.parametrize("how", ["out", "read"])
def test_what_others_read_stays(lib, how):
    """A step in between that is given back or read elsewhere."""

    def share(w, made):
        w.g.out(w.made[made] if how == "out" else w.g.op("neg", torch.neg, w.made[made]))
        return w

    for made in (1, 2, 3):  # scores, scaled ones, weights
        share(Written(lib, *tensors(1, 2, 9, 20, 16), scale=0.3), made).check(attention=False)
    for made in (0, 4, 5):  # k turned; behind the second product
        share(Written(lib, *tensors(1, 2, 9, 20, 16), scale=0.3, merge=2), made).check()


def test_memory_written_in_between(lib):
    q, k, v = tensors(1, 2, 9, 20, 16)
    g = Graph(lib)
    x, y, w = g.input(q), g.input(k.transpose(-2, -1)), g.input(v)
    s = g.op("matmul", torch.matmul, x, y)
    g.op("host", lambda t: t.mul_(2), x, flags=WRITES)
    out = g.op("matmul", torch.matmul, g.op("softmax", lambda t, m: t.softmax(-1), s, 1), w)
    g.out(out).compile()
    assert "attention" not in steps(g)
    x0 = q / 2
    g.inputs[x.v].copy_(x0)
    torch.testing.assert_close(g.run()[0], g.eager[out.v])


def test_another_dim_or_order_is_no_attention(lib):
    q, k, v = tensors(1, 2, 20, 20, 16)
    g = Graph(lib)
    s = g.op("matmul", torch.matmul, g.input(q), g.input(k.transpose(-2, -1)))
    g.out(g.op("matmul", torch.matmul, g.op("softmax", lambda t, m: t.softmax(-2), s, 2), g.input(v))).compile()
    assert "attention" not in steps(g)
    g = Graph(lib)
    s = g.op("matmul", torch.matmul, g.input(q), g.input(k.transpose(-2, -1)))
    p = g.op("softmax", lambda t, m: t.softmax(-1), s, 1)
    g.out(g.op("matmul", torch.matmul, g.input(v.transpose(-2, -1).contiguous()), p)).compile()
    assert "attention" not in steps(g)


def test_one_thread_and_many(lib):
    """The same values however the work is divided."""
    q, k, v = tensors(1, 3, 150, 500, 32)
    results = []
    for threads in (1, 2, 3):
        lib.t_threads(threads)
        g = Graph(lib)
        fn = lambda q, k, v, *_: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
        g.out(g.op("attention", fn, g.input(q), g.input(k), g.input(v), None, False, None, False)).compile()
        results.append(g.run()[0])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(results[0], results[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1, 4100, 64, 48), (1, 3, 2, 1100, 20, 23), (1, 1, 5, 1500, 40, 40), (1, 5, 3, 1030, 8, 1)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_few_rows_of_many_keys(lib, shape, threads):
    """Keys are read as they lie, whichever way, and divided among threads; what a part of them holds reaches all."""
    b, h, tq, tk, d, dv = shape
    q, k, v = tensors(b, h, tq, tk, d, dv)
    lib.t_threads(threads)
    turned = k.transpose(-2, -1).contiguous().transpose(-2, -1)
    beside = (k.transpose(1, 2).contiguous().transpose(1, 2), v.transpose(1, 2).contiguous().transpose(1, 2))
    late, mask = torch.arange(tk)[None] > tk - 5, torch.randn(tq, tk)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for keys, values in ((k, v), (turned, v), beside):
            part = [t.to(dtype) for t in (q, keys, values)]
            sdpa(lib, *part)
            sdpa(lib, *part, mask=late)
            sdpa(lib, *part, mask=torch.zeros(tq, tk, dtype=torch.bool))
            sdpa(lib, *part, mask=mask.to(dtype), scale=-0.3)
            sdpa(lib, *part, mask=mask.masked_fill(late, INF).to(dtype))


# ------------------------------------------------------------------------------------------------ whole blocks
class Block(nn.Module):
    """Projections, heads, attention and the way back, as models of transformers write them."""

    def __init__(self, way, heads=4, size=64):
        super().__init__()
        self.way, self.heads, self.size = way, heads, size
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def bert(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)

    def gpt2(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)

    def vit(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v)

    def written(self, q, k, v, mask):
        return torch.matmul(self.dropout(F.softmax(torch.matmul(q, k.transpose(-1, -2)) / 4.0, dim=-1)), v)

    def operators(self, q, k, v, mask):
        return F.softmax(q @ k.mT * self.size**-0.5, dim=-1) @ v

    def added(self, q, k, v, mask):
        return torch.softmax(q @ k.transpose(2, 3) * 0.25 + mask, dim=-1) @ v

    def filled(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)) * 0.25
        return scores.masked_fill(mask == 0, float("-inf")).softmax(dim=-1) @ v

    def forward(self, x, mask=None):
        q, k, v = (self.split(t) for t in self.qkv(x).split(self.size, dim=2))
        y = getattr(self, self.way)(q, k, v, mask)
        y = y.transpose(1, 2).contiguous()
        return self.out(y.view(*x.shape[:2], -1))


def plan_of(compiled):
    from ccompile.api import compiled_of

    return compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]


@pytest.mark.skipif(CHILD, reason="the core alone")
@pytest.mark.parametrize("way", ["bert", "gpt2", "vit", "written", "operators", "added", "filled"])
def test_blocks(way):
    """One attention step in the plan, and what eager gives."""
    import ccompile

    torch.manual_seed(0)
    block, x = Block(way).eval(), torch.randn(2, 24, 64)
    mask = {"bert": torch.rand(2, 1, 1, 24) < 0.8, "added": torch.randn(2, 1, 1, 24), "filled": torch.randn(24, 24) > 0}
    args = (x, mask[way]) if way in mask else (x,)
    compiled = ccompile.compile(block)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*args), block(*args), equal_nan=True)
    if os.environ.get("CCOMPILE_TEST_EAGER", "0") in ("", "0"):
        plan = plan_of(compiled)
        assert [line.split()[1] for line in plan.splitlines()].count("attention") == 1, plan
        assert "softmax" not in plan


@pytest.mark.skipif(CHILD, reason="the core alone")
@pytest.mark.parametrize("mask", [None, (24, 24), (2, 1, 24, 24), (2, 1, 1, 24), (24,), (4, 24, 1)], ids=str)
@pytest.mark.parametrize("index", [0, 5, -1])
def test_one_row_is_wanted(mask, index):
    """A classifier that looks at one token: the attention before it has that row only."""
    import ccompile

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block("written" if mask is None else "added")

        def forward(self, x, *masks):
            return (x + self.block(x, *masks))[:, index, :] * 2

    torch.manual_seed(0)
    head, args = Head().eval(), (torch.randn(2, 24, 64),) + (() if mask is None else (torch.randn(mask),))
    compiled = ccompile.compile(head)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*args), head(*args))
    if os.environ.get("CCOMPILE_TEST_EAGER", "0") in ("", "0"):
        plan = plan_of(compiled)
        assert [line for line in plan.splitlines() if "attend#" in line and "narrowed" in line], plan


@pytest.mark.parametrize("cpu", ["avx2", "base"])
def test_smaller_vectors(lib, cpu):
    if CHILD:
        pytest.skip("this is the child")
    chosen = "test_shapes or test_causal or test_masks or test_fully or test_scale or test_large or test_grouped or not_finite"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--noconftest", "-p", "no:cacheprovider", __file__, "-k", chosen],
        env={**os.environ, "CCOMPILE_CPU": cpu, "CCOMPILE_CORE_CHILD": "1", "CCOMPILE_CORE_LIB": lib._name},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]

"""Scans in loop IR: graphs built by hand, run by LLVM and by the reference executor, and compiled functions, against eager torch."""

from __future__ import annotations

import sys
from pathlib import Path

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from test_reduce import EPS, FLOATS, INF, INTS, NAN, add, bits, both, lib, near, sample  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent / "core"))
from harness import Graph, run_child  # noqa: E402

SCANS = {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}
SHAPES = (((5, 37), 1), ((9, 37), 0), ((4, 6, 70), 1), ((3, 130), -1), ((1, 9), 0), ((), 0), ((2, 700), 1))


def scan(g, name, v, d):
    return g.op(name, lambda t, m: SCANS[name](t, d), v, bits(g.eager[v.v].dim(), d))


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("name", sorted(SCANS))
def test_ops(lib, monkeypatch, name, dtype):  # noqa: F811
    kernels = 0
    for shape, d in SHAPES:
        x = sample(shape, dtype)
        if name == "cumprod" and dtype.is_floating_point:
            x = 1 + x / 16
        for t in (x, x.transpose(0, -1), x[..., ::2], x.unsqueeze(-1).expand(*shape, 2)) if x.dim() else (x,):
            g = Graph(lib)
            try:
                y = scan(g, name, g.input(t), d if t.dim() == x.dim() else -1)
            except (RuntimeError, NotImplementedError):
                continue  # eager refuses
            g.out(y)
            assert g.check()[0] == 0
            # cumprod of bfloat16: eager keeps what it carries on with in float, and more is lost than here
            both(g, monkeypatch, lambda got, want, v: near(got, want, want.abs().max().item() if want.dtype.is_floating_point else 1))
            kernels += 1
    assert kernels or name == "logcumsumexp"


@pytest.mark.parametrize("name", sorted(SCANS))
@pytest.mark.parametrize("width", [5, 40, 130])
def test_special_values(lib, monkeypatch, name, width):  # noqa: F811
    rows = [[INF], [-INF], [NAN], [INF, -INF], [-INF, -INF, 1], [NAN, INF], [-INF] * width, [INF] * width, [0.0, INF], [-0.0] * width, [1e-42] * width]
    x = 1 + torch.randn(len(rows), width).sign() / 64  # no product of some of them is 0 or inf: the order is free
    for r, values in enumerate(rows):
        x[r, width // 2 :][: len(values)] = torch.tensor(values)[: width - width // 2]
    for t, d in ((x, 1), (x.t().contiguous(), 0), (x.t(), 0), (x.double(), 1)):
        g = Graph(lib)
        g.out(scan(g, name, g.input(t), d))
        both(g, monkeypatch, lambda got, want, v: near(got, want))


def twice(g, x):
    return [scan(g, "cumsum", scan(g, "cumsum", x, -1), -1)]


def around(g, x):
    s = scan(g, "cumsum", g.op("exp", torch.exp, x), -1)
    return [s, g.op("sqrt", torch.sqrt, s)]


def of_softmax(g, x):
    return [scan(g, "cumsum", add(g, "softmax", x, -1), -1)]


def reduced(g, x):
    s = scan(g, "cumsum", x, -1)
    return [add(g, "softmax", s, -1), add(g, "sum", s, -1), add(g, "amax", x, -1)]


def many(g, x):
    s, p, e = (scan(g, name, x, -1) for name in ("cumsum", "cumprod", "logcumsumexp"))
    return [g.op("mul", torch.mul, s, e), p, add(g, "softmax", e, -1)]


def down(g, x):
    s = scan(g, "cumsum", g.op("mul", torch.mul, x, x), 0)
    return [g.op("sub", torch.sub, s, add(g, "mean", s, 0)), s]


@pytest.mark.parametrize("shape", [(6, 40), (9, 16), (12, 131)], ids=str)
@pytest.mark.parametrize("pattern", [twice, around, of_softmax, reduced, many, down], ids=lambda f: f.__name__)
def test_one_kernel(lib, monkeypatch, pattern, shape):  # noqa: F811
    """Scans fuse as reductions do; one whose result is reduced is made in more than one sweep."""
    g = Graph(lib)
    g.out(*pattern(g, g.input(torch.randn(shape) / 4)))
    both(g, monkeypatch, lambda got, want, v: near(got, want, max(10, want.abs().max().item())))
    assert g.stats().steps == 1, g.plan_text()


@pytest.mark.parametrize("shape,d", [((4, 100000), 1), ((1, 300001), 1), ((100000, 4), 0), ((3000, 130), 0), ((3000, 130), 1), ((200001,), 0)], ids=str)
def test_split_among_threads(lib, shape, d):  # noqa: F811
    """Rows are never cut where they are scanned."""
    lib.t_threads(4)
    try:
        g = Graph(lib)
        y = scan(g, "cumsum", g.input(torch.randn(shape, dtype=torch.float64)), d)
        g.out(y)
        g.compile()
        near(g.run()[0], g.eager[y.v], 1000)
    finally:
        lib.t_threads(torch.get_num_threads())


def test_as_exact_as_eager(lib):  # noqa: F811
    """f32 is added up in f64, as eager does."""
    x = torch.rand(3, 50000) + 1
    g = Graph(lib)
    y = scan(g, "cumsum", g.input(x), 1)
    g.out(y)
    g.compile()
    exact = x.double().cumsum(1)
    assert (g.run()[0] - exact).abs().max() <= (g.eager[y.v] - exact).abs().max() * 1.01


@pytest.mark.parametrize("environment", [{"CCOMPILE_CPU": "avx2"}, {"CCOMPILE_LIBMVEC": "0"}, {"CCOMPILE_CPU": "base"}], ids=str)
def test_narrowed(lib, environment):  # noqa: F811
    """Again as on a machine with smaller vectors or without libmvec."""
    run_child(lib, environment, __file__, "(ops and (float32 or int64)) or special or one_kernel")


# ------------------------------------------------------------------------------------------------ functions
def compare(f, *args, kernels):
    compiled = ccompile.compile(f)
    for _ in range(3):
        with torch.no_grad():
            got, want = compiled(*args), f(*args)
        for a, b in zip(*([r] if isinstance(r, torch.Tensor) else r for r in (got, want)), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-5, equal_nan=True)
            assert a.stride() == b.stride() and a.dtype == b.dtype
    plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
    assert plan.count("kernel") == kernels and "host" not in plan, plan


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_values_with_indices(name):
    """One kernel, whichever of the results are read. Of equal ones, 0 and -0 and NaNs the last counts."""
    op = getattr(torch, name)
    x = torch.randn(3, 40, 5).round()
    x[1, 7, 2] = x[1, 9, 2] = x[0, 39, 0] = NAN
    x[2, 3:6] = torch.tensor([0.0, -0.0, 0.0])[:, None] * 9
    for t in (x, x.transpose(1, 2), x.double(), x.to(torch.bfloat16), x.nan_to_num().to(torch.int8), x > 0, x[:, :1].expand(3, 4, 5)):
        for f in (lambda t: op(t, 1), lambda t: op(t, 1)[0] * 1, lambda t: op(t, -1).indices + 1, lambda t: [v.float() + 1 for v in op(t, 0)]):
            compare(f, t, kernels=1)


@pytest.mark.parametrize("f", [
    lambda x: x.cumsum(1)[:, -1],
    lambda x: x.cumsum(0)[:, 2],
    lambda x: (x * 2).cumsum(1)[:, 3].exp(),
    lambda x: (x > 0).cumsum(1),
    lambda x: (x > 0).cumsum(1, dtype=torch.int32) * 2,
    lambda x: x.cumsum(-1, dtype=torch.float64),
    lambda x: (x > 0).long().cumsum(-1).masked_fill(x > 1, 0) - 1,
    lambda x: x.flip(1).cumsum(1).flip(1),
])  # fmt: skip
def test_functions(f):
    """Parts of what a scan gives, its dtypes, the places of tokens as models make them."""
    compiled = ccompile.compile(f)
    for _ in range(3):
        x = torch.randn(4, 9)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), f(x), rtol=2e-6, atol=1e-5)
    plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
    assert "cumsum" in plan and not any("host" in line and "cumsum" in line for line in plan.splitlines()), plan

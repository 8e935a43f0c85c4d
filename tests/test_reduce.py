"""Reductions in loop IR: graphs built by hand, compiled, run by LLVM and by the reference executor, against eager torch."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import CPU

sys.path.insert(0, str(Path(__file__).parent / "core"))
import core_library  # noqa: E402
import harness  # noqa: E402
from harness import Graph, run_child  # noqa: E402

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
EPS = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(scope="session")
def lib(tmp_path_factory):
    return harness.load(core_library.built(tmp_path_factory))


def bits(ndim, dims):
    """The operand of a row: a bit a dim, bit 0 is the last one."""
    if dims is None:
        return (1 << ndim) - 1
    return sum(1 << (ndim - 1 - d % ndim) for d in ((dims,) if isinstance(dims, int) else dims)) if ndim else 0


# name -> f(x, dims, keepdim)
OPS = {
    "sum": lambda x, d, k: x.sum(d, k),
    "mean": lambda x, d, k: x.mean(d, k),
    "amax": lambda x, d, k: x.amax(() if d is None else d, k),
    "amin": lambda x, d, k: x.amin(() if d is None else d, k),
    "any": lambda x, d, k: x.any(d, k),
    "all": lambda x, d, k: x.all(d, k),
    "var": lambda x, d, k: x.var(d, keepdim=k),
    "std": lambda x, d, k: x.std(d, keepdim=k),
    "logsumexp": lambda x, d, k: x.logsumexp(tuple(range(x.dim())) if d is None else d, k),
    "prod": lambda x, d, k: x.prod() if d is None else x.prod(d, k),
    "norm": lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k),
    "softmax": lambda x, d, k: x.softmax(d),
    "log_softmax": lambda x, d, k: x.log_softmax(d),
    "layer_norm": lambda x, d, k: F.layer_norm(x, x.shape[d:]),
    "rms_norm": lambda x, d, k: F.rms_norm(x, x.shape[d:]),
}
ONE_DIM = ("softmax", "log_softmax", "prod")


def add(g, name, v, d, keep=False):
    x = g.eager[v.v]
    mask = bits(x.dim(), tuple(range(d, 0)) if name.endswith("_norm") else d)
    if name == "norm":
        return g.op(name, lambda t, o, m: OPS[name](t, d, keep), v, 2, mask)
    if name == "layer_norm":
        return g.op(name, lambda t, m, w, b, e: OPS[name](t, d, keep), v, mask, None, None, 1e-5)
    return g.op(name, lambda t, m: OPS[name](t, d, keep), v, mask)


def both(g, monkeypatch, compare, host=0):
    for backend in ("llvm", "ref"):
        monkeypatch.setenv("CCOMPILE_BACKEND", backend)
        g.compile()
        assert g.stats().host_steps == host, g.plan_text()
        for got, v in zip(g.run(), g.outputs):
            want = g.eager[v]
            assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
            compare(got, want, v)
    monkeypatch.delenv("CCOMPILE_BACKEND")


def near(got, want, scale=1.0):
    """scale: of what was added up; cancelling sums lose that much."""
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want)
        return
    rtol = 4 * EPS[want.dtype]
    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * scale, equal_nan=True)


def sample(shape, dtype, seed=0):
    gen = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 8, shape, generator=gen) > 0
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype is torch.uint8 else -9, 10, shape, generator=gen).to(dtype)
    return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-12, 1.0, 1e15, 1e25, 1e36])
def test_std_squares_nothing_away(lib, monkeypatch, scale):
    """Eager adds squares up in double."""
    for shape, d in (((5, 37), 1), ((5, 37), 0), ((3, 4, 21), None)):
        x = sample(shape, torch.float32) * scale
        x.view(-1)[3] = 0
        g = Graph(lib)
        g.out(add(g, "std", g.input(x), d))
        both(g, monkeypatch, lambda got, want, v: torch.testing.assert_close(got, want, rtol=1e-5, atol=0))


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("name", sorted(OPS))
def test_ops(lib, monkeypatch, name, dtype):
    if name == "prod" and dtype in (torch.bfloat16, torch.float16):
        pytest.skip("is torch's")
    kernels = 0
    for shape, d, keep in (((5, 37), 1, False), ((5, 37), 0, True), ((4, 6, 70), 1, False), ((3, 4, 21), None, False), ((3, 4, 21), (0, 2), True)):
        if name in ONE_DIM and not isinstance(d, int):
            continue
        if name.endswith("_norm"):
            d = {1: -1, 0: -2}.get(d, -1)
        x = sample(shape, dtype)
        g = Graph(lib)
        try:
            y = add(g, name, g.input(x), d, keep)
        except (RuntimeError, NotImplementedError):
            continue  # eager refuses
        g.out(y)
        assert g.check()[0] == 0
        big = x.double().abs().sum().item() if name == "sum" else 1.0
        both(g, monkeypatch, lambda got, want, v: near(got, want, big))
        kernels += 1
    if dtype in FLOATS:
        assert kernels


SHAPES = [(), (1,), (7,), (64,), (1000,), (1, 1), (3, 1, 5), (2, 1, 3, 1), (33, 65), (2, 3, 4, 5), (5, 16, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "amax", "var", "softmax", "any"])
def test_dims(lib, monkeypatch, name, shape):
    """Every set of dims of every shape."""
    dims = [None, *(c for n in range(1, len(shape) + 1) for c in itertools.combinations(range(len(shape)), n))]
    for d, keep in itertools.product(dims, (False, True)):
        if name == "softmax":
            d = -1 if d is None else d[0]
        x = sample(shape, torch.float32)
        g = Graph(lib)
        g.out(add(g, name, g.input(x), d, keep))
        spent = name == "var" and x.numel() == g.eager[g.outputs[0]].numel()  # no degrees of freedom: torch warns
        both(g, monkeypatch, lambda got, want, v: near(got, want, 30), host=int(spent))


LAYOUTS = {
    **harness.LAYOUTS,
    "batch": lambda t: t.view(3, 5, 4, 10)[:, :, 1:, 2:8],
    "nhwc": lambda t: t.view(3, 5, 4, 10).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts(lib, monkeypatch, layout, dtype):
    x = LAYOUTS[layout](sample((3, 5, 40), dtype))
    names = ("amax", "sum", "softmax") if dtype.is_floating_point else ("amax", "sum", "all")
    for d in range(x.dim()):
        for name in names:
            g = Graph(lib)
            g.out(add(g, name, g.input(x), d))
            both(g, monkeypatch, lambda got, want, v: near(got, want, 30))
    g = Graph(lib)
    g.out(add(g, "sum", g.input(x), (0, x.dim() - 1)))
    both(g, monkeypatch, lambda got, want, v: near(got, want, 30))


def test_empty_is_the_hosts(lib):
    for shape, d in (((0, 3), 0), ((0, 3), 1), ((0,), None)):
        g = Graph(lib)
        y = add(g, "mean", g.input(torch.zeros(shape)), d)
        g.out(y)
        g.compile()
        assert g.stats().host_steps == 1
        near(g.run()[0], g.eager[y.v])


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "prod", "var", "logsumexp", "norm", "softmax", "log_softmax", "layer_norm", "any"])
@pytest.mark.parametrize("width", [5, 40, 130])
def test_special_values(lib, monkeypatch, name, width):
    rows = [[INF], [-INF], [NAN], [INF, -INF], [INF, INF], [NAN, INF], [-INF] * width, [INF] * width, [NAN] * width, [-0.0] * width, [3e38] * width]
    for where in (0, width - 3, width // 2):
        x = torch.randn(len(rows), width)
        if name == "prod":
            x = 1 + x.sign() / 64  # no product of some of them is 0 or inf: the order is free
        if name in ("var", "layer_norm"):
            rows = rows[:-1]  # eager sums in double, or in blocks: what overflows is not the same
        for r, values in enumerate(rows):
            start = 0 if len(values) == width else where
            x[r, start : start + len(values)] = torch.tensor(values)[: width - start]
        for t, d in ((x, 1), (x.t().contiguous(), 0), (x.t(), 0)):
            if name == "layer_norm" and d == 0:
                continue
            g = Graph(lib)
            g.out(add(g, name, g.input(t), -1 if name == "layer_norm" else d))
            both(g, monkeypatch, lambda got, want, v: near(got, want))


def error(got, exact):
    return ((got.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30)).item()


@pytest.mark.parametrize(
    "shape,d",
    [((8, 4096), 1), ((3, 100003), 1), ((1 << 21,), 0), ((4096, 64), 0), ((50000, 40), 0), ((1000, 1000), None), ((8, 16, 300), (0, 2))],
    ids=str,
)
def test_as_exact_as_eager(lib, shape, d):
    """Against float64, for values of one sign and of both; a small constant allows for luck."""
    for shift, name in itertools.product((0, 1, 100), ("sum", "mean", "var", "norm", "logsumexp")):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + shift
        g = Graph(lib)
        y = add(g, name, g.input(x), d)
        g.out(y)
        (got,) = g.compile().run()
        assert not g.called
        exact = OPS[name](x.double(), d, False)
        luck = 3e-7 if CPU != "base" else 6e-7  # narrow vectors have fewer partial sums
        assert error(got, exact) <= 2 * error(g.eager[y.v], exact) + luck, (name, shift)


@pytest.mark.parametrize("width", [40, 768, 5000])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_rows_as_exact_as_eager(lib, name, width):
    for shift in (0, 30):
        x = torch.randn(16, width, generator=torch.Generator().manual_seed(2)) * 3 + shift
        g = Graph(lib)
        y = add(g, name, g.input(x), -1)
        g.out(y)
        (got,) = g.compile().run()
        exact = OPS[name](x.double(), -1, False) if name != "rms_norm" else F.rms_norm(x.double(), (width,), eps=2.0**-23)
        assert error(got, exact) <= 2 * error(g.eager[y.v], exact) + 2e-7


@pytest.mark.parametrize("shape", [(2, 300000), (1, 100001), (1 << 20,), (3000, 70), (4096, 17), (3, 64, 50, 50), (600, 900)])
@pytest.mark.parametrize("name", ["sum", "amax", "softmax", "var"])
def test_split_among_threads(lib, name, shape):
    lib.t_threads(4)
    try:
        for d in range(len(shape)):
            g = Graph(lib)
            y = add(g, name, g.input(torch.randn(shape)), d)
            g.out(y)
            (got,) = g.compile().run()
            near(got, g.eager[y.v], 1000 if name == "sum" else 1)
    finally:
        lib.t_threads(torch.get_num_threads())


# ------------------------------------------------------------------------------------------------ fusion
def layer_norm(g, x, w, b, n):
    return g.op("layer_norm", lambda t, m, ww, bb, e: F.layer_norm(t, (n,), ww, bb, e), x, 1, w, b, 1e-5)


def llama(g, x, w):
    p = g.op("pow", torch.pow, x, 2)
    r = g.op("rsqrt", torch.rsqrt, g.op("add", torch.add, add(g, "mean", p, -1, True), 1e-6))
    return [g.op("mul", torch.mul, w, g.op("mul", torch.mul, x, r))]


def by_hand(g, x, w):
    e = g.op("exp", torch.exp, g.op("sub", torch.sub, x, add(g, "amax", x, -1, True)))
    return [g.op("div", torch.div, e, add(g, "sum", e, -1, True))]


def masked(g, x, w):
    m = g.op("lt", torch.lt, x, w)
    return [add(g, "softmax", g.op("masked_fill", torch.masked_fill, g.op("mul", torch.mul, x, 0.25), m, -INF), -1)]


def residual(g, x, w):
    s = g.op("add", torch.add, x, w)
    return [s, g.op("gelu", F.gelu, layer_norm(g, s, w, None, 40))]


def first_dim(g, x, w):
    m = add(g, "mean", x, 0)
    return [m, g.op("sub", torch.sub, x, m)]


def moments(g, x, w):
    return [add(g, "mean", x, -1), add(g, "var", x, -1, True), add(g, "amax", x, -1)]


def behind(g, x, w):
    s = add(g, "sum", g.op("mul", torch.mul, x, x), -1)
    return [g.op("sqrt", torch.sqrt, g.op("add", torch.add, s, 1)), s]


def standardise(g, x, w):
    d = g.op("sub", torch.sub, x, add(g, "mean", x, -1, True))
    return [g.op("div", torch.div, d, g.op("add", torch.add, add(g, "std", x, -1, True), 1e-5))]


@pytest.mark.parametrize("shape", [(6, 40), (2, 3, 40), (5, 40)], ids=str)
@pytest.mark.parametrize("pattern", [llama, by_hand, masked, residual, first_dim, moments, behind, standardise], ids=lambda f: f.__name__)
def test_one_kernel(lib, monkeypatch, pattern, shape):
    g = Graph(lib)
    g.out(*pattern(g, g.input(torch.randn(shape)), g.input(torch.rand(40))))
    both(g, monkeypatch, lambda got, want, v: near(got, want, 10))
    assert g.stats().steps == 1, g.plan_text()


def test_kept_apart(lib, monkeypatch):
    """A dropped dim is not where the same loop would read it: a square matrix minus the means of its rows, read as a row."""
    g = Graph(lib)
    x, w = g.input(torch.randn(40, 40)), g.input(torch.randn(40))
    m = add(g, "mean", x, 1)
    g.out(g.op("sub", torch.sub, x, m), g.op("mul", torch.mul, m, w))
    both(g, monkeypatch, lambda got, want, v: near(got, want))
    assert g.stats().steps == 2


def test_reductions_of_two_dims_are_two_kernels(lib, monkeypatch):
    g = Graph(lib)
    x = g.input(torch.randn(8, 40))
    a = add(g, "sum", g.op("mul", torch.mul, x, 2), 0)
    b = add(g, "sum", a, 0)
    g.out(a, b)
    both(g, monkeypatch, lambda got, want, v: near(got, want, 50))
    assert g.stats().steps == 2


def test_few_long_rows_leave_elements_to_all_threads(lib):
    g = Graph(lib)
    x = g.input(torch.randn(1 << 17))
    m = add(g, "mean", g.op("mul", torch.mul, x, x), None)
    g.out(g.op("sub", torch.sub, x, m))
    g.compile()
    assert g.stats().steps == 2
    near(g.run()[0], g.eager[g.outputs[0]])


def test_result_in_the_memory_of_an_operand(lib):
    """In place: what is read again in a later sweep must not be overwritten yet."""
    g = Graph(lib)
    x, r, w = g.input(torch.randn(6, 40)), g.input(torch.randn(6, 40)), g.input(torch.randn(40, 40))
    h = g.op("matmul", torch.matmul, x, w)
    s = g.op("add", torch.add, h, r)
    y = layer_norm(g, s, None, None, 40)
    z = g.op("matmul", torch.matmul, y, w)
    g.out(g.op("add", torch.add, z, s))
    g.compile()
    torch.testing.assert_close(g.run()[0], g.eager[g.outputs[0]], rtol=1e-4, atol=1e-4)


def test_dtype_argument(lib, monkeypatch):
    for x, f, name in (
        (torch.randn(5, 40), lambda t, m: t.sum(1, dtype=torch.float64), "sum"),
        (torch.randn(5, 40).bfloat16(), lambda t, m: t.softmax(1, dtype=torch.float32), "softmax"),
        (torch.randint(0, 9, (5, 40)), lambda t, m: t.mean(1, dtype=torch.float32), "mean"),
        (torch.randint(0, 2, (5, 40)).bool(), lambda t, m: t.sum(1), "sum"),
    ):
        g = Graph(lib)
        g.out(g.op(name, f, g.input(x), 1))
        both(g, monkeypatch, lambda got, want, v: near(got, want, 50))


def test_orders_of_norms(lib, monkeypatch):
    x = torch.randn(6, 40)
    for order in (0, 1, 2, 3, 0.5, 2.5, INF, -INF, -1):
        g = Graph(lib)
        g.out(g.op("norm", lambda t, o, m: torch.linalg.vector_norm(t, o, 1), g.input(x), order, 1))
        both(g, monkeypatch, lambda got, want, v: near(got, want, 10))


def test_corrections(lib, monkeypatch):
    for c, n in ((0, 7), (1, 7), (2.5, 7), (1, 1), (3, 2), (None, 5)):
        g = Graph(lib)
        g.out(g.op("var", lambda t, m, k: t.var(1, correction=k), g.input(torch.randn(4, n)), 1, c))
        both(g, monkeypatch, lambda got, want, v: near(got, want), host=int(n <= (1 if c is None else c)))


def test_norms_with_weights(lib, monkeypatch):
    for dtype, shape, tail in ((torch.float32, (3, 5, 40), 1), (torch.float32, (3, 5, 40), 2), (torch.bfloat16, (3, 40), 1), (torch.float64, (7,), 1)):
        x, normal = sample(shape, dtype), shape[len(shape) - tail :]
        w, b = sample(normal, dtype, 1), sample(normal, dtype, 2)
        for weights in ((w, b), (w, None), (None, None)):
            g = Graph(lib)
            v, ops = g.input(x), [None if t is None else g.input(t) for t in weights]
            y = g.op("layer_norm", lambda t, m, ww, bb, e: F.layer_norm(t, normal, ww, bb, e), v, (1 << tail) - 1, *ops, 1e-3)
            z = g.op("rms_norm", lambda t, m, ww, e: F.rms_norm(t, normal, ww, e), v, (1 << tail) - 1, ops[0], 1e-3)
            g.out(y, z)
            both(g, monkeypatch, lambda got, want, v: near(got, want, 4))


def test_weights_of_another_dtype(lib):
    g = Graph(lib)
    x, w = g.input(torch.randn(3, 8).bfloat16()), g.input(torch.randn(8))
    y = g.op("layer_norm", lambda t, m, ww, b, e: F.layer_norm(t, (8,), ww, ww, e), x, 1, w, w, 1e-5)
    g.out(y)
    g.compile()
    assert g.stats().host_steps == 0
    torch.testing.assert_close(g.run()[0], g.eager[y.v])


@pytest.mark.parametrize("environment", [{"CCOMPILE_CPU": "avx2"}, {"CCOMPILE_LIBMVEC": "0"}, {"CCOMPILE_CPU": "base"}], ids=str)
def test_narrowed(lib, environment):
    """Again as on a machine with smaller vectors or without libmvec."""
    run_child(lib, environment, __file__, "ops or layouts or special or one_kernel")


def test_scratch_lines(lib, monkeypatch):
    """Kept elements of long and short rows and columns, again after a larger call."""
    for shape, d in (((3, 70000), 1), ((70000, 3), 0), ((900, 100), 0), ((2, 9), 1), ((9, 70), 0), ((4, 300, 5), 1)):
        g = Graph(lib)
        x = g.input(torch.randn(shape))
        e = g.op("exp", torch.exp, g.op("mul", torch.mul, x, 2))
        t = g.op("tanh", torch.tanh, x)
        s, m = add(g, "sum", e, d, True), add(g, "amax", t, d, True)
        g.out(g.op("div", torch.div, e, s), g.op("sub", torch.sub, t, m))
        both(g, monkeypatch, lambda got, want, v: near(got, want))


@pytest.mark.parametrize("name", ["max", "min"])
def test_values_with_indices(name):
    """max along a dim is one kernel, whichever of its results are read."""
    import ccompile
    from ccompile.api import compiled_of

    op = getattr(torch, name)
    x = torch.randn(3, 40, 5)
    x[1, 7, 2] = float("nan")
    for f in (
        lambda t: op(t, dim=1)[0] * 2,
        lambda t: op(t, -1, keepdim=True).values + t,
        lambda t: op(t, 1),
        lambda t: op(t, 1).indices + 1,
        lambda t: [v.float() + 1 for v in op(t, 0)],
    ):
        compiled = ccompile.compile(f)
        for _ in range(3):
            got, want = compiled(x), f(x)
            assert type(got) is type(want)
            for a, b in zip(got, want) if isinstance(want, (tuple, list)) else [(got, want)]:
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
                assert a.stride() == b.stride()
        plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
        assert plan.count("kernel") == 1 and "host" not in plan, plan

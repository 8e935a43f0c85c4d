"""The core half without Python in between: graphs built by hand, compiled, run, and compared with eager torch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent / "core"))
import core_library  # noqa: E402
import harness  # noqa: E402
from harness import EFFECT, RANDOM, WRITES, Graph, run_child  # noqa: E402

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.fixture(scope="session")
def lib(tmp_path_factory):
    return harness.load(core_library.built(tmp_path_factory))


@pytest.fixture
def ref(monkeypatch):
    def switch(on):
        if on:
            monkeypatch.setenv("CCOMPILE_BACKEND", "ref")
        else:
            monkeypatch.delenv("CCOMPILE_BACKEND", raising=False)

    return switch


# ------------------------------------------------------------------------------------------------ pointwise rows
# name -> (function, what the operands are). Operand kinds: t a tensor, p positive tensor, u tensor in [-1, 1], m bool
# tensor, d tensor without zeros, n small non-negative integers, i int64 below 5; anything else is passed as it is.
def once(fn):
    """Rounded once in half precision."""
    def rounded(*args):
        half = next((a.dtype for a in args if torch.is_tensor(a) and a.dtype in (torch.bfloat16, torch.float16)), None)
        if half is None:
            return fn(*args)
        return fn(*(a.float() if torch.is_tensor(a) and a.dtype is half else a for a in args)).to(half)

    return rounded


def logit_eps(x, eps):
    """eps and 1 - eps are of x's dtype."""
    low = torch.tensor(eps, dtype=x.dtype if x.dtype.is_floating_point else torch.float32)
    inside = (x >= low) & (x <= 1 - low)  # the gradient of all others is 0
    return torch.logit(torch.where(inside, x, x.detach().clamp(low, 1 - low)))


def loss(fn, *kinds, round=lambda fn: fn, **options):
    """Of each element; options that are operands follow the tensors. round: once, where eager rounds no step of it."""
    names = [name for name in ("weight", "pos_weight", "beta", "delta") if name in options]
    fixed = {k: v for k, v in options.items() if k not in names}
    return (round(lambda a, b, *more: fn(a, b, reduction="none", **fixed, **dict(zip(names, more, strict=True)))), (*kinds, *(options[n] for n in names)))


def floats(x):
    if not x.is_floating_point():
        raise TypeError("only of floats")
    return x


def norm_eval(x, w, b, m, v, e):
    """Rounded once in half precision."""
    if x.dtype in (torch.bfloat16, torch.float16):
        return norm_eval(*(t.float() for t in (x, w, b, m, v)), e).to(x.dtype)
    scale = 1 / torch.sqrt(v + e) * w
    return x * scale + (b - m * scale)


ROWS = {
    "add": [(torch.add, "tt"), (lambda a, b, c: torch.add(a, b, alpha=c), ("t", "t", 2)), (torch.add, ("t", 3))],
    "sub": [(torch.sub, "tt"), (lambda a, b, c: torch.sub(a, b, alpha=c), ("t", "t", 3)), (torch.sub, ("t", 1.5))],
    "rsub": [(torch.rsub, "tt"), (torch.rsub, ("t", 1))],
    "mul": [(torch.mul, "tt"), (torch.mul, ("t", 0.3)), (torch.mul, ("t", 3)), (torch.mul, ("t", True))],
    "div": [(torch.div, "td"), (torch.div, ("t", 3))],
    "div_floor": [(torch.floor_divide, "td"), (torch.floor_divide, ("t", 3)), (torch.floor_divide, ("t", -3))],
    "div_trunc": [
        (lambda a, b: torch.div(a, b, rounding_mode="trunc"), "td"),
        (lambda a, b: torch.div(a, b, rounding_mode="trunc"), ("t", 3)),
    ],
    "remainder": [(torch.remainder, "td"), (torch.remainder, ("t", 3)), (torch.remainder, ("t", -3))],
    "fmod": [(torch.fmod, "td"), (torch.fmod, ("t", 3)), (torch.fmod, ("t", -3))],
    "pow": [(torch.pow, "pt"), *((torch.pow, ("p", e)) for e in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.7, -3))],
    "neg": [(torch.neg, "t")],
    "abs": [(torch.abs, "t")],
    "sign": [(torch.sign, "t")],
    "sqrt": [(torch.sqrt, "p")],
    "rsqrt": [(torch.rsqrt, "p")],
    "reciprocal": [(torch.reciprocal, "d")],
    "square": [(torch.square, "t")],
    "leaky_relu": [(F.leaky_relu, "t"), (F.leaky_relu, ("t", 0.2))],
    "elu": [(F.elu, "t"), (F.elu, ("t", 0.7)), (torch._C._nn.elu, ("t", 0.7, 1.3, 0.9))],
    "celu": [(F.celu, "t"), (F.celu, ("t", 0.7))],
    "gelu": [(F.gelu, "t")],
    "gelu_tanh": [(lambda a: F.gelu(a, approximate="tanh"), "t")],
    "silu": [(F.silu, "t")],
    "softplus": [(F.softplus, "t"), (F.softplus, ("t", 2.0, 5.0))],
    "hardtanh": [(F.hardtanh, "t"), (F.hardtanh, ("t", -0.3, 0.7))],
    "logsigmoid": [(F.logsigmoid, "t")],
    "threshold": [(F.threshold, ("t", 0.5, 0.1))],
    "clamp": [
        (torch.clamp, ("t", -0.5, 0.5)),
        (torch.clamp, ("t", None, 1)),
        (torch.clamp, ("t", 1)),
        (torch.clamp, ("t", "t", "t")),
        (torch.clamp, ("t", 0.3, None)),
    ],
    "clamp_min": [(torch.clamp_min, ("t", 0.3)), (torch.clamp_min, "tt"), (torch.clamp_min, ("t", 1))],
    "clamp_max": [(torch.clamp_max, ("t", 0.3)), (torch.clamp_max, "tt")],
    "minimum": [(torch.minimum, "tt")],
    "maximum": [(torch.maximum, "tt")],
    "where": [(torch.where, "mtt"), (torch.where, ("m", "t", 1)), (torch.where, ("m", 0.5, "t"))],
    "masked_fill": [(torch.masked_fill, ("t", "m", 1)), (torch.masked_fill, ("t", "m", float("-inf")))],
    **{n: [(getattr(torch, n), "tt"), (getattr(torch, n), ("t", 1)), (getattr(torch, n), ("t", 0.3))] for n in "eq ne lt le gt ge".split()},
    **{n: [(getattr(torch, n), "tt")] for n in "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor".split()},
    "lshift": [(torch.bitwise_left_shift, "tn"), (torch.bitwise_left_shift, ("t", 3))],
    "rshift": [(torch.bitwise_right_shift, "tn"), (torch.bitwise_right_shift, ("t", 2))],
    "lerp": [(torch.lerp, ("t", "t", 0.3)), (torch.lerp, ("t", "t", 0.7)), (torch.lerp, "ttt")],
    "addcmul": [(torch.addcmul, "ttt"), (lambda a, b, c, v: torch.addcmul(a, b, c, value=v), ("t", "t", "t", 2))],
    "addcdiv": [(torch.addcdiv, "ttd"), (lambda a, b, c, v: torch.addcdiv(a, b, c, value=v), ("t", "t", "d", 2.5))],
    "nan_to_num": [(torch.nan_to_num, "t"), (torch.nan_to_num, ("t", 1.0, 2.0, -3.0))],
    "atan2": [(torch.atan2, "tt")],
    "hypot": [(torch.hypot, "tt")],
    "xlogy": [(torch.xlogy, "tp")],
    "asin": [(torch.asin, "u")],
    "acos": [(torch.acos, "u")],
    "norm_eval": [(lambda x, w, b, m, v, e: norm_eval(x, w, b, m, v, e), ("t", "t", "t", "t", "p", 1e-3))],
    "copy": [(torch.clone, "t")],
    "float_power": [(torch.float_power, "pt"), (torch.float_power, ("p", 2))],
    "xlog1py": [(torch.special.xlog1py, "tp")],
    "entr": [(torch.special.entr, "p")],
    "acosh": [(torch.acosh, "p")],
    "atanh": [(torch.atanh, "u")],
    "logit": [(torch.logit, "u")],
    "logit_eps": [(logit_eps, ("u", 1e-3))],
    "hardshrink": [(F.hardshrink, "t"), (F.hardshrink, ("t", 0.3))],
    "softshrink": [(F.softshrink, "t"), (F.softshrink, ("t", 0.3))],
    "rrelu_eval": [(F.rrelu, ("t", 0.2, 0.4))],
    "pick": [(torch.Tensor.where, "tmt")],
    "tril": [(torch.tril, ("t", 1))],
    "triu": [(torch.triu, ("t", -2))],
    "norm_by": [(once(lambda x, w, b, m, v, e: (floats(x) - m) * ((v + e).rsqrt() * w) + b), ("u", "u", "u", "u", "p", 1e-3))],
    "running": [(once(lambda a, b, c, d: c * (b * d) + (1 - c) * floats(a)), ("u", "u", 0.3, 1.25))],
    "beyond": [(lambda a, b, c: (c + a - b).clamp_min(0), ("u", "u", 0.5))],
    "unless": [(lambda a, b, c: a.masked_fill(b == c, 0), ("t", "i", 3))],
    "blend": [(once(lambda a, b, c, d: a * b + c * d), ("t", 0.9, "t", 0.1))],
    "gated": [(once(lambda a, b: a * torch.sigmoid(b)), "tt")],
    "leaky_by": [(once(torch._prelu_kernel), "tt")],
    "mse_loss": [loss(F.mse_loss, "t", "t")],
    "l1_loss": [loss(F.l1_loss, "t", "t", round=once)],
    "smooth_l1_loss": [loss(F.smooth_l1_loss, "t", "t", beta=0.7)],
    "huber_loss": [loss(F.huber_loss, "t", "t", delta=1.3)],
    "soft_margin_loss": [loss(F.soft_margin_loss, "u", "u")],
    "bce_logits": [loss(F.binary_cross_entropy_with_logits, "u", "u"), loss(F.binary_cross_entropy_with_logits, "u", "u", weight="u")],
    "bce_logits_by": [loss(F.binary_cross_entropy_with_logits, "u", "u", weight="u", pos_weight="u")],
    "hinge_embedding_loss": [(lambda a, b, c: F.hinge_embedding_loss(a, b, c, reduction="none"), ("u", "u", 0.5))],
    "margin_ranking_loss": [(lambda a, b, c, d: F.margin_ranking_loss(a, b, c, d, reduction="none"), ("u", "u", "u", 0.5))],
    "poisson_nll_loss": [loss(F.poisson_nll_loss, "u", "u")],
    "poisson_nll_full": [(lambda a, b: F.poisson_nll_loss(a, b, full=True, reduction="none"), ("u", "p"))],
    "poisson_nll_linear_full": [(lambda a, b, c: F.poisson_nll_loss(a, b, False, True, eps=c, reduction="none"), ("p", "p", 1e-3))],
    "poisson_nll_linear": [(lambda a, b, c: F.poisson_nll_loss(a, b, False, eps=c, reduction="none"), ("p", "u", 1e-3))],
    "kl_div": [loss(F.kl_div, "u", "u")],
    "kl_div_log": [loss(F.kl_div, "u", "u", log_target=True)],
    **{n: [] for n in "fill fill_like cast cast_like arange linspace eye take take_both hot bce_each".split()},   # test_cast, test_fill; test_ops.test_places_and_indices
}
for n in "log log2 log10 log1p".split():
    ROWS[n] = [(getattr(torch, n), "p")]
for n in (
    "exp exp2 expm1 sin cos tan atan sinh cosh tanh erf erfc sigmoid relu floor ceil round trunc frac logical_not "
    "bitwise_not isnan isinf isfinite"
).split():
    ROWS[n] = [(getattr(torch, n), "t")]
for n in "asinh sinc deg2rad rad2deg isposinf isneginf signbit".split():
    ROWS[n] = [(getattr(torch, n), "t")]
for n in "logaddexp logaddexp2 copysign fmin fmax heaviside".split():
    ROWS[n] = [(getattr(torch, n), "tt")]
for n in "relu6 selu mish hardsigmoid hardswish".split():
    ROWS[n] = [(getattr(F, n), "t")]

# Rows whose result is exact: one rounding, comparisons, integers. The others may differ in the last bits.
APPROXIMATE = set(
    "pow rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh erf erfc hypot xlogy "
    "sigmoid elu selu celu gelu gelu_tanh silu mish softplus logsigmoid lerp addcmul addcdiv hardswish "
    "hardsigmoid leaky_relu add sub rsub sqrt norm_eval float_power xlog1py entr asinh acosh atanh sinc deg2rad rad2deg logit "
    "logit_eps logaddexp logaddexp2 softshrink rrelu_eval blend gated smooth_l1_loss huber_loss soft_margin_loss bce_logits bce_logits_by kl_div kl_div_log hinge_embedding_loss margin_ranking_loss poisson_nll_loss poisson_nll_linear poisson_nll_full poisson_nll_linear_full norm_by running".split()   # eager's sqrt is MKL's, which is not always rounded right
)
# Rows that cancel: what eager itself loses near zero is far more than RTOL.
ATOL = {"gelu": 2e-6, "gelu_tanh": 1e-6, "lerp": 1e-6, "addcmul": 1e-5, "addcdiv": 1e-5, "add": 2e-6, "sub": 2e-6, "rsub": 2e-6, **{n: 2e-6 for n in "logaddexp logaddexp2 logit logit_eps softshrink blend smooth_l1_loss huber_loss bce_logits bce_logits_by kl_div kl_div_log poisson_nll_loss poisson_nll_linear poisson_nll_full poisson_nll_linear_full norm_by running".split()}}
RTOL = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def tensor(kind, dtype, shape, seed):
    g = torch.Generator().manual_seed(seed)
    if kind == "m":
        return torch.randint(0, 2, shape, generator=g).bool()
    if kind == "i":
        return torch.randint(0, 5, shape, generator=g)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool() | (kind == "d")
    if not dtype.is_floating_point:
        low = 0 if kind in "pn" or dtype is torch.uint8 else -9
        t = torch.randint(low, 10, shape, generator=g).to(dtype)
        return torch.where(t == 0, torch.ones_like(t), t) if kind == "d" else t
    t = torch.randn(shape, generator=g, dtype=torch.float64) * (1 if kind == "u" else 3)
    if kind == "u":
        t = t.clamp(-1, 1)
    t = t.to(dtype)
    if kind == "p":
        t = t.abs()
    if t.numel() > 20:   # special values in places of their own for each operand
        flat = t.view(-1)
        special = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-42, -1e-42, 88.0, -88.0, 0.5, 2.5, -2.5]
        if kind in "pd":  # no denormal divisors: eager's own fmod(-2.5, 1e-42) is NaN
            special = [1.0, float("inf"), float("nan"), 0.25, 3.0]
        flat[: len(special)] = torch.tensor(special, dtype=torch.float64).roll(seed).to(dtype)
    return t


def record(lib, name, fn, kinds, dtype, shape):
    g = Graph(lib)
    ops = []
    for i, k in enumerate(kinds):
        ops.append(g.input(tensor(k, dtype, shape, i + len(name))) if isinstance(k, str) else k)
    g.out(g.op(name, fn, *ops))
    return g


def same(name, got, want):
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    if not want.dtype.is_floating_point or name not in APPROXIMATE:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        return
    if name == "gelu" and want.dtype in (torch.bfloat16, torch.float16):  # where the CPU can, eager's is oneDNN's, and NaN for inf
        got, want = (torch.where(want.isnan(), torch.zeros_like(t), t) for t in (got, want))
    tiny = {torch.float32: 1e-37, torch.float64: 1e-300, torch.bfloat16: 1e-37, torch.float16: 6e-8}[want.dtype]
    torch.testing.assert_close(got, want, rtol=RTOL[want.dtype], atol=max(tiny, ATOL.get(name, 0)), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("name", sorted(ROWS))
def test_row(lib, ref, name, dtype):
    if not ROWS[name]:
        pytest.skip("has a test of its own")
    tried = kernels = 0
    for fn, kinds in ROWS[name]:
        try:
            g = record(lib, name, fn, kinds, dtype, (5, 13))
        except (RuntimeError, NotImplementedError, TypeError):
            continue   # eager refuses
        tried += 1
        status, text = g.check()
        assert status == 0, text
        for backend in ("llvm", "ref"):
            ref(backend == "ref")
            g.compile()
            (got,) = g.run()
            if g.called:
                continue   # refused: the host did it
            kernels += 1
            same(name, got, g.eager[g.outputs[0]])
    if not tried:
        pytest.skip("eager refuses")
    if dtype in (torch.float32, torch.float64) and name not in ("bitwise_and",):
        assert kernels == 2 * tried


def test_remainders_are_exact(lib, ref):
    """C's fmod of any floats: quotients of 2^270, denormals, multiples; not by torch's, which gives NaN for large quotients."""
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-(2**31), 2**31, (40003,), generator=g).to(torch.int32).view(torch.float32) for _ in range(2))
    k = torch.randint(1, 2**20, (10000,), generator=g).float()
    a[:10000] = (b[:10000] * k).nan_to_num(1.0, 2.0, 3.0)
    b[10000:20000] = a[10000:20000] * torch.rand(10000, generator=g)
    graph = Graph(lib)
    graph.out(graph.op("fmod", torch.fmod, graph.input(a), graph.input(b)))
    with np.errstate(invalid="ignore"):
        want = torch.from_numpy(np.fmod(a.numpy(), b.numpy()))
    (got,) = graph.compile().run()
    assert not graph.called
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())


@pytest.mark.parametrize("to", FLOATS + INTS, ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=lambda d: str(d).split(".")[1])
def test_cast(lib, ref, dtype, to):
    x = tensor("t", dtype, (7, 5), 1)
    if dtype.is_floating_point and not to.is_floating_point and to is not torch.bool:
        x = x.nan_to_num(0, 3, -3).clamp(0 if to is torch.uint8 else -100, 100)   # the rest is undefined in C++
    g = Graph(lib)
    v = g.input(x)
    g.out(g.op("cast", lambda t: t.to(to, copy=True), v))
    g.out(g.op("cast_like", lambda t, other: t.to(other, copy=True), v, g.input(torch.zeros(2, dtype=to))))
    for backend in ("llvm", "ref"):
        ref(backend == "ref")
        results = g.compile().run()
        assert not g.called
        for got, out in zip(results, g.outputs, strict=True):
            torch.testing.assert_close(got, g.eager[out], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=lambda d: str(d).split(".")[1])
def test_fill(lib, ref, dtype):
    g = Graph(lib)
    g.out(g.op("fill", lambda value: torch.full((3, 5), value, dtype=dtype), 1))
    g.out(g.op("fill_like", lambda x, value: torch.full((3, 5), value, dtype=dtype), g.input(torch.zeros(2)), 1))
    for backend in ("llvm", "ref"):
        ref(backend == "ref")
        results = g.compile().run()
        assert not g.called and all(torch.equal(got, g.eager[out]) for got, out in zip(results, g.outputs, strict=True))


SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 1.2e-38, -1.2e-38, 3e38, -3e38, float("inf"), -float("inf"), float("nan"), 1.0, -1.0]


@pytest.mark.parametrize("name", "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh erf sigmoid silu sqrt rsqrt atan asin".split())
def test_full_range(lib, ref, name):
    """f32 functions over the whole range: relative 2e-6 against the f64 function, special values exact."""
    fn = getattr(torch, name, None) or getattr(F, name)
    g0 = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (40000,), generator=g0).to(torch.int32).view(torch.float32)
    x = torch.cat([torch.tensor(SPECIAL), bits, torch.linspace(-110, 110, 20001), torch.linspace(-2, 2, 20001)])
    if name in ("sin", "cos", "tan"):
        x = x[x.abs() < 1e5]   # the argument itself is coarser than the period beyond
    want = fn(x.double())
    tiny = {"sigmoid": 1e-38, "silu": 1e-36}.get(name, 1.5e-45)   # eager's 1 / (1 + exp(-x)) gives 0 below -88.7
    g = Graph(lib)
    g.out(g.op(name, fn, g.input(x)))
    for backend in ("llvm", "ref"):
        ref(backend == "ref")
        (got,) = g.compile().run()
        torch.testing.assert_close(got, want.float(), rtol=2e-6, atol=tiny, equal_nan=True)


# ------------------------------------------------------------------------------------------------ shapes and strides
SHAPES = [(), (1,), (0,), (3, 0, 2), (15,), (16,), (17,), (1000,), (2, 3, 5), (1, 7, 1), (33, 65), (2, 1, 3, 1, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(lib, ref, shape, dtype):
    g = Graph(lib)
    a, b = (g.input(tensor("t", dtype, shape, s)) for s in (1, 2))
    c = g.op("mul", torch.mul, g.op("maximum", torch.maximum, a, b), 3)
    g.out(c, g.op("gt", torch.gt, c, b))
    check_both(g, ref)


def check_both(g, ref, **options):
    for backend in ("llvm", "ref"):
        ref(backend == "ref")
        g.compile(**options)
        assert not g.stats().host_steps, g.plan_text()
        for got, v in zip(g.run(), g.outputs):
            want = g.eager[v]
            assert got.shape == want.shape and got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


LAYOUTS = {**harness.LAYOUTS, "row": lambda t: t[0, 0], "scalar": lambda t: t[1, 2, 3]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts(lib, ref, layout, dtype):
    x = LAYOUTS[layout](tensor("t", dtype, (3, 5, 37), 5))
    full = tensor("t", dtype, x.shape, 6)
    for first, second in ((x, full), (full, x), (x, x)):
        g = Graph(lib)
        a, b = g.input(first), g.input(second)
        m = g.op("maximum", torch.maximum, a, b)
        g.out(m, g.op("eq", torch.eq, m, b))
        check_both(g, ref)


@pytest.mark.parametrize("a,b", [((4, 1, 6), (5, 1)), ((7,), (3, 7)), ((3, 1), (1, 9)), ((), (5, 5)), ((2, 3, 4, 5), (3, 1, 1))])
def test_broadcast(lib, ref, a, b):
    g = Graph(lib)
    x, y = g.input(torch.randn(a)), g.input(torch.randn(b))
    s = g.op("add", torch.add, x, y)
    g.out(s, g.op("where", torch.where, g.op("lt", torch.lt, s, 0), s, y))
    check_both(g, ref)


def test_two_layouts_of_results(lib, ref):
    """One group whose results lie differently in memory: one of them is scattered."""
    g = Graph(lib)
    x, y = g.input(torch.randn(33, 21)), g.input(torch.randn(21, 33).t())
    a, b = g.op("neg", torch.neg, x), g.op("neg", torch.neg, y)
    c = g.op("add", torch.add, a, b)
    g.out(a, b, c)
    check_both(g, ref)
    assert g.stats().kernels == 1


def test_mixed_dtypes(lib, ref):
    g = Graph(lib)
    x, i, h = g.input(torch.randn(9, 40)), g.input(torch.randint(-5, 5, (40,))), g.input(torch.randn(9, 1).bfloat16())
    y = g.op("add", torch.add, g.op("mul", torch.mul, x, i), h)
    d = g.op("cast", lambda t: t.double(), y)
    g.out(y, g.op("mul", torch.mul, d, 0.1), g.op("ge", torch.ge, i, 0.5), g.op("add", torch.add, i, True))
    check_both(g, ref)


def test_default_dtype_unknown_is_refused(lib):
    g = Graph(lib)
    g.out(g.op("gt", torch.gt, g.input(torch.arange(5)), 0.5))
    g.compile(default_dtype=0)
    assert g.stats().host_steps == 1
    assert torch.equal(g.run()[0], g.eager[g.outputs[0]])


def test_half_rounds_after_each_op(lib, ref):
    for dtype in (torch.bfloat16, torch.float16):
        g = Graph(lib)
        x, y = g.input(torch.randn(1000).to(dtype)), g.input(torch.randn(1000).to(dtype))
        z = g.op("mul", torch.mul, g.op("add", torch.add, g.op("mul", torch.mul, x, y), y), 0.1)
        g.out(z)
        check_both(g, ref)
        assert g.stats().kernels == 1


# ------------------------------------------------------------------------------------------------ fusion and plans
def test_fusion_and_drops(lib):
    g = Graph(lib)
    x = g.input(torch.randn(64))
    a = g.op("sin", torch.sin, x)
    b = g.op("exp", torch.exp, a)
    dead = g.op("cos", torch.cos, b)
    c = g.op("host", lambda t: t.flip(0), b)
    d = g.op("add", torch.add, c, a)
    g.out(d)
    g.compile()
    s = g.stats()
    assert (s.steps, s.kernels, s.host_steps, s.fused_nodes) == (3, 2, 1, 3)
    torch.testing.assert_close(g.run()[0], g.eager[d.v], rtol=2e-6, atol=1e-6)
    assert g.made == [b.v, d.v], "a is the plan's own memory"
    assert sorted(g.dropped) == sorted([x.v, b.v, c.v]) and dead.v not in g.made


def test_temporaries_are_not_made(lib):
    g = Graph(lib)
    x = g.input(torch.randn(8, 8))
    v = x
    for _ in range(10):
        v = g.op("mul", torch.mul, v, 1.01)
    g.out(v)
    g.compile().run()
    assert g.made == [v.v] and g.stats().steps == 1


def test_diamond_through_host(lib):
    """a feeds a host op and b; b also reads the host's result: a and b may not be one kernel."""
    g = Graph(lib)
    x = g.input(torch.randn(16))
    a = g.op("neg", torch.neg, x)
    h = g.op("host", lambda t: t.cumsum(0), a)
    b = g.op("mul", torch.mul, a, h)
    g.out(b)
    g.compile()
    assert [k.split()[1] for k in g.plan_text().splitlines()] == ["kernel", "host", "kernel"]
    assert torch.equal(g.run()[0], g.eager[b.v])


def test_siblings_fuse(lib):
    g = Graph(lib)
    x, c, s = (g.input(torch.randn(4, 32)) for _ in range(3))
    g.out(g.op("mul", torch.mul, x, c), g.op("mul", torch.mul, x, s))
    g.compile()
    assert g.stats().kernels == 1 and g.stats().fused_nodes == 2


@pytest.mark.parametrize("flags", [WRITES, EFFECT])
def test_nothing_crosses_a_barrier(lib, flags):
    g = Graph(lib)
    base = torch.arange(6.0)
    x = g.input(base.clone())
    before = g.op("add", torch.add, x, 1)
    w = g.op("add", lambda t, k: t.add_(k), x, 10, flags=flags)
    after = g.op("add", torch.add, x, 1)
    g.out(before, w, after)
    g.compile()
    assert [k.split()[1] for k in g.plan_text().splitlines()] == ["kernel", "host", "kernel"]
    fresh = {x.v: base.clone()}
    got = g.run(fresh)
    assert torch.equal(got[0], base + 1) and torch.equal(got[2], base + 11)


def test_dead_code_and_effects(lib):
    g = Graph(lib)
    x = g.input(torch.randn(4))
    g.op("neg", torch.neg, x)
    kept = [g.op("host", torch.sin, x, flags=f) for f in (0, WRITES, RANDOM, EFFECT)]  # 0: it may raise
    g.compile()
    g.run()
    assert g.called == [1, 2, 3, 4] and g.dropped.count(kept[0].v) == 1
    assert x.v in g.dropped


def test_random_nodes_keep_their_order(lib):
    g = Graph(lib)
    x = g.input(torch.randn(4))
    a = g.op("host", lambda t: t + 1, x, flags=RANDOM)
    b = g.op("host", lambda t: t + 2, x, flags=RANDOM)
    g.out(g.op("sub", torch.sub, b, a))
    g.compile().run()
    assert g.called == [0, 1]


def test_host_only(lib):
    g = Graph(lib)
    x = g.input(torch.randn(5))
    y = g.op("relu", torch.relu, g.op("neg", torch.neg, x))
    g.out(y)
    g.compile(host_only=True)
    assert g.stats().host_steps == 2 and torch.equal(g.run()[0], g.eager[y.v])
    assert g.called == [0, 1]


def test_failing_host_stops(lib):
    g = Graph(lib)
    x = g.input(torch.randn(5))
    a = g.op("neg", torch.neg, x)
    b = g.op("host", torch.sin, a)
    c = g.op("neg", torch.neg, b)
    g.out(c)
    g.compile()

    def broken(_):
        raise ZeroDivisionError

    g.calls[1] = (broken, *g.calls[1][1:])
    with pytest.raises(ZeroDivisionError):
        g.run()
    assert g.steps_done == 1 and a.v in g.made and c.v not in g.made


def test_equal_layers_share_a_kernel(lib):
    def build(n, k):
        g = Graph(lib)
        x = g.input(torch.randn(n, k))
        g.out(g.op("mul", torch.mul, g.op("sin", torch.sin, x), 0.123456))
        return g.compile()

    build(4, 6)
    kernels = lib.t_events(6)
    build(4, 6), build(100, 3), build(1, 1)
    assert lib.t_events(6) == kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 13), (1,), (), (3, 1, 40), (0, 4)])
def test_numbers_of_the_host(lib, ref, shape, dtype):
    """One plan, another number in each run; the kernel is that of a tensor without dims."""
    for backend in ("llvm", "ref"):
        ref(backend == "ref")
        g = Graph(lib)
        x, t, u = g.input(torch.randn(shape).to(dtype)), g.number(0.3), g.number(-2.0)
        scaled = g.op("add", lambda x, y, a: torch.add(x, y, alpha=a), g.op("mul", torch.mul, x, t), x, u)
        g.out(g.op("clamp", torch.clamp, scaled, t, None), g.op("lt", torch.lt, scaled, u))
        assert g.check() == (0, "") and "s0" in str(g)
        g.compile()
        for g.numbers in ([0.3, -2.0], [1.5, 0.1], [-7.0, 1e-3]):
            got = g.run()
            assert not g.called
            scaled_now = torch.add(x_now := next(iter(g.inputs.values())) * g.numbers[0], g.inputs[0], alpha=g.numbers[1])
            assert x_now.dtype == dtype
            torch.testing.assert_close(got[0], torch.clamp(scaled_now, g.numbers[0]))
            assert torch.equal(got[1], scaled_now < g.numbers[1])


def test_numbers_share_the_kernel_of_a_scalar_tensor(lib):
    g = Graph(lib)
    g.out(g.op("mul", torch.mul, g.input(torch.randn(6, 7)), g.input(torch.tensor(0.5)))).compile()
    kernels = lib.t_events(6)
    g = Graph(lib)
    g.out(g.op("mul", torch.mul, g.input(torch.randn(9, 7)), g.number(0.25))).compile()
    assert lib.t_events(6) == kernels
    (got,) = g.run()
    assert torch.equal(got, g.inputs[0] * 0.25)


def test_large_group_is_split(lib, ref):
    g = Graph(lib)
    v = g.input(torch.randn(20))
    others = [g.input(torch.randn(20)) for _ in range(60)]
    for o in others:
        v = g.op("add", torch.add, g.op("mul", torch.mul, v, 0.5), o)
    g.out(v)
    check_both(g, ref)
    assert 1 < g.stats().kernels < 6


# ------------------------------------------------------------------------------------------------ matmul
def products():
    r = torch.randn
    yield "linear", F.linear, (r(3, 17, 64), r(32, 64), r(32)), 1
    yield "linear", F.linear, (r(17, 64), r(32, 64), None), 1
    yield "linear", F.linear, (r(64), r(32, 64), r(32)), 1
    yield "linear", F.linear, (r(5, 64)[:, ::2], r(8, 32), None), 0
    yield "mm", torch.mm, (r(5, 7), r(7, 9)), 1
    yield "mm", torch.mm, (r(7, 5).t(), r(9, 7).t()), 1
    yield "bmm", torch.bmm, (r(4, 5, 7), r(4, 7, 9)), 1
    yield "matmul", torch.matmul, (r(2, 3, 5, 7), r(2, 3, 7, 9)), 1
    yield "matmul", torch.matmul, (r(2, 3, 5, 7), r(7, 9)), 1
    yield "matmul", torch.matmul, (r(2, 1, 5, 7), r(3, 7, 9)), 1
    yield "matmul", torch.matmul, (r(5, 7), r(3, 7, 9)), 1
    yield "matmul", torch.matmul, (r(7), r(7, 9)), 1
    yield "matmul", torch.matmul, (r(7), r(3, 7, 9)), 1
    yield "matmul", torch.matmul, (r(3, 7), r(7)), None
    yield "matmul", torch.matmul, (r(7), r(7)), 0
    yield "matmul", torch.matmul, (r(2, 5, 3, 8).transpose(1, 2), r(2, 5, 3, 8).transpose(1, 2).transpose(-1, -2)), 1
    yield "matmul", torch.matmul, (r(2, 4, 5, 8), r(2, 1, 8, 6).expand(2, 4, 8, 6)), 1
    yield "addmm", torch.addmm, (r(6), r(5, 8), r(8, 6)), 1
    yield "addmm", torch.addmm, (r(5, 6), r(5, 8), r(8, 6)), 1
    yield "mm", torch.mm, (r(5, 0), r(0, 9)), 0
    yield "mm", torch.mm, (r(5, 7).double(), r(7, 9).double()), 0
    yield "mm", torch.mm, (r(1, 7), r(7, 9)), 1
    yield "linear", F.linear, (r(1, 512), r(512, 512), None), 1   # one row: dev/gemv.c


needs_dnnl = pytest.mark.skipif(harness.libraries()[1] is None, reason="oneDNN is not installed")


@needs_dnnl
@pytest.mark.parametrize("case", range(len(list(products()))))
def test_products(lib, case):
    torch.manual_seed(case)
    name, fn, operands, primitive = list(products())[case]
    g = Graph(lib)
    g.out(g.op(name, fn, *[g.input(t) if t is not None else None for t in operands]))
    g.compile()
    assert primitive is None or g.stats().primitives == primitive
    torch.testing.assert_close(g.run()[0], g.eager[g.outputs[0]], rtol=1e-5, atol=1e-5)


POSTS = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@needs_dnnl
@pytest.mark.parametrize("name", [*POSTS, "add", "mul"])
@pytest.mark.parametrize("bias", [True, False])
def test_post_ops(lib, name, bias):
    torch.manual_seed(3)
    g = Graph(lib)
    x, w = g.input(torch.randn(2, 9, 16)), g.input(torch.randn(8, 16))
    y = g.op("linear", F.linear, x, w, g.input(torch.randn(8)) if bias else None)
    if name in POSTS:
        z = g.op(name, POSTS[name], y)
    else:
        z = g.op(name, getattr(torch, name), y, g.input(torch.randn(2, 9, 8)))
    g.out(z)
    g.compile()
    assert g.stats().primitives == 1 and g.stats().steps == (2 if name == "relu" else 1)
    torch.testing.assert_close(g.run()[0], g.eager[z.v], rtol=1e-5, atol=1e-5)
    # NaN and inf come through as in eager
    bad = g.inputs[x.v].clone()
    bad[0, 0, 0], bad[1, 2, 3] = float("nan"), 1e30
    (got,) = g.run({**g.inputs, x.v: bad})
    want = F.linear(bad, g.inputs[w.v], *[t for t in g.inputs.values() if bias and t.shape == (8,)])
    want = POSTS[name](want) if name in POSTS else getattr(torch, name)(want, list(g.inputs.values())[-1])
    assert torch.equal(got.isnan(), want.isnan())


@needs_dnnl
def test_swiglu_and_residual(lib):
    g = Graph(lib)
    x, w1, w2, w3 = (g.input(torch.randn(s)) for s in ((4, 16), (24, 16), (24, 16), (16, 24)))
    gate = g.op("silu", F.silu, g.op("linear", F.linear, x, w1, None))
    up = g.op("linear", F.linear, x, w2, None)
    y = g.op("add", torch.add, x, g.op("linear", F.linear, g.op("mul", torch.mul, gate, up), w3, None))
    g.out(y)
    g.compile()
    assert g.stats().steps == 3 == g.stats().primitives, g.plan_text()
    torch.testing.assert_close(g.run()[0], g.eager[y.v], rtol=1e-4, atol=1e-4)


# what stands between two large products of few rows -> its result stays transposed (pass/transpose.c)
TURNS = {
    "relu": (lambda g, h, v: g.op("relu", torch.relu, h), True),
    "gelu": (lambda g, h, v: g.op("gelu", F.gelu, h), True),
    "nothing": (lambda g, h, v: h, True),
    "vector": (lambda g, h, v: g.op("mul", torch.mul, g.op("add", torch.add, h, v), h), True),
    "column": (lambda g, h, v: g.op("add", torch.add, h, g.input(torch.randn(32, 1))), False),
    "host": (lambda g, h, v: g.op("host", lambda t: t.flip(1), h), False),
    "output": (lambda g, h, v: g.out(h) and h, False),
}


@needs_dnnl
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(32,), (2, 8), (33,)], ids=str)
@pytest.mark.parametrize("between", TURNS)
def test_transposed_products(lib, between, shape, bias):
    torch.manual_seed(4)
    act, turns = TURNS[between]
    if between == "column" and shape != (32,):
        pytest.skip("a column of 32 rows")
    g = Graph(lib)
    x, w1, w2 = (g.input(torch.randn(s) / 16) for s in ((*shape, 256), (300, 256), (300, 300)))
    b, v = g.input(torch.randn(300)), g.input(torch.randn(300))
    h = act(g, g.op("linear", F.linear, x, w1, b if bias else None), v)
    y = g.op("linear", F.linear, h, w2, b if bias else None)
    g.out(y)
    g.compile()
    wide = "avx512" in g.text(lib.t_describe())
    assert ("transposed" in g.plan_text()) == (turns and shape != (33,) and wide), g.plan_text()
    torch.testing.assert_close(g.run()[-1], g.eager[y.v], rtol=1e-4, atol=1e-4)
    other = {**g.inputs, x.v: torch.randn(*shape, 256) / 16}
    want = g.run(other)[-1]
    g.compile(no_dnnl=True)
    torch.testing.assert_close(want, g.run(other)[-1], rtol=1e-4, atol=1e-4)


@needs_dnnl
def test_product_used_twice_is_not_folded(lib):
    g = Graph(lib)
    x, w = g.input(torch.randn(4, 16)), g.input(torch.randn(8, 16))
    y = g.op("linear", F.linear, x, w, None)
    z = g.op("mul", torch.mul, g.op("tanh", torch.tanh, y), y)
    g.out(z)
    g.compile()
    assert g.stats().steps == 2 and g.stats().kernels == 1
    torch.testing.assert_close(g.run()[0], g.eager[z.v], rtol=1e-5, atol=1e-5)


@needs_dnnl
def test_a_product_of_one_column_is_a_kernel(lib):
    g = Graph(lib)
    x, w = g.input(torch.randn(4, 16)), g.input(torch.randn(1, 16))   # one column: oneDNN only has its reference code
    z = g.op("tanh", torch.tanh, g.op("linear", F.linear, x, w, None))
    g.out(z)
    g.compile()
    assert (g.stats().host_steps, g.stats().kernels) == (0, 2)   # a dot, and what follows it
    torch.testing.assert_close(g.run()[0], g.eager[z.v], rtol=1e-5, atol=1e-5)


@needs_dnnl
@pytest.mark.parametrize(
    "options,host",
    [({}, []), ({"no_llvm": True}, [2, 3, 5]), ({"no_dnnl": True}, [0, 4]), ({"host_only": True}, [0, 1, 2, 3, 4, 5])],
    ids=str,
)
def test_convolutions(lib, options, host):
    """conv + batch_norm, relu, max_pool, conv, sum; what a back-end lacks is the host's, with recorded strides."""
    g = Graph(lib)
    x, w, b = g.input(torch.randn(2, 16, 40, 40)), g.input(torch.randn(16, 16, 3, 3) * 0.1), g.input(torch.randn(16))
    mean, var = g.input(torch.randn(16)), g.input(torch.rand(16) + 0.5)

    def conv(x, w, b, *i):
        return F.conv2d(x, w, b, i[:2], i[2:4], i[4:6], i[6])

    def pool(x, *i):
        return F.max_pool2d(x, i[:2], i[2:4], i[4:6], i[6:8], i[8])

    y = g.op("conv", conv, x, w, b, 1, 1, 1, 1, 1, 1, 1)
    y = g.op("batch_norm", lambda x, w, b, m, v, e: F.batch_norm(x, m, v, w, b, eps=e), y, b, b, mean, var, 1e-5)
    y = g.op("max_pool", pool, g.op("relu", torch.relu, y), 3, 3, 2, 2, 1, 1, 1, 1, False)
    g.out(g.op("add", torch.add, g.op("conv", conv, y, w, b, 1, 1, 1, 1, 1, 1, 1), y))
    (got,), want = g.compile(**options).run(), g.eager[g.outputs[0]]
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)
    assert g.called == host


def test_no_dnnl(lib):
    g = Graph(lib)
    x, w = g.input(torch.randn(4, 16)), g.input(torch.randn(8, 16))
    y = g.op("tanh", torch.tanh, g.op("linear", F.linear, x, w, None))
    g.out(y)
    g.compile(no_dnnl=True)
    assert (g.stats().host_steps, g.stats().kernels) == (1, 1)
    torch.testing.assert_close(g.run()[0], g.eager[y.v], rtol=1e-5, atol=1e-5)


def test_no_llvm(lib):
    for n, host in ((100, 0), (10000, 1)):
        g = Graph(lib)
        y = g.op("tanh", torch.tanh, g.input(torch.randn(n)))
        g.out(y)
        g.compile(no_llvm=True)
        assert g.stats().host_steps == host   # a small tensor by the reference executor, a large one by the host
        torch.testing.assert_close(g.run()[0], g.eager[y.v], rtol=2e-6, atol=1e-7)


# ------------------------------------------------------------------------------------------------ threads
@pytest.mark.parametrize("shape", [(1 << 20,), (64, 3, 7001), (3, 70000), (5000, 40)])
def test_big_is_split_among_threads(lib, shape):
    lib.t_threads(4)
    try:
        for layout in (lambda t: t, lambda t: t.transpose(0, -1)):
            g = Graph(lib)
            x, y = g.input(layout(torch.randn(shape))), g.input(torch.randn(()))
            g.out(g.op("add", torch.add, g.op("mul", torch.mul, x, 2), y))
            g.compile()
            assert torch.equal(g.run()[0], g.eager[g.outputs[0]])
    finally:
        lib.t_threads(torch.get_num_threads())


def test_one_openmp_pool(lib):
    """Kernels and oneDNN run on torch's threads: one libgomp is mapped, and no thread is added to those that eager made."""
    g = Graph(lib)
    x, w = g.input(torch.randn(512, 512)), g.input(torch.randn(512, 512))
    y = g.op("tanh", torch.tanh, g.op("sin", torch.sin, g.op("linear", F.linear, x, w, None)))
    g.out(y)   # eager has started torch's pool here
    before = len(os.listdir("/proc/self/task"))
    g.compile().run()
    assert not g.stats().host_steps or harness.libraries()[1] is None
    assert len(os.listdir("/proc/self/task")) == before
    with open("/proc/self/maps") as maps:
        assert len({line.split()[-1] for line in maps if "libgomp" in line}) == 1


def test_one_plan_in_many_threads(lib):
    g = Graph(lib)
    x, w = g.input(torch.randn(64, 64)), g.input(torch.randn(64, 64))
    y = g.op("sigmoid", torch.sigmoid, g.op("add", torch.add, g.op("linear", F.linear, x, w, None), 1))
    g.out(y)
    g.compile()
    want = g.eager[y.v]
    failures = []

    def work():
        for _ in range(30):
            other = Graph.__new__(Graph)   # the same plan and graph, a run of its own
            other.__dict__.update(g.__dict__)
            (got,) = other.run(dict(g.inputs))
            if not torch.allclose(got, want, rtol=1e-5, atol=1e-5):
                failures.append(got)

    def borrow():
        try:
            work()
        except Exception as e:
            failures.append(e)

    original = Graph.__del__
    Graph.__del__ = lambda self: None
    try:
        threads = [threading.Thread(target=borrow) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    finally:
        Graph.__del__ = original
    assert not failures


# ------------------------------------------------------------------------------------------------ verifier, tables, reports
def broken_graphs(lib):
    def fresh():
        g = Graph(lib)
        x, y = g.input(torch.randn(2, 3)), g.input(torch.randn(3))
        return g, x, y, g.op("add", torch.add, x, y)

    def operand(g, x, y, z):
        lib.t_operand_at(g.g, 0).contents.value = 99

    def later(g, x, y, z):
        lib.t_operand_at(g.g, 0).contents.value = z.v

    def kind(g, x, y, z):
        lib.t_operand_at(g.g, 1).contents.kind = 17

    def shape(g, x, y, z):
        lib.t_val(g.g, z.v).contents.type.size[0] = 5

    def no_broadcast(g, x, y, z):
        lib.t_val(g.g, y.v).contents.type.size[0] = 4

    def dtype(g, x, y, z):
        lib.t_val(g.g, z.v).contents.type.dtype = lib.t_dtype(b"int32")

    def definition(g, x, y, z):
        lib.t_val(g.g, z.v).contents.def_ = 7

    def dims(g, x, y, z):
        lib.t_val(g.g, x.v).contents.type.ndim = 9

    return fresh, [operand, later, kind, shape, no_broadcast, dtype, definition, dims]


@pytest.mark.parametrize("case", range(8))
def test_check_rejects(lib, case):
    fresh, cases = broken_graphs(lib)
    parts = fresh()
    assert parts[0].check()[0] == 0
    cases[case](*parts)
    status, text = parts[0].check()
    assert status == -1 and text


def test_too_many_operands_are_rejected(lib):
    g = Graph(lib)
    x = g.input(torch.randn(2))
    g.op("neg", lambda a, b: -a, x, x)
    status, text = g.check()
    assert status == -1 and "operands" in text


def test_rule_breakers_run_by_the_host(lib):
    g = Graph(lib)
    x = g.input(torch.randn(4))
    y = g.op("add", lambda a, b: (a + b).int(), x, 1)   # no add gives this dtype
    g.out(y)
    assert g.check()[0] == -1
    g.compile()
    assert g.stats().host_steps == 1 and torch.equal(g.run()[0], g.eager[y.v])


def test_every_row_parses_and_is_tested(lib):
    text = ctypes.create_string_buffer(300)
    assert lib.t_op_init(text, 300) == 0, text.value
    rows = [lib.t_op(i).contents for i in range(1, lib.t_op_rows())]
    pointwise = {r.name.decode() for r in rows if r.kind == 1 and b"_grad_" not in r.name}  # those: test_grad_rows
    assert set(ROWS) == pointwise - {"dropped", "batch_dx", "batch_dw"}  # those: test_training.py, test_training_vision.py
    assert all(r.doc for r in rows) and len({r.name for r in rows}) == len(rows)


def test_texts(lib, monkeypatch):
    g = Graph(lib)
    x, y = g.input(torch.zeros(2, 3)), g.input(torch.zeros(3, 2).t())
    z = g.op("add", lambda a, b, c: a + c * b, x, y, 2)
    g.op("host", lambda a, b, c: a.sum(), z, None, 0.5, flags=EFFECT)
    g.out(z)
    assert str(g) == (
        "%0 : f32[2,3]\n%1 : f32[2,3]{1,2}\n%2 : f32[2,3] out = add(%0, %1, 2) #0\n%3 : f32[] = host(%2, none, 0.5) #1 effect\n"
    )
    g.compile()
    assert g.plan_text() == "0 kernel add#0 drop %0 %1\n1 host host#1 drop %3\n"
    monkeypatch.setenv("CCOMPILE_DUMP", "kernels")
    dump = g.plan_text()
    assert "nest 2 3\n" in dump and "fma.f32" in dump and "define void @kernel" in dump
    assert "LLVM" in g.text(lib.t_describe())


# ------------------------------------------------------------------------------------------------ other machines
@pytest.mark.parametrize(
    "environment",
    [{"CCOMPILE_CPU": "avx2"}, {"CCOMPILE_LIBMVEC": "0"}, {"CCOMPILE_CPU": "avx2", "CCOMPILE_LIBMVEC": "0"}, {"CCOMPILE_CPU": "base"}],
    ids=lambda e: "-".join(f"{k.split('_')[1]}={v}" for k, v in e.items()).lower(),
)
def test_narrowed(lib, environment):
    """The rows, shapes and layouts again, as on a machine with smaller vectors or without libmvec."""
    chosen = "test_row and float32 or test_full_range or test_half"
    if environment == {"CCOMPILE_CPU": "avx2"}:
        chosen += " or test_row and (int8 or bfloat16) or test_layouts or test_shapes"
    if environment == {"CCOMPILE_CPU": "base"}:
        chosen = "test_row and (float32 or uint8) or test_layouts and float32"
    run_child(lib, environment, __file__, chosen)


def test_without_libraries(lib):
    """Nothing installed: everything still runs, and it is said once."""
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, harness
lib = harness.load(sys.argv[2])
lib.t_libraries(None, None, None)
import ctypes
for n in (10, 100000):
    g = harness.Graph(lib)
    x, w = g.input(torch.randn(n // 10, 10)), g.input(torch.randn(10, 10))
    y = g.op("relu", torch.relu, g.op("linear", torch.nn.functional.linear, x, w, None))
    g.out(y); g.compile()
    got, want = g.run()[0], g.eager[y.v]
    # One row is summed up by dev/gemv.c, which needs no library, in another order than eager's; the others are the host's.
    assert torch.allclose(got, want, atol=1e-5) if n == 10 else torch.equal(got, want)
print(g.text(lib.t_describe()), lib.t_events(11))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent / "core"), lib._name], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "no LLVM, no oneDNN" in done.stdout and done.stdout.split()[-1] == "1"


# ------------------------------------------------------------------------------------------------ the pointer map
@pytest.mark.parametrize("seed", range(20))
def test_map_is_a_dict(lib, seed):
    """Few keys, which come and go again and again at places that collide: what is removed moves what lies behind it."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(1, 1 << 40, size=rng.integers(2, 90)) * 16
    steps = np.stack([rng.integers(0, 3, 6000), rng.choice(keys, 6000), rng.integers(0, 1 << 60, 6000)], axis=1)
    found, want, twin = np.empty(6000, np.int64), [], {}
    left = lib.t_map(steps.ctypes.data, len(steps), found.ctypes.data)
    for what, key, value in steps.tolist():
        want.append(-1 if what == 0 else twin.get(key, -1) if what == 1 else int(twin.pop(key, None) is not None))
        if what == 0:
            twin[key] = value
    assert found.tolist() == want and left == len(twin)

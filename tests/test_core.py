"""The core half without Python in between: graphs built by hand, compiled, run, and compared with eager torch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent / "core"))
import harness  # noqa: E402
from harness import EFFECT, RANDOM, WRITES, Graph  # noqa: E402

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.fixture(scope="session")
def lib(tmp_path_factory):
    return harness.load(harness.build(tmp_path_factory.mktemp("core")))


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
# tensor, d tensor without zeros, n small non-negative integers; anything else is passed as it is.
ROWS = {
    "add": [(torch.add, "tt"), (lambda a, b, c: torch.add(a, b, alpha=c), ("t", "t", 2)), (torch.add, ("t", 3))],
    "sub": [(torch.sub, "tt"), (lambda a, b, c: torch.sub(a, b, alpha=c), ("t", "t", 3)), (torch.sub, ("t", 1.5))],
    "rsub": [(torch.rsub, "tt"), (torch.rsub, ("t", 1))],
    "mul": [(torch.mul, "tt"), (torch.mul, ("t", 0.3)), (torch.mul, ("t", 3)), (torch.mul, ("t", True))],
    "div": [(torch.div, "td"), (torch.div, ("t", 3)), (lambda a, b: a / b, (1.5, "d"))],
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
    "copy": [(torch.clone, "t")],
    "fill": [],
    "cast": [],
}
for n in "log log2 log10 log1p".split():
    ROWS[n] = [(getattr(torch, n), "p")]
for n in (
    "exp exp2 expm1 sin cos tan atan sinh cosh tanh erf erfc sigmoid relu floor ceil round trunc frac logical_not "
    "bitwise_not isnan isinf isfinite"
).split():
    ROWS[n] = [(getattr(torch, n), "t")]
for n in "relu6 selu mish hardsigmoid hardswish softsign tanhshrink".split():
    ROWS[n] = [(getattr(F, n), "t")]

# Rows whose result is exact: one rounding, comparisons, integers. The others may differ in the last bits.
APPROXIMATE = set(
    "pow rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh erf erfc hypot xlogy "
    "sigmoid elu selu celu gelu gelu_tanh silu mish softplus logsigmoid softsign tanhshrink lerp addcmul addcdiv hardswish "
    "hardsigmoid leaky_relu add sub rsub".split()
)
RTOL = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def tensor(kind, dtype, shape, seed):
    g = torch.Generator().manual_seed(seed)
    if kind == "m":
        return torch.randint(0, 2, shape, generator=g).bool()
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
        if kind in "pd":
            special = [1.0, float("inf"), float("nan"), 1e-42, 3.0]
        at = torch.arange(len(special)) * (1 if seed % 2 else 1) % flat.numel()
        flat[at] = torch.tensor(special, dtype=torch.float64).roll(seed).to(dtype)
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
    tiny = {torch.float32: 1e-37, torch.float64: 1e-300, torch.bfloat16: 1e-37, torch.float16: 6e-8}[want.dtype]
    torch.testing.assert_close(got, want, rtol=RTOL[want.dtype], atol=tiny, equal_nan=True)


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

"""Products with one row by our own loops, for any layout of the weights and all vector widths."""

import os
import subprocess
import sys

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of

FORMS = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "no bias": lambda x, w, b: F.linear(x, w),
    "matmul": lambda x, w, b: x @ w.t(),
    "columns": lambda x, w, b: torch.addmm(b, x, w.t().contiguous()),
    "vector": lambda x, w, b: x[0] @ w.t() + b,
    "three dims": lambda x, w, b: torch.relu(F.linear(x.view(1, 1, -1), w, b)),
    "part of the weights": lambda x, w, b: F.linear(x[:, 1:], w[:, 1:], b),
    "a row of many": lambda x, w, b: F.linear(x.expand(3, -1)[1:2], w, b).exp(),
}
SIZES = [(1, 1), (1, 40), (5, 3), (16, 16), (17, 31), (63, 33), (64, 64), (65, 100), (130, 513), (1000, 257), (4500, 19)]


@pytest.mark.parametrize("n,k", SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_against_float64(form, n, k):
    fn = FORMS[form]
    g = torch.Generator().manual_seed(n * 1000 + k)
    x, w, b = (torch.randn(*size, generator=g) for size in ((1, k), (n, k), (n,)))
    compiled = ccompile.compile(fn)
    exact = fn(x.double(), w.double(), b.double())
    with torch.no_grad():
        for _ in range(2):
            got = compiled(x, w, b)
            torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=2e-6 * k**0.5 * max(1, exact.abs().max().item()))
    if k > 1:
        plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
        assert "host" not in plan and "product" in plan, plan


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n,k", [*SIZES, (600, 700), (2500, 8), (1023, 96)])
def test_half_precision_of_both_layouts(n, k, dtype):
    """Rounded once; weights [k, n] of other sizes, too, are not left to oneDNN."""
    g = torch.Generator().manual_seed(n * 1000 + k)
    x, w, b = (torch.randn(*size, generator=g).to(dtype) for size in ((1, k), (n, k), (n,)))
    turned, part = w.t().contiguous(), torch.randn(k, n + 5, generator=g).to(dtype)[:, 3 : n + 3]
    compiled = ccompile.compile(lambda x, w, t, p, b: (F.linear(x, w, b), torch.addmm(b, x, t), x @ t, x @ p))
    exact = x.double() @ w.double().t()
    want = (exact + b.double(), exact + b.double(), exact, x.double() @ part.double())
    eps = torch.finfo(dtype).eps
    with torch.no_grad():
        for _ in range(2):
            for got, sums in zip(compiled(x, w, turned, part, b), want, strict=True):
                assert got.dtype == dtype
                torch.testing.assert_close(got.double(), sums, rtol=eps, atol=eps)
    plans = compiled_of(compiled).report()["entries"][0]["segments"][0]["plans"]
    assert {step["way"] for plan in plans for step in plan["steps"] if step["kind"] == "product"} == {"gemv"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_one_row_of_half_precision_keeps_packed_weights_if_they_are_turned(dtype):
    rows, columns = (torch.nn.Parameter(torch.randn(96, 96).to(dtype)) for _ in range(2))
    compiled = ccompile.compile(lambda x: (F.linear(x, rows), x @ columns), mode="max-autotune")
    x = torch.randn(1, 96).to(dtype)
    with torch.no_grad():
        for _ in range(2):
            for got, w in zip(compiled(x), (rows.t(), columns), strict=True):
                torch.testing.assert_close(got.double(), x.double() @ w.double(), rtol=2**-7, atol=2**-4)
    steps = compiled_of(compiled).report()["entries"][0]["segments"][0]["plans"][0]["steps"]
    ways = [step["way"] for step in steps if step["kind"] == "product"]
    assert ways.count("gemv") == 1 and sum("packed" in way for way in ways) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_special_values_in_half_precision(dtype):
    w = torch.randn(50, 40).to(dtype)
    w[7, 3], w[0, 5], w[1, 6] = float("nan"), float("inf"), float("-inf")
    compiled = ccompile.compile(lambda x: x @ w)
    for x in (torch.randn(1, 50), torch.zeros(1, 50), torch.full((1, 50), float("inf"))):
        for _ in range(2):
            got, want = compiled(x.to(dtype)), x.to(dtype) @ w
            torch.testing.assert_close(got, want, rtol=0.02, atol=0.05, equal_nan=True)


def test_special_values():
    w = torch.randn(40, 50)
    w[3, 7], w[5, 0], w[6, 1] = float("nan"), float("inf"), float("-inf")
    compiled = ccompile.compile(lambda x: F.linear(x, w))
    for x in (torch.randn(1, 50), torch.zeros(1, 50), torch.full((1, 50), float("inf"))):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), F.linear(x, w), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("cpu", ["avx2", "base"])
@pytest.mark.skipif("CCOMPILE_CPU" in os.environ, reason="is such a run")
def test_smaller_vectors(cpu):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", "not smaller"]
    run = subprocess.run(command, env={**os.environ, "CCOMPILE_CPU": cpu}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]

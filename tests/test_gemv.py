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

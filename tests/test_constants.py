"""Loops of one structure that differ in constants share one kernel: values as in eager, for any dtype and
loop, and the number of kernels."""

import ccompile
import pytest
import torch
from conftest import EAGER

FLOATS, INTS = (0.3, 2.5, 1.0, 0.0, 4.0, -7.25, 0.125, 1e-3), (3, 2, 1, 0, 4, -7, 100, 8)
FLOAT = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INT = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# name: a function of a tensor and a number that its text holds, how many constants may vary, dtypes
CASES = {
    "sum": (lambda x, k: torch.relu(x) + k, 1, FLOAT),
    "two": (lambda x, k: torch.sin(x) * k + (k + 0.7), 2, FLOAT),
    "division": (lambda x, k: torch.cos(x) / (k if k else 5.0), 1, FLOAT),
    "bounds": (lambda x, k: torch.tanh(x).clamp(min=k - 0.4), 1, FLOAT),
    "where": (lambda x, k: torch.where(x > k, torch.exp(-x.abs()), k), 1, FLOAT),
    "power": (lambda x, k: (x.abs() + 0.5) ** k, 1, FLOAT[:2]),
    "softmax": (lambda x, k: (x * k).softmax(-1), 1, FLOAT),
    "columns": (lambda x, k: (x.sigmoid() * k).sum(0), 1, FLOAT[:2]),
    "scan": (lambda x, k: (x.sigmoid() + k).cumsum(1), 1, FLOAT[:2]),
    "turned": (lambda x, k: x.t().contiguous() * k, 1, FLOAT),
    "integers": (lambda x, k: x * 2 + k, 2, INT),
    "divisor": (lambda x, k: (x * 3) // (k or 6), 2, INT[:2]),
    "less": (lambda x, k: (x * 3 > k) & (x != k), 2, INT),
}


def text(name):
    """A code object for each constant, as Python's unrolled loops and configurations give them."""
    fn = CASES[name][0]
    return lambda k: lambda x: fn(x, k)


def made(fn):
    before = ccompile.counters().get("kernel", 0)
    return fn(), ccompile.counters().get("kernel", 0) - before


def tensor(dtype, shape=(9, 37)):
    g = torch.Generator().manual_seed(3)
    return torch.randint(0, 40, shape, generator=g).to(dtype) if not dtype.is_floating_point else torch.randn(shape, generator=g).to(dtype)


@pytest.mark.parametrize("name", CASES)
def test_values_are_eagers(name):
    for dtype in CASES[name][2]:
        x, tolerance = tensor(dtype), {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 1e-5)
        for k in INTS if dtype in INT else FLOATS:
            if dtype == torch.uint8 and k < 0:
                continue
            fn = text(name)(k)
            exact = {"rtol": 0, "atol": 0} if dtype in INT else {"rtol": tolerance, "atol": tolerance}
            torch.testing.assert_close(ccompile.compile(fn)(x), fn(x), equal_nan=True, **exact, msg=lambda m: f"{dtype} {k}: {m}")


@pytest.mark.skipif(EAGER, reason="counts kernels")
@pytest.mark.parametrize("name", ["sum", "two", "softmax", "columns", "scan", "where"])
def test_a_structure_has_few_kernels(name):
    """One for each set of constants that has been seen to vary; neutral ones have their own."""
    x = tensor(torch.float32, (5, 23))
    odd = [0.37 + 1.3 * i for i in range(20)]
    _, kernels = made(lambda: [ccompile.compile(text(name)(k))(x) for k in odd])
    assert kernels <= 1 + CASES[name][1]
    assert made(lambda: [ccompile.compile(text(name)(k + 0.01))(x) for k in odd])[1] == 0


@pytest.mark.skipif(EAGER, reason="counts kernels")
def test_one_plan_has_them_all():
    """An unrolled loop, whose turns are kernels of one plan."""
    w, x = torch.eye(8) * 0.9, torch.randn(3, 8, generator=torch.manual_seed(0))

    def fn(x):
        for i in range(30):
            x = torch.tanh(x @ w) * (i + 0.2) - i * 0.3
        return x

    got, kernels = made(lambda: ccompile.compile(fn)(x))
    torch.testing.assert_close(got, fn(x))
    assert kernels <= 5

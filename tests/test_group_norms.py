"""Group norms with channels innermost, computed from per-channel statistics (csrc/pass/moments.c), against eager."""

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import by_torch, counters
from torch import nn
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


def steps(fn, *inputs, **tolerance):
    """fn compiled beside eager, twice for each input; -> its steps' lines"""
    compiled, before = ccompile.compile(fn), counters().get("verify", 0)
    for x in inputs:
        want = fn(x)
        for _ in range(2):
            got = compiled(x)
            torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
            assert got.stride() == want.stride()
    assert counters().get("verify", 0) == before
    plans = [s["plan_text"] for e in compiled_of(compiled).report()["entries"] for s in e["segments"]]
    return [line for line in plans[-1].splitlines() if line[0].isdigit()]


LOOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
         torch.float16: {"rtol": 4e-3, "atol": 4e-3}}  # fmt: skip
SIZES = {"images": (2, 64, 16, 17), "one image": (1, 96, 31, 12), "odd": (3, 60, 14, 15), "small": (2, 24, 5, 3)}


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
@pytest.mark.parametrize("groups", [1, 4, 12, None], ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_values(name, groups, dtype):
    channels = SIZES[name][1]
    groups = groups or channels
    if channels % groups:
        pytest.skip("channels are no multiple of the groups")
    x, w, b = torch.randn(SIZES[name]).to(dtype), torch.randn(channels).to(dtype), torch.randn(channels).to(dtype)
    for weight, bias in ((w, b), (w, None), (None, None)):
        lines = steps(lambda x, w=weight, b=bias: F.group_norm(x, groups, w, b, 1e-3) * 2, last(x), **LOOSE[dtype])
        assert not any("host" in line for line in lines) or by_torch(dtype)
        assert any("norm_by" in line for line in lines) == (name != "small" and not by_torch(dtype))


def test_lines_and_volumes():
    for x in (torch.randn(4, 300, 64).transpose(1, 2), last(torch.randn(2, 32, 6 * 7, 13)).unflatten(2, (6, 7))):
        lines = steps(lambda x: F.silu(F.group_norm(x, 8)), x, **LOOSE[torch.float32])
        assert any("norm_by" in line and "silu" in line for line in lines)


def test_far_from_zero():
    """A variance that is small beside the mean's square is not lost."""
    x = last(torch.randn(2, 64, 20, 20) * 0.01 + torch.linspace(-300, 300, 64)[:, None, None])
    exact = F.group_norm(x.double(), 32).float()
    compiled = ccompile.compile(lambda x: F.group_norm(x, 32))
    torch.testing.assert_close(compiled(x), exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e20], ids=str)
def test_one_group_is_odd(value):
    x = last(torch.randn(2, 64, 20, 20))
    x[1, 9, 3, 4] = value
    steps(lambda x: F.group_norm(x, 16) + 1, x, **LOOSE[torch.float32])


@pytest.mark.parametrize("channels_last", [False, True])
def test_between_convolutions(channels_last):
    """They keep channels innermost, whatever eager's strides are."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.c1 = nn.GroupNorm(8, 64), nn.Conv2d(64, 64, 3, padding=1)
            self.n2, self.c2 = nn.GroupNorm(8, 64), nn.Conv2d(64, 64, 3, padding=1)

        def forward(self, x):
            return x + self.c2(F.silu(self.n2(self.c1(F.silu(self.n1(x))))))

    net, inputs = Block(), [torch.randn(2, 64, 24, 25), torch.randn(1, 64, 32, 31)]
    if channels_last:
        net, inputs = net.to(memory_format=torch.channels_last), [last(x) for x in inputs]
    lines = steps(net, *inputs, rtol=1e-4, atol=1e-4)
    assert sum("norm_by" in line and "silu" in line for line in lines) == 2
    assert sum("conv" in line for line in lines) == 2


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", [(5, 5, 5), (3, 2, 4), (2, 3, 7, 9), (3, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda d: str(d).split(".")[1])
def test_instance_norm_of_halves(dtype, shape, affine):
    """Eager rounds in between, so it may be off by more: the result, and running statistics, are no further from float64's."""
    def fn(x, mean, var, weight, bias):
        return F.instance_norm(x, mean, var, weight, bias, momentum=0.5), mean, var

    compiled, n = ccompile.compile(fn), shape[1]
    for seed in range(4):
        torch.manual_seed(seed)
        given = (4 * torch.randn(shape) + 2, torch.randn(n), torch.rand(n) + 0.5, *((torch.randn(n), torch.randn(n)) if affine else (None, None)))
        given = [t if t is None else t.to(dtype) for t in given]
        exact = fn(*[t if t is None else t.double() for t in given])
        want, got = (f(*[t if t is None else t.clone() for t in given]) for f in (fn, compiled))
        for e, w, g in zip(exact, want, got):
            ulp = e.abs().clamp(min=0.5) * torch.finfo(dtype).eps
            assert ((g - e).abs() <= (w - e).abs().max() + ulp).all()

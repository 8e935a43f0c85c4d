"""How loops step through memory: forwards, backwards, by strides; whole vectors, tails, short rows, few columns, several dims."""

import os
import subprocess
import sys

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import alike

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DTYPES = [*FLOATS, torch.int64, torch.int8, torch.bool]
WIDTHS = [0, 1, 3, 7, 16, 31, 64, 65, 100, 257]


def make(dtype, *shape):
    if dtype.is_floating_point:
        return torch.randn(*shape).to(dtype)
    return torch.randint(0, 2, shape).to(dtype) if dtype is torch.bool else torch.randint(-9, 9, shape).to(dtype)


def steps_of(compiled):
    text = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
    return [line.split()[1] for line in text.splitlines() if line[:1].isdigit()]


def check(f, *args, rtol=0.0, atol=0.0):
    """Compiled gives what eager gives, without the host."""
    compiled = ccompile.compile(f)
    for _ in range(2):
        want, got = f(*args), compiled(*args)
        if rtol or atol:
            assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        else:
            alike(want, got, path="a call")
    assert want.numel() == 0 or "host" not in steps_of(compiled), steps_of(compiled)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_back(dtype, width):
    x, y = make(dtype, 3, width), make(dtype, 3, width)
    check(lambda t: t.flip(1), x)
    check(lambda t: t.flip(0, 1), x)
    check(lambda a, b: torch.where(a.flip(1) > b, a, b.flip(1)), x, y)


@pytest.mark.parametrize("width", [1, 5, 16, 33, 100, 1000])
def test_back_in_reductions(width):
    x = make(torch.float32, 5, width)
    near = dict(rtol=2e-6, atol=1e-5)
    check(lambda t: (t.flip(1) * t).sum(1), x, **near)
    check(lambda t: (t.flip(1) * t).sum(0), x, **near)
    check(lambda t: t.flip(1).softmax(1), x, **near)
    check(lambda t: t.flip(1).cumsum(1).flip(1), x, **near)
    check(lambda t: t.flip(0).amax(0), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_tails(dtype, width):
    x, row, column = make(dtype, 5, width), make(dtype, width), make(dtype, 5, 1)
    table, index = make(dtype, 9, width), torch.tensor([8, 0, 3, -9 + 9, 1])
    check(lambda a, b, c: torch.where(a > b, a, c), x, row, column)
    check(lambda a, b: torch.stack([a, b], 0), x, x)
    check(lambda t, i: t.index_select(0, i), table, index)
    check(lambda t: torch.where(t > 0, t, 0), x[:, ::2])
    check(lambda a, b: torch.maximum(a, b), x.t(), make(dtype, width, 5))


def test_tails_touch_nothing_else():
    """A window in the middle of what there is: the elements around it stay."""
    for width in (1, 7, 16, 40, 100):
        x, y = torch.randn(6, 120), torch.randn(6, width)
        want = x.clone()
        want[:, 3 : 3 + width] = y * 2
        got = x.clone()
        compiled = ccompile.compile(lambda a, b, n: a[:, 3 : 3 + n].copy_(b * 2))
        compiled(got, y, width)
        compiled(got, y, width)
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bfloat16], ids=str)
def test_four_dims_that_do_not_merge(dtype):
    x = make(dtype, 3, 5, 7, 4, 19)
    check(lambda t: t.permute(3, 1, 0, 2, 4).contiguous(), x)
    check(lambda t: t.flip(0, 2, 4), x)
    check(lambda t: torch.where(t[:, 1:, ::2, 1:, 2:] > 0, t[:, 1:, ::2, 1:, 2:], 1), x)
    image = make(dtype, 2, 3, 5, 6).contiguous(memory_format=torch.channels_last)
    check(lambda t: F.interpolate(t.float(), scale_factor=2).to(t.dtype), image)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 63, 64, 257, 1025])
@pytest.mark.parametrize("columns", [4, 7, 16, 20, 64, 83])
def test_columns(rows, columns):
    x = torch.randn(rows, columns)
    near = dict(rtol=2e-6, atol=1e-4)
    check(lambda t: t.sum(0), x, **near)
    check(lambda t: t.amax(0), x)
    check(lambda t: t.argmax(0), x)
    check(lambda t: t.var(0, unbiased=False), x, **near)
    check(lambda t: t.view(1, rows, columns).expand(3, rows, columns).sum((0, 1)), x, rtol=2e-6, atol=3e-4)
    check(lambda t: (t - t.mean(0)) * 2, x, **near)
    check(lambda t: t.softmax(0), x, **near)
    check(lambda t: t.cumsum(0), x, **near)


@pytest.mark.parametrize("columns", [4, 16, 37])
def test_columns_of_several_dims(columns):
    x = torch.randn(6, 11, 13, columns)[:, ::2, 1:]
    check(lambda t: t.sum((0, 1, 2)), x, rtol=2e-6, atol=1e-4)
    check(lambda t: t.amax((1, 2)), x)
    check(lambda t: t.double().sum((0, 2)), x, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize("width", [2, 3, 5, 7, 8])
def test_short_rows(dtype, width):
    for rows in (15, 16, 33, 1000):
        x = make(dtype, rows, width)
        check(lambda t: t.sum(1), x, rtol=1e-2 if dtype is torch.bfloat16 else 2e-6, atol=1e-5)
        if dtype is not torch.bool:
            check(lambda t: t.amax(1), x)
            check(lambda t: t.argmin(1), x)
        check(lambda t: t[:, :1].expand(-1, 5).amax(1) if t.dtype is not torch.bool else t.any(1), x)


def test_short_rows_with_nan():
    x = torch.randn(100, 3)
    x[5, 1], x[77, 2], x[99] = float("nan"), float("inf"), float("nan")
    check(lambda t: t.amax(1), x)
    check(lambda t: t.sum(1), x, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 16, 7, 9), (2, 3, 1, 5), (3, 5, 4, 3, 2), (2, 8, 30)])
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_one_window(shape, dtype):
    """Pooling of a whole plane is a reduction."""
    dims = len(shape) - 2
    x = make(dtype, *shape).movedim(1, -1).contiguous().movedim(-1, 1)
    mean, most = getattr(F, f"adaptive_avg_pool{dims}d"), getattr(F, f"adaptive_max_pool{dims}d")
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    for f, t in ((lambda t: mean(t, 1), tolerance), (lambda t: most(t, 1), 0.0)):
        compiled = ccompile.compile(f)
        for _ in range(2):
            want, got = f(x), compiled(x)
            assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=t, atol=t)
    f = lambda t: mean(t, 1)  # noqa: E731
    compiled = ccompile.compile(f)
    compiled(x)
    assert x.dim() < 4 or steps_of(compiled) == ["kernel"], steps_of(compiled)


def test_bfloat_that_needs_no_rounding():
    """All values, specials as well: what is not rounded is what eager gives."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    y = x.flip(0).contiguous()
    for f in (
        lambda a, b: -a,
        lambda a, b: a.abs(),
        lambda a, b: a.relu(),
        lambda a, b: torch.maximum(a, b),
        lambda a, b: torch.where(a > b, -a, b.abs()),
        lambda a, b: a.clamp(-1.5, 3),
        lambda a, b: a.clamp(-1.3, 3.1),
        lambda a, b: torch.maximum(-a, b) + 1,
    ):
        check(f, x, y)


@pytest.mark.parametrize("cpu", ["avx2", "base"])
def test_narrowed(cpu):
    if os.environ.get("CCOMPILE_CPU"):
        return  # this is the child
    chosen = "back or tails or columns-7 or several_dims or short_rows or bfloat"
    if cpu == "base":  # no float16 there
        chosen = "not float16 and (test_back and 31 or test_tails and 7 or test_short_rows and 3)"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen]
    done = subprocess.run(command, env={**os.environ, "CCOMPILE_CPU": cpu}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]

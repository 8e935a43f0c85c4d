"""Products, convolutions, pooling and attention in bfloat16 and float16, over dtypes, shapes and layouts: as close to the exact
result as eager, and computed by library calls and our own kernels, not by torch."""

import copy
import os
import subprocess
import sys

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import by_torch
from torch import nn

HALVES = [torch.bfloat16, torch.float16]
EPS = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def exactly(fn, args):
    return fn(*(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in args))


def near(got, want, exact, dtype):
    """Not further from the exact result than eager is, but for a rounding of its own."""
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    assert torch.equal(got.isnan(), want.isnan())
    if not exact.numel():
        return
    scale = exact.abs().nan_to_num(0, 0, 0).max() + 1
    allowed = (want.double() - exact).abs().nan_to_num(0, 0, 0).max() + 2 * EPS[dtype] * scale
    wrong = (got.double() - exact).abs() > allowed
    assert not wrong[exact.isfinite()].any()


def kinds(fn, *args, dtype):
    """-> the kinds of the steps of its plan"""
    compiled = ccompile.compile(fn)
    exact = exactly(fn, args)
    with torch.no_grad():
        for _ in range(3):
            near(compiled(*args), fn(*args), exact, dtype)
    (entry,) = compiled_of(compiled).report()["entries"]
    return [line.split()[1] for s in entry["segments"] for line in s["plan_text"].splitlines() if line[0].isdigit()]


PRODUCTS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), (33, 64), (48, 64), (48,)),
    "linear without bias": (lambda x, w: F.linear(x, w), (2, 3, 64), (48, 64)),
    "one row": (lambda x, w, b: F.linear(x, w, b), (1, 64), (131, 64), (131,)),
    "one row, odd": (lambda x, w, b: F.linear(x, w, b), (1, 37), (131, 37), (131,)),
    "one row of a matrix": (lambda x, w: x @ w, (1, 64), (64, 50)),
    "mm": (lambda x, w: x @ w, (9, 31), (31, 17)),
    "mm turned": (lambda x, w: x.t() @ w.t(), (31, 9), (17, 31)),
    "bmm": (lambda x, w: torch.bmm(x, w), (3, 9, 31), (3, 31, 17)),
    "batches": (lambda x, w: x @ w.transpose(-1, -2), (2, 3, 33, 64), (2, 3, 48, 64)),
    "heads": (lambda x, w: x.transpose(1, 2) @ w.permute(0, 2, 3, 1), (2, 20, 3, 16), (2, 24, 3, 16)),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w), (48,), (33, 64), (64, 48)),
    "vector": (lambda x, w: x @ w, (64,), (64, 48)),
    "sliced": (lambda x, w: F.linear(x[::2, 1:33], w[:, 34:]), (33, 64), (48, 66)),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name, dtype):
    fn, *sizes = PRODUCTS[name]
    args = [randn(*s, seed=i).to(dtype) for i, s in enumerate(sizes)]
    assert kinds(fn, *args, dtype=dtype)[-1] == "product"


POSTS = {
    "gelu": lambda y, z: F.gelu(y),
    "tanh gelu": lambda y, z: F.gelu(y, approximate="tanh"),
    "silu": lambda y, z: F.silu(y),
    "relu": lambda y, z: F.relu(y),
    "sum": lambda y, z: y + z,
    "product": lambda y, z: y * z,
    "scale": lambda y, z: y / 8,
    "several": lambda y, z: F.gelu(y + z) * 0.5,
    "f32": lambda y, z: y + z.float(),
    "cast": lambda y, z: y.float() * 2,
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", POSTS)
def test_post(name, dtype):
    post = POSTS[name]
    args = [randn(*s, seed=i).to(dtype) for i, s in enumerate([(5, 33, 64), (48, 64), (48,), (5, 33, 48)])]
    ran = kinds(lambda x, w, b, z: post(F.linear(x, w, b), z), *args, dtype=dtype)
    assert "host" not in ran or by_torch(dtype)


CONVS = {
    "padding": ((2, 16, 15, 17), (32, 16, 3, 3), {"padding": 1}),
    "stride": ((1, 3, 33, 31), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "one": ((2, 64, 9, 9), (128, 64, 1, 1), {}),
    "blocked": ((1, 256, 7, 7), (512, 256, 1, 1), {"stride": 2}),
    "odd": ((1, 5, 7, 9), (3, 5, 2, 3), {}),
    "groups": ((2, 16, 9, 9), (32, 4, 3, 3), {"groups": 4}),
    "depthwise": ((1, 24, 14, 14), (24, 1, 3, 3), {"groups": 24, "padding": 1}),
    "line": ((2, 16, 40), (8, 16, 3), {"padding": 1, "stride": 2}),
    "volume": ((1, 4, 6, 7, 8), (8, 4, 3, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CONVS)
def test_conv(name, last, dtype):
    size, weight, kw = CONVS[name]
    x, w, b = (randn(*s, seed=i).to(dtype) for i, s in enumerate([size, weight, weight[:1]]))
    if last:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    conv = getattr(F, f"conv{len(size) - 2}d")
    assert kinds(lambda x, w, b: conv(x, w, b, **kw), x, w, b, dtype=dtype) == ["conv"]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("mixed", [False, True])
def test_conv_chain(mixed, dtype):
    """Batch norm's statistics may be f32."""
    x, w = randn(2, 16, 12, 14).to(dtype), randn(16, 16, 3, 3, seed=1).to(dtype) * 0.1
    stats = [randn(16, seed=i).abs() + 0.5 for i in range(4)]
    if not mixed:
        stats = [s.to(dtype) for s in stats]

    def fn(x, w, *s):
        y = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), s[0], s[1], s[2], s[3]))
        return F.batch_norm(F.conv2d(y, w, padding=1), s[0], s[1], s[2], s[3]) + x

    assert "host" not in kinds(fn, x, w, *stats, dtype=dtype) or by_torch(dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_conv_transpose(dtype):
    x, w = randn(2, 16, 9, 7).to(dtype), randn(16, 6, 3, 3, seed=1).to(dtype)
    assert kinds(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1), x, w, dtype=dtype) == ["conv"]


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max dilated": lambda x: F.max_pool2d(x, (2, 3), 1, 0, 2),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average wide": lambda x: F.avg_pool2d(x, (2, 17), 1, count_include_pad=False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "global": lambda x: F.adaptive_avg_pool2d(x, 1),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "last", "sliced"])
@pytest.mark.parametrize("name", POOLS)
def test_pool(name, layout, dtype):
    x = randn(2, 40, 13, 38).to(dtype)
    x[0, 1, 2, 3] = float("nan")
    x = {"contiguous": x, "last": x.to(memory_format=torch.channels_last), "sliced": x[:, ::2, 1:, ::2]}[layout]
    assert set(kinds(POOLS[name], x, dtype=dtype)) == {"kernel"} or by_torch(dtype)


HEADS = {
    "plain": ((2, 3, 40, 16), (2, 3, 50, 16), (2, 3, 50, 24), {}),
    "causal": ((1, 2, 300, 64), (1, 2, 300, 64), (1, 2, 300, 64), {"is_causal": True}),
    "few rows": ((2, 4, 1, 64), (2, 4, 300, 64), (2, 4, 300, 64), {}),
    "narrow": ((1, 2, 9, 7), (1, 2, 11, 7), (1, 2, 11, 5), {"scale": 0.3}),
    "groups": ((1, 8, 20, 32), (1, 2, 20, 32), (1, 2, 20, 32), {"enable_gqa": True}),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "heads inside", "turned", "mixed"])
@pytest.mark.parametrize("name", HEADS)
def test_attention(name, layout, dtype):
    *sizes, kw = HEADS[name]
    args = [randn(*s, seed=i).to(dtype) for i, s in enumerate(sizes)]
    if layout == "heads inside":
        args = [a.transpose(1, 2).contiguous().transpose(1, 2) for a in args]
    elif layout == "turned":
        args = [a.mT.contiguous().mT for a in args]
    elif layout == "mixed":
        args = [a[..., ::2] if i == 1 else torch.cat((a, a), -1)[..., : a.shape[-1]] for i, a in enumerate(args)]
        args[0] = args[0][..., : args[1].shape[-1]]

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **kw)

    assert kinds(fn, *args, dtype=dtype)[-1] == "attention"


MASKS = {
    "additive": lambda n, m, dtype: randn(n, m, seed=9).to(dtype),
    "column": lambda n, m, dtype: randn(n, 1, seed=9).to(dtype).expand(n, m),
    "bools": lambda n, m, dtype: randn(n, m, seed=9) > -1,
    "row of -inf": lambda n, m, dtype: (
        torch.zeros(n, m).masked_fill(torch.arange(n)[:, None] == 3, float("-inf")).to(dtype)
    ),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_attention_mask(name, dtype):
    q, k, v = (randn(2, 3, n, 32, seed=i).to(dtype) for i, n in enumerate((30, 300, 300)))
    mask = MASKS[name](30, 300, dtype)

    def fn(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    assert "attention" in kinds(fn, q, k, v, mask, dtype=dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_attention_written_out(dtype):
    q, k, v = (randn(2, 3, n, 32, seed=i).to(dtype) for i, n in enumerate((30, 40, 40)))
    mask = torch.zeros(30, 40).masked_fill(randn(30, 40) > 1, -1e4).to(dtype)

    def fn(q, k, v, m):
        y = torch.softmax(q @ k.transpose(-1, -2) / 4 + m, -1) @ v
        return y.transpose(1, 2).reshape(2, 30, 96)

    assert "attention" in kinds(fn, q, k, v, mask, dtype=dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_not_finite(dtype):
    x, w = randn(9, 64).to(dtype), randn(32, 64, seed=1).to(dtype)
    x[2, 3], x[5, 0] = float("nan"), float("inf")
    kinds(lambda x, w: F.relu(F.linear(x, w)), x, w, dtype=dtype)
    image, kernel = x.reshape(1, 9, 8, 8), randn(4, 9, 3, 3, seed=2).to(dtype)
    kinds(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), image, kernel, dtype=dtype)
    kinds(lambda q, k: F.scaled_dot_product_attention(q, k, k), x, w, dtype=dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_frozen(dtype):
    """Packed weights follow what happens to the parameters."""
    model = (
        nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 40), nn.GELU(), nn.Linear(40, 9))
        .to(dtype)
        .eval()
    )
    compiled = ccompile.compile(copy.deepcopy(model), mode="max-autotune")
    x = randn(4, 3, 8, 8).to(dtype)
    with torch.no_grad():
        for step in range(6):
            for m in (model, compiled):
                if step == 3:
                    m[3].weight.mul_(2)
                    m[0].weight.add_(1)
            torch.testing.assert_close(compiled(x), model(x), rtol=5 * EPS[dtype], atol=20 * EPS[dtype])


@pytest.mark.parametrize("cpu", ["avx2"])
def test_narrowed_target(cpu):
    """The same with CCOMPILE_CPU, which is read once."""
    chosen = "(test_product or test_conv or test_pool or test_attention or test_not_finite) and not narrowed"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, __file__]
    done = subprocess.run(command, env={**os.environ, "CCOMPILE_CPU": cpu}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]

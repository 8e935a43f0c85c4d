"""inf, NaN, denormals and overflow, through epilogues of products and convolutions (our kernels' and oneDNN's post-ops),
through fused kernels, and through attention: the compiled function gives inf or NaN exactly where eager does."""

import math

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import ONEDNN_NARROWED
from torch import nn

INF, NAN = math.inf, math.nan
VALUES = (INF, -INF, NAN, 0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-40, 3.4e38, -3.4e38, 2e38, 1e30, -1e30, 20.0, -20.0, -104.0, 5.0, -1.0)
ACTS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    **{f.__name__: f for f in (F.silu, F.mish, F.softplus, F.elu, F.selu, F.logsigmoid, F.hardswish, F.hardsigmoid, F.relu, F.relu6)},
    **{f.__name__: f for f in (torch.erf, torch.sigmoid, torch.tanh, torch.exp, torch.expm1, F.leaky_relu, F.softsign, F.tanhshrink)},
    "softmax": lambda x: F.softmax(x, -1),
    "chain": lambda x: F.gelu(x) * torch.sigmoid(x) + F.silu(x - 1),
}
BEHIND = ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu", "mish", "chain")


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def agree(got, want):
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    # eager's gelu (oneDNN's) has a coarse tail
    torch.testing.assert_close(got, want, rtol=2e-4, atol=4e-6, equal_nan=True)


def both(model, *args):
    """In both modes, recorded and replayed."""
    with torch.no_grad():
        want = model(*args)
        for mode in ("default", "max-autotune"):
            compiled = ccompile.compile(model, mode=mode)
            for _ in range(3):
                agree(compiled(*args), want)
            assert "host" not in compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]


class Behind(nn.Module):
    """`act` behind a layer, some of whose outputs are the values."""

    def __init__(self, layer, act):
        super().__init__()
        self.layer, self.act = layer, act
        with torch.no_grad():
            layer.weight[: len(VALUES)] = 0
            layer.bias[: len(VALUES)] = torch.tensor(VALUES)

    def forward(self, x):
        return self.act(self.layer(x))


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("act", BEHIND)
def test_behind_a_product(act, rows):
    torch.manual_seed(0)
    both(Behind(nn.Linear(32, 48), ACTS[act]), randn(rows, 32))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("act", BEHIND)
def test_behind_a_convolution(act, size):
    torch.manual_seed(0)
    both(Behind(nn.Conv2d(16, 32, size), ACTS[act]), randn(2, 16, 9, 11))


@pytest.mark.parametrize("act", ACTS)
def test_alone(act):
    def fn(x):
        return ACTS[act](x)

    x = torch.tensor(VALUES * 8).view(8, -1)
    for case in (x, x[:1, :1].clone(), x.t(), x.double()):
        both(fn, case)


@pytest.mark.skipif(ONEDNN_NARROWED, reason="eager's gelu is not this CPU's")
def test_gelu_of_inf_is_what_eager_takes_it_for():
    """oneDNN's, of what is contiguous, is NaN on CPUs with AVX-512; ATen's own is inf: both are met above only if eager still differs."""
    x = torch.full((4, 6), INF)
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    assert (F.gelu(x).isnan() if wide else F.gelu(x).isinf()).all()
    assert F.gelu(x.t()).isinf().all()


def attend(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def written(q, k, v, mask):
    scores = q @ k.transpose(-1, -2) / 8
    if mask is not None:
        scores = scores.masked_fill(~mask, -INF) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ v


def at(t, index, value):
    t[index] = value


# what is changed in q, k, v, or the mask
ATTENTIONS = {
    "query-nan": lambda q, k, v, m: at(q, (0, 0, 0, 0), NAN),
    "query-inf": lambda q, k, v, m: at(q, (0, 1, 0, 3), INF),
    "key-nan": lambda q, k, v, m: at(k, (0, 1, 2, 3), NAN),
    "key-inf": lambda q, k, v, m: at(k, (0, 1, 2, 3), INF),
    "value-nan": lambda q, k, v, m: at(v, (0, 1, 2, 3), NAN),
    "value-inf": lambda q, k, v, m: at(v, (0, 1, 2, 3), INF),
    "overflow": lambda q, k, v, m: (q.mul_(1e20), k.mul_(1e20)),
    "rows-masked": lambda q, k, v, m: at(m, (slice(None), slice(None), 0), False),
    "all-masked": lambda q, k, v, m: m.fill_(False),
    "rows-added": lambda q, k, v, m: at(m, (0, 0, 0), -INF),
    "half-a-row": lambda q, k, v, m: at(m, (1, 0, 0, slice(9)), -INF),
    "mask-inf": lambda q, k, v, m: at(m, (1, 0, 0, 2), INF),
    "mask-nan": lambda q, k, v, m: at(m, (1, 0, 0, 2), NAN),
    "one-key": lambda q, k, v, m: at(m, (slice(None), slice(None), slice(None), slice(1, None)), torch.finfo(torch.float32).min),
}


# From 16 keys on: eager's own kernel loses a row of NaN scores where its keys are fewer than a vector has lanes (csrc/dev/flash.c).
@pytest.mark.parametrize("size", [(1, 64), (33, 270)], ids=str)
@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("fn", [attend, written])
def test_attention(fn, name, size):
    rows, keys = size
    q, k, v = (randn(2, 4, n, 64, seed=i) for i, n in enumerate((rows, keys, keys)))
    mask = None
    if "mask" in name or "row" in name or name == "one-key":
        mask = randn(2, 1, rows, keys, seed=3)
        mask = mask > 0 if name.endswith("masked") else mask
    ATTENTIONS[name](q, k, v, mask)
    both(fn, q, k, v, mask)


EPS = {
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=-1),
    "logit": lambda x: x.logit(1e-8),
    "logit_1e-3": lambda x: x.logit(1e-3),
    "clamp": lambda x: x / x.clamp(min=1e-8),
}


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32), ids=str)
@pytest.mark.parametrize("name", EPS)
def test_eps_is_of_the_tensors_dtype(name, dtype):
    """1e-8 is 0 in float16: eager's 0 / 0 is NaN there."""
    fn, x = EPS[name], torch.cat([torch.zeros(2, 7), torch.ones(1, 7), torch.rand(3, 7) / 4]).to(dtype)
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for i in range(3):
            got, want = compiled(x + i * 0), fn(x)
            assert torch.equal(got.isnan(), want.isnan())
            assert torch.equal(got.isinf(), want.isinf())
            torch.testing.assert_close(got, want, equal_nan=True)


# ---- powers and shifts --------------------------------------------------------------------------------------------
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5, torch.float64: 1e-12}
POWERS = (0, 0.0, 1, 2, 2.0, 3, -1, -1.0, -2, -3, 4, -4, 5, 0.5, -0.5, 1.5, -1.5, 0.25, 2.5, 1 / 3, 257, INF, -INF, NAN, True)


def exactly(got, want, about):
    """Signs of zeros, inf and NaN as well."""
    assert got.dtype == want.dtype, about
    if not want.is_floating_point():
        assert torch.equal(got, want), (about, got.tolist(), want.tolist())
        return
    same = torch.isclose(got, want, rtol=TOLERANCE[want.dtype], atol=0, equal_nan=True)
    same &= (torch.signbit(got) == torch.signbit(want)) | want.isnan()
    assert same.all(), (about, got[~same].tolist(), want[~same].tolist())


def each(fn, about, *args):
    def copies():
        return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]

    compiled, want = ccompile.compile(fn), fn(*copies())
    for _ in range(2):
        exactly(compiled(*copies()), want, about)
    return compiled


def power_in_place(x, e):
    x **= e
    return x


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: str(d).split(".")[1])
def test_powers(dtype):
    """Eager has roots for some exponents, which differ from C's pow for -inf and -0.0, and not for all dtypes."""
    most, least = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    values = [INF, -INF, NAN, 0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1.5, 100, -100]
    x = torch.tensor(values + [most, -most, least, -least, least / 4, -least / 4], dtype=dtype)
    forms = {
        "x ** number": lambda x, e: x**e,
        "number ** x": lambda x, e: e**x,
        "x **= number": power_in_place,
        "float_power": lambda x, e: torch.float_power(x, e),
        "x ** 0-dim tensor": lambda x, e: x ** torch.tensor(e),
        "x ** tensor": lambda x, e: x ** torch.full_like(x, e),
    }
    for e in POWERS:
        for name, form in forms.items():
            each(lambda x, form=form, e=e: form(x, e), f"{name}, {e}", x)
    for fn in (torch.sqrt, torch.rsqrt, torch.reciprocal, torch.square):
        each(lambda x, fn=fn: fn(x), fn.__name__, x)


@pytest.mark.parametrize("e", [0.5, -0.5])
def test_roots_of_halves_are_no_host_step(e):
    compiled = each(lambda x: x**e, "pow", torch.rand(40).half())
    assert "host" not in compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]


def shift_left_in_place(x, n):
    x <<= n
    return x


def shift_right_in_place(x, n):
    x >>= n
    return x


SHIFTS = {
    "<<": lambda x, n: x << n,
    ">>": lambda x, n: x >> n,
    "<<=": shift_left_in_place,
    ">>=": shift_right_in_place,
    "number <<": lambda x, n: n << x,
    "number >>": lambda x, n: n >> x,
}


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), ids=lambda d: str(d).split(".")[1])
def test_shifts(dtype, name):
    """By negative counts and by more than there are bits."""
    fn, low, high = SHIFTS[name], torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = [low, high, 0, 1, 3, high // 2 + 1, 7, 8, 9, 100, *(() if low == 0 else (-1, -2, low + 1))]
    x = torch.tensor(values * 3, dtype=dtype)  # vectors, and a rest
    for n in (-1, 0, 1, 6, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 200):
        each(lambda x, n=n: fn(x, n), f"by {n}", x)
        if low <= n <= high and name[0] != "n":
            each(fn, f"by tensors of {n}", x, torch.full_like(x, n))
            each(fn, f"by a 0-dim tensor of {n}", x, torch.tensor(n, dtype=dtype))
    if name in ("<<", ">>"):
        compiled = each(fn, "by each other", x, x.flip(0))
        assert "host" not in compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_causal_mask_comes_before_the_scale(scale):
    """-inf * 0 is NaN: eager's kernel of attention fills the scores before it scales them."""
    q, k, v = torch.randn(3, 1, 2, 9, 8).unbind()

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    fn = ccompile.compile(f, options={"verify": False})
    for _ in range(3):
        assert torch.equal(fn(q, k, v).isnan(), f(q, k, v).isnan())

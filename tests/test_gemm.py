"""Products by our own loops (csrc/dev/gemm.c), with kept packed weights and plain ones, against eager in double precision."""

import copy
import ctypes
import os
import subprocess
import sys

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import CPU, alike
from torch import nn

SHAPES = [(2, 16, 16), (3, 5, 7), (8, 64, 64), (15, 33, 17), (32, 512, 10), (32, 512, 512), (50, 70, 130), (64, 96, 100),
          (64, 1, 64), (65, 130, 1), (97, 257, 31), (197, 64, 80), (300, 1100, 90)]  # fmt: skip
POSTS = {
    "none": lambda y, z: y,
    "relu": lambda y, z: torch.relu(y),
    "sigmoid": lambda y, z: torch.sigmoid(y),
    "tanh": lambda y, z: torch.tanh(y),
    "silu and product": lambda y, z: F.silu(y) * z,
    "gelu": lambda y, z: F.gelu(y),
    "gelu by tanh": lambda y, z: F.gelu(y, approximate="tanh"),
    "sum": lambda y, z: y + z,
    "scaled": lambda y, z: y * 0.125 + z,
}


def near(got, want, k):
    """Within rounding of sums of k products."""
    assert got.dtype == torch.float32 and got.shape == want.shape and got.is_contiguous()
    assert torch.allclose(got.double(), want, rtol=1e-5, atol=2e-6 * max(1, k) ** 0.5), (got.double() - want).abs().max()


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sizes(shape, mode):
    m, k, n = shape
    layer = nn.Linear(k, n).eval()
    compiled = ccompile.compile(layer, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(m, k)
            near(compiled(x), x.double() @ layer.weight.double().t() + layer.bias.double(), k)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("shape", [(64, 96, 100), (67, 64, 64), (130, 80, 96)])
def test_posts(shape, post, mode):
    m, k, n = shape
    layer = nn.Linear(k, n).eval()

    def f(x, z):
        return POSTS[post](layer(x), z)

    compiled = ccompile.compile(f, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            x, z = torch.randn(m, k) * 3, torch.randn(m, n)
            y = x.double() @ layer.weight.double().t() + layer.bias.double()
            near(compiled(x, z), POSTS[post](y, z.double()), k)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("post", ["none", "relu", "tanh", "sigmoid", "silu and product", "gelu", "gelu by tanh"])
def test_what_is_not_finite(post, mode):
    """As eager: NaN stays, also through relu; infinities go where they go."""
    layer = nn.Linear(64, 64).eval()

    def f(x, z):
        return POSTS[post](layer(x), z)

    compiled = ccompile.compile(f, mode=mode)
    x, z = torch.randn(64, 64), torch.ones(64, 64)
    for i, value in enumerate((float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-40)):
        x[i, 3] = value
        x[i + 20] = value
    with torch.no_grad():
        layer.weight.copy_(torch.eye(64))
        layer.weight[0, 3] = 1
        for _ in range(3):
            alike(f(x, z), compiled(x, z), path=post)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_layouts(mode):
    """Batches, rows with gaps, weights that are windows or lie the other way round, no bias."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(96, 80) * 0.1)
            self.b = nn.Parameter(torch.randn(96))

        def forward(self, x):
            wide = F.linear(x[..., :80], self.w, self.b)
            back = wide @ self.w
            part = F.linear(back[:, 8:72], self.w[16:48], self.b[16:48])
            return wide, back, part, torch.addmm(self.b[:80], wide.flatten(0, 1), self.w)

    model = Model()
    compiled = ccompile.compile(model, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 80, 100)
            for got, want in zip(compiled(x), copy.deepcopy(model).double()(x.double()), strict=True):
                near(got, want, 100)


def test_kept_weights_follow_their_version():
    layer = nn.Linear(128, 96).eval()
    compiled = ccompile.compile(lambda x: torch.relu(layer(x)), mode="max-autotune")
    with torch.no_grad():
        for i in range(6):
            x = torch.randn(40, 128)
            alike(torch.relu(layer(x)), compiled(x), path=f"call {i}")
            if i % 2:
                layer.weight.mul_(-0.5)
                layer.bias.add_(1)


def test_inference_tensors_have_no_version():
    """Then weights are packed in each call, those that can't be read as they lie, too."""
    with torch.inference_mode():
        w = nn.Parameter(torch.randn(64, 96) * 0.1, requires_grad=False)
        compiled = ccompile.compile(lambda x: (x @ w) @ w.t(), mode="max-autotune")
        for _ in range(3):
            x = torch.randn(24, 64)
            near(compiled(x), x.double() @ w.double() @ w.double().t(), 100)
            w.mul_(0.5)


WAYS = ["own", "onednn", "blas", "own_packed", "onednn_packed"]


def ways_of(compiled):
    """The implementation of each product of its newest plan."""
    plans = compiled_of(compiled).report()["entries"][0]["segments"][0]["plans"]
    return [step["way"] for plan in plans for step in plan["steps"] if step["kind"] == "product"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["linear", "addmm"])
@pytest.mark.parametrize("shape", [(2, 16, 16), (7, 19, 33), (33, 70, 45), (64, 96, 100), (197, 40, 20)])
def test_each_way_gives_the_product(shape, layout, way, monkeypatch):
    """All posts, weights in both orders, rows of x with gaps; a way that can't run a product leaves it to another."""
    monkeypatch.setenv("CCOMPILE_WAY", way)
    m, k, n = shape
    layer = nn.Linear(k, n).eval()
    if layout == "addmm":
        layer.weight = nn.Parameter(layer.weight.t().contiguous())

    def product(x):
        x = x[:, :k]
        return F.linear(x, layer.weight, layer.bias) if layout == "linear" else torch.addmm(layer.bias, x, layer.weight)

    for post in POSTS:
        compiled = ccompile.compile(lambda x, z, post=post: POSTS[post](product(x), z), mode="max-autotune")
        with torch.no_grad():
            for _ in range(2):
                x, z = torch.randn(m, k + 3), torch.randn(m, n)
                w = layer.weight.double().t() if layout == "linear" else layer.weight.double()
                near(compiled(x, z), POSTS[post](x[:, :k].double() @ w + layer.bias.double(), z.double()), k)
            (ran,) = ways_of(compiled)
        taken = not ("onednn" in way and post == "relu")
        assert ran == way if taken and (way != "blas" or has_blas()) else ran in WAYS, post


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(1, 16, 16), (16, 1, 5), (7, 19, 1), (33, 70, 45), (640, 96, 100)])
def test_each_way_gives_a_weights_gradient(shape, way, monkeypatch):
    """Products whose first operand is transposed, with weights in both orders."""
    monkeypatch.setenv("CCOMPILE_WAY", way)
    m, k, n = shape
    compiled = [ccompile.compile(lambda g, x: g.t() @ x), ccompile.compile(lambda g, x: torch.tanh(g.t() @ x.t()))]
    for _ in range(2):
        g, x = torch.randn(k, m + 3)[:, :m], torch.randn(k, n)
        want = g.double().t() @ x.double()
        near(compiled[0](g, x), want, k)
        near(compiled[1](g, x.t().contiguous()), want.tanh(), k)
    if min(shape) > 1:
        ran = "blas" if way == "blas" and has_blas() else "onednn"
        assert [ways_of(fn)[0] for fn in compiled] == [ran, ran]


@pytest.mark.parametrize("way", ["own", "onednn", "own_packed", "onednn_packed"])
@pytest.mark.parametrize("layout", ["linear", "addmm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 16, 16), (7, 19, 33), (33, 70, 45), (64, 96, 100), (197, 40, 20), (600, 2100, 50)])
def test_each_way_gives_the_product_in_half_precision(shape, dtype, layout, way, monkeypatch):
    """No further from the exact result than a rounding of it, and of what eager rounds between; NaN and infinity stay."""
    monkeypatch.setenv("CCOMPILE_WAY", way)
    m, k, n = shape
    layer = nn.Linear(k, n).eval().to(dtype)
    if layout == "addmm":
        layer.weight = nn.Parameter(layer.weight.t().contiguous())

    def product(x, weight, bias):
        x = x[:, :k]
        return F.linear(x, weight, bias) if layout == "linear" else torch.addmm(bias, x, weight)

    for post in [p for p in POSTS if p != "relu"]:  # a kernel of its own
        compiled = ccompile.compile(
            lambda x, z, post=post: POSTS[post](product(x, layer.weight, layer.bias), z), mode="max-autotune"
        )
        with torch.no_grad():
            for value in (0, float("nan"), float("inf")):
                x, z = torch.randn(m, k + 3).to(dtype), torch.randn(m, n).to(dtype)
                x[m // 2, k // 2] = value
                exact = product(x.double(), layer.weight.double(), layer.bias.double())
                want, got = POSTS[post](exact, z.double()), compiled(x, z)
                assert got.dtype == dtype and got.shape == want.shape and got.is_contiguous()
                eager = POSTS[post](product(x, layer.weight, layer.bias), z)
                # eager's gelu of +inf is NaN in half precision only; as a post-op it is inf, by oneDNN as well
                assert torch.equal(got.isnan(), eager.isnan()) or (post == "gelu" and value == float("inf")), post
                rest = torch.arange(m) != m // 2
                eps = torch.finfo(dtype).eps
                assert torch.allclose(got.double()[rest], want[rest], rtol=2 * eps, atol=eps), post
        (ran,) = ways_of(compiled)
        assert ran == way or ("own" in way and CPU == "base"), post  # whose own loops are f32 only


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_kept_half_precision_weights_follow_their_version(dtype, monkeypatch):
    monkeypatch.setenv("CCOMPILE_WAY", "own_packed")
    layer = nn.Linear(128, 96).eval().to(dtype)
    compiled = ccompile.compile(lambda x: layer(x) * 2, mode="max-autotune")
    with torch.no_grad():
        for i in range(6):
            x = torch.randn(40, 128).to(dtype)
            want = (x.double() @ layer.weight.double().t() + layer.bias.double()) * 2
            assert torch.allclose(compiled(x).double(), want, rtol=2**-7, atol=2**-7), i
            if i % 2:
                layer.weight.mul_(-0.5)
                layer.bias.add_(1)
    assert ways_of(compiled) == ["own_packed"] or CPU == "base"


@pytest.mark.skipif(CPU == "base", reason="own loops are f32 only")
@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_choices_of_half_precision_include_own_loops(mode):
    n = 4 * 41 + (mode == "default")
    layer = nn.Linear(256, n).eval().to(torch.bfloat16)
    x = torch.randn(600, 256).to(torch.bfloat16)
    with torch.no_grad():
        compiled = ccompile.compile(layer, mode=mode)
        compiled(x)
        second = compiled(x)
        assert all(torch.equal(second, compiled(x)) for _ in range(3))
    (told,) = choices(f"600x256x{n} (bf16)")
    assert "own " in told and "onednn " in told and ("own_packed" in told) == (mode != "default")


def has_blas():
    """Does torch export Fortran's interface of its BLAS?"""
    return hasattr(ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")), "sgemm_")


def choices(text):
    return [e.text for e in ccompile.events() if e.kind == "choice" and text in e.text]


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_choices_are_measured_once_and_told(mode):
    """In the first run of a plan: later runs round alike."""
    n = 4 * 37 + (mode == "default")
    layer = nn.Linear(256, n).eval()
    x = torch.randn(96, 256)
    with torch.no_grad():
        for _ in range(2):
            compiled = ccompile.compile(lambda x: layer(x) + 1, mode=mode)
            compiled(x)
            second = compiled(x)
            assert all(torch.equal(second, compiled(x)) for _ in range(3))
    (told,) = choices(f"96x256x{n} ")
    assert "own " in told and "onednn " in told and "us" in told
    assert ("packed" in told) == (mode != "default")


@pytest.mark.parametrize("how", ["small", "knob", "deterministic"])
def test_what_is_not_measured(how):
    m, n = (24, 39) if how == "small" else (96, 200 + len(how))
    layer = nn.Linear(256, n).eval()
    torch.use_deterministic_algorithms(how == "deterministic")
    try:
        compiled = ccompile.compile(lambda x: layer(x) + 2, options={"measure": how != "knob"})
        with torch.no_grad():
            for _ in range(3):
                compiled(torch.randn(m, 256))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not choices(f"{m}x256x{n} ")


CHOOSE = """
import torch, ccompile
layer = torch.nn.Linear(256, 300)
with torch.no_grad():
    f = ccompile.compile(lambda x: layer(x))
    for m in (96, 100, 90):
        for _ in range(2):
            f(torch.randn(m, 256))
print(sum(e.kind == "choice" for e in ccompile.events()))
"""


def test_choices_are_kept_on_disk(tmp_path):
    """For numbers of rows nearby, too. What a busy machine has disturbed is measured again until three processes agree: with
    at most six ways, the fourteenth process measures nothing."""
    env = {**os.environ, "CCOMPILE_CACHE_DIR": str(tmp_path)}
    counts = []
    while counts[-1:] != ["0"] and len(counts) < 14:
        done = subprocess.run([sys.executable, "-c", CHOOSE], env=env, capture_output=True, text=True, check=True)
        counts.append(done.stdout.strip())
    assert counts[-1] == "0" and set(counts[:-1]) == {"1"}


NARROW = """
import torch, ccompile
from torch import nn
torch.manual_seed(0)
for m, k, n in ((64, 96, 100), (67, 33, 65), (9, 64, 40), (128, 64, 64)):
    layer = nn.Linear(k, n)
    for mode in ("default", "max-autotune"):
        with torch.no_grad():
            f = ccompile.compile(lambda x: torch.relu(layer(x)), mode=mode)
            for _ in range(2):
                x = torch.randn(m, k)
                want = torch.relu(x.double() @ layer.weight.double().t() + layer.bias.double())
                assert torch.allclose(f(x).double(), want, atol=1e-4), (m, k, n, mode)
print("fine")
"""


@pytest.mark.parametrize("cpu", ["avx2", "base"])
def test_narrower_vectors(cpu):
    done = subprocess.run([sys.executable, "-c", NARROW], env={**os.environ, "CCOMPILE_CPU": cpu}, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.stdout.strip() == "fine", done.stderr

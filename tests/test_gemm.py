"""Products by our own loops (csrc/dev/gemm.c), with kept packed weights and plain ones, against eager in double precision."""

import copy
import os
import subprocess
import sys

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import alike
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


def test_choices_are_measured_once_and_told():
    n = 4 * 37
    layer = nn.Linear(104, n).eval()
    x = torch.randn(24, 104)

    def choices():
        return [e.text for e in ccompile.events() if e.kind == "choice" and f"24x104x{n} " in e.text]

    with torch.no_grad():
        for _ in range(2):
            ccompile.compile(lambda x: layer(x) + 1, mode="max-autotune")(x)
        assert len(choices()) == 1 and "oneDNN" in choices()[0] and "us" in choices()[0]
        ccompile.compile(lambda x: layer(x) + 2)(torch.randn(25, 104))
    assert not any("25x104" in e.text for e in ccompile.events() if e.kind == "choice")


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

"""autocast as it is on a GPU, on the emulated driver: its lists of ops are put in the place of the CPU's, whose kernels they are for.
tests/test_cuda_suites.py runs this in a process of its own."""

import subprocess
import tempfile
from pathlib import Path

import ccompile
import emulated
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER, counters
from torch import nn
from writes import T

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")


def load_lists():
    """autocast.cc, compiled against torch's headers."""
    at = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/autocast.so"
        include = [f"-I{at}/include", f"-I{at}/include/torch/csrc/api/include", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
        subprocess.run([emulated.compiler(), "-std=c++20", "-O0", "-w", "-fPIC", "-shared", *include, "-o", library, str(Path(__file__).with_suffix(".cc")),
                        f"-L{at}/lib", "-ltorch_cpu", "-lc10"], check=True)  # fmt: skip
        torch.ops.load_library(library)


@pytest.fixture(scope="session", autouse=True)
def _lists():
    load_lists()


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        yield


def test_the_lists_are_a_gpus():
    x = T(3, 4).bfloat16()
    assert {f(x).dtype for f in (torch.exp, torch.rsqrt, lambda x: x.softmax(-1), lambda x: F.layer_norm(x, (4,)), lambda x: x.pow(2), torch.sum, lambda x: x.sum(-1))} == {torch.float32}
    assert {f(x).dtype for f in (F.gelu, torch.relu, torch.tanh, lambda x: x + 1)} == {torch.bfloat16}


def plans(fn):
    return "".join(s["plan_text"] for e in compiled_of(fn).report()["entries"] for s in e["segments"])


OPS = {
    "exp": lambda x, y: torch.exp(x) * y,
    "pow": lambda x, y: x.pow(2) + y,
    "pow of two": lambda x, y: torch.pow(x.abs() + 1, y),
    "rsqrt": lambda x, y: torch.rsqrt(x.abs() + 1) + y,
    "softplus": lambda x, y: F.softplus(x) - y,
    "softmax": lambda x, y: (x.softmax(-1), torch.log_softmax(y, 0)),
    "layer norm": lambda x, y: F.layer_norm(x, (24,)) + y,
    "sums": lambda x, y: (x.sum(), y.sum(-1), (x * y).sum(0), x.mean(1), x.amax(1)),
    "cumsum": lambda x, y: x.cumsum(-1) + y,
    "gelu": lambda x, y: F.gelu(x) * torch.tanh(y),
    "rms norm": lambda x, y: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * y,
    "mixed": lambda x, y: torch.where(x > 0, torch.exp(x), y.float()),
    "losses": lambda x, y: (F.smooth_l1_loss(x, y), F.l1_loss(x, y), F.mse_loss(x, y)),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_ops(name, dtype):
    fn, before = ccompile.compile(OPS[name]), counters().get("verify", 0)
    for _ in range(4):
        x, y = T(6, 24).to(dtype), T(6, 24).to(dtype)
        got, want = fn(x, y), OPS[name](x, y)
        for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (got, want)), strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-2 if b.dtype is torch.bfloat16 else 1e-4, atol=1e-3 if b.dtype is torch.bfloat16 else 1e-5)
    assert " host " not in plans(fn) and counters().get("verify", 0) == before, plans(fn)


class Layer(nn.Module):
    def __init__(self, n=32, heads=4):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(n) for _ in range(2))
        self.qkv, self.out, self.up, self.down = nn.Linear(n, 3 * n), nn.Linear(n, n), nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        b, s, n = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, n)
        x = self.norms[0](x + self.out(a))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


def test_a_transformer():
    net = nn.Sequential(Layer(), Layer()).eval()
    fn = ccompile.compile(net)
    for _ in range(4):
        x = T(2, 7, 32)
        got, want = fn(x), net(x)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert plans(fn).count("layer_norm") == 4 and plans(fn).count(" kernel ") == 6, plans(fn)

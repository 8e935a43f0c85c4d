"""Torch's convolutions and products between kernels of a GPU, on the emulated driver: channels innermost where they follow what they read, the recorded
strides for whoever sees a result. tests/test_cuda_suites.py runs this in a process of its own."""

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import EAGER
from torch import nn
from writes import T, same

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Block(nn.Module):
    """As in torchvision's networks."""

    def __init__(self, n, groups=1, inplace=True):
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(n, n, k, padding=k // 2, bias=False, groups=groups) for k in (3, 3, 1))
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for _ in range(3))
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x):
        y = self.relu(self.norms[0](self.one(x)))
        y = self.norms[1](self.two(y))
        y += self.norms[2](self.three(x))
        return self.relu(y)


def lasts(text):
    return [line.split()[1] for line in text.splitlines() if " channels_last" in line]


@pytest.mark.parametrize("n", [8, 72])
def test_a_few_stay(n):
    """Norms, the sum into one of them and its relu are one kernel, which reads each convolution's result once."""
    text = same(Block(n).eval(), T(2, n, 9, 9), host=3)
    assert text.count(" kernel ") == 2 and lasts(text) == []


def test_between_the_first_and_the_last_one():
    """The image is copied, which is little; so is what the caller sees."""
    net = nn.Sequential(nn.Conv2d(3, 72, 7, 2, 3), nn.BatchNorm2d(72), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(72), Block(72)).eval()
    text = same(net, T(2, 3, 32, 32), host=7)
    assert lasts(text) == ["host", "kernel", "kernel", "host", "kernel", "host", "host", "kernel", "host", "kernel", "host", "host"], text


@pytest.mark.parametrize("side", [16, 28])
def test_up_to_a_global_pooling(side):
    """Of few elements, which are unrolled, and of many, which are a reduction of the kernel before it."""
    net = nn.Sequential(nn.Conv2d(3, 72, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(72), Block(72), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(72, 3)).eval()
    text = same(net, T(2, 3, side, side), host=9)
    assert text.count(" kernel ") == (6 if side == 28 else 7) and lasts(text).count("host") == 7, text


def test_what_others_see_lies_as_it_did():
    """A result of the caller's, one of a convolution that torch reads, and one that is read by a view."""
    stem, more = nn.Conv2d(3, 72, 3, padding=1), nn.Sequential(Block(72), Block(72)).eval()
    a, b, c = (nn.Conv2d(72, 72, 3, padding=1) for _ in range(3))

    def net(x):
        y = more(torch.relu(stem(x)))
        p, q, r = a(y), torch.tanh(b(y)), torch.relu(c(y))
        return p, q.mean((2, 3)), torch.linalg.norm(r), r.view(2, -1).sum(1)

    fn = ccompile.compile(net)
    for _ in range(4):
        x = T(2, 3, 16, 16)
        for got, want in zip(fn(x), net(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("how", ["groups", "f64", "channels last"])
def test_others_stay(how):
    net = nn.Sequential(nn.Conv2d(3, 72, 3), nn.ReLU(), Block(72, groups=72 if how == "groups" else 1)).eval()
    x = T(2, 3, 16, 16)
    if how == "f64":
        net, x = net.double(), x.double()
    if how == "channels last":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    assert "host" not in lasts(same(net, x, host=4))


def test_autocast():
    net = nn.Sequential(nn.Conv2d(3, 72, 3), nn.ReLU(), Block(72), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(72, 5)).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert "host" in lasts(same(net, T(2, 3, 16, 16), host=6))


def test_functional_with_names():
    w, v = T(72, 3, 3, 3), T(72, 72, 1, 1)

    def net(x):
        x = F.conv2d(weight=w, input=x)
        for _ in range(4):
            x = F.conv2d(bias=None, weight=v, input=torch.relu(x))
        return x

    assert lasts(same(net, T(2, 3, 16, 16), host=5)).count("host") == 4


def test_a_view_of_a_product_is_no_step():
    """GPT-2's Conv1D. And no pass gave up: each product is torch's, and asked for once."""
    w, b = T(24, 36), T(36)

    def net(x):
        return F.gelu(torch.addmm(b, x.view(-1, 24), w).view(2, 5, 36)) * 2

    ccompile.reset()
    assert same(net, T(2, 5, 24), host=2).count(" kernel ") == 1
    assert not [e.text for e in ccompile.events() if e.kind == "fallback"]

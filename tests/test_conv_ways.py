"""csrc/run/convways.c: each way of running a convolution gives the same, and the fastest is found in the first run of a plan."""

import itertools

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, ONEDNN_WIDE
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="plans")
WAYS = ["direct", "depthwise", "winograd_2", "winograd_4", "onednn", "one_output", "onednn_blocked", "onednn_preferred"]
KINDS = {
    "1x1": lambda: nn.Conv2d(32, 48, 1),
    "3x3": lambda: nn.Conv2d(32, 32, 3, padding=1),
    "no_bias": lambda: nn.Conv2d(32, 48, 3, bias=False),
    "strided": lambda: nn.Conv2d(32, 48, 3, stride=2, padding=1, dilation=2),
    "wide": lambda: nn.Conv2d(32, 16, 5, padding=2),
    "depthwise": lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32),
    "line": lambda: nn.Conv1d(32, 48, 3, padding=1),
}
TAKES = {
    "direct": {"1x1", "3x3", "no_bias", "strided", "wide", "line"},
    "depthwise": {"depthwise"},
    "winograd_2": {"3x3"},
    "winograd_4": {"3x3"},
    "onednn": set(KINDS),
    "one_output": set(),
    "onednn_blocked": set(),
    "onednn_preferred": set(),
}
ALONE = {  # kinds of convolutions between tensors that are not channels-last
    **KINDS,
    "stem": lambda: nn.Conv2d(3, 32, 7, stride=2, padding=3),
    "grouped": lambda: nn.Conv2d(32, 48, 3, padding=1, groups=4),
    "odd": lambda: nn.Conv2d(9, 21, 3, padding=1),
    "long": lambda: nn.Conv1d(1, 64, 10, stride=5),
    "volume": lambda: nn.Conv3d(16, 32, 3, padding=1),
}
POSTS = {
    "nothing": lambda y, norm, z: y,
    "relu": lambda y, norm, z: torch.relu(y),
    "norm": lambda y, norm, z: norm(y),
    "norm_add_relu": lambda y, norm, z: torch.relu(norm(y) + z),
    "relu6": lambda y, norm, z: nn.functional.relu6(norm(y)),
    "hardtanh": lambda y, norm, z: nn.functional.hardtanh(y, -0.3, 0.7),
    "clamp": lambda y, norm, z: (y + z).clamp(-0.5, 0.25),
}


class Chain(nn.Module):
    """Between 1x1 convolutions, so that the convolution's tensors are channels-last inside."""

    def __init__(self, kind, post):
        super().__init__()
        torch.manual_seed(0)
        self.conv = KINDS[kind]()
        line = isinstance(self.conv, nn.Conv1d)
        self.first = (nn.Conv1d if line else nn.Conv2d)(16, 32, 1)
        self.last = (nn.Conv1d if line else nn.Conv2d)(self.conv.out_channels, 16, 1)
        self.norm = (nn.BatchNorm1d if line else nn.BatchNorm2d)(self.conv.out_channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.post = POSTS[post]

    def forward(self, x):
        y = self.conv(self.first(x))
        return self.last(self.post(y, self.norm, torch.sin(y)))


class Alone(nn.Module):
    """Of tensors in torch's layout. A residual keeps it from oneDNN's blocked layouts."""

    def __init__(self, kind, post):
        super().__init__()
        torch.manual_seed(0)
        self.conv = ALONE[kind]()
        dims = self.conv.weight.dim() - 2
        self.norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](self.conv.out_channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.post = POSTS[post]

    def inputs(self, batch, seed):
        size = (batch, self.conv.in_channels, *(5, 14, 61)[-(self.conv.weight.dim() - 2) :])
        return torch.randn(*size, generator=torch.Generator().manual_seed(seed))

    def forward(self, x):
        y = self.conv(x)
        return self.post(y, self.norm, torch.sin(y))


def inputs(kind, batch, seed=0):
    size = (batch, 16, 29) if kind == "line" else (batch, 16, 14, 11)
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def ways_of(compiled):
    plans = compiled_of(compiled).report()["entries"][0]["segments"][0]["plans"]
    return [step["way"] for step in plans[-1]["steps"] if step["kind"] == "conv"]


def near(got, model, x):
    """As near to the result in float64 as a few roundings of the largest sums."""
    want = model.double()(x.double())
    model.float()
    assert got.stride() == model(x).stride()
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=2e-5, equal_nan=True)


def check(model, mode, make):
    """Compiled for two batches, each run twice. -> the compiled model."""
    compiled = ccompile.compile(model.eval(), mode=mode)
    with torch.no_grad():
        for batch, seed in itertools.product((2, 3), (0, 1)):
            x = make(batch, seed)
            near(compiled(x), model, x)
    return compiled


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_each_way_gives_the_convolution(kind, way, mode, monkeypatch):
    """With all that follows; a way that can't run it leaves it to another."""
    monkeypatch.setenv("CCOMPILE_WAY", way)
    for post in POSTS:
        compiled = check(Chain(kind, post), mode, lambda batch, seed: inputs(kind, batch, seed))
        ran = ways_of(compiled)[1]
        if kind in TAKES[way] and (way, mode) != ("winograd_4", "default"):
            assert ran == way, post
        assert ran in WAYS, post


@pytest.mark.parametrize("way", ["direct", "onednn", "one_output", "onednn_blocked"])
@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_each_way_gives_a_convolution_alone(kind, way, mode, monkeypatch):
    monkeypatch.setenv("CCOMPILE_WAY", way)
    for post in POSTS:
        model = Alone(kind, post)
        compiled = check(model, mode, model.inputs)
        if way == "onednn_blocked" and post not in ("norm_add_relu", "clamp"):
            assert ways_of(compiled) == [way], post


@pytest.mark.parametrize("way", ["one_output", "onednn", "onednn_blocked"])
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_ways_of_a_depthwise_convolution_alone(way, kernel, monkeypatch):
    monkeypatch.setenv("CCOMPILE_WAY", way)
    conv = nn.Conv2d(32, 32, kernel, padding=kernel // 2, groups=32).eval()
    compiled = ccompile.compile(lambda x: conv(x))
    with torch.no_grad():
        for batch in (1, 2, 1):
            x = torch.randn(batch, 32, 40, 48)
            torch.testing.assert_close(compiled(x), conv(x), rtol=1e-4, atol=1e-5)
    assert ways_of(compiled) == [way]


@pytest.mark.parametrize("way", ["direct", "onednn"])
def test_nan_passes_the_clamp(way, monkeypatch):
    monkeypatch.setenv("CCOMPILE_WAY", way)
    model = Chain("1x1", "relu").eval()
    compiled = ccompile.compile(model)
    x = inputs("1x1", 2)
    x[0, 3, 2, 1] = float("nan")
    with torch.no_grad():
        for _ in range(2):
            got, want = compiled(x), model(x)
            assert torch.equal(got.isnan(), want.isnan()) and want.isnan().any()


@pytest.mark.parametrize("size", [(2, 3), (5, 7), (16, 17)])
@pytest.mark.parametrize("bounds", [(0, 6), (-0.5, 0.25), (-0.25, float("inf"))])
def test_a_clamp_behind_onednn(bounds, size, monkeypatch):
    """Also of elements that fill no vector, and of NaN."""
    monkeypatch.setenv("CCOMPILE_WAY", "onednn_blocked")
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 32, 1).eval()
    compiled = ccompile.compile(lambda x: conv(x).clamp(*bounds))
    x = torch.randn(3, 3, *size)
    x[1, 2, 1, 1] = float("nan")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), conv(x).clamp(*bounds), equal_nan=True)


HALVES = {  # of at least 32,768 weights, which oneDNN can take in blocks
    "1x1": lambda: nn.Conv2d(128, 256, 1),
    "3x3": lambda: nn.Conv2d(64, 64, 3, padding=1),
    "strided": lambda: nn.Conv2d(64, 96, 3, stride=2, padding=1),
    "no_bias": lambda: nn.Conv2d(64, 64, 3, bias=False),
    "line": lambda: nn.Conv1d(64, 128, 5, padding=2),
    "volume": lambda: nn.Conv3d(32, 48, 3, padding=1),
}


@pytest.mark.parametrize("way", ["onednn", "onednn_preferred"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_weights_of_half_precision_in_either_layout(way, dtype, mode, monkeypatch):
    """Of oneDNN's two layouts one is far faster with a matrix unit, the other without one."""
    monkeypatch.setenv("CCOMPILE_WAY", way)
    ran = set()
    for kind, post in itertools.product(HALVES, ("nothing", "norm", "norm_add_relu")):
        torch.manual_seed(0)
        conv = HALVES[kind]()
        dims = conv.weight.dim() - 2
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](conv.out_channels)
        model = nn.Sequential(conv, norm).eval().to(dtype)
        compiled = ccompile.compile(lambda x, m=model, p=POSTS[post]: p(m[0](x), m[1], x.mean()), mode=mode)
        with torch.no_grad():
            for seed in range(3):
                x = torch.randn(2, conv.in_channels, *(5, 7, 9)[:dims], generator=torch.Generator().manual_seed(seed))
                got, half = compiled(x.to(dtype)), x.to(dtype)
                want = POSTS[post](model.double()[0](half.double()), model[1], half.double().mean())
                model.to(dtype)
                torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
        ran |= set(ways_of(compiled))
    assert ran <= {way, "onednn"}  # a CPU without code for the dtype has no choice
    assert ran == {way} or dtype == torch.float16 or not ONEDNN_WIDE


def choices(text):
    return [e.text for e in ccompile.events() if e.kind == "choice" and text in e.text]


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_choices_are_measured_once_and_told(mode):
    """In the first run of a plan: later runs round alike. Weights that change then are seen, also by packed copies."""
    out = 144 + 16 * (mode == "default")
    conv = nn.Conv2d(48, out, 3, padding=1).eval()
    x = torch.randn(2, 48, 9, 23).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(2):
            compiled = ccompile.compile(lambda x: torch.relu(conv(x)), mode=mode, isolate_recompiles=True)
            compiled(x)
            second = compiled(x)
            assert all(torch.equal(second, compiled(x)) for _ in range(3))
        (told,) = choices(f"by {out}x48x3x3")
        conv.weight.mul_(-0.5)
        torch.testing.assert_close(compiled(x), torch.relu(conv(x)), rtol=1e-4, atol=1e-5)
    assert "direct " in told and "onednn " in told and "us" in told
    assert ("(packed)" in told) == (mode != "default")


@pytest.mark.parametrize("how", ["small", "knob", "deterministic"])
def test_what_is_not_measured(how):
    out = 16 if how == "small" else 176 + 16 * (how == "knob")
    conv = nn.Conv2d(48, out, 1).eval()
    torch.use_deterministic_algorithms(how == "deterministic")
    try:
        compiled = ccompile.compile(lambda x: conv(x) + 2, options={"measure": how != "knob"})
        with torch.no_grad():
            for _ in range(3):
                compiled(torch.randn(1, 48, *((5, 6) if how == "small" else (15, 16))))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not choices(f"by {out}x48x1x1")

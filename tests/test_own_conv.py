"""Convolutions by our own kernels (csrc/dev/conv.c): values, epilogues, non-finite numbers, and changing
weights and statistics. Nets begin and end with a convolution, so that values in between are channels-last."""

import copy
import os
import subprocess
import sys

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from torch import nn

INF, NAN = float("inf"), float("nan")


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def rules():
    """What the rule picks; tests/test_conv_ways.py is about the other ways."""
    with ccompile.config.patch(measure=False):
        yield


def agree(got, want, rtol=1e-4, spread=4e-6):
    """spread: of the largest element, where sums cancel."""
    assert got.shape == want.shape and got.stride() == want.stride()
    finite = want[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    torch.testing.assert_close(got, want, rtol=rtol, atol=1e-6 + spread * largest, equal_nan=True)


def ways(compiled, net, *inputs, calls=2):
    """Compiled against eager; -> how each of its convolutions is done, oneDNN's are left out, and its steps' lines."""
    before = max((e.serial for e in ccompile.events()), default=0)
    with torch.no_grad():
        for x in inputs:
            for _ in range(calls):
                agree(compiled(x), net(x))
    plans = [s["plan_text"] for e in compiled_of(compiled).report()["entries"] for s in e["segments"]]
    found = [e.text.split()[0] for e in ccompile.events(before) if "convolution by own code" in e.text]
    return found, [line for line in plans[-1].splitlines() if line[0].isdigit()]


def frozen(net):
    return ccompile.compile(net, mode="max-autotune", isolate_recompiles=True)


def norm(channels, seed=10):
    bn = nn.BatchNorm2d(channels).eval()
    with torch.no_grad():
        for i, t in enumerate([bn.weight, bn.bias, bn.running_mean]):
            t.copy_(randn(channels, seed=seed + i))
        bn.running_var.copy_(randn(channels, seed=seed + 3).square() + 0.1)
    return bn


def net(*parts):
    torch.manual_seed(1)
    for part in parts:
        if isinstance(part, nn.Conv2d):
            part.reset_parameters()
    return nn.Sequential(*parts).eval()


def between(channels, out, *parts):
    """A net with these parts between 1x1 convolutions."""
    return net(nn.Conv2d(16, channels, 1), *parts, nn.Conv2d(out, 16, 1), nn.Flatten())


# ------------------------------------------------------------------------------------------------ values
# in, out, arguments; sizes leave rows and columns of tiles over
DIRECT = {
    "narrow": (16, 3, {"kernel_size": 1}),
    "partial": (24, 20, {"kernel_size": 1}),
    "vectors": (48, 96, {"kernel_size": 1}),
    "panels": (40, 150, {"kernel_size": 1}),
    "deep": (300, 130, {"kernel_size": 1}),
    "step": (32, 64, {"kernel_size": 1, "stride": 2}),
    "step_padding": (32, 64, {"kernel_size": 1, "stride": (2, 3), "padding": 1}),
    "window": (16, 72, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "wide": (16, 24, {"kernel_size": (1, 7), "padding": (0, 3)}),
    "tall": (17, 24, {"kernel_size": (5, 2), "padding": (4, 1), "dilation": (2, 3)}),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("size", [(1, 13, 11), (3, 7, 7)], ids=str)
def test_direct(name, size, bias):
    channels, out, kw = DIRECT[name]
    model = between(channels, out, nn.Conv2d(channels, out, bias=bias, **kw))
    x = randn(size[0], 16, *size[1:])
    assert ways(frozen(model), model, x)[0] == ["direct"] * 3  # the others turn what has columns innermost
    ways(ccompile.compile(model), model, x)


# Few outputs of many weights that aren't kept: each thread packs slices of them. The last ones of channels and of panels
# are narrower.
SLICED = {
    "window": (240, 256, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "partial": (260, 230, {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False}),
    "many_taps": (190, 130, {"kernel_size": (4, 6), "padding": (3, 0), "dilation": (2, 1)}),
    "point": (2200, 240, {"kernel_size": 1}),
    "point_step": (2400, 230, {"kernel_size": 1, "stride": 2}),
    "one_panel": (2900, 64, {"kernel_size": (1, 3), "stride": (2, 1)}),
}


@pytest.mark.parametrize("taps_first", [False, True])
@pytest.mark.parametrize("name", SLICED)
@pytest.mark.parametrize("size", [(1, 7, 7), (3, 13, 11)], ids=str)
def test_sliced(name, size, taps_first):
    channels, out, kw = SLICED[name]
    model = between(channels, out, nn.Conv2d(channels, out, **kw), norm(out), nn.ReLU())
    if taps_first:
        model = model.to(memory_format=torch.channels_last)
    x, other = randn(size[0], 16, *size[1:]), randn(size[0], 16, *size[1:], seed=3)
    found, steps = ways(ccompile.compile(model), model, x, other)
    assert "direct" in found and not any("kernel relu" in step for step in steps)
    x[0, 0, 0, 0] = NAN
    ways(ccompile.compile(model), model, x)


# in, arguments, what the result goes through
ONE = {
    "attention": (2, {"kernel_size": 7, "padding": 3}, nn.Sigmoid()),
    "three": (2, {"kernel_size": 3, "padding": 1, "bias": False}, nn.ReLU()),
    "point": (64, {"kernel_size": 1}, nn.Identity()),
    "step": (3, {"kernel_size": 3, "stride": (2, 1)}, nn.Identity()),
    "dilation": (1, {"kernel_size": (2, 3), "padding": (1, 4), "dilation": (3, 2)}, nn.Identity()),
    "only_padding": (4, {"kernel_size": 2, "padding": 5, "dilation": 3}, nn.Hardtanh(-0.1, 0.2)),
    "norm": (5, {"kernel_size": 5, "padding": 2}, nn.Sequential(norm(1), nn.ReLU())),
}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("size", [(1, 17, 20), (3, 40, 67), (2, 5, 130)], ids=str)
def test_one_output(name, size):
    channels, kw, behind = ONE[name]
    conv = nn.Conv2d(channels, 1, **kw)
    model = net(conv, behind)
    x, other = randn(size[0], channels, *size[1:]), randn(size[0], channels, *size[1:], seed=3)
    for compiled in (frozen(model), ccompile.compile(model, isolate_recompiles=True)):
        assert "one-output" in ways(compiled, model, x, other)[0]
    window = randn(size[0], channels + 2, size[1], size[2] + 3)[:, 1:-1, :, 2:-1]
    assert "one-output" in ways(ccompile.compile(model), model, window)[0]
    model = model.to(memory_format=torch.channels_last)  # of the weights: taps first
    assert "one-output" in ways(ccompile.compile(model), model, x)[0]


def test_one_output_with_a_sum():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 1, 3, padding=1)

        def forward(self, x, y):
            return F.relu(self.conv(x) + y)

    model = net(Residual())[0]
    compiled = ccompile.compile(model)
    with torch.no_grad():
        for seed in range(3):
            x, y = randn(2, 2, 9, 21, seed=seed), randn(2, 1, 9, 21, seed=seed + 5)
            agree(compiled(x, y), model(x, y))


@pytest.mark.parametrize("value", [INF, -INF, NAN], ids=str)
@pytest.mark.parametrize("where", ["image", "weights", "bias"])
def test_one_output_not_finite(where, value):
    """Padding is left out: inf times a zero that is none would be NaN."""
    model = net(nn.Conv2d(2, 1, 3, padding=2), nn.ReLU())
    x = randn(2, 2, 12, 37)
    with torch.no_grad():
        {"image": x[1], "weights": model[0].weight[0], "bias": model[0].bias}[where].view(-1)[0] = value
    assert "one-output" in ways(ccompile.compile(model), model, x)[0]


# Depthwise convolutions whose columns are innermost: of many images of one channel, each with weights of its own.
LINES = {
    "causal": ((2, 6, 40), {"kernel_size": 4, "padding": 3}, None),
    "short": ((1, 3, 17), {"kernel_size": 2, "bias": False}, None),
    "behind": ((3, 5, 70), {"kernel_size": 5, "padding": 4, "dilation": 2}, nn.ReLU()),
    "image": ((2, 4, 19, 37), {"kernel_size": 3, "padding": 1, "bias": False}, norm(4)),
    "rows": ((1, 7, 33, 20), {"kernel_size": (3, 1), "padding": (1, 0), "stride": (2, 1)}, nn.ReLU6()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LINES)
def test_depthwise_columns(name, dtype):
    size, kw, behind = LINES[name]
    conv = (nn.Conv1d if len(size) == 3 else nn.Conv2d)(size[1], size[1], groups=size[1], **kw)
    model = nn.Sequential(conv, behind or nn.Identity()).eval().to(dtype)
    window = randn(size[0], size[1], *size[2:-1], size[-1] + 3)[..., 2:-1].to(dtype)
    spread = 4e-6 if dtype == torch.float32 else 2**-7
    for x in (randn(*size).to(dtype), window):
        for compiled in (frozen(model), ccompile.compile(model, isolate_recompiles=True)):
            before = max((e.serial for e in ccompile.events()), default=0)
            with torch.no_grad():
                agree(compiled(x), model(x), rtol=max(1e-4, spread), spread=spread)
            assert any("one-output" in e.text for e in ccompile.events(before))


@pytest.mark.parametrize("value", [INF, -INF, NAN], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_depthwise_columns_not_finite(value, dtype):
    model = nn.Conv1d(3, 3, 4, padding=3, groups=3).to(dtype)
    compiled = ccompile.compile(model)
    for where in range(2):
        x = randn(2, 3, 21).to(dtype)
        with torch.no_grad():
            (x[1], model.weight[1])[where].view(-1)[2] = value
            got, want = compiled(x), model(x)
            if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                got, want = got[..., 3:-3], want[..., 3:-3]  # there eager multiplies the padding: 0 * inf (docs/limits.md)
            agree(got, want, rtol=2**-7, spread=2**-7)


DEPTH = {
    "three": (32, {"kernel_size": 3, "padding": 1}),
    "step": (48, {"kernel_size": 3, "padding": 1, "stride": 2}),
    "no_padding": (16, {"kernel_size": 3, "stride": 2}),
    "five": (32, {"kernel_size": 5, "padding": 2}),
    "seven": (16, {"kernel_size": 7, "padding": 3}),
    "even": (16, {"kernel_size": (2, 4), "padding": (1, 2), "stride": (1, 3)}),
    "dilation": (16, {"kernel_size": 3, "padding": 4, "dilation": (2, 4)}),
    "only_padding": (16, {"kernel_size": 3, "padding": 9, "dilation": 9}),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", DEPTH)
@pytest.mark.parametrize("size", [(1, 13, 11), (2, 7, 8), (1, 4, 30)], ids=str)
def test_depthwise(name, size, bias):
    channels, kw = DEPTH[name]
    model = between(channels, channels, nn.Conv2d(channels, channels, groups=channels, bias=bias, **kw))
    for compiled in (frozen(model), ccompile.compile(model, isolate_recompiles=True)):
        assert "depthwise" in ways(compiled, model, randn(size[0], 16, *size[1:]))[0]


WINO = [(1, 13, 11), (3, 7, 7), (1, 16, 12), (9, 4, 4), (40, 1, 1), (2, 30, 3)]


@pytest.mark.parametrize("padding", [0, 1, (2, 0)], ids=str)
@pytest.mark.parametrize("channels", [(16, 16), (32, 80), (64, 144)], ids=str)
@pytest.mark.parametrize("size", WINO, ids=str)
def test_winograd(size, channels, padding):
    model = between(*channels, nn.Conv2d(*channels, 3, padding=padding))
    pad = padding if isinstance(padding, tuple) else (padding, padding)
    if any(n + 2 * p < 3 for n, p in zip(size[1:], pad, strict=True)):
        pytest.skip("smaller than its window")
    found, _ = ways(frozen(model), model, randn(size[0], 16, *size[1:]), randn(size[0], 16, *size[1:], seed=7))
    rows, columns = size[1] + 2 * pad[0] - 2, size[2] + 2 * pad[1] - 2
    tiles = {n: size[0] * -(rows // -n) * -(columns // -n) for n in (2, 4)}
    saved = 9 * size[0] * rows * columns - 16 * tiles[2]
    assert ("Winograd" in found) == (tiles[4] >= 8 or saved >= 80)
    found, _ = ways(ccompile.compile(model), model, randn(size[0], 16, *size[1:]))
    assert ("Winograd" in found) == (saved >= 400)
    model = model.to(memory_format=torch.channels_last)  # of the weights: taps first
    found, _ = ways(ccompile.compile(model), model, randn(size[0], 16, *size[1:]))
    assert ("Winograd" in found) == (saved >= 400)


def test_small_winograd_rounds_as_direct():
    """Where weights are not kept, the largest error against float64 is about eager's."""
    for channels in (32, 128):
        model = between(channels, channels, nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False))
        x = randn(2, 16, 20, 20)
        compiled = ccompile.compile(model)
        assert "Winograd" in ways(compiled, model, x)[0]
        with torch.no_grad():
            exact = copy.deepcopy(model).double()(x.double())
            errors = [float((f(x).double() - exact).square().mean().sqrt()) for f in (compiled, model)]
        assert errors[0] < 2 * errors[1]


def test_winograd_rounds_well():
    """The largest error against float64 is within a few times eager's."""
    conv = nn.Conv2d(128, 128, 3, padding=1, bias=False)
    model = net(nn.Conv2d(16, 128, 1), nn.ReLU(), conv, nn.Flatten())
    x = randn(2, 16, 20, 20)
    compiled = frozen(model)
    assert "Winograd" in ways(compiled, model, x)[0]
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        errors = [float((f(x).double() - exact).abs().max()) for f in (compiled, model)]
    assert errors[0] < 20 * errors[1]
    assert errors[0] < 4e-6 * float(exact.abs().max())


@pytest.mark.parametrize("size", [(4, 12, 16), (2, 13, 11), (3, 9, 8)], ids=str)
def test_winograd_with_columns_innermost(size):
    """Its result goes to where rows and columns are read, as a view."""
    first, conv = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 48, 3, padding=1)
    model = net(first, nn.ReLU(), conv, norm(48), nn.ReLU(), nn.Flatten())
    found, plan = ways(frozen(model), model, randn(size[0], 3, *size[1:]))
    assert found == ["Winograd"] and any("batch_norm" in line and "relu" in line for line in plan)


def test_weights_with_channels_innermost():
    for groups in (1, 32):
        model = between(32, 32, nn.Conv2d(32, 32, 3, padding=1, groups=groups), nn.ReLU())
        model.to(memory_format=torch.channels_last)
        for compiled in (frozen(model), ccompile.compile(model, isolate_recompiles=True)):
            ways(compiled, model, randn(2, 16, 12, 12), randn(2, 16, 12, 12).to(memory_format=torch.channels_last))


def test_lines():
    middle = nn.Conv1d(32, 32, 3, padding=1, groups=32), nn.ReLU(), nn.Conv1d(32, 48, 5, stride=2), nn.ReLU()
    model = nn.Sequential(nn.Conv1d(8, 32, 1), nn.ReLU(), *middle, nn.Conv1d(48, 8, 1), nn.Flatten()).eval()
    assert {"direct", "depthwise"} <= set(ways(frozen(model), model, randn(2, 8, 41))[0])


# ------------------------------------------------------------------------------------------------ what follows
BEHIND = {"relu": nn.ReLU(), "relu6": nn.ReLU6(), "hardtanh": nn.Hardtanh(-0.3, 0.7)}
KINDS = {
    "direct": lambda: nn.Conv2d(32, 32, 1),
    "partial": lambda: nn.Conv2d(32, 21, 1),
    "window": lambda: nn.Conv2d(32, 32, (3, 2), padding=(1, 0)),
    "depthwise": lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32),
    "Winograd": lambda: nn.Conv2d(32, 32, 3, padding=1),
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("kind", KINDS)
def test_norm_and_bounds_are_part(kind, behind):
    conv = KINDS[kind]()
    model = between(32, conv.out_channels, conv, norm(conv.out_channels), BEHIND[behind])
    _, plan = ways(frozen(model), model, randn(2, 16, 10, 10))
    assert not any(" kernel " in line for line in plan), plan


@pytest.mark.parametrize("bounds", [(0, 6), (-0.5, None), (None, 0.25), (0.5, -0.5), (0, INF), (-INF, 0)], ids=str)
def test_clamp(bounds):
    a, b, c = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 1), nn.Conv2d(16, 16, 1)

    def fn(x):
        return c(torch.clamp(b(a(x)), *bounds)).flatten(1)

    x = randn(2, 16, 9, 9)
    x[0, 0, 0, 0] = NAN
    _, plan = ways(frozen(fn), fn, x)
    assert not any(" kernel " in line for line in plan), plan


class Residual(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last, self.conv = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 1), KINDS[kind]()
        self.eval()

    def forward(self, x):
        y = self.first(x)
        return self.last(F.relu(self.conv(y) + y)).flatten(1)


class Sums(Residual):
    """Twice, behind the bounds, times a number: none of it is what own code takes."""

    def forward(self, x):
        y = self.first(x)
        z = F.relu(self.conv(y)) + y
        return self.last(F.relu(self.conv(z) + torch.add(y, z, alpha=2)) + (self.conv(y) + self.conv(y))).flatten(1)


@pytest.mark.parametrize("kind", ["direct", "depthwise", "Winograd"])
def test_residual(kind):
    model = Residual(kind)
    found, plan = ways(frozen(model), model, randn(2, 16, 11, 10))
    assert kind in found and not any(" kernel " in line for line in plan), plan
    other = Sums(kind)
    for compiled in (frozen(other), ccompile.compile(other)):
        ways(compiled, other, randn(2, 16, 11, 10))


# ------------------------------------------------------------------------------------------------ not finite
@pytest.mark.parametrize("value", [NAN, INF, -INF, 3e38, -3e38])
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_are_not_finite(kind, value):
    """Each output that eager has finite is so here, too, and relu keeps NaN."""
    conv = KINDS[kind]()
    model = net(nn.MaxPool2d(1), conv, nn.ReLU(), nn.Conv2d(conv.out_channels, 16, 1), nn.Flatten())

    def first(x):
        return F.relu(conv(x * 1)) * 1  # as it is, not as sums of all channels

    x = randn(2, 32, 12, 12).to(memory_format=torch.channels_last)
    for y in (x, x.clone(), x.clone()):
        ways(frozen(model), model, y)
        ways(frozen(first), first, y)
        y[1, 3, 5, 6] = value
        y[0, :, 0, 11] = value
        ways(frozen(model), model, y)
        found, _ = ways(frozen(first), first, y)
        assert found == [{"partial": "direct", "window": "direct"}.get(kind, kind)]


def test_winograd_that_overflows_with_columns_innermost():
    model = net(nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten())
    compiled, x = frozen(model), randn(2, 16, 13, 12)
    ways(compiled, model, x)
    y = x.clone()
    y[1, 2, 6, 7] = INF
    ways(compiled, model, y, x)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("kind", ["direct", "window", "depthwise", "Winograd"])
def test_weights_that_are_not_finite(kind, value):
    model = between(32, 32, KINDS[kind](), norm(32), nn.ReLU())
    compiled, x = frozen(model), randn(2, 16, 12, 12)
    ways(compiled, model, x)
    for change in (lambda: model[1].weight, lambda: model[1].bias, lambda: model[2].bias, lambda: model[2].running_var):
        with torch.no_grad():
            before = change().clone()
            change().view(-1)[5] = value
            ways(compiled, model, x)
            change().copy_(before)
    ways(compiled, model, x)


# ------------------------------------------------------------------------------------------------ changes
def replace_statistics(model):
    model[2].running_mean = model[2].running_mean * 1.5
    model[2].running_var = model[2].running_var + 0.5


def replace_weights(model):
    model[1].weight = nn.Parameter(model[1].weight * 0.8)


def train_once(model):
    with torch.enable_grad():
        model.train()
        model(randn(2, 16, 12, 12)).sum().backward()
        model.eval()


def vectors(model):
    return model[1].bias, model[2].weight, model[2].running_mean, model[2].running_var


CHANGES = {
    "in place": lambda m: [t.mul_(1.25) for t in (m[1].weight, *vectors(m))],
    "not counted": lambda m: [t.data.mul_(1.25) for t in vectors(m)],
    "statistics replaced": replace_statistics,
    "weights replaced": replace_weights,
    "weights loaded": lambda m: m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()}),
    "trained": train_once,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["direct", "window", "depthwise", "Winograd"])
def test_changes(kind, change):
    model = between(32, 32, KINDS[kind](), norm(32), nn.ReLU())
    compiled, x = frozen(model), randn(2, 16, 12, 12)
    ways(compiled, model, x)
    for _ in range(2):
        with torch.no_grad():
            CHANGES[change](model)
        ways(compiled, model, x)


def test_training_mode_uses_the_batch():
    model = between(32, 32, nn.Conv2d(32, 32, 3, padding=1), norm(32), nn.ReLU())
    compiled, twin = frozen(model), copy.deepcopy(model)
    x = randn(2, 16, 12, 12)
    with torch.no_grad():
        for training in (False, True, False):
            model.train(training), twin.train(training)
            agree(compiled(x), twin(x))
    agree(model[2].running_mean, twin[2].running_mean)


# ------------------------------------------------------------------------------------------------ other CPUs
@pytest.mark.parametrize("cpu", ["avx2", "base"])
@pytest.mark.skipif("CCOMPILE_CPU" in os.environ, reason="is such a run")
def test_other_vectors(cpu):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", "not rounds_well"]
    done = subprocess.run(command, env={**os.environ, "CCOMPILE_CPU": cpu}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


# ------------------------------------------------------------------------------------------------ two in one
PAIRS = {
    "three": ((2, 40, 44), {"kernel_size": 3, "padding": 1}),
    "step": ((1, 57, 63), {"kernel_size": 3, "padding": 1, "stride": 2}),
    "rows_between": ((1, 64, 52), {"kernel_size": 2, "stride": 3}),
    "five": ((5, 27, 25), {"kernel_size": 5, "padding": 2}),
    "dilation": ((3, 33, 30), {"kernel_size": 3, "padding": (5, 0), "dilation": (4, 2)}),
}


def make_pair(kw):
    wide, deep = nn.Conv2d(16, 96, 1, bias=False), nn.Conv2d(96, 96, groups=96, **kw)
    return net(nn.Conv2d(16, 16, 1), wide, norm(96), nn.ReLU6(), deep, norm(96, seed=30), nn.ReLU(), nn.Conv2d(96, 16, 1))


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name):
    """A 1x1 convolution that makes much, and the depthwise one that alone reads it."""
    size, kw = PAIRS[name]
    model, x = make_pair(kw), randn(size[0], 16, *size[1:])
    for compiled in (frozen(model), ccompile.compile(model, isolate_recompiles=True)):
        found, plan = ways(compiled, model, x)
        assert found == ["direct", "depthwise", "direct"] and len(plan) == 3, plan
        with torch.no_grad():
            for i, change in ((1, 0.8), (2, 1.1), (4, 0.9), (5, 1.2)):
                model[i].weight.mul_(change)
                ways(compiled, model, x)
        y = x.clone()
        for i, value in enumerate((NAN, INF, -INF)):
            y[0, i, 7 * i, 9] = value
        ways(compiled, model, y)
        ways(compiled, model, x)


def test_pairs_with_other_readers():
    """What others read, too, or is small, is made as a whole."""
    model = make_pair({"kernel_size": 3, "padding": 1})

    def both(x):
        y = model[:4](x)
        return model[7](model[4:7](y) + y)

    def twice(x):
        y = model[:4](x)
        return model[7](model[4:7](y) + model[5](model[4](y)))

    for fn in (both, twice):
        found, _ = ways(frozen(fn), fn, randn(2, 16, 40, 44))
        assert "direct" in found
    assert "direct" in ways(frozen(model), model, randn(2, 16, 9, 9))[0]

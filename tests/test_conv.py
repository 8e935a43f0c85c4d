"""Convolutions, pooling and batch norm in eval: compared with eager, and the number of steps in their plans."""

import copy

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import NARROWED
from torch import nn


def plans(compiled):
    return [s["plan_text"] for e in compiled_of(compiled).report()["entries"] for s in e["segments"]]


def steps(fn, *args, calls=3):
    """Compiled against eager in values, strides and NaNs; -> the steps of its plan, first words only."""
    compiled = ccompile.compile(fn, isolate_recompiles=True)
    with torch.no_grad():
        for _ in range(calls):
            agree(compiled(*args), fn(*args))
    (plan,) = plans(compiled)
    return [line.split(" ", 2)[1:] for line in plan.splitlines() if line[0].isdigit()]


def agree(got, want, rtol=1e-4, atol=2e-5):
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def kinds(fn, *args, **kw):
    return [words[0] for words in steps(fn, *args, **kw)]


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def last(x):
    return x.to(memory_format=torch.channels_last)


# ------------------------------------------------------------------------------------------------ convolutions
# input, weights, further arguments
CONVS = {
    "plain": ((2, 16, 15, 17), (32, 16, 3, 3), {}),
    "padding": ((2, 16, 15, 17), (32, 16, 3, 3), {"padding": 1}),
    "sides": ((2, 16, 15, 17), (8, 16, 3, 5), {"padding": (0, 2), "stride": (2, 1)}),
    "stride": ((1, 3, 33, 31), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "dilation": ((2, 16, 15, 17), (8, 16, 3, 3), {"dilation": (2, 3), "padding": 2}),
    "one": ((2, 64, 9, 9), (128, 64, 1, 1), {}),
    "blocked": ((1, 256, 7, 7), (512, 256, 1, 1), {"stride": 2}),
    "odd": ((1, 5, 7, 9), (3, 5, 2, 3), {}),
    "groups": ((2, 16, 9, 9), (32, 4, 3, 3), {"groups": 4}),
    "depthwise": ((1, 24, 14, 14), (24, 1, 3, 3), {"groups": 24, "padding": 1}),
    "multiplier": ((1, 8, 9, 9), (24, 1, 3, 3), {"groups": 8}),
    "single": ((1, 1, 5, 5), (1, 1, 5, 5), {}),
    "spot": ((3, 40, 1, 1), (20, 40, 1, 1), {}),
    "same": ((1, 4, 9, 10), (6, 4, 4, 3), {"padding": "same", "dilation": 2}),
    "valid": ((1, 4, 9, 10), (6, 4, 4, 3), {"padding": "valid", "stride": 2}),
    "line": ((2, 16, 40), (8, 16, 3), {"padding": 1, "stride": 2}),
    "line_groups": ((2, 16, 40), (16, 1, 4), {"groups": 16}),
    "volume": ((1, 4, 6, 7, 8), (8, 4, 3, 3, 3), {"padding": 1}),
    "volume_groups": ((1, 4, 6, 7, 8), (8, 2, 3, 2, 1), {"groups": 2, "stride": (1, 2, 3)}),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CONVS)
def test_conv(name, bias):
    size, weight, kw = CONVS[name]
    x, w, b = randn(*size), randn(*weight, seed=1) * 0.2, randn(weight[0], seed=2) if bias else None
    conv = getattr(F, f"conv{len(size) - 2}d")
    assert kinds(lambda: conv(x, w, b, **kw)) == ["conv"]


TRANSPOSED = {
    "plain": ((2, 8, 9, 7), (8, 6, 3, 3), {}),
    "stride": ((2, 8, 9, 7), (8, 6, 3, 3), {"stride": 2, "padding": 1}),
    "more": ((2, 8, 9, 7), (8, 6, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "dilation": ((2, 8, 9, 7), (8, 6, 3, 2), {"dilation": (2, 1)}),
    "groups": ((2, 8, 9, 7), (8, 3, 4, 4), {"stride": 2, "padding": 1, "groups": 2}),
    "line": ((2, 8, 9), (8, 4, 3), {"stride": 3}),
    "volume": ((1, 4, 3, 4, 5), (4, 6, 2, 2, 2), {"stride": 2}),
    "many": ((1, 64, 5, 5), (64, 48, 4, 4), {"stride": 2, "padding": 1}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name):
    size, weight, kw = TRANSPOSED[name]
    x, w, b = randn(*size), randn(*weight, seed=1), randn(weight[1] * kw.get("groups", 1), seed=2)
    conv = getattr(F, f"conv_transpose{len(size) - 2}d")
    assert kinds(lambda: conv(x, w, b, **kw)) == ["conv"]


INPUTS = {
    "channels_last": last,
    "sliced": lambda x: x[:, ::2, 1:, ::2],
    "permuted": lambda x: x.permute(0, 1, 3, 2),
    "expanded": lambda x: x[:1].expand(3, -1, -1, -1),
    "one": lambda x: x[:1],
    "empty": lambda x: x[:0],
    "column": lambda x: x[..., :3].contiguous(),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("op", ["conv", "max", "avg", "global"])
def test_inputs(name, op):
    x = INPUTS[name](randn(3, 16, 12, 14))
    w = randn(8, x.shape[1], 3, 3, seed=1)
    fn = {
        "conv": lambda a: F.relu(F.conv2d(a, w, padding=1)),
        "max": lambda a: F.max_pool2d(a, 3, 2, 1),
        "avg": lambda a: F.avg_pool2d(a, 2),
        "global": lambda a: F.adaptive_avg_pool2d(a, 1),
    }[op]
    steps(fn, x)


def test_other_dtypes():
    x, w = randn(1, 4, 6, 6).double(), randn(4, 4, 3, 3, seed=1).double()
    first, *pools = kinds(lambda: F.max_pool2d(F.conv2d(x, w), 2))
    assert first == "host" and set(pools) == {"kernel"}


def test_unbatched_and_broken():
    x, w = randn(4, 9, 9), randn(6, 4, 3, 3, seed=1)
    steps(lambda: F.max_pool2d(F.conv2d(x, w), 2))
    compiled = ccompile.compile(lambda a: F.conv2d(a, w))
    for bad in (randn(1, 3, 9, 9), randn(1, 4, 2, 9)):
        with pytest.raises(RuntimeError), torch.no_grad():
            compiled(bad)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_special_values(value):
    x, w, b = randn(2, 16, 8, 8), randn(16, 16, 3, 3, seed=1) * 0.2, randn(16, seed=2)
    x[0, 3, 2, 2] = value
    bn = norm(16)
    steps(lambda a: F.relu(F.conv2d(a, w, b)), x)
    steps(lambda a: F.relu(bn(F.conv2d(a, w, b, padding=1))), x)
    for y in (x, last(x)):
        for fn in (lambda a: F.max_pool2d(a, 3, 2, 1), lambda a: F.avg_pool2d(a, 2)):
            assert set(kinds(fn, y)) == {"kernel"}
        assert kinds(lambda a: F.adaptive_avg_pool2d(a, 1), y) == ["kernel"]


def test_weights_change():
    conv, x = nn.Conv2d(16, 32, 3), randn(1, 16, 9, 9)
    compiled = ccompile.compile(conv)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: conv.weight.mul_(2),
            lambda: conv.weight.data.add_(1),
            lambda: conv.bias.data.copy_(randn(32)),
            lambda: setattr(conv, "weight", nn.Parameter(randn(32, 16, 3, 3))),
            lambda: setattr(conv.weight, "data", last(randn(32, 16, 3, 3, seed=5))),
        ):
            change()
            agree(compiled(x), conv(x))
            agree(compiled(x), conv(x))


def test_training_is_left_alone():
    def make():
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))

    net, twin, x = make(), make(), randn(2, 3, 10, 10)
    compiled = ccompile.compile(net)
    for _ in range(3):
        for module in (compiled, twin):
            module(x).square().mean().backward()
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            agree(p.grad, q.grad)
        for p, q in zip(net.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(p, q)


# ------------------------------------------------------------------------------------------------ pooling
POOLS = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max_overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), 1, (3, 2)),
    "max_ceil": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_wide": lambda x: F.max_pool2d(x, (1, 9)),
    "max_all": lambda x: F.max_pool2d(x, x.shape[2:]),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "avg_padding": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_no_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda x: F.avg_pool2d(x, (3, 4), (2, 3), (1, 2), ceil_mode=True),
    "avg_ceil_no_padding": lambda x: F.avg_pool2d(x, 3, 3, 1, ceil_mode=True, count_include_pad=False),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=7),
    "avg_all": lambda x: F.avg_pool2d(x, x.shape[2:]),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_sides": lambda x: F.adaptive_avg_pool2d(x, (None, 3)),
    "adaptive_more": lambda x: F.adaptive_avg_pool2d(x, (7, 20)),
    "max_line": lambda x: F.max_pool1d(x[:, :, 0], 3, 2),
    "avg_line": lambda x: F.avg_pool1d(x[:, :, 0], 3, 2, 1),
    "adaptive_line": lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 4),
    "max_volume": lambda x: F.max_pool3d(x[:, None], (2, 3, 2), 2, (1, 1, 0)),
    "avg_volume": lambda x: F.avg_pool3d(x[:, None], (2, 3, 2), 2, (1, 1, 0)),
    "adaptive_volume": lambda x: F.adaptive_avg_pool3d(x[:, None], (3, 2, 1)),
}


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
@pytest.mark.parametrize("name", POOLS)
def test_pool(name, layout):
    x = randn(2, 37, 15, 18)
    x = {"contiguous": x, "channels_last": last(x), "transposed": x.transpose(2, 3)}[layout]
    x[1, 3, 4, 5] = float("nan")
    assert set(kinds(POOLS[name], x)) == {"kernel"}


@pytest.mark.parametrize("columns", [64, 101, 102])
@pytest.mark.parametrize("name", POOLS)
def test_pool_wide_rows(name, columns):
    """Boxes of windows inside the row and at its ends, what is left over by vectors, and the last element of memory."""
    x = randn(1, 3, 6, columns)
    x[0, 1, 4, 40] = float("nan")
    assert set(kinds(POOLS[name], x)) == {"kernel"}
    assert set(kinds(lambda x: F.max_pool2d(x, (2, 4), (1, 3)), x)) == {"kernel"}


@pytest.mark.parametrize("size", [(1, 2048, 7, 7), (8, 64, 56, 56), (1, 16, 112, 112), (4, 3, 5, 5000)])
def test_pool_sizes(size):
    """Units of work of all kinds: rows, chunks of channels, planes that are one row, rows too long for one."""
    for x in (randn(*size), last(randn(*size))):
        for fn in (POOLS["adaptive"], POOLS["max_overlapping"], POOLS["avg_padding"]):
            steps(fn, x, calls=2)


# ------------------------------------------------------------------------------------------------ fusion
def norm(channels, **kw):
    bn = nn.BatchNorm2d(channels, **kw).eval()
    with torch.no_grad():
        for i, t in enumerate([bn.weight, bn.bias, bn.running_mean]):
            if t is not None:
                t.copy_(randn(channels, seed=10 + i))
        bn.running_var.copy_(randn(channels, seed=20).square() + 0.1)
    return bn


def model(*parts):
    return nn.Sequential(*parts).eval()


def test_batch_norm_is_part_of_the_convolution():
    net = model(nn.Conv2d(16, 24, 3), norm(24), nn.ReLU())
    assert kinds(net, randn(2, 16, 9, 9)) == ["conv", "kernel"]
    for bn in (norm(24, affine=False), norm(24, eps=0.1)):
        assert kinds(model(nn.Conv2d(16, 24, 3, bias=False), bn), randn(2, 16, 9, 9)) == ["conv"]


NORMS = {
    "vectors": ((32, 24), {}),
    "sequences": ((4, 24, 9), {}),
    "images": ((2, 24, 7, 5), {}),
    "channels last": ((2, 24, 7, 5), {}),
    "volumes": ((2, 24, 3, 4, 5), {}),
    "not affine": ((2, 24, 7, 5), {"affine": False}),
    "doubles": ((2, 24, 7), {}),
    "bfloat16": ((2, 24, 7), {}),
    "empty": ((0, 24, 7, 5), {}),
}


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_alone_is_pointwise(name):
    shape, kw = NORMS[name]
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    bn = kind(24, **kw).eval()
    for i, t in enumerate([bn.running_mean, bn.running_var, *bn.parameters()]):
        t.data.copy_(randn(24, seed=i).abs() + 0.1 * i)
    x = randn(*shape)
    x.view(-1)[:3] = torch.tensor([float("inf"), float("nan"), -0.0])[: x.numel()]
    x = {"channels last": last, "doubles": torch.Tensor.double, "bfloat16": torch.Tensor.bfloat16}.get(name, lambda t: t)(x)
    bn = bn.to(x.dtype)
    if name == "bfloat16":
        kinds(lambda t: torch.relu(bn(t * 1)), x)
    else:
        assert kinds(lambda t: torch.relu(bn(t * 1)), x) == ["kernel"]


@pytest.mark.parametrize("shape", [(32, 24), (2, 24, 7, 5)], ids=str)
@pytest.mark.parametrize("groups", [0, 3, 24])
def test_norms_that_are_written_in_place(groups, shape):
    """No step of its own writes what the norm has left."""
    bn = nn.GroupNorm(groups, 24) if groups else norm(24) if len(shape) == 4 else nn.BatchNorm1d(24)
    bn.eval()

    def net(x, y):
        z = bn(x)
        z += y
        return F.relu_(z)

    assert kinds(net, randn(*shape), randn(*shape, seed=1)) == ["kernel"]

    def seen(x, y):
        z = bn(x)
        view = z.detach()
        z += y
        return view + F.relu_(z)

    kinds(seen, randn(*shape), randn(*shape, seed=1))


def test_batch_norm_before_the_convolution():
    """As in DenseNet: norm and relu are one kernel between two convolutions, channels innermost."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1)).eval()
    net[2].running_var.uniform_(0.5, 2)
    assert kinds(net, randn(2, 3, 16, 16)) == ["conv", "kernel", "conv"]


def test_batch_norm_statistics_change():
    net = model(nn.Conv2d(4, 8, 3), norm(8))
    compiled, x = ccompile.compile(net), randn(1, 4, 6, 6)
    with torch.no_grad():
        for change in (lambda: None, lambda: net[1].running_mean.add_(1), lambda: net[1].running_var.data.mul_(3), lambda: net[1].weight.neg_()):
            change()
            agree(compiled(x), net(x))
            agree(compiled(x), net(x))


def test_batch_norm_in_training():
    net = model(nn.Conv2d(4, 8, 3), norm(8)).train()
    twin = copy.deepcopy(net)
    compiled, x = ccompile.compile(net), randn(2, 4, 6, 6)
    with torch.no_grad():
        for _ in range(3):
            agree(compiled(x), twin(x))
            agree(net[1].running_mean, twin[1].running_mean)
            agree(net[1].running_var, twin[1].running_var)


@pytest.mark.parametrize("act", ["gelu", "silu", "sigmoid", "tanh"])
def test_activation_is_a_post_op(act):
    w = randn(8, 4, 3, 3)
    fn = getattr(F, act, None) or getattr(torch, act)
    # with CCOMPILE_CPU ours is another gelu than eager's, whose oneDNN stays wide
    behind = ["kernel"] if act == "gelu" and NARROWED else []
    assert kinds(lambda x: fn(F.conv2d(x, w)), randn(1, 4, 8, 8)) == ["conv", *behind]


@pytest.mark.parametrize("act", [F.relu, F.relu6, F.hardswish, F.leaky_relu])
def test_activation_is_a_kernel_in_place(act):
    w = randn(8, 4, 3, 3)
    assert kinds(lambda x: act(F.conv2d(x, w)) * 2, randn(1, 4, 8, 8)) == ["conv", "kernel"]


class Block(nn.Module):
    def __init__(self, channels, inplace=False):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1, self.bn2 = norm(channels), norm(channels)
        self.inplace = inplace

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=self.inplace)
        y = self.bn2(self.conv2(y))
        if self.inplace:
            y += x
        else:
            y = y + x
        return F.relu(y, inplace=self.inplace)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("channels", [16, 17])
def test_residual_blocks(channels, inplace):
    """conv + bn, relu, conv + bn + x, relu: the sum is a post-op where x lies as the convolution's result does. Own code,
    which does relu as well, is for whole vectors of channels; oneDNN's relu makes 0 of NaN."""
    torch.manual_seed(2)
    blocks = [Block(channels, inplace), Block(channels, inplace)]
    found = steps(nn.Sequential(nn.Conv2d(3, channels, 3), *blocks, nn.AdaptiveAvgPool2d(1)).eval(), randn(2, 3, 12, 12))
    block = ["conv"] if channels == 16 else ["conv", "kernel"]
    mean = ["kernel"] * (channels == 16)  # else the last relu's
    assert [words[0] for words in found] == ["conv", *block * 4, *mean]
    assert sum("add" in words[1] for words in found if words[0] == "conv") == 2
    assert sum(" channels_last" in words[1] for words in found) == len(found) - 1


def test_layout_ends_at_the_host_and_the_output():
    """What torch or the caller sees has the recorded strides, and its values are right."""
    w = randn(16, 16, 3, 3) / 12

    def fn(x):
        a = F.conv2d(x, w, padding=1)
        b = F.relu(F.conv2d(a, w, padding=1))
        c = torch.cumsum(b, 1)   # the host's
        d = F.conv2d(F.max_pool2d(c + b, 2), w)
        return d, a.flatten(1), c

    compiled, x = ccompile.compile(fn), randn(2, 16, 10, 10)
    with torch.no_grad():
        for _ in range(3):
            for got, want in zip(compiled(x), fn(x), strict=True):
                agree(got, want, rtol=1e-3, atol=1e-3)


def test_layouts_of_three_and_five_dims():
    a, b = randn(8, 8, 3), randn(8, 8, 3, 3, 3) / 10
    assert kinds(lambda x: F.conv1d(F.relu(F.conv1d(x, a)), a), randn(2, 8, 20)) == ["conv", "kernel", "conv"]
    assert kinds(lambda x: F.conv3d(F.relu(F.conv3d(x, b)), b), randn(1, 8, 6, 6, 6)) == ["conv", "kernel", "conv"]


def test_broadcast_between_layouts():
    """Squeeze and excitation: a scale of each channel on an image with channels innermost."""
    torch.manual_seed(4)
    down, up, conv = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1), nn.Conv2d(32, 32, 3, padding=1)

    def fn(x):
        y = conv(x)
        return conv(y * torch.sigmoid(up(F.relu(down(F.adaptive_avg_pool2d(y, 1))))))

    assert kinds(fn, randn(2, 32, 9, 9)) == ["conv", "kernel", "conv", "conv", "kernel", "conv"]


def test_padding_before_is_part_of_the_convolution():
    w = randn(8, 4, 3, 3)
    for padding, found in (((0, 1, 0, 1), 1), ((1, 1, 1, 1), 1), ((2, 1), 1), ((0, 0, 0, 0), 1), ((1, 1, 1, 1, 0, 0), 2), ((-1, 1, 0, 0), 2)):
        assert len(kinds(lambda x, p=padding: F.conv2d(F.pad(x, p), w, stride=2, padding=(0, 1)), randn(2, 4, 9, 12))) == found
    a, b = randn(8, 4, 3), randn(8, 4, 3, 3, 3)
    assert kinds(lambda x: F.conv1d(F.pad(x, (1, 2)), a), randn(2, 4, 9)) == ["conv"]
    assert kinds(lambda x: F.conv3d(F.pad(x, (1, 0, 2, 1, 0, 3)), b), randn(1, 4, 5, 5, 5)) == ["conv"]
    for first, fn in (
        ("kernel", lambda x: F.conv2d(F.pad(x, (1, 1), value=1.0), w)),
        ("kernel", lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w)),
        ("kernel", lambda x: F.conv2d(F.pad(x, (1, 1)), w, padding="same")),
    ):
        assert kinds(fn, randn(2, 4, 9, 12)) == [first, "conv"]


def test_padding_that_others_read():
    w = randn(8, 4, 3, 3)

    def fn(x):
        y = F.pad(x, (1, 1, 1, 1))
        return F.conv2d(y, w).mean() + F.conv2d(y, w, groups=1, dilation=2).mean() + y.sum()

    steps(fn, randn(2, 4, 9, 12))


def test_views_and_concatenation_between():
    """Views are windows; pieces with channels innermost are copied into a result that has them so, too."""
    w, v = randn(8, 16, 3, 3) / 12, randn(16, 16, 3, 3) / 12  # values stay near 1, and so do eager's own errors

    def branches(x):
        y = F.conv2d(x, v, padding=1)
        z = torch.cat([F.conv2d(y, w, padding=1), F.conv2d(y, w[:, :, 1:2, 1:2])], 1)
        return F.conv2d(z, v)

    found = steps(branches, randn(2, 16, 9, 9))
    assert [words[0] for words in found].count("conv") == 4 and "host" not in [words[0] for words in found]
    assert sum(" channels_last" in words[1] for words in found) == 4

    def halves(x):
        a, b = F.conv2d(x, v).chunk(2, 1)
        return F.conv2d(F.max_pool2d(a, 2), w[:, :8]) + F.conv2d(F.max_pool2d(b, 2), w[:, 8:])

    assert "host" not in kinds(halves, randn(2, 16, 9, 9))


# ------------------------------------------------------------------------------------------------ in place
def test_in_place_chain():
    w = randn(8, 4, 3, 3)

    def fn(x):
        y = F.conv2d(x, w)
        y.add_(1).mul_(2)
        y -= 0.5
        z = F.relu_(y)
        return z, y

    compiled, x = ccompile.compile(fn), randn(1, 4, 8, 8)
    with torch.no_grad():
        for _ in range(3):
            got, want = compiled(x), fn(x)
            assert got[0] is got[1]
            agree(got[0], want[0])
    (plan,) = plans(compiled)
    assert "host" not in plan


def test_in_place_on_what_others_know():
    """Inputs, views and what a view of was taken are written for real."""
    w = randn(8, 4, 3, 3)

    def view_before(x):
        y = F.conv2d(x, w)
        v = y[:, 0]
        y.relu_()
        return v + 1

    def view_written(x):
        y = F.conv2d(x, w)
        y[:, 0].relu_()
        return y + 1

    def view_after(x):
        y = F.conv2d(x, w)
        y.relu_()
        v = y[:, 1]
        y.add_(1)
        return v, y

    def read_between(x):
        y = F.conv2d(x, w)
        a = y * 2
        y.relu_()
        b = y * 2
        y.neg_()
        return a, b, y

    def aliased(x):
        y = F.conv2d(x, w)
        z = y.detach()
        y.relu_()
        return z

    def wider(x):
        y = F.conv2d(x, w)
        y += torch.ones(1, 8, 1, 1, dtype=torch.float64)
        return y

    def itself(x):
        y = F.conv2d(x, w)
        y *= y
        return y

    x = randn(1, 4, 8, 8)
    for fn in (view_before, view_written, view_after, read_between, aliased, wider, itself):
        compiled = ccompile.compile(fn)
        with torch.no_grad():
            for _ in range(3):
                got, want = compiled(x), fn(x)
                for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
                    agree(a, b)


def test_in_place_on_inputs():
    def fn(x):
        x.relu_()
        return x * 2

    compiled = ccompile.compile(fn)
    for seed in range(3):
        a, b = randn(5, seed=seed), randn(5, seed=seed)
        with torch.no_grad():
            agree(compiled(a), fn(b))
        agree(a, b)

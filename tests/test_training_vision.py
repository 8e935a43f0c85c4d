"""Compiled training of images and sequences: backward of convolutions, pools, resampling, norms and embeddings
(csrc/grad/spatial.c, csrc/eval/aten.c) against eager autograd, as test_training.py does for the rest.

FUNCTIONS takes x [2, 4, 6, 8], w [4, 4, 3, 3] and b [4]."""

import copy
import itertools

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER
from test_training import F32, close, gradients, stages, three_calls
from torch import nn

IDS = torch.tensor([[0, 3, 1], [5, 3, 0]])


def inputs(dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(*shape, generator=g, dtype=torch.float64) * 0.5).to(dtype).requires_grad_() for shape in ((2, 4, 6, 8), (4, 4, 3, 3), (4,))]


def h(x, b):
    """A value of a stage, which eager would save."""
    return torch.tanh(x * b.view(4, 1, 1)) * 2


FUNCTIONS = {
    "conv": lambda x, w, b: F.relu(F.conv2d(h(x, b), w, b, padding=1)) * 2,
    "conv_strided": lambda x, w, b: F.conv2d(x, w, None, 2, (1, 0)).sin() * F.conv2d(x, w, b, stride=2, padding=(1, 0)),
    "conv_dilated": lambda x, w, b: F.conv2d(h(x, b), w, b, padding=2, dilation=2).exp() * 0.1,
    "conv_grouped": lambda x, w, b: F.conv2d(h(x, b), w[:, :1] * 2, b, padding=1, groups=4).sigmoid(),
    "conv_same": lambda x, w, b: F.conv2d(h(x, b), w, b, padding="same").sin() * 2,
    "conv_1d": lambda x, w, b: F.conv1d(h(x, b)[:, :, 0], w[..., 0], b).sin() * 2,
    "conv_3d": lambda x, w, b: F.conv3d(h(x, b).unsqueeze(2), w.unsqueeze(2), b).sin() * 2,
    "conv_of_positions": lambda x, w, b: F.conv2d(h(x, b), w[:, :, :1, 1:2], b).sin() * F.conv2d(x[:1], w[:, :3].mean((1, 2, 3), keepdim=True).expand(4, 4, 1, 1)),
    "conv_of_few_positions": lambda x, w, b: F.conv2d(h(x, b).view(24, 16, 1, 1), w.view(9, 16, 1, 1)).sin() * 2 + F.conv1d(h(x, b).view(4, 48, 2), w.view(3, 48, 1)).mean(),
    "conv_of_lines_of_positions": lambda x, w, b: F.conv1d(h(x, b)[:, :, 0], w[:, :, 0, :1], b).sin() * F.conv1d(x[0, :, 1], w[:, :, 1, :1]),
    "conv_of_positions_channels_last": lambda x, w, b: F.conv2d(h(x, b).contiguous(memory_format=torch.channels_last), w[:, :, :1, :1], b).sin() * 2,
    "conv_of_positions_strided": lambda x, w, b: F.conv2d(h(x, b), w[:, :, :1, :1], b, 2).sin() * F.conv2d(x, w[:, :, 1:2, 1:2], None, 2, 0),
    "conv_of_positions_apart": lambda x, w, b: F.conv2d(h(x, b), w.mean((2, 3), keepdim=True), b, 2).sin() * F.conv2d(x[..., :7], w.sum((2, 3), keepdim=True), None, (2, 2)),
    "conv_of_positions_apart_unevenly": lambda x, w, b: F.conv2d(h(x, b), w.mean((2, 3), keepdim=True), b, (4, 1)).sin() * F.conv2d(x[:, :, 1:3] * 2, w.sum((2, 3), keepdim=True), None, (1, 9)),
    "conv_of_positions_of_a_line_apart": lambda x, w, b: F.conv1d(h(x, b)[0, :, 0], w.mean((2, 3)).view(4, 4, 1), b, 3).sin() * F.conv1d(x[:, :, 1, :7] * 1, w.sum((2, 3)).view(4, 4, 1), None, 3),
    "conv_of_positions_padded": lambda x, w, b: F.conv2d(h(x, b), w[:, :, :1, :1], b, padding=1).sin() * F.conv2d(x, w[:, :1, :1, :1] * 2, b, padding=1, groups=4),
    "conv_of_a_vector": lambda x, w, b: F.conv2d(h(x, b)[0], w, b).sin() * 2,
    "conv_transpose": lambda x, w, b: F.conv_transpose2d(h(x, b), w, b, 2, 1, 1).sin() * 2,
    "conv_transpose_grouped": lambda x, w, b: F.conv_transpose2d(h(x, b), w[:, :2] * 2, b, 2, groups=2).sin(),
    "max_pool": lambda x, w, b: F.max_pool2d(F.relu(h(x, b)), 3, 2, 1) * 2,
    "max_pool_whole": lambda x, w, b: F.max_pool2d(h(x, b), 2).exp() * 2,
    "max_pool_indices": lambda x, w, b: (lambda y, i: (y.exp() * 2, i))(*F.max_pool2d(h(x, b), 2, ceil_mode=True, return_indices=True)),
    "max_pool_1d": lambda x, w, b: F.max_pool1d(h(x, b)[:, :, 0], 2).exp() * 2,
    "avg_pool": lambda x, w, b: F.avg_pool2d(h(x, b), 3, 2, 1, count_include_pad=False).exp() * 2,
    "avg_pool_divided": lambda x, w, b: F.avg_pool2d(h(x, b), (2, 3), divisor_override=5).exp() * 2,
    "adaptive_max_pool": lambda x, w, b: F.adaptive_max_pool2d(h(x, b), (3, 2)).exp() * 2,
    "adaptive_avg_pool": lambda x, w, b: F.adaptive_avg_pool2d(h(x, b), (3, 2)).exp() * 2 + F.adaptive_avg_pool2d(x, 1).sin(),
    "upsample_nearest": lambda x, w, b: F.interpolate(h(x, b), scale_factor=2.0).sin() * 2,
    "upsample_nearest_uneven": lambda x, w, b: F.interpolate(h(x, b), (9, 10)).sin() * 2 + F.interpolate(x, (9, 10), mode="nearest-exact").cos(),
    "upsample_linear": lambda x, w, b: F.interpolate(h(x, b), scale_factor=1.5, mode="bilinear").sin() * F.interpolate(x, (9, 12), mode="bilinear", align_corners=True),
    "upsample_cubic": lambda x, w, b: F.interpolate(h(x, b), (9, 12), mode="bicubic").sin() * 2,
    "embedding": lambda x, w, b: F.embedding(IDS, w.view(6, 24) * 2).sin() * 2 + b.sum(),
    "embedding_padded": lambda x, w, b: F.embedding(IDS, w.view(6, 24) * 2, padding_idx=3).sin() * 2,
    "embedding_of_one_index": lambda x, w, b: F.embedding(IDS[0, 1], w.view(6, 24) * 2, padding_idx=-2).sin() * F.embedding(IDS.int()[:, :, None], w.view(6, 24)).exp(),
    "embedding_of_nothing": lambda x, w, b: F.embedding(IDS[:0], w.view(6, 24) * 2).sum() + (x * w.sum()).sin(),
    "embedding_by_frequency": lambda x, w, b: F.embedding(IDS, w.view(6, 24) * 2, scale_grad_by_freq=True).sin() * 2,
    "batch_norm": lambda x, w, b: F.relu(F.batch_norm(F.conv2d(x, w), None, None, b, b * 2, training=True)) * 2,
    "batch_norm_plain": lambda x, w, b: F.batch_norm(h(x, b), None, None, training=True, eps=0.1).sin() * 2,
    "batch_norm_of_rows": lambda x, w, b: F.batch_norm(h(x, b)[:, :, 0, 0], None, None, b, training=True, eps=0.1).sin() * 2,
    "batch_norm_eval": lambda x, w, b: F.batch_norm(F.conv2d(x, w), b.detach(), b.detach() ** 2, b, b * 2).sin() * 2,
    "group_norm": lambda x, w, b: F.silu(F.group_norm(F.conv2d(x, w), 2, b, b * 2)) * 2,
    "group_norm_plain": lambda x, w, b: F.group_norm(h(x, b), 4, eps=0.1).sin() * 2,
    "pad": lambda x, w, b: F.conv2d(F.pad(h(x, b), (1, 2, 0, 1), value=0.5), w, b).sin() * 2,
    "batch_norm_twice": lambda x, w, b: F.batch_norm(F.batch_norm(h(x, b), None, None, b, b, True), None, None, b, None, True) * F.relu(x),
}
LINES = {  # lines, volumes and what has no batch
    "conv_without_a_batch": lambda x, w, b: F.conv1d(h(x, b)[0, :, 0], w[..., 0], b).sin() * F.conv_transpose1d(h(x, b)[0, :, 0], w[..., 0], b, 2)[:, :6],
    "max_pool_of_lines": lambda x, w, b: F.max_pool1d(h(x, b)[:, :, 0], 3, 2, 1, ceil_mode=True).exp() * 2,
    "max_pool_of_a_line": lambda x, w, b: F.max_pool1d(h(x, b)[0, :, 0], 2, dilation=2).exp() * 2,
    "max_pool_without_a_batch": lambda x, w, b: F.max_pool2d(h(x, b)[1], 3, 2, 1).exp() * 2,
    "max_pool_of_lines_with_indices": lambda x, w, b: (lambda y, i: y.exp() * i)(*F.max_pool1d(h(x, b)[0, :, 1], 2, return_indices=True)),
    "max_pool_of_volumes": lambda x, w, b: F.max_pool3d(h(x, b).view(1, 2, 4, 6, 8), 2).exp() * F.max_pool3d(x.view(2, 4, 6, 8)[:, :, :4], 2, (2, 2, 1)).sum(),
    "avg_pool_of_lines": lambda x, w, b: F.avg_pool1d(h(x, b)[:, :, 0], 3, 2, 1, count_include_pad=False).exp() * 2,
    "avg_pool_of_a_line": lambda x, w, b: F.avg_pool1d(h(x, b)[1, :, 2], 3, ceil_mode=True).exp() * F.avg_pool2d(x[0], 2).sum(),
    "lp_pool": lambda x, w, b: F.lp_pool1d(h(x, b)[:, :, 0], 2, 3, 2) * F.lp_pool2d(h(x, b), 2, 2).sum(),
    "adaptive_pools_of_lines": lambda x, w, b: F.adaptive_avg_pool1d(h(x, b)[:, :, 0], 5).exp() * F.adaptive_max_pool1d(x[:, :, 1], 5),
    "adaptive_pools_without_a_batch": lambda x, w, b: F.adaptive_avg_pool2d(h(x, b)[0], (4, 3)).exp() * F.adaptive_max_pool2d(x[1], (4, 3)) + F.adaptive_avg_pool1d(x[0, :, 0], 1),
    "upsample_lines": lambda x, w, b: F.interpolate(h(x, b)[:, :, 0], scale_factor=3).sin() * F.interpolate(x[:, :, 1], 24, mode="linear", align_corners=True),
    "upsample_lines_unevenly": lambda x, w, b: F.interpolate(h(x, b)[:, :, 0], 11).sin() * F.interpolate(x[:, :, 1], 11, mode="nearest-exact") * F.interpolate(x[:, :, 2], scale_factor=1.4, mode="linear"),
    "upsample_volumes": lambda x, w, b: F.interpolate(h(x, b).view(1, 2, 4, 6, 8), scale_factor=2).sin() * F.interpolate(x.view(1, 2, 4, 6, 8), (8, 12, 16), mode="trilinear"),
    "upsample_volumes_unevenly": lambda x, w, b: F.interpolate(h(x, b).view(1, 2, 4, 6, 8), (5, 7, 9)).sin() * F.interpolate(x.view(1, 2, 4, 6, 8), (5, 7, 9), mode="trilinear", align_corners=True),
    "interpolate_area": lambda x, w, b: F.interpolate(h(x, b), (3, 5), mode="area").sin() * 2,
    "unfold": lambda x, w, b: F.unfold(h(x, b), 3, padding=1, stride=(2, 1)).sin() * 2,
    "unfold_without_a_batch": lambda x, w, b: F.unfold(h(x, b)[0], (2, 3), dilation=(1, 2)).sin() * 2,
    "pad_and_cut": lambda x, w, b: F.pad(h(x, b), (-1, 2, 1, -3)).sin() * F.pad(x, (2, -1, -1, -1), value=0.5),
    "pad_less": lambda x, w, b: F.pad(h(x, b), (-2, -3)).sin() * 2,
}  # fmt: skip
FUNCTIONS.update(LINES)


def text_of(fn):
    return "".join("\n" + s["plan_text"] for e in compiled_of(fn).report()["entries"] for s in e["segments"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name, dtype):
    f, tolerance = FUNCTIONS[name], F32 if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    fn = ccompile.compile(f)
    args, weights = three_calls(fn, f, lambda i: inputs(dtype, seed=i), tolerance)
    for n in range(1, 3):
        for some in itertools.combinations(args, n):
            close(gradients(fn(*args), some, weights), gradients(f(*args), some, weights), "alone: gradient", tolerance)
    if not EAGER and dtype == torch.float32:
        assert stages(fn)
        assert name not in LINES or "\ntorch: " not in text_of(fn), text_of(fn)


@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
@pytest.mark.skipif(EAGER, reason="reads the plan")
def test_gradients_of_a_convolution_of_positions_are_products(stride):
    x, w = torch.randn(2, 4, 6, 8, requires_grad=True), torch.randn(5, 4, 1, 1, requires_grad=True)
    fn = ccompile.compile(lambda x, w: F.conv2d(x.tanh() * 2, w, stride=stride).sin() * 2)
    for _ in range(3):
        fn(x, w).sum().backward()
    assert "matmul" in text_of(fn) and "conv_d" not in text_of(fn), text_of(fn)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.SiLU()) for i, o in ((3, 4), (4, 8), (12, 4)))
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)

    def forward(self, x):
        a = self.a(x)
        return self.c(torch.cat([a, self.up(self.b(F.max_pool2d(a, 2)))], 1))


class Residual(nn.Module):
    """Blocks of ResNet."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8))
        self.down = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8, affine=False))
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(self.body(x) + self.down(x))
        return self.out(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Shared(nn.Module):
    """One batch norm that is used twice, so that its statistics move twice."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.norm(F.relu(self.conv(self.norm(x)))) * 2 + self.norm.running_mean.view(4, 1, 1)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8, padding_idx=0), nn.Embedding(16, 8)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 20)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.out(F.gelu(self.norm(x)))


MODELS = {
    "unet": (UNet, lambda: torch.randn(2, 3, 8, 8)),
    "residual": (Residual, lambda: torch.randn(2, 3, 16, 16)),
    "residual_cumulative": (lambda: Residual(None), lambda: torch.randn(2, 3, 16, 16)),
    "residual_channels_last": (Residual, lambda: torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)),
    "shared": (Shared, lambda: torch.randn(2, 4, 6, 6)),
    "words": (Words, lambda: torch.randint(0, 20, (3, 7))),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    make, sample = MODELS[name]
    torch.manual_seed(0)
    net = make()
    twin = copy.deepcopy(net)
    fn = ccompile.compile(net)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, twin))
    for step in range(6):
        x = sample()
        for m, o in ((fn, ours), (twin, theirs)):
            torch.manual_seed(step)
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
        close([p.grad for p in net.parameters()], [p.grad for p in twin.parameters()], f"step {step}: gradient", F32)
    close(net.parameters(), twin.parameters(), "parameter", F32)
    close(net.buffers(), twin.buffers(), "buffer", F32)
    assert [b._version for b in net.buffers()] == [b._version for b in twin.buffers()]
    assert EAGER or stages(fn) or name == "shared"


@pytest.mark.parametrize("name", MODELS)
def test_second_derivatives(name):
    """create_graph=True runs a module's ops again, with the module's own strides and paddings."""
    make, sample = MODELS[name]
    torch.manual_seed(0)
    net = make().double()
    twin = copy.deepcopy(net)
    fn = ccompile.compile(net)
    x = sample()
    x = x.double() if x.is_floating_point() else x
    for _ in range(3):
        both = []
        for m, own in ((fn, net), (twin, twin)):
            params = list(own.parameters())
            first = torch.autograd.grad(m(x).square().sum(), params, create_graph=True)
            second = torch.autograd.grad(sum((a * a.detach().cos()).sum() for a in first), params, allow_unused=True)
            both.append([*first, *second])
        close(*both, "derivative", {"rtol": 1e-8, "atol": 1e-9})


def test_statistics_move_once():
    """A second backward of the same forward, one with create_graph, and train() and eval() in turn."""
    torch.manual_seed(0)
    net = Residual()
    twin = copy.deepcopy(net)
    fn = ccompile.compile(net)
    for step in range(6):
        x = torch.randn(2, 3, 16, 16)
        results = []
        for m, own in ((fn, net), (twin, twin)):
            own.train(step % 3 != 2)
            y = m(x).square().sum()
            y.backward(retain_graph=True)
            y.backward(create_graph=step == 4)
            results.append([y, *(p.grad.detach().clone() for p in own.parameters()), *own.buffers()])
            own.zero_grad()
        close(*results, f"step {step}", {"rtol": 1e-3, "atol": 1e-4})


def reads_first(norm, x, other):
    """What reads `other` is in a later stage than what writes the statistics."""
    q = torch.linalg.qr(torch.exp(torch.sin(x * 2)))[1].sum()
    z = (other * q).sin().exp()
    return (norm(x) * 2).sin().exp().sum() + z.sum(), z


def reads_last(norm, x, other):
    q = torch.linalg.qr(torch.exp(torch.sin(x * 2)))[1].sum()
    y = norm(x)
    z = (other * 2).sin().exp()
    return (y * 2).sin().exp().sum() + z.sum(), z, q


def reads_on_both_sides(norm, x, other):
    y = (other * 3).cos().exp()
    return (norm(x * y) * 2).sin().exp().sum(), (other * 2).sin().exp(), y


@pytest.mark.parametrize("of", ["running_mean", "running_var"])
@pytest.mark.parametrize("f", [reads_first, reads_last, reads_on_both_sides])
def test_another_argument_shares_the_memory_of_statistics(f, of):
    """Known only in the call: stages write statistics at any time, as only the batch norm seems to read them."""
    for shared in (lambda i: True, lambda i: i > 2, lambda i: i % 2):
        fn = ccompile.compile(f)
        for i in range(6):
            both = []
            for call in (f, fn):
                torch.manual_seed(i)
                norm, x = nn.BatchNorm1d(4), torch.randn(6, 4, requires_grad=True)
                other = getattr(norm, of).detach() if shared(i) else torch.randn(4)
                results = call(norm, x, other)
                results[0].backward()
                both.append([*(r.detach() for r in results), x.grad, norm.weight.grad, *norm.buffers(), other])
            close(*both, f"call {i}", F32)
    assert EAGER or any("shares memory with running statistics" in e.text for e in ccompile.events())


def test_too_few_values():
    """Eager raises before it moves statistics."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
    twin = copy.deepcopy(net)
    fn = ccompile.compile(net)
    for n in (5, 5, 1, 5, 3, 2, 1):
        x, errors = torch.randn(n, 4), []
        for m in (fn, twin):
            try:
                m(x).sum().backward()
            except ValueError as e:
                errors.append(str(e))
        assert len(errors) == (2 if n == 1 else 0) and len(set(errors)) < 2
        close(net.buffers(), twin.buffers(), "buffer", F32)


def test_a_gradient_of_a_view_keeps_permuted_strides():
    """Tokens that become a channels-last image by a view (pvt_v2, segformer): their gradients go back by views as well.
    They were copied, and torch then reordered the copies for the convolution, which took as long as the products."""

    def f(x, w, v):
        y = (x @ w).transpose(1, 2).view(2, 8, 4, 6)
        return F.gelu(F.conv2d(y, v, None, padding=1, groups=8).flatten(2).transpose(1, 2)) * 2

    fn, g = ccompile.compile(f), torch.Generator().manual_seed(0)
    for _ in range(3):
        args = [torch.randn(*shape, generator=g, requires_grad=True) for shape in ((2, 24, 5), (5, 8), (8, 1, 3, 3))]
        got, want = (torch.autograd.grad(call(*args).square().sum(), args) for call in (fn, f))
        close(got, want, "gradient", F32)
    assert "backward:" in text_of(fn) and "copy" not in text_of(fn)

"""Kernels contain no sizes, nor numbers that Python derives from them: a function's first sizes compile all kernels that it needs,
and later sizes give what eager gives with the same kernels. Also when plans for sizes are made and kept."""

import math

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import EAGER

FIRST, LATER = (12, 17, 20), (23, 29, 31, 33, 38, 44, 47, 53, 61)


def heads(x):
    return x.view(x.shape[0], x.shape[1], 2, 8).transpose(1, 2)


def scores(x):
    return x @ x.transpose(1, 2)


def rotated(x):
    angle = torch.outer(torch.arange(x.shape[1]).float(), 1 / 10000 ** (torch.arange(8) / 8))
    a, b = x[..., :8], x[..., 8:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def sinusoids(x):
    places, rates = torch.arange(x.shape[1])[:, None], torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
    table = torch.zeros(x.shape[1], 16)
    table[:, 0::2], table[:, 1::2] = torch.sin(places * rates), torch.cos(places * rates)
    return x + table


def alibi(x):
    n = torch.arange(x.shape[1])
    return (scores(x) - 0.1 * (n[None] - n[:, None]).abs()).softmax(-1)


def near(x):
    n = torch.arange(x.shape[1])
    return (n[None] - n[:, None]).abs() < x.shape[1] // 2


def far_bias(x):
    n = torch.arange(x.shape[1])
    bias = F.embedding((n[None] - n[:, None]).clamp(-8, 8) + 8, torch.ones(17, 2)).permute(2, 0, 1)
    return bias + scores(x).unsqueeze(1)


def masked_attention(x):
    n = x.shape[1]
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=torch.ones(n, n).tril().bool())


def own_variance(x):
    n = x.size(1)
    return ((x - x.sum(1, keepdim=True) / n) ** 2).sum(1) / (n - 1)


def into_a_buffer(x):
    out = torch.zeros(x.shape[0], 64, 16)
    out[:, : x.shape[1]] = x
    return out


CASES = {
    "mean": lambda x: x.sum(1) / x.shape[1],
    "half": lambda x: x.half() / x.shape[1],
    "double": lambda x: x.double() / x.shape[1],
    "square-root": lambda x: scores(x) / math.sqrt(x.shape[1]),
    "logarithm": lambda x: x * math.log(x.shape[1]),
    "power": lambda x: x.abs() ** (1 / x.shape[1]),
    "weight": lambda x: torch.lerp(x, x * 2, 1 / x.shape[1]),
    "bound": lambda x: x.clamp(max=x.shape[1] * 0.01),
    "alpha": lambda x: torch.add(x, x, alpha=x.shape[1]),
    "variance": own_variance,
    "positions": lambda x: torch.arange(4) + x.shape[1],
    "positions-of-ints": lambda x: torch.arange(4, dtype=torch.int32) * x.shape[1] - x.shape[1],
    "start": lambda x: torch.arange(x.shape[1], x.shape[1] + 4),
    "shares": lambda x: torch.arange(x.shape[1]) / x.shape[1],
    "remainder": lambda x: torch.arange(64) % x.shape[1],
    "floor": lambda x: torch.arange(64) // x.shape[1],
    "floor-negative": lambda x: torch.arange(-64, 0, dtype=torch.int32) // x.shape[1],
    "last-index": lambda x: torch.arange(70).clamp(max=x.shape[1] - 1),
    "compared": lambda x: torch.arange(64) < x.shape[1],
    "linspace": lambda x: torch.linspace(0, 1, x.shape[1]) * 2,
    "full": lambda x: torch.full((4,), x.shape[1]) * 2,
    "full-float": lambda x: torch.full((4,), float(x.shape[1])) * 2,
    "gathered": lambda x: x.gather(1, torch.full((x.shape[0], 1, 16), x.shape[1] - 1)),
    "causal": lambda x: torch.ones(x.shape[1], x.shape[1]).tril().bool(),
    "causal-behind-a-cache": lambda x: torch.ones(4, x.shape[1]).tril(diagonal=x.shape[1] - 4),
    "minus-infinity": lambda x: torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1),
    "near": near,
    "alibi": alibi,
    "far-bias": far_bias,
    "rotated": rotated,
    "sinusoids": sinusoids,
    "rows-at": lambda x: x.transpose(1, 2)[:, torch.tensor([3, 0, 5])] * 2,
    "selected": lambda x: x.transpose(1, 2).contiguous().index_select(1, torch.tensor([3, 0, 5])) + 1,
    "gathered-columns": lambda x: x.mT.contiguous().gather(1, x.mT.argmax(1, keepdim=True)),
    "from-the-end": lambda x: x[:, torch.tensor([0, -1])] * 2,
    "two-indices": lambda x: x.mT.contiguous()[torch.tensor([0, 1, 1]), torch.tensor([3, 2, 1])] * 2,
    "classes": lambda x: F.cross_entropy(x.mT.contiguous(), x.mT.argmax(1)),
    "halves": lambda x: x[:, : x.shape[1] // 2].sum(1) - x[:, x.shape[1] // 2 :].mean(1),
    "last": lambda x: x[:, x.shape[1] - 1] * 2,
    "strided": lambda x: x[:, ::2] * 2,
    "flipped": lambda x: x.flip(1) * 2,
    "rolled": lambda x: torch.roll(x, x.shape[1] // 2, 1) * 2,
    "padded": lambda x: F.pad(x, (0, 0, 0, 64 - x.shape[1])) * 2,
    "padded-with": lambda x: F.pad(x, (1, 0, 0, 2), value=float(x.shape[1])),
    "padded-with-ints": lambda x: F.pad(x.int(), (1, 0, 0, 2), value=x.shape[1]),
    "padded-double": lambda x: F.pad(x.double(), (1, 2), value=1 / x.shape[1]),
    "joined": lambda x: torch.cat([x, x[:, :1] * 2], 1),
    "repeated": lambda x: x[:, :1].repeat(1, x.shape[1], 1) + x,
    "chunks": lambda x: sum(part.sum() for part in x.chunk(2, 1)),
    "windows": lambda x: x.unfold(1, 3, 2).sum(-1),
    "buffer": into_a_buffer,
    "softmax": lambda x: x.softmax(1),
    "normalised": lambda x: x / x.norm(dim=1, keepdim=True),
    "layer-norm": lambda x: F.layer_norm(x.transpose(1, 2), (x.shape[1],)),
    "group-norm": lambda x: F.group_norm(x.transpose(1, 2), 4),
    "std": lambda x: x.std(),
    "argmax": lambda x: x.argmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "linear": lambda x: F.linear(x, torch.ones(24, 16)).relu(),
    "einsum": lambda x: torch.einsum("bnd,bmd->bnm", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x)),
    "causal-attention": lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True),
    "masked-attention": masked_attention,
    "convolution": lambda x: F.conv1d(x.transpose(1, 2), torch.ones(8, 16, 3), padding=1).relu(),
    "pooled": lambda x: F.max_pool1d(x.transpose(1, 2), 3, 2, 1),
    "resampled": lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2.0),
    "resampled-linear": lambda x: F.interpolate(x.transpose(1, 2), size=50, mode="linear"),
    "cross-entropy": lambda x: F.cross_entropy(x.reshape(-1, 16), torch.zeros(2 * x.shape[1], dtype=torch.long)),
}


@pytest.mark.skipif(EAGER, reason="counts kernels")
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_later_sizes_compile_nothing(name):
    compiled = ccompile.compile(CASES[name], dynamic=True)
    kernels = {}
    for size in FIRST + LATER:
        x = torch.randn(2, size, 16, generator=torch.Generator().manual_seed(size))
        for _ in range(2):  # the second one is a plan's
            torch.testing.assert_close(compiled(x), CASES[name](x))
        kernels[size] = ccompile.counters()["kernel"]
    assert kernels[LATER[-1]] == kernels[FIRST[-1]], kernels


@pytest.mark.skipif(EAGER, reason="counts kernels")
@torch.no_grad()
def test_windows_of_adaptive_pools_share_kernels():
    """Windows are unrolled: there is a kernel for up to 8 elements, and one for up to 16, not one per size."""
    compiled = ccompile.compile(lambda x: F.adaptive_avg_pool1d(x, 4), dynamic=True)
    kernels = {}
    for size in FIRST + LATER:
        x = torch.randn(2, 16, size)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), F.adaptive_avg_pool1d(x, 4))
        kernels[size] = ccompile.counters()["kernel"]
    assert kernels[LATER[-1]] == kernels[FIRST[-1]] + 1, kernels


@pytest.mark.skipif(EAGER, reason="counts plans")
@torch.no_grad()
def test_sizes_that_go_round_find_plans():
    """More of them than plans are kept, always in the same order, as a decoder's: the oldest plan is the next one's."""
    compiled = ccompile.compile(lambda x: x * 2, dynamic=True, options={"shape_limit": 8})
    rounds = 6
    before = ccompile.counters()["new_shape"]
    for size in [*range(2, 12)] * rounds:
        compiled(torch.ones(size))
    made = ccompile.counters()["new_shape"] - before
    assert made < 10 * rounds * 3 / 4, f"{made} plans for {10 * rounds} calls"


@pytest.mark.skipif(EAGER, reason="counts plans")
@torch.no_grad()
def test_sizes_that_come_once_get_no_dear_plans(request):
    """A library generates code for each size of such a convolution, which takes much longer than to run it once (on one
    thread: others' barriers take as long as the machine likes)."""
    request.addfinalizer(lambda threads=torch.get_num_threads(): torch.set_num_threads(threads))
    torch.set_num_threads(1)
    weight = torch.randn(16, 8, 3, 3)
    compiled = ccompile.compile(lambda x: F.conv2d(x, weight, stride=2).relu(), dynamic=True)

    def plans(sizes):
        before = ccompile.counters()["primitive"]
        for size in sizes:
            x = torch.randn(1, 8, size, size)
            torch.testing.assert_close(compiled(x), F.conv2d(x, weight, stride=2).relu(), atol=1e-4, rtol=1e-4)
        return ccompile.counters()["primitive"] - before

    sizes = range(9, 49, 2)
    assert plans(sizes) < len(sizes) / 2  # the first ones: who knows
    assert plans(sizes) > len(sizes) / 2  # they do come again
    before = ccompile.counters()["new_shape"]
    assert plans(sizes) == 0 and ccompile.counters()["new_shape"] == before

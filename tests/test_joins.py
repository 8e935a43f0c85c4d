"""Joins, padding, rolling and interpolation are loops on the CPU, and fuse with the pointwise ops that read them."""

import pytest
import torch
import torch.nn.functional as F
from conftest import same
from test_conv import kinds, last, randn

bf16, i64 = torch.bfloat16, torch.int64


def rotated(q, c, s):
    return q * c + torch.cat((q[..., 32:], q[..., :32]), -1) * s


FUSED = {
    "cat": (lambda x, y: torch.relu(torch.cat((x, y), 1)) * 2 + 1, (randn(3, 64, 5), randn(3, 20, 5, seed=1))),
    "cat-last": (
        lambda x, y: torch.relu(torch.cat((x, y), 1) * 2),
        (last(randn(2, 32, 5, 4)), last(randn(2, 48, 5, 4, seed=1))),
    ),
    "cat-ints": (
        lambda x, y, z: torch.cat((x, y, z), -1) * 3 + 1,
        tuple((randn(7, 64, seed=i) * 9).to(i64)[:, ::2] for i in range(3)),
    ),
    "cat-weights": (
        lambda x, y, w: torch.cat((x, y), 1) * w[:, None] + w[:, None],
        (randn(2, 3, 50), randn(2, 2, 50, seed=1), randn(5)),
    ),
    "stack": (lambda x, y: torch.stack((x, y.t()), 1).tanh(), (randn(6, 40), randn(40, 6, seed=1))),
    "rotated": (rotated, (randn(1, 3, 17, 64), randn(17, 64, seed=1), randn(17, 64, seed=2))),
    "pad": (lambda x: F.pad(x, (16, 32, 1, 2), value=-1.5).relu() + 1, (randn(3, 7, 64),)),
    "pad-less": (lambda x: F.pad(x, (-16, 32), value=3).relu() + 1, (randn(3, 7, 64),)),
    "pad-reflect": (lambda x: F.pad(x, (20, 33), mode="reflect") * 2, (randn(2, 3, 64).to(bf16),)),
    "pad-replicate": (lambda x: F.pad(x, (20, 33), mode="replicate") * 2, (randn(2, 3, 64),)),
    "pad-circular": (lambda x: F.pad(x, (0, 0, 2, 1), mode="circular") * 2, (randn(2, 3, 5, 64),)),
    "roll": (lambda x: x - torch.roll(x, 1, 1), (randn(5, 400),)),
    "roll-two": (lambda x, y: torch.roll(x, (-2, 3), (1, 2)) + y, (randn(2, 6, 7, 32), randn(2, 6, 7, 32, seed=1))),
}


@pytest.mark.parametrize("name", FUSED)
def test_they_fuse_with_what_reads_them(name):
    fn, args = FUSED[name]
    same(fn, *args)
    assert kinds(fn, *args) == ["kernel"]


def test_short_rows_stay_apart():
    """A vector of each of its boxes would be made of a few elements."""
    fn, args = (lambda x, y: torch.sigmoid(torch.cat((x, y), -1))), (randn(300, 7), randn(300, 7, seed=1))
    same(fn, *args)
    assert kinds(fn, *args) == ["kernel", "kernel"]


def test_an_operand_that_dies_is_not_written_over():
    """Each box reads other elements of it than it writes."""
    fn = lambda x: torch.roll(x * 2, 64, 1) + 1  # noqa: E731
    same(fn, randn(4, 128))
    fn = lambda x: (lambda y: y - torch.roll(y, 64, 1))(x.exp()) * 2  # noqa: E731
    same(fn, randn(4, 128))


def test_two_joins_are_two_kernels():
    fn = lambda x, y: torch.cat((x, y), 1) * 2 + torch.cat((y, x), 1)  # noqa: E731
    args = randn(3, 64), randn(3, 32, seed=1)
    same(fn, *args)
    assert len(kinds(fn, *args)) == 2


def test_sums_of_joins_are_loops_of_their_own():
    fn = lambda x, y: torch.softmax(torch.cat((x, y), -1), -1)  # noqa: E731
    same(fn, randn(30, 64), randn(30, 33, seed=1))


SIZES = {
    "linear": (randn(2, 5, 7), {"size": 20, "mode": "linear"}),
    "grows": (randn(1, 3, 9, 11), {"scale_factor": 2.0, "mode": "bilinear"}),
    "shrinks-and-grows": (randn(1, 3, 20, 11), {"size": (7, 40), "mode": "bilinear", "align_corners": True}),
    "one-side": (randn(1, 3, 20, 11), {"size": (20, 40), "mode": "bilinear"}),
    "stays": (randn(1, 3, 20, 11), {"size": (20, 11), "mode": "bilinear"}),
    "last": (last(randn(2, 24, 6, 5)), {"size": (13, 9), "mode": "bilinear"}),
    "cubic": (randn(1, 3, 9, 11), {"size": (18, 11), "mode": "bicubic"}),
    "cubic-factors": (randn(1, 3, 9, 11), {"scale_factor": (2.3, 0.7), "mode": "bicubic"}),
    "volume": (randn(1, 2, 4, 5, 6), {"size": (8, 3, 13), "mode": "trilinear"}),
    "double": (randn(1, 3, 9, 11).double(), {"scale_factor": 1.7, "mode": "bilinear"}),
    "nearest-doubles": (randn(1, 3, 3, 4), {"size": (6, 8), "mode": "nearest"}),
    "nearest-factor": (randn(1, 3, 3, 4), {"scale_factor": (2.4, 2.3), "mode": "nearest"}),
    "exact": (randn(1, 3, 5, 7), {"size": (8, 3), "mode": "nearest-exact"}),
    "nearest-bytes": ((randn(2, 3, 5, 7) * 50 + 100).to(torch.uint8), {"size": (8, 3), "mode": "nearest"}),
}


@pytest.mark.parametrize("name", SIZES)
def test_interpolation_is_loops(name):
    """And fuses with what reads it."""
    x, how = SIZES[name]
    fn = lambda x: F.interpolate(x, **how) * 2 + 1  # noqa: E731
    same(fn, x)
    sides = sum(
        how["mode"] == "bicubic" or n != m for n, m in zip(x.shape[2:], F.interpolate(x, **how).shape[2:], strict=True)
    )
    copied = name == "nearest-doubles"  # by windows, before what reads it
    assert kinds(fn, x) == ["kernel"] * (1 + copied if "nearest" in name or name == "exact" else max(1, sides))

"""Dropout without grad mode: a draw from torch's generator and a kernel. Results, strides and the numbers that follow are eager's."""

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import EAGER
from torch import nn

IMAGE = torch.randn(4, 6, 10, 7, generator=torch.Generator().manual_seed(0))
HEADS = torch.randn(3, 2, 4, 20, 8, generator=torch.Generator().manual_seed(1)).unbind(0)
MASK = torch.ones(20, 20, dtype=torch.bool).tril(3)
MASK[2] = False  # this row attends nowhere


def attend(q, k, v, **how):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, **how)


def mixed(x):
    """Draws, and ops that torch runs, take turns."""
    a = F.dropout(x, 0.5)
    b = torch.rand_like(x)
    return F.dropout(a + b, 0.1) * torch.bernoulli(b), F.dropout2d(x)


def unread(x):
    F.dropout(x, 0.5)
    return F.dropout(x * 2, 0.5)


CASES = {
    "plain": (lambda x: F.dropout(x * 2, 0.3) + 1, IMAGE),
    "few": (lambda x: F.dropout(x, 0.3), torch.ones(3)),
    "half": (lambda x: F.dropout(x, 0.3), IMAGE.bfloat16()),
    "double": (lambda x: F.dropout(x, 0.3), IMAGE.double()),
    "strided": (lambda x: F.dropout(x.transpose(1, 3), 0.3), IMAGE),
    "gaps": (lambda x: F.dropout(x[..., ::2], 0.3), IMAGE),
    "channels": (lambda x: F.dropout2d(x.relu(), 0.3), IMAGE),
    "channels of volumes": (lambda x: F.dropout3d(x, 0.3), IMAGE[None]),
    "channels last": (lambda x: F.dropout2d(x, 0.3), IMAGE.to(memory_format=torch.channels_last)),
    "none": (lambda x: F.dropout(x, 0.0), IMAGE),
    "all": (lambda x: F.dropout(x, 1.0), IMAGE),
    "empty": (lambda x: F.dropout(x, 0.5), torch.ones(0, 3)),
    "in place": (lambda x: F.dropout(x + 1, 0.5, inplace=True) * 2, IMAGE),
    "non-finite": (lambda x: F.dropout(x, 0.5), torch.tensor([float("nan"), float("inf"), -0.0, 0.0] * 40)),
    "unread": (unread, IMAGE),
    "mixed": (mixed, IMAGE),
    "attention": (attend, *HEADS),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), *HEADS),
    "masked": (lambda q, k, v: attend(q, k, v, attn_mask=MASK), *HEADS),
    "bias": (lambda q, k, v: attend(q, k, v, attn_mask=torch.where(MASK, 0.5, -torch.inf), scale=0.3), *HEADS),
    "few keys": (lambda q, k, v: attend(q, k[:, :, :7], v[:, :, :7]), *HEADS),
    "half attention": (lambda q, k, v: attend(q.bfloat16(), k.bfloat16(), v.bfloat16()), *HEADS),
    "layers": (nn.LSTM(7, 5, 2, dropout=0.5), IMAGE[0]),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True), HEADS[0][0]),
}


def alike(got, want):
    torch.testing.assert_close(got, want, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("name", CASES)
def test_equal(name):
    fn, *args = CASES[name]
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for seed in range(4):
            torch.manual_seed(seed)
            want, after = fn(*args), torch.get_rng_state()
            torch.manual_seed(seed)
            got = compiled(*args)
            alike(got, want)
            assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.skipif(EAGER, reason="nothing is compiled")
@pytest.mark.parametrize("name", ["plain", "few", "double", "strided", "channels", "unread", "causal", "bias"])
def test_torch_only_draws(name):
    fn, *args = CASES[name]
    with torch.no_grad():
        report = ccompile.explain(fn)(*args)
    assert report.graph_count == 1 and "0 torch calls" in str(report), report


def test_sizes_vary():
    compiled = ccompile.compile(CASES["plain"][0])
    with torch.no_grad():
        for n in (5, 9, 300, 5, 77):
            x = torch.randn(n, 3)
            torch.manual_seed(n)
            want = CASES["plain"][0](x)
            torch.manual_seed(n)
            alike(compiled(x), want)

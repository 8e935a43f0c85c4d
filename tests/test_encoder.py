"""nn.MultiheadAttention and nn.TransformerEncoderLayer in eval, where torch calls one op of its own, and linear of what such modules
turn round before."""

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER


def plan_of(compiled):
    return "".join(s["plan_text"] for entry in compiled_of(compiled).report()["entries"] for s in entry["segments"])


def layer(**kw):
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, **kw).eval()


def compiled_alike(fn, *inputs):
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for x in inputs * 2:
            want, got = fn(x), compiled(x)
            torch.testing.assert_close(got, want, equal_nan=True)
            for a, b in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got)):
                assert a.stride() == b.stride()
    return compiled


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers(activation, norm_first):
    one = layer(activation=activation, norm_first=norm_first)
    stack = torch.nn.TransformerEncoder(one, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 7, 32)
    for fn in (one, stack):
        assert EAGER or "host" not in plan_of(compiled_alike(fn, x, torch.randn(2, 7, 32)))
    compiled_alike(one, torch.randn(1, 1, 32))
    compiled_alike(one, torch.randn(7, 2, 32).transpose(0, 1))
    compiled_alike(one, torch.full((2, 3, 32), float("nan")))
    compiled_alike(one, torch.randn(0, 3, 32))
    compiled_alike(layer(activation=activation, norm_first=norm_first).double(), x.double())
    compiled_alike(lambda x: one(x, src_key_padding_mask=torch.arange(7).expand(2, 7) > 4), x)
    compiled_alike(lambda x: one(x, src_mask=torch.ones(7, 7, dtype=torch.bool).triu(1)), x)


def test_multi_head_attention():
    torch.manual_seed(0)
    m = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x, y = torch.randn(2, 7, 32), torch.randn(3, 5, 32)
    for fn in (lambda x: m(x, x, x)[0], lambda x: m(x, x, x, need_weights=False)[0] * 2):
        compiled = compiled_alike(fn, x, y)
        assert EAGER or "host" not in plan_of(compiled)
    compiled_alike(lambda x: m(x, x, x), x)
    compiled_alike(lambda x: m(x, x * 2, x + 1)[0], x)
    compiled_alike(lambda x: m(x, x, x, key_padding_mask=x[..., 0] > 0.5)[0], x)
    compiled_alike(lambda x: m(x[0], x[0], x[0])[0], x)


def test_linear_of_rows_in_another_order():
    torch.manual_seed(0)
    linear = torch.nn.Linear(32, 24).eval()
    for fn in (lambda x: linear(x.transpose(0, 1)).relu(), lambda x: linear((x * 2).transpose(0, 1)), lambda x: linear(x.unsqueeze(1).transpose(0, 2))):
        compiled_alike(fn, torch.randn(3, 5, 32), torch.randn(1, 5, 32))
    assert EAGER or "host" not in plan_of(compiled_alike(lambda x: linear(x.transpose(0, 1)).relu(), torch.randn(3, 5, 32)))

"""nn.MultiheadAttention and nn.TransformerEncoderLayer in eval, where torch calls one fused op of its own, and linear layers on
their transposed inputs."""

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
            half = any(t.dtype in DTYPES[1:] for t in torch.utils._pytree.tree_leaves(want) if t is not None)
            torch.testing.assert_close(got, want, equal_nan=True, **({"rtol": 2e-2, "atol": 2e-2} if half else {}))
            for a, b in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got)):
                assert a is b is None or a.stride() == b.stride()
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


def test_multi_head_attention():
    torch.manual_seed(0)
    m = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x, y = torch.randn(2, 7, 32), torch.randn(3, 5, 32)
    for fn in (lambda x: m(x, x, x)[0], lambda x: m(x, x, x, need_weights=False)[0] * 2):
        compiled = compiled_alike(fn, x, y)
        assert EAGER or "host" not in plan_of(compiled)
    compiled_alike(lambda x: m(x, x * 2, x + 1)[0], x)
    compiled_alike(lambda x: m(x, x, x, key_padding_mask=x[..., 0] > 0.5)[0], x)
    compiled_alike(lambda x: m(x[0], x[0], x[0])[0], x)


CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
PADDED = torch.arange(7).expand(2, 7) > torch.tensor([[3], [6]])
NUMBERS = torch.randn(7, 7, generator=torch.Generator().manual_seed(1))  # those that are not 0 mask
MASKS = {
    "keys": {"key_padding_mask": PADDED},
    "keys in numbers": {"key_padding_mask": torch.zeros(2, 7).masked_fill(PADDED, -1e9)},
    "all keys": {"key_padding_mask": torch.arange(7).expand(2, 7) > torch.tensor([[3], [-1]])},
    "pairs": {"attn_mask": CAUSAL},
    "pairs in numbers": {"attn_mask": NUMBERS},
    "pairs of heads": {"attn_mask": torch.rand(8, 7, 7, generator=torch.Generator().manual_seed(2)) > 0.7},
    "both": {"key_padding_mask": PADDED, "attn_mask": CAUSAL},
    "causal": {"attn_mask": torch.nn.Transformer.generate_square_subsequent_mask(7), "is_causal": True},
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("masks", MASKS)
def test_masks(masks, dtype):
    x = torch.randn(2, 7, 32).to(dtype)
    given = {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in MASKS[masks].items()}
    names = {"key_padding_mask": "src_key_padding_mask", "attn_mask": "src_mask"}
    for first in (False, True):
        one = layer(norm_first=first).to(dtype)
        compiled = compiled_alike(lambda x: one(x, **{names.get(k, k): v for k, v in given.items()}), x)  # noqa: B023
        assert EAGER or "host" not in plan_of(compiled)
    attention = one.self_attn
    for told in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        compiled = compiled_alike(lambda x: attention(x, x, x, **given, **told)[0] * 2, x)  # noqa: B023
        assert EAGER or "host" not in plan_of(compiled)
        compiled_alike(lambda x: attention(x, x, x, **given, **told), x)  # noqa: B023


def test_masks_that_torch_refuses():
    one, x = layer(), torch.randn(2, 7, 32)
    for masks in ({"src_key_padding_mask": torch.zeros(2, 5, dtype=torch.bool)}, {"src_mask": torch.zeros(6, 7, 7, dtype=torch.bool)}):
        compiled = ccompile.compile(lambda x: one(x, **masks))  # noqa: B023
        for _ in range(2):
            with torch.no_grad(), pytest.raises(RuntimeError):
                compiled(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_are_told(dtype):
    torch.manual_seed(0)
    x, y = torch.randn(2, 7, 32).to(dtype), torch.randn(2, 5, 32).to(dtype)
    unseen = torch.arange(5).expand(2, 5) > torch.tensor([[2], [4]])
    m = torch.nn.MultiheadAttention(32, 4, batch_first=True).to(dtype).eval()
    for average in (True, False):
        for fn in (
            lambda x: m(x, x, x, average_attn_weights=average),  # noqa: B023
            lambda x: m(x, y, y, average_attn_weights=average),  # noqa: B023
            lambda x: m(x, y, y, key_padding_mask=unseen, average_attn_weights=average),  # noqa: B023
        ):
            compiled = compiled_alike(lambda x: [t.relu() for t in fn(x)], x)  # noqa: B023
            assert EAGER or "host" not in plan_of(compiled)
            compiled_alike(fn, x)


def test_nested_tensors():
    """What torch makes of padded rows is its own."""
    stack = torch.nn.TransformerEncoder(layer(), 2).eval()
    x = torch.randn(2, 7, 32)
    compiled_alike(lambda x: stack(x, src_key_padding_mask=PADDED), x)
    compiled_alike(lambda x: stack(x, src_key_padding_mask=PADDED.flip(1)), x)


def test_decoders():
    torch.manual_seed(0)
    x, y = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    unseen = torch.arange(5).expand(2, 5) > torch.tensor([[2], [4]])
    one = torch.nn.TransformerDecoderLayer(32, 4, 48, batch_first=True).eval()
    for fn in (
        lambda x: one(x, y),
        lambda x: one(x, y, tgt_mask=CAUSAL, tgt_key_padding_mask=PADDED, memory_key_padding_mask=unseen),
        lambda x: one(x, y, tgt_mask=MASKS["causal"]["attn_mask"], tgt_is_causal=True),
    ):
        compiled = compiled_alike(fn, x)
        assert EAGER or "host" not in plan_of(compiled)
    both = torch.nn.Transformer(32, 4, 1, 1, 48, batch_first=True).eval()
    compiled_alike(lambda x: both(x, y), x)
    compiled_alike(lambda x: both(x, x, tgt_mask=CAUSAL, tgt_key_padding_mask=PADDED), x)


def test_what_is_added_to_products():
    a, b = torch.randn(3, 4, 6), torch.randn(3, 6, 5)
    nan = torch.full((4, 5), float("nan"))
    for fn in (
        lambda x: torch.baddbmm(x, a, b).exp(),
        lambda x: torch.baddbmm(x, a, b, beta=0.5, alpha=2).exp(),
        lambda x: torch.baddbmm(x * nan, a, b, beta=0, alpha=-1.5).exp(),
        lambda x: x.baddbmm(a, b, beta=2).exp(),
    ):
        compiled = compiled_alike(fn, torch.randn(3, 4, 5), torch.randn(3, 1, 5))
        assert EAGER or "host" not in plan_of(compiled)


def test_linear_of_rows_in_another_order():
    torch.manual_seed(0)
    linear = torch.nn.Linear(32, 24).eval()
    for fn in (lambda x: linear(x.transpose(0, 1)).relu(), lambda x: linear((x * 2).transpose(0, 1)), lambda x: linear(x.unsqueeze(1).transpose(0, 2))):
        compiled_alike(fn, torch.randn(3, 5, 32), torch.randn(1, 5, 32))
    assert EAGER or "host" not in plan_of(compiled_alike(lambda x: linear(x.transpose(0, 1)).relu(), torch.randn(3, 5, 32)))


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("which", [0, -1])
def test_classifiers(n, which):
    """Only one token's rows are computed: queries are a window into what holds keys and values as well."""
    torch.manual_seed(0)
    stack, head = torch.nn.TransformerEncoder(layer(), 2).eval(), torch.nn.Linear(32, 5)
    compiled = compiled_alike(lambda x: head(stack(x)[:, which]), torch.randn(2, n, 32))
    assert EAGER or "narrowed" in plan_of(compiled)

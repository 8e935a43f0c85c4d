"""Whole models: equal to eager, also after weights change, replayed, and with no more breaks than Dynamo."""

import copy

import ccompile
import pytest
import torch
from conftest import EAGER, alike, hits, no_worse, replaying, same
from models_zoo import (
    TRANSFORMERS,
    ZOO,
    TemporalHistory,
    complex_activation,
    feature_enhancement,
    ids,
    small_complex,
    small_local,
    small_mix,
    small_net,
    small_transformer,
    t,
)
from torch import nn

ALL = {**ZOO, **TRANSFORMERS}


def build(name, train=False):
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(11)
    made = ALL[name][0]()
    return made.train(train) if isinstance(made, nn.Module) else made


def scaled(model, k):
    """The same model with other weights."""
    return {key: v * k if v.is_floating_point() and "var" not in key else v for key, v in model.state_dict().items()}


@pytest.mark.parametrize("name", ALL)
def test_equal(name):
    same(build(name), make_args=ALL[name][1], calls=4)


@pytest.mark.parametrize("name", [n for n in ALL if "activation" not in n and "enhancement" not in n])
def test_weights_replaced(name):
    """Weights are never baked in: load_state_dict, in-place writes and new Parameter objects all count, and replays go on."""
    model, inputs = build(name), ALL[name][1]
    compiled = ccompile.compile(model)
    old = {k: v.clone() for k, v in model.state_dict().items()}

    def check(i):
        args, kw = inputs(i)
        with torch.no_grad():
            alike(model(*copy.deepcopy(args), **copy.deepcopy(kw)), compiled(*args, **kw), path=f"{name}, input {i}")

    for i in range(2):
        check(i)
    model.load_state_dict(scaled(model, 0.5))
    with replaying(1):
        check(2)
    with torch.no_grad():
        for p in model.parameters():
            p.data.mul_(1.5)
    with replaying(1):
        check(3)
    for module in model.modules():
        for key, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[key] = nn.Parameter(p.detach() * 0.9)
    check(4)
    check(5)
    model.load_state_dict(old)
    check(0)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_no_more_breaks_than_dynamo(name):
    args, kw = ALL[name][1](0)
    no_worse(build(name), *args, **kw)


@pytest.mark.parametrize("name", ["mlp", "simple-model", "mini-transformer", "conv-net-mix", "temporal-lstm"])
def test_train_mode(name):
    """Dropout takes eager's random stream and BatchNorm's statistics move as in eager."""
    same(build(name, train=True), make_args=ALL[name][1], calls=4)


@pytest.mark.parametrize("name", ["mlp", "simple-net", "simple-model", "mini-transformer", "trajectory-gru", "bert"])
def test_gradients(name):
    train = name == "trajectory-gru"   # in eval mode cuDNN differentiates no recurrent layer; this one drops nothing
    same(build(name, train), make_args=ALL[name][1], calls=3, no_grad=False, backward=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "simple-net", "mini-transformer"])
def test_training_steps(name):
    """Three steps of Adam around a compiled model end in eager's weights."""
    inputs, ends = ALL[name][1], []
    for compiled in (False, True):
        model = build(name)
        call = ccompile.compile(model) if compiled else model
        # With the default eps, Adam turns the rounding of a gradient that is mathematically 0 (keys' biases) into whole steps.
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)
        for i in range(3):
            optimizer.zero_grad()
            args, kw = inputs(i)
            loss = nn.functional.cross_entropy(call(*args, **kw), torch.arange(args[0].shape[0]) % 10)
            loss.backward()
            optimizer.step()
        ends.append({k: v.detach() for k, v in model.state_dict().items()})
    alike(*ends, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("dynamic", [None, True, False], ids=lambda d: f"dynamic={d}")
@pytest.mark.parametrize("name", ["batch", "sequence", "image"])
def test_shapes_change(name, dynamic):
    """Sizes seen before replay; each size gives eager's result."""
    model, make = {
        "batch": (small_net(), lambda n, i: t(n, 64, seed=i)),
        "sequence": (small_transformer().eval(), lambda n, i: ids(2, n, seed=i)),
        "image": (small_local().eval(), lambda n, i: t(2, 3, n, n, seed=i)),
    }[name]
    sizes = [8, 16, 12, 20, 8, 16, 12]
    same(model, make_args=lambda i: make(sizes[i], i), calls=len(sizes), options={"dynamic": dynamic})


def test_dynamic_needs_one_recording():
    """dynamic=True: after the first call a new batch size is no reason to record."""
    compiled = ccompile.compile(small_net(), dynamic=True)
    with torch.no_grad():
        compiled(t(32, 64))
        with replaying(2):
            compiled(t(64, 64))
            compiled(t(48, 64))


def test_history_on_self():
    """Seed 000's temporal network: its buffer of past states fills, then shifts."""
    torch.manual_seed(3)
    same(TemporalHistory().eval(), make_args=lambda i: t(2, 12, seed=i), calls=6, hit=False)


def test_functions_compiled_inside_a_model():
    """Seed 004: only the heavy functions of a network are compiled, the network itself is not."""
    torch.manual_seed(3)
    plain = small_local().eval()
    split = copy.deepcopy(plain)
    split.activation = ccompile.compile(complex_activation)
    split.enhance_features = ccompile.compile(feature_enhancement)
    with torch.no_grad():
        for i in range(3):
            alike(plain(t(2, 3, 16, 16, seed=i)), split(t(2, 3, 16, 16, seed=i)))
        with replaying(2):
            split(t(2, 3, 16, 16))


def test_parts_compiled_separately():
    """Seed 004: features and classifier compiled each for itself, in one net."""
    torch.manual_seed(3)
    plain = small_mix().eval()
    split = copy.deepcopy(plain)
    split.features, split.classifiers[0] = ccompile.compile(split.features), ccompile.compile(split.classifiers[0])
    with torch.no_grad():
        for i in range(3):
            alike(plain(t(2, 3, 16, 16, seed=i)), split(t(2, 3, 16, 16, seed=i)))
        with replaying(2):
            split(t(2, 3, 16, 16))


def test_layers_compiled_one_by_one():
    """N equal layers compiled one by one; each has its own weights."""
    torch.manual_seed(3)
    plain = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)])
    split = nn.Sequential(*[ccompile.compile(layer) for layer in plain])
    with torch.no_grad():
        for i in range(3):
            alike(plain(t(2, 8, seed=i)), split(t(2, 8, seed=i)))
        hits(lambda: split(t(2, 8)), 6 if EAGER else 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_dtypes(dtype):
    torch.manual_seed(3)
    loose = 2e-2 if dtype.itemsize == 2 else None
    same(small_net().to(dtype), make_args=lambda i: t(4, 64, seed=i).to(dtype), rtol=loose, atol=loose)


def test_channels_last():
    torch.manual_seed(3)
    model = small_complex().eval().to(memory_format=torch.channels_last)
    same(model, make_args=lambda i: t(2, 3, 96, 96, seed=i).contiguous(memory_format=torch.channels_last))


def test_autocast_and_modes():
    """One compiled model called under several ambient modes in turn."""
    torch.manual_seed(3)
    model = small_net()
    compiled = ccompile.compile(model)
    for i in range(8):
        x = t(4, 64, seed=i)
        with (torch.no_grad, torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16))[
            i % 4
        ]():
            eager, ours = model(x), compiled(x)
            loose = 2e-2 if eager.dtype == torch.bfloat16 else None
            alike(eager, ours, rtol=loose, atol=loose)
            assert eager.is_inference() == ours.is_inference()


def plan_of(compiled):
    """The plans' text of all graphs."""
    found = ccompile.api.compiled_of(compiled).report()["entries"]
    return "\n".join(segment["plan_text"] for entry in found for segment in entry["segments"])


class OneRow(nn.Module):
    """Only one index of a dim is read in the end; `how` says what else is done."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inner, self.outer = how, nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)
        self.place = nn.Parameter(torch.randn(1, 8, 16))
        self.scale = nn.Parameter(torch.randn(3, 1, 16))

    def forward(self, x):
        y = x * 2 + self.place
        y = self.norm(y * self.scale + self.outer(torch.nn.functional.gelu(self.inner(y))))
        if self.how == "negative":
            return self.head(y[:, -2])
        if self.how == "first":
            return self.head(y[1])
        if self.how == "last":
            return self.head(y[:, :, 3].repeat(1, 2)[:, :16])
        if self.how == "both":
            return self.head(y[:, 0]), y
        if self.how == "view":
            return self.head(y[:, 0, :].unsqueeze(1)), y[:, 0].stride()
        if self.how == "output":
            return y[:, 0]
        if self.how == "twice":
            return self.head(y[:, 0]) + self.head(y[:, 1])
        return self.head(y[:, 0, :])


@pytest.mark.parametrize("how", ["zero", "negative", "first", "last", "both", "view", "output", "twice"])
def test_only_the_rows_that_are_read(how):
    """pass/narrow.c: what a select keeps is all that is computed, and nothing shows it."""
    model = OneRow(how).eval()
    compiled = ccompile.compile(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 8, 16)
            got, want = compiled(x), model(x)
            for a, b in zip(got if isinstance(got, tuple) else [got], want if isinstance(want, tuple) else [want], strict=True):
                if torch.is_tensor(a):
                    torch.testing.assert_close(a, b)
                    assert a.stride() == b.stride()
                else:
                    assert a == b
    assert ("narrowed" in plan_of(compiled)) == (how in ("zero", "negative", "first"))


def test_kernels_in_place_leave_results_alone():
    """A kernel may write over what dies in it, never over a result or an input."""

    def f(x, w):
        y = x @ w
        z = y * 2 + 1
        return torch.relu(z), z, torch.sin(torch.tanh(x @ w.t()) * 3)

    compiled = ccompile.compile(f)
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    with torch.no_grad():
        before, expected = (x.clone(), w.clone()), f(x, w)
        results = [compiled(x, w) for _ in range(3)]
    assert torch.equal(x, before[0]) and torch.equal(w, before[1])
    for result in results:
        for a, b in zip(result, expected, strict=True):
            torch.testing.assert_close(a, b)
    assert len({t.data_ptr() for result in results for t in result}) == 9


def test_tensors_that_only_give_a_shape_live_long_enough():
    compiled = ccompile.compile(lambda x: torch.zeros_like(x * 2) + x)
    for x in (torch.randn(4, requires_grad=True), torch.randn(4)):
        for _ in range(3):
            assert torch.equal(compiled(x), x)


def test_a_view_of_a_parameter_needs_no_grad():
    """It says requires_grad even under no_grad; its graph has kernels all the same."""
    token, layer = nn.Parameter(torch.randn(1, 1, 16)), nn.Linear(16, 16)
    compiled = ccompile.compile(lambda x: torch.relu(layer(token.expand(2, -1, -1) + x)))
    with torch.no_grad():
        x = torch.randn(2, 4, 16)
        torch.testing.assert_close(compiled(x), torch.relu(layer(token + x)))
        assert "kernel" in plan_of(compiled)
    y = compiled(x)
    y.sum().backward()
    assert token.grad is not None and layer.weight.grad is not None


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4, 7), (4, 8, 64, 64), (9,), (4, 1), (2, 0, 3), (1, 1000)])
@pytest.mark.parametrize("special", [None, float("nan"), float("inf"), float("-inf")])
def test_softmax(shape, special):
    """Through oneDNN; a row with nan or inf in it is as in eager."""

    def fn(x):
        return torch.softmax(x * 1.5, -1) + 1, torch.nn.functional.softmax(x, dim=x.dim() - 1), x.softmax(0)

    def make(i):
        x = t(*shape, seed=i)
        if special is not None and x.numel() > 4:
            x.view(-1)[:: 4 + i] = special
            x.view(-1)[-1] = special
        return (x,)

    same(fn, make_args=make, calls=3)

"""nn.LSTM, nn.GRU, nn.RNN as one step of a plan, against eager: values (errors measured against float64), strides, states, unused
results, and cases that must stay with torch."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
from ccompile import compile as ccompiled
from ccompile.api import compiled_of
from torch import nn

INF, NAN = float("inf"), float("nan")
CLASSES = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *a, **kw: nn.RNN(*a, nonlinearity="relu", **kw),
}
# steps, batch, inputs, hidden units, and keywords of the module
CASES = {
    "plain": (7, 4, 10, 24, {}),
    "ones": (1, 1, 1, 1, {}),
    "one-step": (1, 5, 9, 17, {}),
    "two-rows": (1, 2, 40, 33, {}),
    "one-row": (6, 1, 19, 35, {}),
    "one-row-long": (40, 1, 16, 32, {}),
    "tiles": (3, 13, 33, 48, {}),
    "odd": (5, 7, 3, 31, {"bias": False}),
    "first": (6, 3, 8, 16, {"batch_first": True}),
    "two-ways": (5, 3, 11, 21, {"bidirectional": True}),
    "layers": (4, 6, 12, 16, {"num_layers": 3}),
    "layers-one-row": (9, 1, 12, 16, {"num_layers": 2, "bidirectional": True}),
    "everything": (5, 4, 6, 18, {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False}),
    "chunks": (64, 16, 24, 80, {"bidirectional": True}),
}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def module(kind, inputs, hidden, seed=0, **kw):
    torch.manual_seed(seed)
    return CLASSES[kind](inputs, hidden, **kw).eval()


def sequence(steps, batch, inputs, batch_first=False, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*((batch, steps) if batch_first else (steps, batch)), inputs, generator=g)


def state(m, kind, batch, seed=2):
    g = torch.Generator().manual_seed(seed)
    parts = m.num_layers * (2 if m.bidirectional else 1)
    h, c = (torch.randn(parts, batch, m.hidden_size, generator=g) for _ in range(2))
    return (h, c) if kind == "lstm" else h


def flat(results):
    if isinstance(results, torch.Tensor):
        return [results]
    return [t for r in results for t in flat(r)]


def wide(args):
    return [tuple(wide(a)) if isinstance(a, tuple) else a.double() for a in args]


def close(got, eager, exact):
    """Not much worse than eager, by the largest error; NaN and inf where eager has them."""
    got, eager, exact = flat(got), flat(eager), flat(exact)
    assert len(got) == len(eager)
    for g, e, x in zip(got, eager, exact):
        assert g.shape == e.shape and g.dtype == e.dtype and g.stride() == e.stride()
        finite = torch.isfinite(e)
        assert torch.equal(torch.isnan(g), torch.isnan(e))
        assert torch.equal(g[~finite].nan_to_num(0.5), e[~finite].nan_to_num(0.5))
        if finite.any():
            error, allowed = ((t.double() - x)[finite].abs().max().item() for t in (g, e))
            assert error <= 2 * allowed + 3e-7 * max(1, x[finite].abs().max().item()), (error, allowed)


def steps(compiled):
    """What became of the recurrent nodes, over all segments."""
    lines = [
        line
        for entry in compiled_of(compiled).report()["entries"]
        for segment in entry["segments"]
        for line in segment["plan_text"].splitlines()
    ]
    return [line.split()[1] for line in lines if any(f" {op}#" in line for op in ("lstm", "gru", "rnn_tanh", "rnn_relu"))]


def agree(m, *args):
    """Compiled and eager, twice; -> compiled."""
    compiled = ccompiled(m)
    exact = copy.deepcopy(m).double()
    with torch.no_grad():
        for _ in range(2):
            close(compiled(*args), m(*args), exact(*wide(args)))
    assert steps(compiled) == ["rnn"]
    return compiled


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "given"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", CLASSES)
def test_cases(kind, case, given):
    t, b, i, h, kw = CASES[case]
    m = module(kind, i, h, **kw)
    x = sequence(t, b, i, m.batch_first)
    agree(m, x, *([state(m, kind, b)] if given else []))


@pytest.mark.parametrize("kind", CLASSES)
def test_unbatched(kind):
    m = module(kind, 9, 20, num_layers=2)
    agree(m, sequence(6, 1, 9)[:, 0])


@pytest.mark.parametrize("kind", CLASSES)
def test_layouts_of_the_input(kind):
    m = module(kind, 6, 20)
    g = torch.Generator().manual_seed(3)
    agree(m, torch.randn(4, 6, 5, generator=g).permute(2, 0, 1))  # columns apart
    agree(m, torch.randn(5, 4, 12, generator=g)[..., :6])
    agree(m, torch.randn(10, 4, 6, generator=g)[::2])
    agree(m, torch.randn(1, 4, 6, generator=g).expand(5, 4, 6))
    agree(module(kind, 1, 20), torch.randn(5, 4, 3, generator=g)[..., 1:2])
    h = torch.randn(1, 1, 20, generator=g).expand(1, 4, 20)
    agree(m, torch.randn(5, 4, 6, generator=g), (h, h) if kind == "lstm" else h)


def test_columns_apart_in_many_layers():
    m = module("gru", 30, 8, num_layers=3, bidirectional=True)
    g = torch.Generator().manual_seed(3)
    agree(m, torch.randn(4, 30, 5, generator=g).permute(2, 0, 1))


class Last(nn.Module):
    """Only some of the results are read."""

    def __init__(self, kind, what, **kw):
        super().__init__()
        self.rnn = module(kind, 8, 20, **kw)
        self.what = what

    def forward(self, x):
        x = x * 2
        y, last = self.rnn(x)
        return self.what(y, last)


READS = {
    "step": lambda y, last: y[-1] + 1,
    "state": lambda y, last: torch.relu(flat(last)[0][-1]),
    "cell": lambda y, last: torch.tanh(flat(last)[-1]),
    "both": lambda y, last: (y * 2, flat(last)[0] + 1),
    "reshaped": lambda y, last: flat(last)[0].transpose(0, 1).reshape(3, -1) * y[0].sum(),
}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_results_in_part(kind, what, layers):
    agree(Last(kind, READS[what], num_layers=layers, bidirectional=layers == 2), sequence(6, 3, 8))


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("kind", CLASSES)
def test_weights_change_between_calls(kind, batch, mode):
    m = module(kind, 12, 20, num_layers=2)
    x = sequence(4, batch, 12)
    compiled = ccompiled(m, mode=mode)
    with torch.no_grad():
        for change in range(4):
            for _ in range(2):
                close(compiled(x), m(x), copy.deepcopy(m).double()(x.double()))
            if change == 0:
                m.weight_hh_l0.mul_(-0.5)
            elif change == 1:
                m.weight_ih_l1.data = torch.randn_like(m.weight_ih_l1) * 0.2
            else:
                m.bias_hh_l0.add_(0.5)
                m.bias_ih_l1.neg_()
    assert "rnn" in steps(compiled) and "host" not in steps(compiled)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", CLASSES)
def test_nan_and_inf(kind, batch, bad):
    m = module(kind, 7, 20)
    x = sequence(5, batch, 7)
    x[2, 0, 3] = bad
    agree(m, x)
    h = state(m, kind, batch)
    flat(h)[0][0, -1, 2] = bad
    agree(m, sequence(5, batch, 7), h)


@pytest.mark.parametrize("kind", CLASSES)
def test_saturated_gates(kind):
    m = module(kind, 7, 20)
    for scale in (1e-3, 30.0, 1e4, 1e30):
        agree(m, sequence(3, 4, 7) * scale)


# steps, batch, inputs, hidden units: threads take rows of the batch, but blocks of units of the last ones
TWO_THREADS = [(16, 33, 70, 160), (9, 2, 24, 33), (5, 7, 16, 40), (3, 5, 128, 520), (3, 1, 128, 520)]


@pytest.mark.parametrize("t, b, i, h", TWO_THREADS)
@pytest.mark.parametrize("kind", CLASSES)
def test_two_threads(kind, t, b, i, h):
    torch.set_num_threads(2)
    m = module(kind, i, h, bidirectional=True)
    agree(m, sequence(t, b, i), state(m, kind, b))


def test_training_without_dropout_and_with():
    x = sequence(4, 3, 8)
    torch.manual_seed(0)
    m = nn.LSTM(8, 16, num_layers=2)
    with torch.no_grad():
        assert m.training
        close(ccompiled(m)(x), m(x), copy.deepcopy(m).double()(x.double()))
    m = nn.LSTM(8, 16, num_layers=2, dropout=0.5)
    compiled = ccompiled(m)
    with torch.no_grad():
        for seed in (3, 4, 4):
            torch.manual_seed(seed)
            got = compiled(x)
            torch.manual_seed(seed)
            assert torch.equal(got[0], m(x)[0])
    assert steps(compiled) == []
    agree(m.eval(), x)


@pytest.mark.parametrize("kind", CLASSES)
def test_gradients(kind):
    m = module(kind, 8, 16).train()
    x = sequence(4, 3, 8).requires_grad_()
    compiled = ccompiled(m)
    for _ in range(3):
        grads = []
        for f in (m, compiled):
            m.zero_grad()
            x.grad = None
            f(x)[0].square().sum().backward()
            grads.append([x.grad, *(p.grad for p in m.parameters())])
        for eager, got in zip(*grads):
            torch.testing.assert_close(got, eager)
    assert "rnn" not in steps(compiled)


def test_left_to_torch():
    x = sequence(4, 3, 8)
    torch.manual_seed(0)
    compiled = ccompiled(m := nn.LSTM(8, 16, proj_size=5).eval())
    wider = ccompiled(w := nn.GRU(8, 16).double().eval())
    with torch.no_grad():
        for _ in range(2):
            for got, eager in zip(flat(compiled(x)), flat(m(x))):
                assert torch.equal(got, eager)
            for got, eager in zip(flat(wider(x.double())), flat(w(x.double()))):
                assert torch.equal(got, eager)
    assert "rnn" not in steps(compiled) + steps(wider)


def test_packed_sequences():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = module("lstm", 8, 16)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            y, last = self.rnn(packed)
            return nn.utils.rnn.pad_packed_sequence(y)[0], last[0]

    m, x, lengths = Packed(), sequence(5, 3, 8), torch.tensor([3, 5, 2])
    compiled = ccompiled(m)
    with torch.no_grad():
        for _ in range(2):
            for got, eager in zip(compiled(x, lengths), m(x, lengths)):
                torch.testing.assert_close(got, eager)


@pytest.mark.parametrize("cls", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_single_cells(cls):
    torch.manual_seed(0)
    cell = cls(9, 20).eval()
    x = sequence(1, 4, 9)[0]
    h = torch.randn(4, 20)
    given = (h, torch.randn(4, 20)) if cls is nn.LSTMCell else h
    compiled = ccompiled(cell)
    with torch.no_grad():
        for _ in range(2):
            close(compiled(x, given), cell(x, given), copy.deepcopy(cell).double()(*wide((x, given))))


def test_autocast():
    m, x = module("gru", 8, 16), sequence(4, 3, 8)
    compiled = ccompiled(m)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            for got, eager in zip(compiled(x), m(x)):
                assert got.dtype == eager.dtype
                torch.testing.assert_close(got, eager)


def half_agree(m, *args, dtype):
    """Compiled is nearer to the layer in f32 than eager is, which rounds each step."""
    exact, half = copy.deepcopy(m), copy.deepcopy(m).to(dtype)
    small = [tuple(t.to(dtype) for t in a) if isinstance(a, tuple) else a.to(dtype) for a in args]
    for p, q in zip(exact.parameters(), half.parameters()):
        p.data.copy_(q.data)
    compiled = ccompiled(half)
    with torch.no_grad():
        for first in (True, False):  # eager makes the first call
            got, eager = flat(compiled(*small)), flat(half(*small))
            whole = flat(exact(*[tuple(t.float() for t in a) if isinstance(a, tuple) else a.float() for a in small]))
            for g, e, x in zip(got, eager, whole):
                assert g.dtype == e.dtype == dtype and g.shape == e.shape and g.stride() == e.stride()
                if not first and "rnn" in steps(compiled):
                    torch.testing.assert_close(g, x.to(dtype))
                torch.testing.assert_close(g, e, rtol=5e-2, atol=5e-2)
    return steps(compiled)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", CLASSES)
def test_halves(kind, case):
    steps_, batch, inputs, hidden, kw = CASES[case]
    m = module(kind, inputs, hidden, **kw)
    x = sequence(steps_, batch, inputs, kw.get("batch_first", False))
    assert half_agree(m, x, state(m, kind, batch), dtype=torch.float16) == ["rnn"]
    assert half_agree(m, x, dtype=torch.float16) == ["rnn"]
    half_agree(m, x, state(m, kind, batch), dtype=torch.bfloat16)


def test_halves_read_strided():
    m = module("gru", 6, 10, num_layers=2)
    x, h = sequence(5, 3, 12)[..., ::2], torch.randn(3, 2, 20).transpose(0, 1)[..., :10]
    assert half_agree(m, x, h, dtype=torch.float16) == ["rnn"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cls", [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *a, **kw: nn.RNNCell(*a, nonlinearity="relu", **kw)])
def test_loops_of_cells(cls, bias, dtype):
    torch.manual_seed(0)
    cell = cls(9, 20, bias=bias).to(dtype).eval()

    def loop(x):
        h, seen = None, []
        for t in range(3):
            h = cell(x[t], h)
            seen.append(h[0] if isinstance(h, tuple) else h)
        return torch.stack(seen), h

    compiled, x = ccompiled(loop), sequence(3, 4, 9).to(dtype)
    loose = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    with torch.no_grad():
        for _ in range(2):
            for got, eager in zip(flat(compiled(x)), flat(loop(x))):
                assert got.dtype == eager.dtype and got.stride() == eager.stride()
                torch.testing.assert_close(got, eager, **loose)
    plan = "".join(s["plan_text"] for entry in compiled_of(compiled).report()["entries"] for s in entry["segments"])
    assert "host" not in plan


@pytest.mark.skipif("CCOMPILE_CPU" in os.environ, reason="is such a run")
@pytest.mark.parametrize("cpu", ["avx2", "base"])
def test_other_vectors(cpu):
    chosen = ["-k", "test_cases or nan or saturated or threads or test_halves"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, *chosen]
    done = subprocess.run(command, env={**os.environ, "CCOMPILE_CPU": cpu}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]

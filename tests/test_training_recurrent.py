"""Recurrent layers under autograd (csrc/grad/recurrent.c, run/rnnpart.c, dev/recur.c): results and gradients are eager's."""

import contextlib
import copy
import itertools

import ccompile
import pytest
import torch
from conftest import EAGER, alike, replaying
from torch import nn

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **settings: nn.RNN(*sizes, nonlinearity="relu", **settings),
}
# batch, steps, inputs, hidden: odd sizes, single ones, several vectors and blocks
SIZES = [(3, 5, 4, 6), (7, 1, 1, 1), (1, 9, 3, 17), (5, 4, 20, 33), (8, 12, 16, 130), (12, 3, 70, 64)]
LAYOUTS = list(itertools.product((1, 2), (False, True), (False, True), (True, False)))  # layers, both ways, batch first, biases
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


def make(kind, inputs, hidden, layers=1, both=False, batch_first=False, bias=True, **settings):
    torch.manual_seed(5)
    return KINDS[kind](
        inputs, hidden, num_layers=layers, bidirectional=both, batch_first=batch_first, bias=bias, **settings
    )


def states_of(model, batch):
    parts = model.num_layers * (1 + model.bidirectional)
    states = tuple(
        torch.randn(parts, batch, model.hidden_size, requires_grad=True) for _ in range(1 + isinstance(model, nn.LSTM))
    )
    return states if len(states) > 1 else states[0]


def flat(results):
    y, last = results
    return [y, *(last if isinstance(last, tuple) else (last,))]


def weighted(tensors):
    """A sum in which each element counts differently."""
    return sum((t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum() for t in tensors)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients(kind, size):
    batch, steps, inputs, hidden = size
    for layout, given in itertools.product(LAYOUTS, (False, True)):
        eager = make(kind, inputs, hidden, *layout)
        compiled = ccompile.compile(copy.deepcopy(eager), options={"verify": False})
        shape = (batch, steps, inputs) if layout[2] else (steps, batch, inputs)
        for _ in range(2):
            x = torch.randn(shape, requires_grad=True)
            args = (states_of(eager, batch),) if given else ()
            leaves = [x, *(flat((x, args[0]))[1:] if given else [])]
            got = []
            for model in (eager, compiled):
                results = flat(model(x, *args))
                got.append((results, torch.autograd.grad(weighted(results), [*leaves, *model.parameters()])))
            alike(got[0], got[1], path=f"{layout}, states {given}", **TOLERANCE)
        ccompile.reset()


USED = {"y": [0], "h_n": [1], "last": [-1], "y and last": [0, -1], "a step": None}


@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("kind", KINDS)
def test_some_results_have_gradients(kind, used):
    eager = make(kind, 6, 20, layers=2, both=True)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for _ in range(2):
        x, states, got = torch.randn(7, 3, 6, requires_grad=True), states_of(eager, 3), []
        leaves = [x, *flat((x, states))[1:]]
        for model in (eager, compiled):
            results = flat(model(x, states))
            picked = [results[0][-1]] if USED[used] is None else [results[i] for i in USED[used]]
            grads = torch.autograd.grad(weighted(picked), [*leaves, *model.parameters()], allow_unused=True)
            got.append([torch.zeros(()) if g is None else g for g in grads])
        alike(got[0], got[1], path=used, **TOLERANCE)


FROZEN = {
    "nothing": "",
    "weights of x": "weight_ih",
    "weights of h": "weight_hh",
    "biases": "bias",
    "all weights": "weight",
    "first layer": "_l0",
    "all": "_l",
}


@pytest.mark.parametrize("x_grad", [False, True])
@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("kind", KINDS)
def test_some_operands_need_gradients(kind, frozen, x_grad):
    eager = make(kind, 6, 20, layers=2, batch_first=True)
    for name, p in eager.named_parameters():
        p.requires_grad_(FROZEN[frozen] == "" or FROZEN[frozen] not in name)
    compiled = ccompile.compile(copy.deepcopy(eager))
    if not x_grad and frozen == "all":
        return
    for _ in range(2):
        x, got = torch.randn(3, 7, 6, requires_grad=x_grad), []
        for model in (eager, compiled):
            results = flat(model(x))
            leaves = [p for p in [x, *model.parameters()] if p.requires_grad]
            got.append((results, torch.autograd.grad(weighted(results), leaves)))
        alike(got[0], got[1], path=frozen, **TOLERANCE)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_versions_of_results(kind, batch_first, batch):
    """torch transposes the result of a batch-first GRU or RNN in place, which counts as a write."""
    eager = make(kind, 6, 20, batch_first=batch_first)
    compiled = ccompile.compile(lambda x: eager(x * 2))
    x = torch.randn((batch, 5, 6) if batch_first else (5, batch, 6))
    want = [t._version for t in flat(eager(x * 2))]
    assert [[t._version for t in flat(compiled(x))] for _ in range(3)] == [want] * 3


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_versions_of_cells(cell):
    eager, x = cell(6, 5), torch.randn(3, 6)
    compiled = ccompile.compile(lambda x: eager(x * 2))
    versions = lambda states: [t._version for t in (states if isinstance(states, tuple) else (states,))]
    want = versions(eager(x * 2))
    assert [versions(compiled(x)) for _ in range(3)] == [want] * 3


LAYOUTS_OF_X = {
    "transposed": lambda: torch.randn(3, 7, 6).transpose(0, 1),
    "columns apart": lambda: torch.randn(7, 3, 12)[..., ::2],
    "columns first": lambda: torch.randn(6, 7, 3).permute(1, 2, 0),
    "expanded": lambda: torch.randn(7, 1, 6).expand(7, 3, 6),
    "without batch": lambda: torch.randn(7, 6),
}


@pytest.mark.parametrize("layout", LAYOUTS_OF_X)
@pytest.mark.parametrize("kind", KINDS)
def test_layouts_of_x(kind, layout):
    eager = make(kind, 6, 20)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for _ in range(2):
        x, got = LAYOUTS_OF_X[layout]().requires_grad_(), []
        for model in (eager, compiled):
            results = flat(model(x))
            grads = torch.autograd.grad(weighted(results), [x, *model.parameters()])
            got.append((results, [g.contiguous() for g in grads]))  # ours of x has its strides
        alike(got[0], got[1], path=layout, **TOLERANCE)


class Tagger(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.rnn = make(kind, 12, 24, batch_first=True, **settings)
        self.out = nn.Linear(24 * (1 + self.rnn.bidirectional), 5)

    def forward(self, tokens):
        y, _ = self.rnn(self.embed(tokens))
        return self.out(torch.relu(y)).mean(1)


def train(model, compiled, steps=6, seed=3, **settings):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(seed)
    losses = []
    for _ in range(steps):
        tokens, target = torch.randint(50, (4, 9)), torch.randint(5, (4,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(tokens), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("settings", [{}, {"layers": 2, "both": True}, {"layers": 3, "dropout": 0.3}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_trains(kind, settings):
    """With dropout as well: the generator gives eager's numbers."""
    model = Tagger(kind, **settings)
    other = copy.deepcopy(model)
    compiled = ccompile.compile(other)
    eager, got = train(model, model), train(other, compiled)
    assert got == pytest.approx(eager, rel=1e-3)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        alike(p, q, path="parameter", rtol=2e-2, atol=2e-3)  # Adam divides by small numbers
    if not EAGER:
        text = str(ccompile.explain(compiled, torch.randint(50, (4, 9))))
        assert "stage 0 backward" in text and "stage 1" not in text, text


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_need_no_recording(kind):
    model = Tagger(kind)
    compiled = ccompile.compile(copy.deepcopy(model), dynamic=True)
    sizes = [(4, 9), (3, 7), (6, 2), (1, 5), (5, 1), (8, 30)]
    for i, size in enumerate(sizes):
        tokens = torch.randint(50, size)
        with replaying() if 1 < i and 1 not in size else contextlib.nullcontext():
            got = compiled(tokens)
        want = model(tokens)
        alike(want, got, path=str(size), **TOLERANCE)
        grads = [torch.autograd.grad(weighted([y]), m.parameters()) for y, m in ((want, model), (got, compiled))]
        alike(*grads, path=str(size), **TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_training_mode_without_gradients(kind):
    """A model in training mode, under no_grad: kernels, not torch."""
    model = make(kind, 6, 20, layers=2).train()
    compiled = ccompile.compile(copy.deepcopy(model))
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(7, 3, 6)
            alike(flat(model(x)), flat(compiled(x)), path=kind)
        assert EAGER or "1 library call" in str(ccompile.explain(compiled, x))


@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last")
@pytest.mark.parametrize(
    "layout", [(3, False, False, True), (2, True, True, False), (2, False, True, True), (1, True, True, True)], ids=str
)
@pytest.mark.parametrize("draws", [(False, 0.5), (True, 0.0), (True, 0.5), (True, 1.0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_draws_what_eager_draws(kind, draws, layout):
    training, p = draws
    eager = make(kind, 6, 20, *layout, dropout=p).train(training)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for i in range(3):
        x, got = torch.randn(7, 3, 6, requires_grad=True), []
        for model in (eager, compiled):
            torch.manual_seed(i)
            results = flat(model(x))
            after = torch.rand(3)
            grads = torch.autograd.grad(weighted(results), [x, *model.parameters()])
            got.append((results, after, grads))
        alike(got[0], got[1], path=f"call {i}", **TOLERANCE)
    if not EAGER and p < 1:
        assert "stage 0 backward" in str(ccompile.explain(compiled, x))


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_is_freed_as_in_eager(kind):
    eager = make(kind, 6, 20)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for model in (eager, compiled, compiled):
        x = torch.randn(7, 3, 6, requires_grad=True)
        y, _ = model(x)
        y.sum().backward(retain_graph=True)
        first = x.grad.clone()
        y.sum().backward()
        alike(2 * first, x.grad, path="twice")
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.sum().backward()


@pytest.mark.parametrize("written", ["weight_ih_l0", "weight_hh_l0", "x", "h", "y"])
@pytest.mark.parametrize("kind", KINDS)
def test_writes_between_forward_and_backward(kind, written):
    """Where eager's backward raises, because what it saved was written to, ours does, but for oneDNN's result
    (docs/limits.md)."""
    eager = make(kind, 6, 20)
    compiled = ccompile.compile(copy.deepcopy(eager))

    def outcome(model, original):
        x, states = torch.randn(7, 3, 6, requires_grad=True) * 1, states_of(original, 3)
        y, _ = model(x, states)
        of = {"x": x, "h": flat((x, states))[1], "y": y}
        with torch.no_grad():
            (of[written] if written in of else getattr(original, written)).mul_(2)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return "modified" in str(error)
        return None

    want = outcome(eager, eager)
    for _ in range(2):
        assert outcome(compiled, compiled._orig_mod) == want or (kind, written) == ("lstm", "y")


@pytest.mark.parametrize("kind", ["gru", "tanh", "relu"])  # oneDNN's LSTM has no second derivative
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_second_derivatives(kind, p):
    eager = make(kind, 4, 5, layers=2, both=True, batch_first=True, dropout=p)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for _ in range(2):
        x, got = torch.randn(3, 2, 4, requires_grad=True), []
        for model in (eager, compiled):
            torch.manual_seed(3)
            y, _ = model(x)
            (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            got.append([g, *torch.autograd.grad(g.square().sum(), [x, *model.parameters()], allow_unused=True)[:3]])
        alike(got[0], got[1], path=kind, **TOLERANCE)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint(kind, reentrant):
    eager = make(kind, 6, 20)
    other = copy.deepcopy(eager)

    def around(model):
        return lambda x: torch.utils.checkpoint.checkpoint(lambda t: model(t)[0] * 2, x, use_reentrant=reentrant) + 1

    compiled = ccompile.compile(around(other))
    for _ in range(2):
        x = torch.randn(7, 3, 6)
        grads = []
        for f, model in ((around(eager), eager), (compiled, other)):
            model.zero_grad()
            leaf = x.clone().requires_grad_()
            weighted([f(leaf)]).backward()
            grads.append([leaf.grad, *(p.grad.clone() for p in model.parameters())])
        alike(*grads, path=kind, **TOLERANCE)


VALUES = [float("nan"), float("inf"), -float("inf"), 1e30, 0.0]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_special_values(kind, value):
    eager = make(kind, 6, 20)
    compiled = ccompile.compile(copy.deepcopy(eager), options={"verify": False})
    for _ in range(2):
        x, got = torch.randn(4, 3, 6), []
        x[1, 2] = value
        x.requires_grad_()
        for model in (eager, compiled):
            y, _ = model(x)
            got.append((y, torch.autograd.grad(weighted([y]), [x])[0]))
        others = torch.arange(3) != 2  # rows do not meet
        alike(got[0][0], got[1][0], path="y", **TOLERANCE)
        alike(got[0][1][:, others], got[1][1][:, others], path="gradient", **TOLERANCE)
        assert torch.equal(got[0][1].isfinite(), got[1][1].isfinite())


# ---- cells: one step at a time (csrc/grad/cell.c)
CELLS = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": lambda *sizes, **settings: nn.RNNCell(*sizes, nonlinearity="relu", **settings),
}


class Steps(nn.Module):
    """A loop over steps. picks: of the last states and the results of all steps, those that are returned."""

    def __init__(self, kind, inputs, hidden, bias=True):
        super().__init__()
        torch.manual_seed(5)
        self.cell = CELLS[kind](inputs, hidden, bias=bias)

    def forward(self, x, states, pick="all"):
        results = []
        for step in x:
            states = self.cell(step, states)
            results.append(states[0] if isinstance(states, tuple) else states)
        last = list(states) if isinstance(states, tuple) else [states]
        return {"all": [*results, *last], "last": last[:1], "cells": last[-1:], "stacked": [torch.stack(results)]}[pick]


def states_of_cell(kind, *shape, grad=True):
    states = tuple(torch.randn(shape, requires_grad=grad) for _ in range(1 + (kind == "lstm")))
    return states if len(states) > 1 else states[0]


@pytest.mark.parametrize("size", [(4, 8, 16), (1, 1, 1), (3, 5, 33), (16, 40, 64), (7, 3, 130)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind, bias, size):
    batch, inputs, hidden = size
    eager = Steps(kind, inputs, hidden, bias)
    for pick, grad in itertools.product(("all", "last", "cells", "stacked"), (False, True)):
        compiled = ccompile.compile(copy.deepcopy(eager))
        for _ in range(2):
            x, got = torch.randn(3, batch, inputs, requires_grad=grad), []
            states = states_of_cell(kind, batch, hidden, grad=grad)
            leaves = flat((x, states)) if grad else []
            for model in (eager, compiled):
                results = model(x, states, pick)
                got.append((results, torch.autograd.grad(weighted(results), [*leaves, *model.parameters()])))
            alike(got[0], got[1], path=f"{pick}, {grad}", **TOLERANCE)
        if not EAGER and pick == "all":
            lines = str(ccompile.explain(compiled, x, states)).splitlines()
            assert not [line for line in lines if "through torch" in line and "_cell" in line]
        ccompile.reset()


@pytest.mark.parametrize("frozen", ["weight_ih", "weight_hh", "bias", "weight"])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_of_frozen_parameters(kind, frozen):
    eager = Steps(kind, 6, 20)
    for name, p in eager.named_parameters():
        p.requires_grad_(frozen not in name)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for _ in range(2):
        x, states, got = torch.randn(3, 4, 6), states_of_cell(kind, 4, 20, grad=False), []
        for model in (eager, compiled):
            leaves = [p for p in model.parameters() if p.requires_grad]
            results = model(x, states)
            got.append((results, torch.autograd.grad(weighted(results), leaves)))
        alike(got[0], got[1], path=frozen, **TOLERANCE)


@pytest.mark.parametrize("kind", CELLS)
def test_second_derivatives_of_cells(kind):
    eager = Steps(kind, 4, 5)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for _ in range(2):
        x, states, got = torch.randn(3, 2, 4, requires_grad=True), states_of_cell(kind, 2, 5), []
        for model in (eager, compiled):
            (y,) = model(x, states, "last")
            (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            got.append([g, *torch.autograd.grad(g.square().sum(), [x, *model.parameters()][:3])])
        alike(got[0], got[1], path=kind, **TOLERANCE)


@pytest.mark.parametrize("states", ["none", "without batch"])
@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_alone(kind, states):
    eager = CELLS[kind](6, 20)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for _ in range(2):
        x, got = (
            torch.randn(6, requires_grad=True) if states == "without batch" else torch.randn(4, 6, requires_grad=True),
            [],
        )
        for model in (eager, compiled):
            y = model(x)
            y = list(y) if isinstance(y, tuple) else [y]
            got.append((y, torch.autograd.grad(weighted(y), [x, *model.parameters()])))
        alike(got[0], got[1], path=kind, **TOLERANCE)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind, p):
    """The casts are inside of the op, where its types do not show them: torch runs it, and results are eager's to the bit."""
    eager = make(kind, 6, 20, layers=2, dropout=p)
    compiled = ccompile.compile(copy.deepcopy(eager))
    for i in range(3):
        x, got = torch.randn(7, 3, 6, requires_grad=True), []
        for model in (eager, compiled):
            torch.manual_seed(i)
            with torch.autocast("cpu", torch.bfloat16):
                results = flat(model(x))
            grads = torch.autograd.grad(weighted([r.float() for r in results]), [x, *model.parameters()])
            got.append((results, grads))
        alike(got[0], got[1], path=f"call {i}", rtol=0, atol=0)

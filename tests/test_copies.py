"""csrc/eval/copies.c: parameters that change between runs have packed copies only where these pay. The test supplies the
clock: a run takes `packs`, `reuses` or `plain` ns."""

import ccompile
import pytest
import torch
from ccompile import _core
from conftest import EAGER, alike
from test_gemm import ways_of
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="plans")
DEAR = {"packs": 300, "reuses": 90, "plain": 100}  # copies pay from 20 reuses on
CHEAP = {"packs": 105, "reuses": 50, "plain": 100}  # ... always but if each run changes something
USELESS = {"packs": 110, "reuses": 100, "plain": 100}
RUNS = 200


@pytest.fixture
def clock():
    """Sets the time of each kind of run; returns the list of the kinds that were timed."""

    def set_times(times):
        told = []
        _core.set_lap_clock(lambda kind: told.append(kind) or times[kind])
        return told

    yield set_times
    _core.set_lap_clock(None)


def make(monkeypatch, mode="max-autotune", **settings):
    """A model of two layers whose products pack if they may."""
    monkeypatch.setenv("CCOMPILE_WAY", "own_packed")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 16)).eval()
    return model, ccompile.compile(model, mode=mode, **settings)


def scale(*parameters):
    with torch.no_grad():
        for p in parameters:
            p.mul_(-1)


def scale_data(*parameters):
    """torch does not count these writes."""
    for p in parameters:
        p.data.mul_(-1)


def run(model, compiled, runs):
    with torch.no_grad():
        for i in range(runs):
            x = torch.randn(8, 32)
            alike(model(x), compiled(x), path=f"run {i}")


def packed(compiled):
    """Of each product, whether its weights are packed."""
    return [way == "own_packed" for way in ways_of(compiled)]


def turns():
    return [e.text for e in ccompile.events() if e.kind == "choice" and "packed copies" in e.text]


@pytest.mark.parametrize("write", [scale, scale_data])
@pytest.mark.parametrize(
    "times, reuses, pays",
    [(DEAR, 0, False), (DEAR, 3, False), (DEAR, 63, True), (CHEAP, 0, False), (CHEAP, 1, True), (CHEAP, 5, True),
     (USELESS, 0, False), (USELESS, 9, False)],
)  # fmt: skip
def test_copies_stay_where_they_pay(times, reuses, pays, write, clock, monkeypatch):
    model, compiled = make(monkeypatch)
    clock(times)
    run(model, compiled, 3)
    assert packed(compiled) == [True, True]
    states = []
    for _ in range(RUNS // (reuses + 1) + 1):
        write(*model.parameters())
        run(model, compiled, reuses + 1)
        states.append(packed(compiled) == [True, True])
    late = states[len(states) // 2 :]
    # without a count of writes, changes seem to end, and copies are tried now and then
    assert sum(state == pays for state in late) >= len(late) * (1 if write is scale else 0.7), states
    assert len(turns()) <= (3 if write is scale else 12), turns()


def test_no_change_no_clock(clock, monkeypatch):
    model, compiled = make(monkeypatch)
    told = clock(USELESS)
    run(model, compiled, 600)
    assert packed(compiled) == [True, True] and turns() == []
    assert set(told) == {"reuses"} and len(told) <= 256


@pytest.mark.parametrize("steps", [40, 1000])
@pytest.mark.parametrize("write", [scale, scale_data])
def test_copies_come_back_after_training(write, steps, clock, monkeypatch):
    model, compiled = make(monkeypatch)
    clock(DEAR)
    for _ in range(steps):
        write(*model.parameters())
        run(model, compiled, 1)
    if write is scale:
        assert packed(compiled) == [False, False]
    run(model, compiled, max(200, 2 * steps))
    assert packed(compiled) == [True, True]
    write(*model.parameters())
    run(model, compiled, 2)


def test_only_what_changes_loses_its_copy(clock, monkeypatch):
    """A head that is trained on a backbone that is not, which then is, too."""
    model, compiled = make(monkeypatch)
    clock(DEAR)
    for _ in range(20):
        scale(*model[2].parameters())
        run(model, compiled, 1)
    assert packed(compiled) == [True, False]
    for _ in range(60):
        scale(*model.parameters())
        run(model, compiled, 1)
    assert packed(compiled) == [False, False]


def test_sizes_decide_for_themselves(clock, monkeypatch):
    monkeypatch.setenv("CCOMPILE_WAY", "own_packed")
    layer = nn.Linear(32, 16)
    compiled = ccompile.compile(layer, mode="max-autotune", dynamic=True)
    clock(DEAR)
    with torch.no_grad():
        for i in range(120):
            x = torch.randn(8 + i % 3, 32)
            alike(layer(x), compiled(x), path=f"run {i}")
            scale(layer.weight)
    assert not any(packed(compiled))
    assert sum("tries" in text for text in turns()) <= 3


def test_deterministic_mode_keeps_its_plan(clock, monkeypatch):
    """Else the same call would give other bits after some calls."""
    torch.use_deterministic_algorithms(True)
    try:
        model, compiled = make(monkeypatch)
        told = clock(DEAR)
        for _ in range(40):
            scale(*model.parameters())
            run(model, compiled, 1)
        assert packed(compiled) == [True, True] and told == []
    finally:
        torch.use_deterministic_algorithms(False)


def test_default_mode_packs_nothing(clock, monkeypatch):
    model, compiled = make(monkeypatch, mode="default")
    told = clock(DEAR)
    for _ in range(40):
        scale(*model.parameters())
        run(model, compiled, 1)
    assert packed(compiled) == [False, False] and told == []


@pytest.mark.parametrize("reset", [False, True])
def test_autocast_blocks(reset, clock, monkeypatch):
    """A parameter that is cast once per block is read again after the block, with or without a copy."""
    model, compiled = make(monkeypatch)
    clock(DEAR)
    for i in range(40):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):
                x = torch.randn(8, 32)
                alike(model(x), compiled(x), path=f"block {i}", rtol=2e-2, atol=2e-2)
        scale(*model.parameters())
        if reset and i == 20:
            ccompile.reset()
